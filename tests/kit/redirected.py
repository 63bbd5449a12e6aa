"""Runs the command `mqbridge` with all connections redirected to the proxy of `tests/kit/tcp_proxy.py`.

It is run as a file, with the redirections in the environment. It imports no test code, so it also works for other checkouts.
"""

from __future__ import annotations

import json
import os
from typing import Any

import uvloop

VARIABLE = "MQBRIDGE_TEST_REDIRECTIONS"


class RedirectedLoop(uvloop.Loop):
    """An event loop that connects to the proxy's port for an address."""

    redirections: dict[str, int] = json.loads(os.environ.get(VARIABLE, "{}"))

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        if (other := self.redirections.get(f"{host}:{port}")) is not None:
            host, port = "127.0.0.1", other
        return await super().create_connection(factory, host, port, **options)


if __name__ == "__main__":
    from mqbridge.cli.main import main

    uvloop.new_event_loop = RedirectedLoop
    main()
