"""The official Python worker as the hands of our session: calls in one turn and the next, an error,
a file that stays, and nothing left in the queue.

    ANTHROPIC_BASE_URL=… ANTHROPIC_API_KEY=… ANTHROPIC_ENVIRONMENT_KEY=… python worker.py
"""

import asyncio
import os
import tempfile
import time

import anthropic
from anthropic import AsyncAnthropic

MODEL = os.environ.get("TAILSTEP_E2E_MODEL", "scripted/echo")
TURN_S = 30


def said(text):
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


def text_of(event):
    return "".join(block.text for block in event.content or [] if block.type == "text")


async def settled(client, session, turns):
    """The events, once that many turns have ended."""
    until = time.monotonic() + TURN_S
    while True:
        events = [event async for event in client.beta.sessions.events.list(session)]
        ended = [e for e in events if e.type == "session.status_idle" and e.stop_reason.type == "end_turn"]
        if len(ended) == turns:
            return events
        assert time.monotonic() < until, [event.type for event in events]
        await asyncio.sleep(0.1)


async def main():
    base_url, key = os.environ["ANTHROPIC_BASE_URL"], os.environ["ANTHROPIC_API_KEY"]
    environment_key = os.environ["ANTHROPIC_ENVIRONMENT_KEY"]
    client = AsyncAnthropic(base_url=base_url, api_key=key)
    beta = client.beta
    environment = await beta.environments.create(name="e2e-worker", config={"type": "self_hosted"})
    assert environment.config.type == "self_hosted", environment
    text = b"---\nname: make-it\ndescription: Makes it.\n---\n# How to make it\n"
    skill = await beta.skills.create(files=[("it/SKILL.md", text, "text/markdown")])
    agent = await beta.agents.create(
        name="e2e-worker",
        model=MODEL,
        tools=[{"type": "agent_toolset_20260401"}],
        skills=[{"type": "custom", "skill_id": skill.id}],
    )
    session = await beta.sessions.create(agent=agent.id, environment_id=environment.id)
    # The tenant's own key does not poll.
    try:
        await beta.environments.work.poll(environment.id, block_ms=1)
        raise AssertionError("an API key polls")
    except anthropic.PermissionDeniedError:
        pass
    await beta.sessions.events.send(
        session.id, events=[said("Take 3 steps with the bash tool: echo x >> steps; cat steps")]
    )
    with tempfile.TemporaryDirectory() as workdir:
        worker = beta.environments.work.worker(
            environment_id=environment.id, environment_key=environment_key, workdir=workdir, max_idle=2.0
        )
        serving = asyncio.create_task(worker.run())
        events = await settled(client, session.id, 1)
        results = [text_of(e).split() for e in events if e.type == "user.tool_result"]
        assert results == [["x"], ["x", "x"], ["x", "x", "x"]], results
        calls = [e.id for e in events if e.type == "agent.tool_use"]
        assert [e.tool_use_id for e in events if e.type == "user.tool_result"] == calls
        await beta.sessions.events.send(session.id, events=[said("Use the bash tool to run exactly: cat nowhere")])
        events = await settled(client, session.id, 2)
        last = [e for e in events if e.type == "user.tool_result"][-1]
        assert last.is_error, last
        # Where the model is told to look.
        await beta.sessions.events.send(
            session.id, events=[said("Use the bash tool to run exactly: cat skills/make-it/SKILL.md")]
        )
        events = await settled(client, session.id, 3)
        last = [e for e in events if e.type == "user.tool_result"][-1]
        # Workers before 1.0 fetch versions whose ids are numbers, and leave the others out.
        assert "# How to make it" in text_of(last) or anthropic.__version__ < "1", last
        stats = await beta.environments.work.stats(environment.id)
        assert stats.workers_polling >= 1, stats
        until = time.monotonic() + TURN_S
        while True:
            stats = await beta.environments.work.stats(environment.id)
            listed = beta.environments.work.list(
                environment.id, extra_headers={"authorization": f"Bearer {environment_key}", "x-api-key": ""}
            )
            states = {item.state async for item in listed}
            if states == {"stopped"}:
                break
            assert time.monotonic() < until, states
            await asyncio.sleep(0.1)
        assert (stats.depth, stats.pending) == (0, 0), stats
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    await client.close()
    print(f"anthropic {anthropic.__version__} worker: 5 calls over 3 turns, and a skill")
    print("1 passed, 0 failed")


asyncio.run(main())
