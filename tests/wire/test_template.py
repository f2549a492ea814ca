"""Asserts what the template must keep promising, on the form that SAM's transform makes of it.

The validators accept a template whose session loop Lambda would stop after 16 hops, or whose failed
batch would be deleted whole: those are promises of this product, not of CloudFormation. Each check
comes with mutations of the source template; the check must hold on the template as it is and must
fail on every mutation, so a check that cannot fail is itself a failure.

A check holds for the deployments it names: the parameters decide which resources and statements there are.

Run with the interpreter of the `sam` environment (`tests/wire/rig.py template` does).
"""

import copy
import logging
import os
import sys
from pathlib import Path

# The translator asks boto3 for a region; any will do, nothing is called.
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

from samtranslator.translator.transform import transform  # noqa: E402
from samtranslator.yaml_helper import yaml_parse  # noqa: E402

# The translator complains about metrics that it would send if this were a service.
logging.getLogger("samtranslator").setLevel(logging.ERROR)

ROOT = Path(__file__).resolve().parents[2]
# Every function that a wake-up passes through, each by its name in the template.
LOOP = ["ApiFunction", "StepFunction", "SandboxFunction", "SweepFunction"]
# Services whose resources hold users' data or run users' work.
DATA_PLANES = {"dynamodb", "s3", "sqs", "secretsmanager", "scheduler", "lambda", "logs", "iam", "kms", "*"}

# Functions that know of machines, with all that each may do to them.
MACHINES = {
    "ApiFunction": {"lambda:TerminateMicrovm"},
    "StepFunction": {"lambda:RunMicrovm", "lambda:GetMicrovm", "lambda:ResumeMicrovm", "lambda:TerminateMicrovm",
                     "lambda:CreateMicrovmAuthToken", "lambda:PassNetworkConnector"},
    "SweepFunction": {"lambda:ListMicrovms", "lambda:TerminateMicrovm"},
}
# IAM knows no resource for it (service authorization reference of Lambda).
UNSCOPED = {"lambda:ListMicrovms"}
IMAGE = {"Fn::Sub": "arn:${AWS::Partition}:lambda:${AWS::Region}:${AWS::AccountId}:microvm-image:${MicroVmImage}"}
INGRESS = {"Fn::Sub": "arn:${AWS::Partition}:lambda:${AWS::Region}:aws:"
                      "network-connector:aws-network-connector:ALL_INGRESS"}
EGRESS = {"Fn::Split": [",", {"Ref": "MicroVmEgress"}]}

# Deployments, by the parameters that differ from the defaults.
LAMBDA = {}
NETWORK = {"SandboxSubnetIds": "subnet-1", "SandboxSecurityGroupIds": "sg-1"}
MICROVM = {"Hands": "microvm", "MicroVmImage": "tailstep", "MicroVmEgress": "arn:aws:lambda:r:1:network-connector:x"}

CHECKS = []


def resources_of(template, parameters):
    """The resources that CloudFormation would make of the template. Local code folders become a placeholder
    object, as packaging would replace them."""
    template = copy.deepcopy(template)
    for resource in template["Resources"].values():
        if resource["Type"] == "AWS::Serverless::Function":
            resource["Properties"]["CodeUri"] = "s3://placeholder/code"
    no_managed_policies = type("NoPolicies", (), {"load": lambda self: {}})()
    resources = transform(template, {}, no_managed_policies)["Resources"]

    def holds(condition):
        return truth(template, parameters, template["Conditions"][condition])

    made = {name: r for name, r in resources.items() if "Condition" not in r or holds(r["Condition"])}
    return chosen(made, holds)


def check(*mutations, given=(LAMBDA,), on=resources_of):
    """Registers a check together with the mutations of the source template that must break it. It sees what
    `on` makes of the template with each of the `given` parameters."""

    def register(function):
        CHECKS.append((function, mutations, given, on))
        return function

    return register


