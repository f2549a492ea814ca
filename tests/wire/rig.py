"""The Lambda form on the wire: the template checked, deployed to an emulator, and made to work.

    python3 tests/wire/rig.py template     the template's validators and its own test
    python3 tests/wire/rig.py all          everything; what `make wire` runs
    python3 tests/wire/rig.py serve        deploy, print the base URL and wait for Ctrl-C

`--no-build` uses the release bootstraps of the last run. TAILSTEP_CONFORMANCE names the conformance
script; without it that part is skipped, and the closing line says so.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from venvs import ROOT, venv

HERE = Path(__file__).resolve().parent
LOGS = ROOT / "target/wire"
# Answered by scripted/echo, so that a client that insists on a real model's id needs no key.
MODELS = "claude-haiku-4-5"


class Results:
    """Named checks, and the closing line that counts them."""

    def __init__(self):
        self.passed, self.failed, self.skipped = 0, [], 0

    def run(self, name, check, *arguments):
        started = time.monotonic()
        try:
            note = check(*arguments)
        except Exception as error:  # noqa: BLE001 - every failure is counted and shown
            self.failed.append(name)
            print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
        else:
            self.passed += 1
            took = time.monotonic() - started
            print(f"ok {name} ({took:.1f} s){': ' + note if note else ''}", flush=True)

    def skip(self, name, why):
        self.skipped += 1
        print(f"skipped {name}: {why}", flush=True)

    def close(self):
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        print(f"wire: {self.passed} passed, {len(self.failed)} failed{skipped}", flush=True)
        return 1 if self.failed else 0


def quiet(command, environment):
    """Runs a command in the project's root; its output is shown only when it fails."""
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}\n{done.stdout}")


def check_template(results):
    """Each validator finds what the others miss; the test asserts what none of them knows."""
    sam = venv("sam")
    environment = os.environ | {"SAM_CLI_TELEMETRY": "0", "AWS_DEFAULT_REGION": "us-east-1"}
    template = ["template.yaml", "--region", "us-east-1"]
    validate = [str(sam / "sam"), "validate", "--template-file", *template]
    lint = [str(sam / "cfn-lint"), "--template", "template.yaml", "--regions", "us-east-1"]
    test = [str(sam / "python"), str(HERE / "test_template.py")]
    commands = {"sam validate": validate, "sam validate --lint": [*validate, "--lint"], "cfn-lint": lint,
                "transformed template": test}
    for name, command in commands.items():
        results.run(name, quiet, command, environment)


def deployed(arguments, work):
    """Builds, starts the emulator, deploys, and does `work` with the stack and the front end's URL."""
    import checks
    from emulator import Emulator
    from front import Front
    from stack import BUILT, Stack, build, render

    sam, ministack = venv("sam"), venv("ministack")
    if arguments.build:
        build(sam)
    LOGS.mkdir(parents=True, exist_ok=True)
    with ExitStack() as places:
        emulator = places.enter_context(Emulator(ministack, LOGS / "emulator.log"))
        stack = Stack(emulator, sam)
        provider = places.enter_context(checks.Provider())
        stack.deploy(render(emulator.folder, HERE / "scripts"), MODELS, provider.url)
        variables = emulator.environment() | stack.function_environment("ApiFunctionName")
        variables |= {"AWS_LAMBDA_FUNCTION_NAME": "api", "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
                      "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512", "AWS_LAMBDA_LOG_GROUP_NAME": "front",
                      "AWS_LAMBDA_LOG_STREAM_NAME": "front"}
        front = Front(stack.outputs["ApiUrl"], emulator.url, BUILT / "api/bootstrap", variables)
        return work(checks.Bed(stack, places.enter_context(front).url, provider))


def run_all(arguments):
    import checks

    results = Results()
    check_template(results)
    deployed(arguments, lambda bed: checks.run(bed, results))
    return results.close()


def run_template(_arguments):
    results = Results()
    check_template(results)
    return results.close()


def serve(arguments):
    from stack import API_KEY

    def work(bed):
        print(f"base URL {bed.url}\nAPI key {API_KEY}\nemulator {bed.stack.emulator.url}", flush=True)
        signal.pause()

    deployed(arguments, work)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["template", "all", "serve"])
    parser.add_argument("--no-build", dest="build", action="store_false")
    arguments = parser.parse_args()
    # The stack is looked at through boto3, which lives in the environment.
    python = venv("sam") / "python"
    if Path(sys.prefix).resolve() != python.parent.parent.resolve():
        os.execv(python, [str(python), *sys.argv])
    # An end from outside must stop the emulator too: an exception unwinds through its context.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return {"template": run_template, "all": run_all, "serve": serve}[arguments.what](arguments)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
