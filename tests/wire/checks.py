"""What the deployed stack must do, checked from outside: through the public API, and then by looking
into the table, the queues and the functions' logs."""

import http.server
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from stack import API_KEY, FUNCTIONS
from venvs import ROOT

# A worker's death costs at most this much (design guarantee 6).
RECOVERY_S_MAX = 45
# What may be found nowhere but in the secret and at the provider.
CANARY = "canary-of-the-wire-tests"
# The official client to test with; `make conformance` goes through its older lines.
CLIENT = "2.14.0"


class Bed:
    """The stack under test and its public face."""

    def __init__(self, stack, url, provider):
        self.stack = stack
        self.url = url
        self.provider = provider

    def call(self, method, path, body=None):
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def start(self, model, text):
        """A session with one message sent; answers its id."""
        agent = self.call("POST", "/v1/agents", {
            "name": "wire", "model": model, "tools": [{"type": "agent_toolset_20260401"}],
        })
        environment = self.call("POST", "/v1/environments", {
            "name": f"wire-{time.time_ns()}", "config": {"type": "cloud"},
        })
        session = self.call("POST", "/v1/sessions", {
            "agent": agent["id"], "environment_id": environment["id"],
        })
        self.say(session["id"], text)
        return session["id"]

    def say(self, session, text):
        message = {"type": "user.message", "content": [{"type": "text", "text": text}]}
        self.call("POST", f"/v1/sessions/{session}/events", {"events": [message]})

    def wait_until_idle(self, session, seconds, turns=1):
        """How long it took until so many turns were over."""
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            kinds = [event["type"] for event in self.events(session)]
            if kinds.count("session.status_idle") >= turns:
                return time.monotonic() - started
            if "session.status_terminated" in kinds:
                raise RuntimeError(f"session {session} was terminated")
            time.sleep(0.25)
        raise RuntimeError(f"session {session} is not idle after {seconds} s: {kinds[-5:]}")

    def events(self, session):
        """All events of a session, oldest first."""
        found, page = [], ""
        while True:
            answer = self.call("GET", f"/v1/sessions/{session}/events?limit=100&order=asc{page}")
            found += answer["data"]
            if not answer.get("next_page"):
                return found
            page = f"&page={answer['next_page']}"


class Provider:
    """A model provider that refuses every call, and repeats the credential in doing so. A context."""

    def __init__(self):
        self.credentials = credentials = []

        class Refusal(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802 - the name that the library asks for
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                credentials.append(self.headers["Authorization"])
                body = json.dumps({"error": {"message": f"bad key: {credentials[-1]}"}}).encode()
                self.send_response(401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusal)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_reason):
        self.server.shutdown()


def run(bed, results):
    results.run("a bad key is refused", bad_key, bed)
    results.run("roles are enforced", roles, bed)
    results.run("a session of 40 steps", forty_steps, bed)
    results.run("a large workspace", large_workspace, bed)
    results.run("the secret shows nowhere", canaries, bed)
    results.run("a killed step worker", killed_worker, bed)
    results.run("stage 1 with the official client", run_client, bed, ROOT / "tests/e2e/sdk/stage1.py")
    conformance = os.environ.get("TAILSTEP_CONFORMANCE")
    if conformance:
        results.run("conformance script, stage 1", run_client, bed, conformance, "--stage", "1")
    else:
        results.skip("conformance script, stage 1", "TAILSTEP_CONFORMANCE names none")
    results.run("conformance of the ports, and the AWS half's tests", adapter_ports, bed)
    results.run("no dead letters", no_dead_letters, bed)


def bad_key(bed):
    request = urllib.request.Request(f"{bed.url}/v1/agents", headers={"x-api-key": "wrong"})
    try:
        urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        assert error.code == 401, error.code
        assert json.loads(error.read())["type"] == "error"
    else:
        raise AssertionError("a wrong key was accepted")


def roles(bed):
    """That the rest runs at all shows that the roles suffice; this, that they are looked at."""
    table = bed.stack.outputs["LogTableName"]
    key = {"pk": {"S": "default#nobody"}, "sk": {"S": "HEAD"}}

    def get(client):
        client.get_item(TableName=table, Key=key)

    def delete(client):
        client.delete_item(TableName=table, Key=key)

    def write(client):
        client.put_item(TableName=table, Item=key)

    for function, call, allowed in [
        ("StepFunctionName", get, True),
        ("StepFunctionName", delete, False),
        ("SweepFunctionName", get, True),
        ("SandboxFunctionName", get, False),
        ("SandboxFunctionName", write, False),
    ]:
        try:
            call(bed.stack.aws_as("dynamodb", function))
        except Exception as error:  # noqa: BLE001 - boto3 makes its classes at run time
            assert "AccessDenied" in str(error) and not allowed, f"{function} {call.__name__}: {error}"
        else:
            assert allowed, f"{function} may {call.__name__}"


