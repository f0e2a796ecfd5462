"""HTTP requests with JSON, for the suites that run whole nodes."""

import json
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_S = 60.0


def call(base: str, method: str, path: str, content: object = None) -> tuple[int, Any]:
    """Return status and JSON of an answer; 503 where nobody answers."""
    data = None if content is None else json.dumps(content).encode()
    asked = urllib.request.Request(
        base + path, data, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())
    except OSError as error:
        return 503, {"error": "unreachable", "reason": str(error)}