def truth(template, parameters, expression):
    """What a condition or an assertion comes to."""
    if not isinstance(expression, dict):
        return expression
    (name, value), = expression.items()
    if name == "Ref":
        return parameters.get(value, template["Parameters"][value].get("Default"))
    if name == "Condition":
        return truth(template, parameters, template["Conditions"][value])
    values = [truth(template, parameters, part) for part in value]
    return {"Fn::Equals": lambda: values[0] == values[1], "Fn::Not": lambda: not values[0],
            "Fn::And": lambda: all(values), "Fn::Or": lambda: any(values)}[name]()


def chosen(value, holds):
    """`value` with each `Fn::If` decided, and without what is decided to be nothing."""
    nothing = {"Ref": "AWS::NoValue"}
    if isinstance(value, dict) and list(value) == ["Fn::If"]:
        condition, so, otherwise = value["Fn::If"]
        return chosen(so if holds(condition) else otherwise, holds)
    if isinstance(value, dict):
        decided = {key: chosen(part, holds) for key, part in value.items()}
        return decided if decided == nothing else {k: part for k, part in decided.items() if part != nothing}
    if isinstance(value, list):
        return [part for part in (chosen(part, holds) for part in value) if part != nothing]
    return value


def refusals(template, parameters):
    """What the rules say against these parameters."""
    return [
        assertion["AssertDescription"]
        for rule in template["Rules"].values()
        if truth(template, parameters, rule.get("RuleCondition", True))
        for assertion in rule["Assertions"]
        if not truth(template, parameters, assertion["Assert"])
    ]


def props(resources, name):
    return resources[name]["Properties"]


def of_type(resources, kind):
    return {name: r for name, r in resources.items() if r["Type"] == kind}


def listed(value):
    return value if isinstance(value, list) else [value]


def wake_source(resources):
    """The one mapping that feeds the step function."""
    mappings = [
        r["Properties"]
        for r in of_type(resources, "AWS::Lambda::EventSourceMapping").values()
        if r["Properties"]["FunctionName"] == {"Ref": "StepFunction"}
    ]
    assert len(mappings) == 1, f"want one event source on StepFunction, found {len(mappings)}"
    return mappings[0]


def role_of(resources, function):
    role = props(resources, function)["Role"]
    assert list(role) == ["Fn::GetAtt"], f"{function} must use a role that this template writes out"
    return role["Fn::GetAtt"][0]


def statements(resources, role):
    """All statements that hold for a role: its inline policies and the template's managed ones."""
    found = []
    for policy in props(resources, role).get("Policies", []):
        found += listed(policy["PolicyDocument"]["Statement"])
    for arn in props(resources, role).get("ManagedPolicyArns", []):
        assert isinstance(arn, dict) and "Ref" in arn, f"{role} uses a policy from outside: {arn}"
        found += listed(props(resources, arn["Ref"])["PolicyDocument"]["Statement"])
    return found


def permitting_policies(resources):
    """(where, statement) for each statement that lets somebody act, in any resource."""
    for name in of_type(resources, "AWS::IAM::Role"):
        for statement in statements(resources, name):
            if statement["Effect"] == "Allow":
                yield name, statement
    for kind in ("AWS::SQS::QueuePolicy", "AWS::S3::BucketPolicy", "AWS::IAM::ManagedPolicy"):
        for name, resource in of_type(resources, kind).items():
            for statement in listed(resource["Properties"]["PolicyDocument"]["Statement"]):
                if statement["Effect"] == "Allow":
                    yield name, statement


def owned(resource):
    """Whether a policy's resource names something of this stack. A star is allowed only as the end
    of a name whose front already contains a reference to the stack's own resource."""
    if resource in (INGRESS, EGRESS):
        return True
    if isinstance(resource, dict) and ("Ref" in resource or "Fn::GetAtt" in resource):
        return not str(resource.get("Ref", "")).startswith("AWS::")
    if isinstance(resource, dict) and "Fn::Sub" in resource:
        text = resource["Fn::Sub"]
        plain = text.replace("${AWS::Partition}", "").replace("${AWS::Region}", "")
        plain = plain.replace("${AWS::AccountId}", "")
        return "${" in plain.split("*")[0]
    return False


