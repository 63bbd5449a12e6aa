"""Small HTTP calls to the admin ports of servers on this machine, without the proxy of the environment."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

# The slowest call is Pulsar's health check, which sends and reads a message.
CALL_TIMEOUT_S = 30.0

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(url: str, *, method: str = "GET", body: Any = None, timeout_s: float = CALL_TIMEOUT_S) -> tuple[int, str]:
    """Send one request, with `body` as JSON; return the status and the text. Raises OSError if the server does not respond."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with _opener.open(request, timeout=timeout_s) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
