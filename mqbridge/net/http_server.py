"""An HTTP server on one port: uvicorn, started and stopped with the tasks of this process."""

import asyncio
import contextlib
import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette

from mqbridge.net.tasks import spawn

LISTEN_BACKLOG = 64
"""Maximum number of connections that wait to be accepted."""
STOP_TIMEOUT_S = 2
"""Time that uvicorn gives running requests to end when the server stops."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the command line handles signals and drains the gateway."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Install no signal handlers."""
        yield


class HttpServer:
    """An HTTP server: `bind`, then `start`; `stop`, then `unbind`. Port 0 is any free port."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The bound port; 0 before `bind`."""
        return int(self._socket.getsockname()[1]) if self._socket else 0

    def bind(self) -> None:
        """Bind the port. Raises OSError if this fails, for example because the port is in use."""
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        # "::" also accepts IPv4, as it does elsewhere, if the system can do both; every other address is of one kind.
        both = self._address[0] == "::" and socket.has_dualstack_ipv6()
        self._socket = socket.create_server(self._address, family=family, backlog=LISTEN_BACKLOG, dualstack_ipv6=both)

    def unbind(self) -> None:
        """Release the port; does nothing if it is not bound."""
        if self._socket is not None:
            self._socket.close()

    def start(self, app: Starlette) -> None:
        """Serve requests in a task until `stop`. Call `bind` first."""
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            lifespan="off",
            access_log=False,
            proxy_headers=False,  # the address of a client is that of its connection, whatever a header says
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
        )
        self._server = _Server(config)
        assert self._socket is not None  # noqa: S101 - bind is called first
        self._task = spawn(self._server.serve(sockets=[self._socket]), "http")

    async def stop(self) -> None:
        """Stop serving, and wait for running requests to end, but not much longer than STOP_TIMEOUT_S."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            # uvicorn ends requests after STOP_TIMEOUT_S. If it still runs after twice that time, it hangs: do not wait for it.
            await asyncio.wait([self._task], timeout=STOP_TIMEOUT_S * 2)