def drop(resource, *path):
    """A mutation that deletes one property of one resource of the source template."""

    def mutate(template):
        here = template["Resources"][resource]["Properties"]
        for key in path[:-1]:
            here = here[key]
        del here[path[-1]]

    mutate.__name__ = f"without {resource}.{'.'.join(map(str, path))}"
    return mutate


def put(resource, value, *path):
    """A mutation that sets one property of one resource of the source template."""

    def mutate(template):
        here = template["Resources"][resource]["Properties"]
        for key in path[:-1]:
            here = here[key]
        here[path[-1]] = value

    mutate.__name__ = f"{resource}.{'.'.join(map(str, path))} = {value}"
    return mutate


def allow(role, action, resource):
    """A mutation that adds one statement to a role."""

    def mutate(template):
        policies = template["Resources"][role]["Properties"]["Policies"]
        policies[0]["PolicyDocument"]["Statement"].append(
            {"Effect": "Allow", "Action": action, "Resource": resource}
        )

    mutate.__name__ = f"{role} may {action} on {resource}"
    return mutate


def anywhere(old, new):
    """A mutation that replaces a value wherever it stands in a role."""

    def replaced(value):
        if value == old:
            return new
        if isinstance(value, dict):
            return {key: replaced(part) for key, part in value.items()}
        return [replaced(part) for part in value] if isinstance(value, list) else value

    def mutate(template):
        for resource in of_type(template["Resources"], "AWS::IAM::Role").values():
            resource["Properties"] = replaced(resource["Properties"])

    mutate.__name__ = f"{new} for {old} in roles"
    return mutate


def unconditional(resource):
    """A mutation that makes a resource part of every deployment."""

    def mutate(template):
        del template["Resources"][resource]["Condition"]

    mutate.__name__ = f"{resource} in every deployment"
    return mutate


def without_assertion(rule, at):
    def mutate(template):
        del template["Rules"][rule]["Assertions"][at]

    mutate.__name__ = f"without assertion {at} of {rule}"
    return mutate


def without_rule_condition(rule):
    def mutate(template):
        del template["Rules"][rule]["RuleCondition"]

    mutate.__name__ = f"{rule} always"
    return mutate


@check(*[drop(f, "RecursiveLoop") for f in LOOP], put("StepFunction", "Terminate", "RecursiveLoop"))
def recursive_loop_is_allowed_on_every_function(resources):
    functions = of_type(resources, "AWS::Lambda::Function")
    assert sorted(functions) == sorted(LOOP), f"functions are {sorted(functions)}; update LOOP"
    for name in functions:
        assert props(resources, name).get("RecursiveLoop") == "Allow", name


@check(put("WakeQueue", 900, "VisibilityTimeout"), put("StepFunction", 901, "Timeout"),
       drop("WakeQueue", "VisibilityTimeout"))
def visibility_timeout_is_six_function_timeouts(resources):
    visible = props(resources, "WakeQueue").get("VisibilityTimeout", 30)
    timeout = props(resources, "StepFunction").get("Timeout", 3)
    assert visible >= 6 * timeout, f"{visible} s against a function timeout of {timeout} s"


@check(drop("WakeQueue", "RedrivePolicy"), put("WakeQueue", 1, "RedrivePolicy", "maxReceiveCount"),
       put("WakeDeadLetters", 345600, "MessageRetentionPeriod"))
def failed_wakeups_end_in_a_dead_letter_queue(resources):
    redrive = props(resources, "WakeQueue")["RedrivePolicy"]
    assert redrive["deadLetterTargetArn"] == {"Fn::GetAtt": ["WakeDeadLetters", "Arn"]}
    # AWS advises at least 5, so that throttled deliveries do not end a session's wake-up.
    assert redrive["maxReceiveCount"] >= 5
    kept = props(resources, "WakeQueue").get("MessageRetentionPeriod", 345600)
    assert props(resources, "WakeDeadLetters")["MessageRetentionPeriod"] > kept


