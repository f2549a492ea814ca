"""The stack on the emulator: binaries, rendering, deployment, and what a test asks of it."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from emulator import REGION
from venvs import ROOT

STACK = "tailstep"
API_KEY = "tailstep_wire_test"
FUNCTIONS = ["api", "step", "sandbox", "sweep"]
BUILT = ROOT / "target/lambda"
# Steps at the same time, on a machine of two cores.
CONCURRENCY_MAX = 10


def build(commands):
    """The release bootstraps, each at target/lambda/FUNCTION/bootstrap, as template.yaml expects."""
    packages = [argument for name in FUNCTIONS for argument in ("-p", f"tailstep-fn-{name}")]
    environment = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}"}
    subprocess.run(
        ["cargo", "lambda", "build", "--release", "--compiler", "cargo", "--lambda-dir", str(BUILT), *packages],
        cwd=ROOT,
        env=environment,
        check=True,
    )
    for name in FUNCTIONS:
        size = (BUILT / name / "bootstrap").stat().st_size
        print(f"{name}: {size / 1e6:.1f} MB", flush=True)


def render(folder, scripts):
    """template.yaml with the differences that the emulator or the tests force, and no others:

    1. The maximum concurrency is written out: the emulator hands a number that comes from a
       parameter on as text, and its event source then fails on it.
    2. The policies that deny plain HTTP deny TLS instead: the emulator speaks plain HTTP and enforces
       policies.
    3. StepFunction and ApiFunction are told where the tests' scripted models are read from.
    4. Code folders are absolute, since the rendering is not in the project's root.
    5. The secret's ARN is spelt out where a role is given it: the emulator's Ref is the secret's name.
    """
    models = "          TAILSTEP_SCRIPTED_MODELS: !Ref ScriptedModels\n"
    secret = "arn:${AWS::Partition}:secretsmanager:${AWS::Region}:${AWS::AccountId}:secret:${ModelKeys}-*"
    changes = [
        ("MaximumConcurrency: !Ref MaxConcurrency", f"MaximumConcurrency: {CONCURRENCY_MAX}", 1),
        ('"aws:SecureTransport": "false"', '"aws:SecureTransport": "true"', 2),
        (models, f"{models}          TAILSTEP_SCRIPT_ROOT: {scripts}\n", 2),
        ("Resource: !Ref ModelKeys\n", f"Resource: !Sub {secret}\n", 1),
        ("CodeUri: target/lambda/", f"CodeUri: {BUILT}/", len(FUNCTIONS)),
    ]
    text = (ROOT / "template.yaml").read_text()
    for old, new, count in changes:
        if text.count(old) != count:
            raise RuntimeError(f"template.yaml has changed: {old!r} is not in it {count} times")
        text = text.replace(old, new)
    rendered = Path(folder) / "template.yaml"
    rendered.write_text(text)
    return rendered


class Stack:
    """A deployed stack, seen through the AWS API."""

    def __init__(self, emulator, commands):
        self.emulator = emulator
        self.commands = Path(commands)
        self.outputs = {}

    def deploy(self, template, models, provider):
        environment = self.emulator.environment() | {"SAM_CLI_TELEMETRY": "0"}
        key_hash = hashlib.sha256(API_KEY.encode()).hexdigest()
        subprocess.run(
            [
                str(self.commands / "sam"), "deploy",
                "--template-file", str(template),
                "--stack-name", STACK,
                "--resolve-s3",
                "--region", REGION,
                "--capabilities", "CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND",
                "--no-confirm-changeset",
                "--no-fail-on-empty-changeset",
                "--no-progressbar",
                "--parameter-overrides", f"ApiKeySha256={key_hash}", f"ScriptedModels={models}",
                f"OpenAiBaseUrl={provider}",
            ],
            cwd=self.emulator.folder,
            env=environment,
            check=True,
        )
        described = self.aws("cloudformation").describe_stacks(StackName=STACK)["Stacks"][0]
        if not described["StackStatus"].endswith("_COMPLETE"):
            raise RuntimeError(f"the stack is {described['StackStatus']}")
        self.outputs = {o["OutputKey"]: o["OutputValue"] for o in described["Outputs"]}

    def aws(self, service, key="test", secret="test", token=None):
        """A client of the emulator; without credentials of its own it may do everything."""
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.emulator.url,
            region_name=REGION,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            aws_session_token=token,
        )

    def aws_as(self, service, output):
        """A client with a function's role."""
        function = self.aws("lambda").get_function_configuration(FunctionName=self.outputs[output])
        assumed = self.aws("sts").assume_role(RoleArn=function["Role"], RoleSessionName="wire")
        found = assumed["Credentials"]
        return self.aws(service, found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])

    def function_environment(self, output):
        """The variables of a deployed function, as its processes see them."""
        function = self.aws("lambda").get_function_configuration(FunctionName=self.outputs[output])
        return function["Environment"]["Variables"]

    def queue_depth(self, output):
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible",
                 "ApproximateNumberOfMessagesDelayed"]
        answer = self.aws("sqs").get_queue_attributes(
            QueueUrl=self.outputs[output], AttributeNames=names
        )
        return {name: int(answer["Attributes"][name]) for name in names}

    def session_items(self, session):
        """All items of a session's partition: its head and its records, in order."""
        table = self.aws("dynamodb")
        items, resume = [], {}
        while True:
            page = table.query(
                TableName=self.outputs["LogTableName"],
                KeyConditionExpression="pk = :pk",
                ExpressionAttributeValues={":pk": {"S": f"default#{session}"}},
                ConsistentRead=True,
                **resume,
            )
            items += page["Items"]
            if "LastEvaluatedKey" not in page:
                break
            resume = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
        head = [item for item in items if item["sk"]["S"] == "HEAD"]
        records = [json.loads(item["body"]["B"]) for item in items if item["sk"]["S"].startswith("R#")]
        return head[0] if head else None, records

    def log_lines(self, output):
        """JSON lines that a function printed, oldest first."""
        lines = []
        for line in self.log_text(output).splitlines():
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                pass
        return lines

    def log_text(self, output):
        """Everything that a function printed, oldest first."""
        logs = self.aws("logs")
        group = self.aws("lambda").get_function_configuration(
            FunctionName=self.outputs[output]
        ).get("LoggingConfig", {}).get("LogGroup") or f"/aws/lambda/{self.outputs[output]}"
        messages, token = [], {}
        while True:
            page = logs.filter_log_events(logGroupName=group, **token)
            messages += [event["message"] for event in page["events"]]
            if "nextToken" not in page:
                return "\n".join(messages)
            token = {"nextToken": page["nextToken"]}

    def stored(self):
        """(place, bytes) of everything in the tables and buckets."""
        dynamodb, s3 = self.aws("dynamodb"), self.aws("s3")
        for table in dynamodb.get_paginator("list_tables").paginate().search("TableNames[]"):
            for item in dynamodb.get_paginator("scan").paginate(TableName=table).search("Items[]"):
                yield f"table {table}", repr(item).encode()
        for bucket in s3.list_buckets()["Buckets"]:
            name = bucket["Name"]
            for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
                for found in page.get("Contents", []):
                    body = s3.get_object(Bucket=name, Key=found["Key"])["Body"].read()
                    yield f"bucket {name}", body


if __name__ == "__main__":
    sys.exit("run tests/wire/rig.py")