def forty_steps(bed):
    session = bed.start("scripted/forty-steps", "go")
    took = bed.wait_until_idle(session, 300)
    events = bed.events(session)
    said = [e["content"][0]["text"] for e in events if e["type"] == "agent.message"]
    assert said[-1:] == ["forty steps done"], said
    assert sum(e["type"] == "agent.tool_result" for e in events) == 20
    # Every effect in an invocation of its own: the lines that steps print name their request.
    steps = [
        line for line in settled(lambda: step_lines(bed, session), lambda lines: len(lines) >= 40)
        if line["action"] in ("Model", "Tool")
    ]
    requests = {line["request"] for line in steps}
    assert len(steps) == len(requests) == 40, f"{len(steps)} effects in {len(requests)} invocations"
    assert [line["attempt"] for line in steps] == [1] * 40
    head, records = bed.stack.session_items(session)
    assert head["status"]["S"] == "idle" and "due_ms" not in head, head
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert int(head["last_seq"]["N"]) == len(records)
    kinds = [kind for kind, _ in stored_events(records)]
    for kind, count in {"model_started": 20, "model_answered": 20, "tool_started": 20,
                        "tool_finished": 20, "turn_ended": 1}.items():
        assert kinds.count(kind) == count, f"{kind}: {kinds.count(kind)}"
    queue = settled(lambda: bed.stack.queue_depth("WakeQueueUrl"), lambda depth: not any(depth.values()))
    assert not any(queue.values()), f"the queue holds {queue}"
    return f"40 effects in 40 invocations, {len(records)} records, {took:.1f} s"


def large_workspace(bed):
    """One that no message can carry goes through the bucket, and outlives the environment it was made in."""
    run = "Use the bash tool to run exactly: "
    session = bed.start("scripted/echo", f"{run}head -c 12000000 /dev/urandom > big; sha256sum big")
    bed.wait_until_idle(session, 120)
    workers = bed.stack.emulator.sandbox_processes()
    assert workers, "no sandbox function is running"
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    bed.say(session, f"{run}sha256sum big")
    took = bed.wait_until_idle(session, 120, turns=2)
    results = [e["content"][0]["text"] for e in bed.events(session) if e["type"] == "agent.tool_result"]
    sums = [re.findall(r"^[0-9a-f]{64}  big$", text, re.M) for text in results]
    assert len(sums) == 2 and len(sums[0]) == 1 and sums[0] == sums[1], results
    assert "new sandbox" in results[1], results[1]
    bucket = bed.stack.outputs["BlobsBucketName"]
    objects = bed.stack.aws("s3").list_objects_v2(Bucket=bucket)["Contents"]
    sizes = {thing["Key"]: thing["Size"] for thing in objects}
    assert max(sizes.values()) > 12_000_000, sizes
    assert not [key for key in sizes if not key.startswith("blobs/")], sizes
    return f"12 MB made and found again in another environment, {took:.1f} s"


def killed_worker(bed):
    undisturbed = bed.start("scripted/slow-answer", "go")
    bed.wait_until_idle(undisturbed, 120)
    session = bed.start("scripted/slow-answer", "go")
    # The second answer takes four seconds: its intent is the last record meanwhile.
    settled(lambda: open_model_calls(bed, session), lambda started: started == 2, seconds=60)
    time.sleep(1)
    workers = bed.stack.emulator.function_processes(bed.stack.outputs["StepFunctionName"])
    assert workers, "no step worker is running"
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    took = bed.wait_until_idle(session, RECOVERY_S_MAX + 30)
    assert took <= RECOVERY_S_MAX, f"took {took:.1f} s"
    want, got = transcript(bed, undisturbed), transcript(bed, session)
    assert want == got, f"{want}\n{got}"
    _, records = bed.stack.session_items(session)
    attempts = [body["attempt"] for kind, body in stored_events(records) if kind == "model_started"]
    assert attempts == [1, 1, 2, 1], attempts
    return f"finished {took:.1f} s after the kill, one step done again"