@check(drop("DeadLetterAlarm", "Dimensions"), put("DeadLetterAlarm", 5, "Threshold"))
def a_dead_letter_raises_an_alarm(resources):
    alarm = props(resources, "DeadLetterAlarm")
    assert {"Name": "QueueName", "Value": {"Fn::GetAtt": ["WakeDeadLetters", "QueueName"]}} in alarm["Dimensions"]
    assert alarm["Threshold"] == 0 and alarm["ComparisonOperator"] == "GreaterThanThreshold"


@check(drop("StepFunction", "Events", "Wake", "Properties", "FunctionResponseTypes"))
def a_failed_message_does_not_take_its_batch_along(resources):
    assert wake_source(resources).get("FunctionResponseTypes") == ["ReportBatchItemFailures"]


@check(drop("StepFunction", "Events", "Wake", "Properties", "ScalingConfig"),
       put("StepFunction", 100, "Events", "Wake", "Properties", "ScalingConfig", "MaximumConcurrency"))
def maximum_concurrency_is_a_parameter(resources):
    assert wake_source(resources)["ScalingConfig"]["MaximumConcurrency"] == {"Ref": "MaxConcurrency"}


@check(put("StepFunction", 10, "Events", "Wake", "Properties", "BatchSize"))
def one_wakeup_an_invocation(resources):
    assert wake_source(resources)["BatchSize"] == 1


@check(put("WakeQueue", True, "FifoQueue"))
def the_queue_is_a_standard_one(resources):
    assert "FifoQueue" not in props(resources, "WakeQueue")


@check(allow("StepRole", "dynamodb:GetItem", "*"), allow("SweepRole", "sqs:SendMessage", "arn:aws:sqs:*:*:*"),
       allow("ApiRole", "*", "*"), allow("ApiRole", "s3:GetObject", {"Fn::Sub": "arn:aws:s3:::*/${Blobs}"}),
       allow("StepRole", "lambda:InvokeFunction", {"Fn::Sub": "arn:aws:lambda:${AWS::Region}:${AWS::AccountId}:function:*"}),
       anywhere(EGRESS, "*"), anywhere(IMAGE, {"Fn::Sub": IMAGE["Fn::Sub"].replace("${MicroVmImage}", "*")}),
       given=(LAMBDA, NETWORK, MICROVM))
def no_policy_reaches_past_the_stack(resources):
    seen = 0
    for where, statement in permitting_policies(resources):
        seen += 1
        actions = listed(statement["Action"])
        if not any(action.split(":")[0] in DATA_PLANES for action in actions) or set(actions) <= UNSCOPED:
            continue
        for resource in listed(statement["Resource"]):
            assert owned(resource), f"{where} allows {actions} on {resource}"
    assert seen > 10, "the policies were not found where this check looks"


@check(allow("StepRole", "dynamodb:*", {"Fn::GetAtt": ["LogTable", "Arn"]}),
       allow("SweepRole", "s3:Get*", {"Fn::GetAtt": ["Blobs", "Arn"]}),
       anywhere("lambda:TerminateMicrovm", "lambda:*Microvm"), given=(LAMBDA, NETWORK, MICROVM))
def no_policy_allows_actions_by_wildcard(resources):
    for where, statement in permitting_policies(resources):
        for action in listed(statement["Action"]):
            assert "*" not in action, f"{where} allows {action}"


@check(allow("SandboxRole", "s3:GetObject", {"Fn::GetAtt": ["Blobs", "Arn"]}),
       put("SandboxFunction", {"Fn::GetAtt": ["StepRole", "Arn"]}, "Role"),
       put("SandboxRole", [{"Ref": "WakePolicy"}], "ManagedPolicyArns"),
       put("SandboxFunction", {"Variables": {"TAILSTEP_LOG_TABLE": {"Ref": "LogTable"}}}, "Environment"))
