"""Drives files and skills with the official Python client: uploads, what a session put out, skills.

    ANTHROPIC_BASE_URL=http://127.0.0.1:8080 ANTHROPIC_API_KEY=... python files.py

The deployment has to play `scripted/echo` and to run tools. The last line is `N passed, N failed`.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import time
import traceback
import zipfile
from typing import Any, Callable

import anthropic

MODEL = os.environ.get("TAILSTEP_E2E_MODEL", "scripted/echo")
TURN_SECONDS = 60.0
ALL_BYTES = bytes(range(256))

client = anthropic.Anthropic(
    api_key=os.environ["ANTHROPIC_API_KEY"],
    base_url=os.environ["ANTHROPIC_BASE_URL"].rstrip("/"),
    max_retries=0,
)
beta = client.beta


def ran(command: str, agent: str | None = None) -> str:
    """A new session that has run one command; its id."""
    toolset: Any = {"type": "agent_toolset_20260401"}
    if agent is None:
        agent = beta.agents.create(name="files", model=MODEL, tools=[toolset]).id
    environment = beta.environments.create(name="files")
    session = beta.sessions.create(agent=agent, environment_id=environment.id)
    text = f"Use the bash tool to run exactly: {command}"
    message: Any = {"type": "user.message", "content": [{"type": "text", "text": text}]}
    beta.sessions.events.send(session.id, events=[message])
    until = time.monotonic() + TURN_SECONDS
    while beta.sessions.retrieve(session.id).status != "idle":
        assert time.monotonic() < until, "the session does not come to rest"
        time.sleep(0.02)
    return session.id


def uploads_round_trip() -> None:
    made = beta.files.upload(file=("all bytes.bin", ALL_BYTES, "application/octet-stream"))
    assert made.filename == "all bytes.bin" and made.size_bytes == 256, made
    assert beta.files.retrieve_metadata(made.id).id == made.id
    assert beta.files.download(made.id).read() == ALL_BYTES
    assert made.id in [file.id for file in beta.files.list(limit=1)], "it pages to every file"
    assert beta.files.delete(made.id).id == made.id
    try:
        beta.files.retrieve_metadata(made.id)
    except anthropic.NotFoundError:
        return
    raise AssertionError("a deleted file is still there")


def outputs_are_listed_and_downloaded() -> None:
    where = "/mnt/session/outputs"
    session = ran(f"printf 'a,b' > {where}/table.csv; mkdir {where}/sub; : > {where}/sub/empty")
    # Older lines of the client do not know the parameter, but pass it on.
    listed = list(beta.files.list(extra_query={"scope_id": session}))
    by_name = {file.filename: file for file in listed}
    assert set(by_name) == {"table.csv", "empty"}, listed
    table = by_name["table.csv"]
    assert table.mime_type == "text/csv" and table.downloadable, table
    content = beta.files.download(table.id)
    assert content.read() == b"a,b"
    digest = hashlib.sha256(b"a,b").hexdigest()
    assert table.to_dict()["x_sha256"] == digest
    assert beta.files.download(by_name["empty"].id).read() == b""
    beta.files.delete(table.id)
    left = list(beta.files.list(extra_query={"scope_id": session}))
    assert [file.filename for file in left] == ["empty"], left


def skills_are_made_fetched_and_used() -> None:
    text = b"---\nname: make-it\ndescription: Makes it.\n---\n# How to make it\n"
    script = b"#!/bin/sh\necho made\n"
    skill = beta.skills.create(
        files=[("it/SKILL.md", text, "text/markdown"), ("it/bin/make", script, "text/plain")]
    )
    version = beta.skills.versions.retrieve("latest", skill_id=skill.id)
    assert version.name == "make-it" and version.description == "Makes it.", version
    assert skill.id in [found.id for found in beta.skills.list(limit=1)]
    archive = beta.skills.versions.download("latest", skill_id=skill.id).read()
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        assert opened.read("it/SKILL.md") == text, opened.namelist()
    agent = beta.agents.create(
        name="skilled",
        model=MODEL,
        tools=[{"type": "agent_toolset_20260401"}],
        skills=[{"type": "custom", "skill_id": skill.id}],
    )
    assert agent.skills[0].skill_id == skill.id, agent.skills
    session = ran("cat /skills/make-it/SKILL.md; /skills/make-it/bin/make", agent.id)
    events = list(beta.sessions.events.list(session))
    result = next(event for event in events if event.type == "agent.tool_result")
    assert "# How to make it\nmade" in result.content[0].text, result
    beta.skills.delete(skill.id)


def main() -> int:
    checks: list[Callable[[], None]] = [
        uploads_round_trip,
        outputs_are_listed_and_downloaded,
        skills_are_made_fetched_and_used,
    ]
    failed = 0
    for check in checks:
        try:
            check()
        except Exception:
            failed += 1
            print(f"FAIL {check.__name__}")
            traceback.print_exc()
    print(f"files, anthropic {anthropic.__version__}: {len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
