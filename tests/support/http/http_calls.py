"""HTTP requests with JSON, for the suites that run whole nodes."""

import json
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from typing import Any

from support.node.node_process import NodeProcess

TIMEOUT_S = 60.0


def call(
    at: str | NodeProcess,
    method: str,
    path: str,
    content: object = None,
    *,
    login: tuple[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> tuple[int, Any]:
    """Return status and JSON of an answer; 503 where nobody answers.

    `at`: a node, or the beginning of the address; `tls`: of an encrypted connection.
    """
    base = at if isinstance(at, str) else at.http
    headers = {"Content-Type": "application/json"}
    if login is not None:
        headers["Authorization"] = "Basic " + b64encode(":".join(login).encode()).decode()
    if tls is not None:
        base = base.replace("http:", "https:")
    data = None if content is None else json.dumps(content).encode()
    asked = urllib.request.Request(base + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S, context=tls) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())
    except OSError as error:
        return 503, {"error": "unreachable", "reason": str(error)}


def done(at: str | NodeProcess, method: str, path: str, content: object = None) -> Any:
    """Return the JSON of an answer that must be a success."""
    status, answer = call(at, method, path, content)
    assert status < 300, answer
    return answer