def the_sandbox_may_only_write_its_own_log(resources):
    found = statements(resources, role_of(resources, "SandboxFunction"))
    actions = sorted(a for s in found for a in listed(s["Action"]))
    assert actions == ["logs:CreateLogStream", "logs:PutLogEvents"], actions
    assert all("${SandboxLogs}" in s["Resource"]["Fn::Sub"] for s in found)
    variables = props(resources, "SandboxFunction").get("Environment", {}).get("Variables", {})
    assert sorted(variables) == ["TAILSTEP_LOG"], f"the sandbox is told {sorted(variables)}"


@check(drop("SandboxFunction", "TenancyConfig"))
def sandboxes_never_share_an_environment(resources):
    assert props(resources, "SandboxFunction")["TenancyConfig"] == {"TenantIsolationMode": "PER_TENANT"}


@check(allow("ApiRole", "secretsmanager:GetSecretValue", {"Ref": "ModelKeys"}),
       allow("SweepRole", "lambda:InvokeFunction", {"Fn::GetAtt": ["SandboxFunction", "Arn"]}))
def only_the_step_holds_keys_and_hands(resources):
    for function in LOOP:
        actions = {a for s in statements(resources, role_of(resources, function)) for a in listed(s["Action"])}
        has = actions & {"secretsmanager:GetSecretValue", "lambda:InvokeFunction"}
        want = 2 if function == "StepFunction" else 0
        assert len(has) == want, f"{function} has {sorted(has)}"


@check(put("SandboxFunction", {"Ref": "AWS::NoValue"}, "VpcConfig"),
       anywhere("ec2:*", "ec2:CreateNetworkInterface"), anywhere("ec2:DescribeSubnets", "ec2:RunInstances"),
       anywhere({"Null": {"lambda:SourceFunctionArn": "false"}}, {"Null": {"lambda:SourceFunctionArn": "true"}}),
       allow("SandboxRole", "s3:GetObject", {"Fn::GetAtt": ["Blobs", "Arn"]}), given=(NETWORK,))
def the_sandbox_has_interfaces_in_a_network_and_no_power_over_them(resources):
    network = props(resources, "SandboxFunction")["VpcConfig"]
    assert network == {"SubnetIds": {"Fn::Split": [",", {"Ref": "SandboxSubnetIds"}]},
                       "SecurityGroupIds": {"Fn::Split": [",", {"Ref": "SandboxSecurityGroupIds"}]}}
    found = statements(resources, role_of(resources, "SandboxFunction"))
    allowed = {a for s in found if s["Effect"] == "Allow" for a in listed(s["Action"])}
    # What Lambda asks for (developer guide, "Giving Lambda functions access to resources in an Amazon VPC").
    asked = {"CreateNetworkInterface", "DescribeNetworkInterfaces", "DescribeSubnets", "DeleteNetworkInterface",
             "AssignPrivateIpAddresses", "UnassignPrivateIpAddresses"}
    assert allowed == {"logs:CreateLogStream", "logs:PutLogEvents"} | {f"ec2:{name}" for name in asked}, allowed
    denied = [s for s in found if s["Effect"] == "Deny"]
    # A call of the function's own code carries its ARN, one of the service does not.
    assert [(s["Action"], s["Resource"], s["Condition"]) for s in denied] == [
        ("ec2:*", "*", {"Null": {"lambda:SourceFunctionArn": "false"}})]


@check(anywhere("lambda:ResumeMicrovm", "lambda:SuspendMicrovm"), anywhere(INGRESS, EGRESS), anywhere(EGRESS, INGRESS),
       anywhere(IMAGE, {"Fn::GetAtt": ["LogTable", "Arn"]}), allow("ApiRole", "lambda:RunMicrovm", IMAGE),
       allow("StepRole", "lambda:CreateMicrovmShellAuthToken", IMAGE), allow("StepRole", "iam:PassRole", IMAGE),
       given=(MICROVM,))