def canaries(bed):
    """Model keys in Secrets Manager, a session that looks for them, and a provider that says them."""
    keys = {name: f"{CANARY}-{name}" for name in ("anthropic_api_key", "openai_api_key", "other")}
    bed.stack.aws("secretsmanager").put_secret_value(
        SecretId=bed.stack.outputs["ModelKeysArn"], SecretString=json.dumps(keys))
    # What is searched for must not be what is found.
    looking = f"env; set; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; grep -r c[a]{CANARY[2:]} /tmp /workspace /var/task; true"
    searching = bed.start("scripted/echo", f"Use the bash tool to run exactly: {looking}")
    refused = bed.start("openai/echo-my-key", "hello")
    seen = b""
    for session in (searching, refused):
        bed.wait_until_idle(session, 120)
        events = bed.events(session)
        seen += json.dumps(events).encode()
        kind = "agent.tool_result" if session == searching else "session.error"
        assert kind in [event["type"] for event in events], f"no {kind} in {events}"
    sent = f"Bearer {keys['openai_api_key']}"
    assert sent in bed.provider.credentials, f"the provider was sent {bed.provider.credentials}"
    places = [("the events", seen), *bed.stack.stored()]
    for function in ("ApiFunctionName", "StepFunctionName", "SandboxFunctionName", "SweepFunctionName"):
        places.append((f"the log of {function}", bed.stack.log_text(function).encode()))
    assert sum(len(content) for place, content in places if "log" in place), "no log was read"
    for place, content in places:
        assert CANARY.encode() not in content, f"a secret shows in {place}"
    return f"{len(places)} places searched"


def stored_events(records):
    """(kind, fields) of each event in the table, in order."""
    return [next(iter(event.items())) for record in records for event in record["events"]]


def open_model_calls(bed, session):
    _, records = bed.stack.session_items(session)
    kinds = [kind for kind, _ in stored_events(records)]
    return kinds.count("model_started") if kinds and kinds[-1] == "model_started" else 0


def transcript(bed, session):
    """What was said and done, without ids and times."""
    kept = ("user.message", "agent.message", "agent.tool_use", "agent.tool_result")
    return [
        (event["type"], json.dumps(event.get("content")), json.dumps(event.get("input")))
        for event in bed.events(session) if event["type"] in kept
    ]


def step_lines(bed, session):
    lines = bed.stack.log_lines("StepFunctionName")
    return [line for line in lines if line.get("message") == "step" and line["session"].endswith(session)]


def run_client(bed, script, *arguments):
    """A script that drives the API with the official Python client."""
    python = ROOT / f".venv/anthropic-{CLIENT}/bin/python"
    if not python.exists():
        raise RuntimeError(f"anthropic {CLIENT} is not installed; run make setup")
    log = ROOT / f"target/wire/{Path(script).stem}.log"
    environment = os.environ | {"ANTHROPIC_BASE_URL": bed.url, "ANTHROPIC_API_KEY": API_KEY,
                                "TAILSTEP_E2E_WORKSPACE": "/tmp/workspace-"}
    with log.open("w") as output:
        done = subprocess.run([str(python), str(script), *arguments], env=environment,
                              stdout=output, stderr=subprocess.STDOUT, timeout=900)
    closing = log.read_text().strip().splitlines()[-1:]
    if done.returncode != 0:
        raise AssertionError(f"ended with {done.returncode}: {closing}; see {log.relative_to(ROOT)}")
    return closing[0] if closing else None


def adapter_ports(bed):
    """The adapter's and the functions' own tests, and with them the conformance suite of every port over
    these services, whose names they get in variables."""
    step = bed.stack.function_environment("StepFunctionName")
    environment = os.environ | bed.stack.emulator.environment() | {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
    } | {name: value for name, value in step.items() if name.startswith("TAILSTEP_")}
    packages = [argument for name in FUNCTIONS for argument in ("-p", f"tailstep-fn-{name}")]
    done = subprocess.run(
        ["cargo", "test", "-p", "tailstep-aws", *packages, "--", "--include-ignored"],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    (ROOT / "target/wire/ports.log").write_text(done.stdout)
    counts = [re.findall(r"\d+", line) for line in done.stdout.splitlines() if line.startswith("test result: ok")]
    passed = sum(int(count[0]) for count in counts)
    if done.returncode != 0 or not passed:
        raise AssertionError("see target/wire/ports.log\n" + "\n".join(done.stdout.splitlines()[-30:]))
    return f"{passed} tests passed"


def no_dead_letters(bed):
    depth = bed.stack.queue_depth("WakeDeadLettersUrl")
    assert not any(depth.values()), depth


def settled(look, good, seconds=20):
    """What `look` sees, as soon as `good` likes it; the last sight after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if good(seen) or time.monotonic() > deadline:
            return seen
        time.sleep(0.2)
