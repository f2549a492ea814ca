"""MiniStack as a child process: DynamoDB, SQS with its event source, S3, Scheduler, Secrets Manager,
CloudFormation with the SAM transform, and Lambda functions as native processes.

Its traps, each with its answer here: it listens on all interfaces unless BIND_HOST says otherwise;
functions inherit its whole environment, so it gets a clean one; without AWS_ENDPOINT_URL a function
would call the real AWS.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

REGION = "us-east-1"


class Emulator:
    """Use as a context: it is stopped, with all functions it started, whatever happens inside."""

    def __init__(self, commands, log_file):
        self.commands = Path(commands)
        self.log_file = Path(log_file)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = tempfile.mkdtemp(prefix="tailstep-wire-")
        self.process = None

    def environment(self):
        """What the emulator, its functions and its clients need, and nothing of the caller's."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": self.folder,
            "TMPDIR": self.folder,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
        }

    def __enter__(self):
        environment = self.environment() | {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "LAMBDA_EXECUTOR": "local",
            "AUTH": "true",
        }
        log = self.log_file.open("w")
        self.process = subprocess.Popen(
            [str(self.commands / "ministack")],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            # A group of its own, so that stopping it reaches the functions too.
            start_new_session=True,
        )
        try:
            self.wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def wait_until_healthy(self, seconds=30):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the emulator ended at its start; see {self.log_file}")
            try:
                urllib.request.urlopen(f"{self.url}/_localstack/health", timeout=1).read()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the emulator is not healthy after {seconds} s; see {self.log_file}")

    def stop(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        if self.process:
            try:
                # Functions that outlived it.
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def function_processes(self, function):
        """Process ids of the running bootstraps of a function."""
        port, name = f"AWS_ENDPOINT_URL={self.url}".encode(), f"AWS_LAMBDA_FUNCTION_NAME={function}".encode()
        return [process for process, _, variables in bootstraps() if port in variables and name in variables]

    def sandbox_processes(self):
        """The same of the sandbox function, which has wiped its variables: it is known by its program's place."""
        return [
            process for process, program, variables in bootstraps()
            if program.startswith(self.folder) and b"AWS_ENDPOINT_URL=" in variables
        ]


def bootstraps():
    """(process id, program, variables) of all functions' bootstraps on this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            program = os.readlink(entry / "exe")
            if not program.endswith("/bootstrap"):
                continue
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found.append((int(entry.name), program, variables))
    return found


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
