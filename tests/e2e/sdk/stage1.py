"""Drives the twenty endpoints of stage 1 with the official Python client and says what it saw.

    ANTHROPIC_BASE_URL=http://127.0.0.1:8080 ANTHROPIC_API_KEY=... python stage1.py

The deployment has to play `scripted/echo` (so that what the model says is known), and to run tools.
The last line is `N passed, N failed`; the exit status is 0 only when nothing failed. The client's
version is whatever is installed: the same script runs with the 0.x, 1.x and 2.x lines.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
import traceback
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Callable, Iterator

import anthropic
BASE_URL = os.environ["ANTHROPIC_BASE_URL"].rstrip("/")
API_KEY = os.environ["ANTHROPIC_API_KEY"]
MODEL = os.environ.get("TAILSTEP_E2E_MODEL", "scripted/echo")
# Where the workspace is seen from inside; a function can only write beneath /tmp.
WORKSPACE = os.environ.get("TAILSTEP_E2E_WORKSPACE", "/workspace")
TURN_SECONDS = 60.0

client = anthropic.Anthropic(api_key=API_KEY, base_url=BASE_URL, max_retries=0)
beta = client.beta
checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    checks.append(function)
    return function


@contextmanager
def refused(error: type[anthropic.APIStatusError], status: int, *mentions: str) -> Iterator[None]:
    """The block must fail with that class, that status, the envelope, and a message with those words."""
    try:
        yield
    except error as raised:
        assert raised.status_code == status, raised
        body: Any = raised.body
        assert body["type"] == "error" and body["error"]["type"], body
        assert raised.response.headers.get("request-id"), "an error carries its request id"
        for word in mentions:
            assert word in body["error"]["message"], (word, body)
        return
    raise AssertionError(f"expected {error.__name__}, got an answer")


def plain(path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    """A request without the client, for what it hides."""
    url = urllib.parse.urlsplit(BASE_URL + path)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=10)
    connection.request("GET", f"{url.path}?{url.query}", headers=headers)
    return connection.getresponse()


def text(content: str) -> Any:
    return {"type": "user.message", "content": [{"type": "text", "text": content}]}


def said(event: Any) -> str:
    return "".join(block.text for block in event.content or [] if block.type == "text")


def new_agent(**more: Any) -> Any:
    fields: dict[str, Any] = {"name": "e2e", "model": MODEL, "tools": [{"type": "agent_toolset_20260401"}]}
    return beta.agents.create(**{**fields, **more})


def new_session(agent: Any = None, **more: Any) -> Any:
    agent = agent or new_agent()
    environment = beta.environments.create(name="e2e", config={"type": "cloud"})
    return beta.sessions.create(agent=agent.id, environment_id=environment.id, **more)


def turn(session: Any, *inputs: Any) -> list[Any]:
    """Opens the stream, sends, and gathers what comes until the session is idle again."""
    seen: list[Any] = []
    ends = time.monotonic() + TURN_SECONDS
    with beta.sessions.events.stream(session.id) as stream:
        sent = beta.sessions.events.send(session.id, events=list(inputs))
        assert [e.type for e in sent.data] == [i["type"] for i in inputs], sent
        for event in stream:
            seen.append(event)
            if event.type == "session.status_idle":
                return seen
            assert time.monotonic() < ends, [e.type for e in seen]
    raise AssertionError(f"the stream ended before the turn: {[e.type for e in seen]}")


def history(session: Any, **query: Any) -> list[Any]:
    return list(beta.sessions.events.list(session.id, **query))


# ------------------------------------------------------------------------------------------- agents
@check
def agent_fields_come_back_resolved() -> None:
    agent = new_agent(system="Be brief.", description="d", metadata={"k": "v"})
    assert agent.type == "agent" and agent.version == 1 and agent.archived_at is None
    assert agent.model.id == MODEL and agent.system == "Be brief." and agent.metadata == {"k": "v"}
    toolset = agent.tools[0]
    assert toolset.default_config.enabled is True
    assert toolset.default_config.permission_policy.type == "always_allow"
    assert beta.agents.retrieve(agent.id).to_dict() == agent.to_dict()


@check
def agent_versions_count_and_stay() -> None:
    agent = new_agent(description="one")
    second = beta.agents.update(agent.id, version=1, description="two")
    assert second.version == 2 and second.description == "two" and second.name == agent.name
    assert beta.agents.update(agent.id, version=2, description="two").version == 2, "no change, no version"
    assert beta.agents.retrieve(agent.id, version=1).description == "one"
    assert sorted(v.version for v in beta.agents.versions.list(agent.id)) == [1, 2]
    with refused(anthropic.ConflictError, 409):
        beta.agents.update(agent.id, version=1, description="late")


@check
def agents_are_listed_newest_first_in_pages() -> None:
    made = [new_agent(name=f"page-{n}").id for n in range(3)]
    page = beta.agents.list(limit=2)
    assert [a.id for a in page.data] == [made[2], made[1]] and page.next_page
    listed = [a.id for a in beta.agents.list(limit=2)]
    assert len(listed) == len(set(listed)) and set(made) <= set(listed)


@check
def archived_agents_leave_the_list() -> None:
    agent = new_agent()
    assert beta.agents.archive(agent.id).archived_at
    assert agent.id not in [a.id for a in beta.agents.list(limit=100)]
    assert agent.id in [a.id for a in beta.agents.list(limit=100, include_archived=True)]


@check
def what_an_agent_cannot_have_is_named() -> None:
    with refused(anthropic.BadRequestError, 400, "name"):
        beta.agents.create(name="", model=MODEL)
    with refused(anthropic.BadRequestError, 400, "tools"):
        new_agent(tools=[{"type": "mcp_toolset", "mcp_server_name": "x"}])
    with refused(anthropic.BadRequestError, 400, "model"):
        new_agent(model="nobody/knows")
    always_ask = {"type": "always_ask"}
    with refused(anthropic.BadRequestError, 400, "permission_policy"):
        new_agent(tools=[{"type": "agent_toolset_20260401", "default_config": {"permission_policy": always_ask}}])


# ------------------------------------------------------------------------------------- environments
@check
def environments_live_their_whole_life() -> None:
    made = beta.environments.create(name="one", description="d", metadata={"a": "1", "b": "2"})
    assert made.type == "environment" and made.config.type == "cloud" and made.archived_at is None
    changed = beta.environments.update(made.id, name="two", metadata={"a": ""})
    assert changed.name == "two" and changed.description == "d" and changed.metadata == {"b": "2"}
    assert beta.environments.retrieve(made.id).name == "two"
    assert made.id in [e.id for e in beta.environments.list(limit=100)]
    assert beta.environments.archive(made.id).archived_at
    assert made.id not in [e.id for e in beta.environments.list(limit=100)]
    gone = beta.environments.delete(made.id)
    assert gone.type == "environment_deleted" and gone.id == made.id
    with refused(anthropic.NotFoundError, 404):
        beta.environments.retrieve(made.id)


# ----------------------------------------------------------------------------------------- sessions
@check
def a_session_starts_idle_with_its_agent() -> None:
    session = new_session(title="t", metadata={"k": "v"})
    assert session.status == "idle" and session.title == "t" and session.metadata == {"k": "v"}
    assert session.agent.version == 1 and session.agent.model.id == MODEL
    assert session.resources == [] and history(session) == []


@check
def a_turn_is_streamed_and_then_listed() -> None:
    session = new_session()
    seen = turn(session, text("Reply with exactly this text: hello e2e"))
    types = [e.type for e in seen]
    assert types.index("session.status_running") < types.index("agent.message") < types.index("session.status_idle")
    assert types.count("span.model_request_start") == types.count("span.model_request_end") == 1
    assert [said(e) for e in seen if e.type == "agent.message"] == ["hello e2e"]
    assert seen[-1].stop_reason.type == "end_turn"
    listed = history(session)
    assert {e.id for e in seen} <= {e.id for e in listed}
    assert [e.id for e in listed] == list(dict.fromkeys(e.id for e in listed)), "no event is listed twice"
    assert all(e.processed_at for e in listed), "all of it was processed"
    # The 0.x line does not show this one in a stream.
    assert [e.type for e in listed][-2:] == ["session.usage", "session.status_idle"]
    assert beta.sessions.retrieve(session.id).usage.output_tokens


@check
def a_tool_runs_in_the_sandbox() -> None:
    session = new_session()
    seen = turn(session, text("Use the bash tool to run exactly: echo $((6 * 7)) > n; cat n; pwd"))
    use = next(e for e in seen if e.type == "agent.tool_use")
    result = next(e for e in seen if e.type == "agent.tool_result")
    assert use.name == "bash" and use.input["command"].startswith("echo"), use
    assert result.tool_use_id == use.id and not result.is_error, result
    answer, place = said(result).split()
    assert answer == "42" and place.startswith(WORKSPACE), said(result)


@check
def a_failing_command_is_a_result_and_not_the_end() -> None:
    seen = turn(new_session(), text("Use the bash tool to run exactly: echo oh no; exit 3"))
    result = next(e for e in seen if e.type == "agent.tool_result")
    assert result.is_error and "oh no" in said(result), result
    assert seen[-1].stop_reason.type == "end_turn"


@check
def the_sandbox_has_no_network_and_no_key() -> None:
    command = "env; timeout 2 bash -c 'exec 3<>/dev/tcp/127.0.0.1/1' 2>&1 || echo unreachable"
    seen = turn(new_session(), text(f"Use the bash tool to run exactly: {command}"))
    result = said(next(e for e in seen if e.type == "agent.tool_result"))
    assert "unreachable" in result and API_KEY not in result and "ANTHROPIC" not in result, result


@check
def the_workspace_lasts_from_turn_to_turn() -> None:
    session = new_session()
    turn(session, text("Use the bash tool to run exactly: echo kept > note"))
    seen = turn(session, text("Use the bash tool to run exactly: cat note"))
    assert said(next(e for e in seen if e.type == "agent.tool_result")).strip() == "kept"


@check
def messages_sent_together_are_one_turn() -> None:
    session = new_session()
    turn(session, text("first"), text("Reply with exactly this text: second"))
    listed = history(session, types=["user.message", "agent.message"])
    assert [e.type for e in listed] == ["user.message", "user.message", "agent.message"]
    assert said(listed[-1]) == "second"


@check
def an_interrupt_stops_a_running_tool() -> None:
    session = new_session()
    with beta.sessions.events.stream(session.id) as stream:
        beta.sessions.events.send(session.id, events=[text("Use the bash tool to run exactly: sleep 50")])
        began = time.monotonic()
        for event in stream:
            if event.type == "agent.tool_use":
                beta.sessions.events.send(session.id, events=[{"type": "user.interrupt"}])
            if event.type == "session.status_idle":
                break
    assert time.monotonic() - began < 20, "the interrupt waited for the tool"
    assert event.stop_reason.type == "end_turn"
    seen = turn(session, text("Reply with exactly this text: still here"))
    assert "still here" in [said(e) for e in seen if e.type == "agent.message"]


@check
def history_pages_filters_and_turns_round() -> None:
    session = new_session()
    turn(session, text("Reply with exactly this text: one"))
    ids = [e.id for e in history(session)]
    assert [e.id for e in history(session, limit=2)] == ids and len(ids) >= 5
    assert [e.id for e in history(session, order="desc")] == ids[::-1]
    only = history(session, types=["user.message", "session.status_idle"])
    assert [e.type for e in only] == ["user.message", "session.status_idle"]
    with refused(anthropic.BadRequestError, 400, "page"):
        beta.sessions.events.list(session.id, page="nonsense")


@check
def sessions_are_found_by_agent_and_status() -> None:
    agent = new_agent()
    sessions = [new_session(agent) for _ in range(3)]
    found = [s.id for s in beta.sessions.list(agent_id=agent.id, limit=2)]
    assert found == [s.id for s in sessions[::-1]], "newest first, over pages"
    beta.sessions.archive(sessions[0].id)
    idle = [s.id for s in beta.sessions.list(agent_id=agent.id, statuses=["idle"])]
    assert idle == [sessions[2].id, sessions[1].id]


@check
def an_archived_session_is_read_only() -> None:
    session = new_session()
    turn(session, text("Reply with exactly this text: bye"))
    archived = beta.sessions.archive(session.id)
    assert archived.status == "terminated" and archived.archived_at
    with refused(anthropic.APIStatusError, 400):
        beta.sessions.events.send(session.id, events=[text("hello?")])
    assert history(session)[-1].type == "session.status_terminated"


@check
def a_deleted_session_is_gone_and_its_stream_ends() -> None:
    session = new_session()
    with beta.sessions.events.stream(session.id) as stream:
        gone = beta.sessions.delete(session.id)
        assert gone.type == "session_deleted" and gone.id == session.id
        assert [e.type for e in stream][-1] in ("session.deleted", "session.status_terminated")
    with refused(anthropic.NotFoundError, 404):
        beta.sessions.retrieve(session.id)


@check
def a_running_session_is_not_archived() -> None:
    session = new_session()
    beta.sessions.events.send(session.id, events=[text("Use the bash tool to run exactly: sleep 20")])
    with refused(anthropic.ConflictError, 409):
        beta.sessions.archive(session.id)
    with beta.sessions.events.stream(session.id) as stream:
        beta.sessions.events.send(session.id, events=[{"type": "user.interrupt"}])
        next(e for e in stream if e.type == "session.status_idle")
    assert beta.sessions.archive(session.id).status == "terminated"


# ------------------------------------------------------------------------------------------- errors
@check
def unknown_things_are_404() -> None:
    with refused(anthropic.NotFoundError, 404):
        beta.sessions.retrieve("sesn_nothing")
    with refused(anthropic.NotFoundError, 404):
        beta.agents.retrieve("agent_nothing")
    answer = plain("/v1/nothing", {"x-api-key": API_KEY})
    assert answer.status == 404 and json.load(answer)["type"] == "error"


@check
def a_wrong_key_is_401() -> None:
    stranger = anthropic.Anthropic(api_key="wrong", base_url=BASE_URL, max_retries=0)
    with refused(anthropic.AuthenticationError, 401):
        stranger.beta.agents.list()
    assert plain("/v1/agents", {}).status == 401


@check
def both_header_styles_are_accepted() -> None:
    for headers in ({"x-api-key": API_KEY}, {"Authorization": f"Bearer {API_KEY}"}):
        assert plain("/v1/agents?beta=true", headers).status == 200


@check
def bad_events_are_refused_as_a_whole() -> None:
    session = new_session()
    with refused(anthropic.BadRequestError, 400, "events[1].type"):
        beta.sessions.events.send(session.id, events=[text("fine"), {"type": "user.nonsense"}])
    with refused(anthropic.BadRequestError, 400, "events[0].type"):
        beta.sessions.events.send(
            session.id, events=[{"type": "user.tool_confirmation", "tool_use_id": "sevt_x", "result": "allow"}]
        )
    assert history(session) == []


@check
def a_body_over_the_limit_is_413() -> None:
    session = new_session()
    with refused(anthropic.APIStatusError, 413):
        beta.sessions.events.send(session.id, events=[text("x" * 5_000_000)])


# ---------------------------------------------------------------------------------- sends and streams
@check
def the_same_send_again_is_stored_once() -> None:
    session = new_session()
    headers = {"Idempotency-Key": f"e2e-{session.id}"}
    first, again = (
        beta.sessions.events.send(session.id, events=[text("once")], extra_headers=headers) for _ in range(2)
    )
    assert [e.id for e in first.data] == [e.id for e in again.data]
    assert len(history(session, types=["user.message"])) == 1


def frames(session: Any, headers: dict[str, str], last: str) -> Iterator[dict[str, str]]:
    """The frames of a stream with an id, up to the first of type `last`."""
    answer = plain(f"/v1/sessions/{session.id}/events/stream", {"x-api-key": API_KEY, **headers})
    assert (answer.headers["content-type"] or "").startswith("text/event-stream"), answer.read()
    yield {}  # from here on nothing is missed
    fields: dict[str, str] = {}
    while fields.get("event") != last:
        fields = {}
        while line := answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        if "id" in fields:
            yield fields
    answer.close()


@check
def a_stream_continues_behind_the_last_event() -> None:
    session = new_session()
    stream = frames(session, {}, "session.status_idle")
    next(stream)
    command = "Use the bash tool to run exactly: echo one"
    beta.sessions.events.send(session.id, events=[text(command)])
    whole = list(stream)
    assert len(whole) >= 8
    for frame in whole:
        event = json.loads(frame["data"])
        assert frame["event"] == event["type"], frame
    for place, frame in enumerate(whole[:-1]):
        rest = list(frames(session, {"Last-Event-ID": frame["id"]}, "session.status_idle"))[1:]
        assert rest == whole[place + 1 :], (frame, rest)


@check
def many_sessions_run_side_by_side() -> None:
    agent = new_agent()
    sessions = [new_session(agent) for _ in range(8)]

    def one(pair: tuple[int, Any]) -> str:
        number, session = pair
        seen = turn(session, text(f"Reply with exactly this text: number {number}"))
        return said(next(e for e in seen if e.type == "agent.message"))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, enumerate(sessions))) == [f"number {n}" for n in range(8)]


@check
def forty_steps_are_taken_in_order() -> None:
    session = new_session()
    seen = turn(session, text("Take 19 steps with the bash tool: echo x >> count; wc -l < count"))
    results = [said(e).strip() for e in seen if e.type == "agent.tool_result"]
    assert results == [str(n) for n in range(1, 20)], results
    assert len([e for e in seen if e.type == "span.model_request_end"]) == 20


def main() -> int:
    print(f"anthropic {anthropic.__version__} -> {BASE_URL}", flush=True)
    only = sys.argv[1:]
    failed = 0
    run = [c for c in checks if not only or c.__name__ in only]
    for function in run:
        try:
            function()
            print(f"  ok    {function.__name__}", flush=True)
        except Exception:
            failed += 1
            print(f"  FAIL  {function.__name__}\n{traceback.format_exc(limit=-4)}", flush=True)
    print(f"{len(run) - failed} passed, {failed} failed")
    return 1 if failed or not run else 0


if __name__ == "__main__":
    sys.exit(main())