def each_function_may_do_to_machines_what_it_does(resources):
    for function, want in MACHINES.items():
        found = statements(resources, role_of(resources, function))
        on = {}
        for statement in found:
            for action in listed(statement["Action"]):
                on.setdefault(action, []).extend(listed(statement["Resource"]))
        assert {a for a in on if a.startswith("lambda:")} == want, f"{function} may {sorted(on)}"
        scoped = want - UNSCOPED - {"lambda:PassNetworkConnector"}
        assert all(on[action] == [IMAGE] for action in scoped), f"{function} {on}"
        assert on.get("lambda:PassNetworkConnector", [INGRESS, EGRESS]) == [INGRESS, EGRESS]
        # A machine has no role, so nobody may pass one.
        assert on.get("iam:PassRole") == [{"Fn::GetAtt": ["WakeSchedulesRole", "Arn"]}], f"{function} {on}"


@check(*[allow(role, "lambda:TerminateMicrovm", IMAGE) for role in ("ApiRole", "StepRole", "SweepRole")],
       allow("SandboxRole", "lambda:RunMicrovm", IMAGE), given=(LAMBDA, NETWORK))
def without_microvms_nobody_may_touch_any(resources):
    for where, statement in permitting_policies(resources):
        for action in listed(statement["Action"]):
            assert "Microvm" not in action and "NetworkConnector" not in action, f"{where} may {action}"


@check(*[unconditional(name) for name in ("SandboxFunction", "SandboxRole", "SandboxLogs")],
       allow("StepRole", "lambda:InvokeFunction", {"Fn::GetAtt": ["StepFunction", "Arn"]}), given=(MICROVM,))
def with_microvms_there_is_no_sandbox_function(resources):
    assert not [name for name in resources if name.startswith("Sandbox")]
    assert not [w for w, s in permitting_policies(resources) if "lambda:InvokeFunction" in listed(s["Action"])]
    assert "TAILSTEP_SANDBOX_FUNCTION" not in props(resources, "StepFunction")["Environment"]["Variables"]


@check(*[drop(function, "Environment", "Variables", name) for function in MACHINES
         for name in ("TAILSTEP_HANDS", "TAILSTEP_MICROVM_EGRESS")],
       put("SweepFunction", {"Ref": "MicroVmEgress"}, "Environment", "Variables", "TAILSTEP_MICROVM_INGRESS"),
       put("ApiFunction", {"Ref": "MicroVmImage"}, "Environment", "Variables", "TAILSTEP_MICROVM_IMAGE"),
       given=(MICROVM,))
def every_function_that_knows_of_machines_is_told_the_same(resources):
    for function in MACHINES:
        variables = props(resources, function)["Environment"]["Variables"]
        ours = ("TAILSTEP_HANDS", "TAILSTEP_MICROVM_")
        told = {name: value for name, value in variables.items() if name.startswith(ours)}
        assert told == {"TAILSTEP_HANDS": {"Ref": "Hands"}, "TAILSTEP_MICROVM_IMAGE": IMAGE,
                        "TAILSTEP_MICROVM_INGRESS": INGRESS, "TAILSTEP_MICROVM_EGRESS": {"Ref": "MicroVmEgress"}}, told


@check(anywhere("dynamodb:Query", "dynamodb:GetItem"), given=(MICROVM,))
def the_sweep_reads_whose_machines_are_whose(resources):
    found = statements(resources, role_of(resources, "SweepFunction"))
    assert [s for s in found if s["Resource"] == {"Fn::GetAtt": ["ConfigTable", "Arn"]}
            and listed(s["Action"]) == ["dynamodb:Query"]]


@check(*[without_assertion(rule, at) for rule, count in
         (("MicroVmsAreWhole", 3), ("SubnetsHaveSecurityGroups", 1), ("SecurityGroupsHaveSubnets", 1))
         for at in range(count)],
       without_rule_condition("MicroVmsAreWhole"), without_rule_condition("SubnetsHaveSecurityGroups"),
       on=lambda template, _: template)
