"""Writes the scripts that the wire tests play. Run it after a change; the results are kept."""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent


def bash(command):
    return {"type": "tool_use", "name": "bash", "input": {"command": command}}


def forty_steps():
    """20 answers and 20 tool calls: 40 effects, each an invocation of its own."""
    turns = [{"blocks": [bash("echo 1 >> steps"), bash("echo 2 >> steps")]}]
    turns += [{"blocks": [bash(f"echo {n} >> steps")]} for n in range(3, 20)]
    turns += [{"blocks": [bash("wc -l < steps; md5sum < steps")]}]
    turns += [{"expect": "19", "blocks": [{"type": "text", "text": "forty steps done"}]}]
    return turns


def slow_answer():
    """A model that takes its time, so that its worker can be killed meanwhile."""
    return [
        {"blocks": [bash("echo once >> effects; cat effects")]},
        {"delay_ms": 4000, "blocks": [bash("echo twice >> effects; cat effects")]},
        {"expect": "once\ntwice", "blocks": [{"type": "text", "text": "survived"}]},
    ]


if __name__ == "__main__":
    for make in (forty_steps, slow_answer):
        path = HERE / f"{make.__name__.replace('_', '-')}.json"
        path.write_text(json.dumps(make(), indent=1) + "\n")
