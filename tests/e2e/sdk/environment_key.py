"""Makes an environment key for every self-hosted environment and prints it.

    ANTHROPIC_BASE_URL=… ANTHROPIC_API_KEY=… python environment_key.py
"""

import json
import os
import urllib.request

request = urllib.request.Request(
    os.environ["ANTHROPIC_BASE_URL"] + "/v1/x/environments/any/keys",
    data=b'{"name": "conformance"}',
    headers={"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"},
)
with urllib.request.urlopen(request) as answer:
    print(json.load(answer)["key"])