def parameters_that_do_not_fit_together_are_refused(template):
    for good in (LAMBDA, NETWORK, MICROVM):
        assert refusals(template, good) == [], good
    for given, named in (
        (MICROVM | {"MicroVmImage": ""}, "MicroVmImage"),
        (MICROVM | {"MicroVmEgress": ""}, "MicroVmEgress"),
        (MICROVM | NETWORK, "SandboxSubnetIds"),
        (NETWORK | {"SandboxSubnetIds": ""}, "SandboxSubnetIds"),
        (NETWORK | {"SandboxSecurityGroupIds": ""}, "SandboxSecurityGroupIds"),
    ):
        refused = refusals(template, given)
        assert len(refused) == 1 and named in refused[0], f"{given}: {refused}"


@check(drop("LogTable", "PointInTimeRecoverySpecification"), drop("LogTable", "SSESpecification"),
       put("LogTable", "PROVISIONED", "BillingMode"), drop("LogTable", "TimeToLiveSpecification"))
def tables_are_recoverable_encrypted_and_on_demand(resources):
    for name in ("LogTable", "ConfigTable"):
        table = props(resources, name)
        assert resources[name]["DeletionPolicy"] == "Retain"
        assert table["BillingMode"] == "PAY_PER_REQUEST"
        assert table["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] is True
        assert table["SSESpecification"]["SSEEnabled"] is True
        assert table["TimeToLiveSpecification"]["Enabled"] is True


@check(put("Blobs", False, "PublicAccessBlockConfiguration", "BlockPublicPolicy"),
       drop("Blobs", "BucketEncryption"), put("BlobsPolicy", [], "PolicyDocument", "Statement"))
def blobs_are_private_encrypted_and_tls_only(resources):
    bucket = props(resources, "Blobs")
    assert all(bucket["PublicAccessBlockConfiguration"].values())
    assert len(bucket["PublicAccessBlockConfiguration"]) == 4
    assert bucket["BucketEncryption"]
    deny = [s for s in props(resources, "BlobsPolicy")["PolicyDocument"]["Statement"] if s["Effect"] == "Deny"]
    assert any(s["Condition"] == {"Bool": {"aws:SecureTransport": "false"}} for s in deny)


@check(put("ApiFunction", "BUFFERED", "FunctionUrlConfig", "InvokeMode"),
       put("ApiFunction", "AWS_IAM", "FunctionUrlConfig", "AuthType"))
def the_api_streams_behind_its_own_keys(resources):
    url = props(resources, "ApiFunctionUrl")
    assert url["InvokeMode"] == "RESPONSE_STREAM" and url["AuthType"] == "NONE"


@check(drop("StepLogs", "RetentionInDays"), drop("SweepFunction", "LoggingConfig"))
def every_function_logs_to_a_group_that_forgets(resources):
    for name in LOOP:
        group = props(resources, name)["LoggingConfig"]["LogGroup"]["Ref"]
        assert props(resources, group)["RetentionInDays"] == {"Ref": "LogRetentionDays"}, group


def failure_of(function, template, given, on):
    """What is wrong, or None. A missing key counts: the property asked for is not there."""
    for parameters in given:
        subject = on(template, parameters)
        try:
            function(subject)
        except (AssertionError, KeyError, TypeError) as error:
            return f"{type(error).__name__}: {error}"
    return None


def main():
    template = yaml_parse((ROOT / "template.yaml").read_text())
    passed, failed = 0, []
    for function, mutations, given, on in CHECKS:
        name = function.__name__
        wrong = failure_of(function, template, given, on)
        results = [(name, wrong)]
        if not mutations:
            results.append((name, "has no mutation that shows it can fail"))
        for mutate in mutations:
            mutated = copy.deepcopy(template)
            mutate(mutated)
            caught = failure_of(function, mutated, given, on)
            results.append((f"{name} [{mutate.__name__}]", None if caught else "the mutation was not noticed"))
        for label, wrong in results:
            if wrong is None:
                passed += 1
            else:
                failed.append(label)
                print(f"FAILED {label}: {wrong}")
    print(f"template: {passed} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
