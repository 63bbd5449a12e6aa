"""An HTTP server on one port: uvicorn, started and stopped with the tasks of this process.

uvicorn waits for ever for a client that sends no request, or half of one, or does not read its response. Here each has a time
limit, and there is a limit of connections: whoever can reach the port can neither use up the descriptors of the process nor its
memory.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from mqbridge.net.tasks import spawn

log = logging.getLogger(__name__)

LISTEN_BACKLOG = 64
"""Maximum number of connections that wait to be accepted."""
STOP_TIMEOUT_S = 2
"""Time that uvicorn gives running requests to end when the server stops."""
MAX_CONNECTIONS = 100
"""Maximum number of open connections. For a new one, the connection that has waited longest for its request is closed."""
REQUEST_TIMEOUT_S = 10
"""Time for a whole request to arrive, after the connection was opened or the last response was sent."""
RESPONSE_TIMEOUT_S = 30
"""Time for a client to read its response."""
MAX_HEADER_BYTES = 16 << 10
"""Maximum size of a request without its body. Of a body, uvicorn reads at most 64 KiB before somebody asks for it."""


class _LimitedConnection(H11Protocol):
    """A connection with time limits.

    It waits for a request, or serves one: then the application is responsible for its time, except while it waits for the client
    to read. `_deadline` is the timer that ends the waiting.
    """

    _deadline: asyncio.TimerHandle | None = None

    @property
    def is_serving(self) -> bool:
        """True while the application has not completed its response."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit, and close another connection if there are too many."""
        super().connection_made(transport)
        self._limit(REQUEST_TIMEOUT_S)
        if len(self.connections) > MAX_CONNECTIONS:
            longest_waiting(self.connections, self).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._stop_limit()
        super().connection_lost(exc)

    def _should_upgrade(self) -> bool:
        """Ignore offers of other protocols, as servers may: Java's HttpClient offers HTTP/2 with each request."""
        return False

    def handle_events(self) -> None:
        """Handle received data; a request that is complete has no time limit while it is served."""
        super().handle_events()
        if self.is_serving and not self.flow.write_paused:
            self._stop_limit()

    def pause_writing(self) -> None:
        """Start the time limit: the application waits until the client reads what was written, maybe for an earlier request."""
        super().pause_writing()
        self._limit(RESPONSE_TIMEOUT_S)

    def resume_writing(self) -> None:
        """Stop the time limit if a request is being served."""
        super().resume_writing()
        if self.is_serving:
            self._stop_limit()

    def on_response_complete(self) -> None:
        """Start the time limit for reading the response and sending the next request."""
        self._limit(RESPONSE_TIMEOUT_S if self.transport.get_write_buffer_size() else REQUEST_TIMEOUT_S)
        super().on_response_complete()

    def abort(self) -> None:
        """Close the connection without waiting for its client to read what was sent."""
        self._stop_limit()
        self.transport.abort()

    def waits_until(self) -> float:
        """Return the loop time at which its time limit ends; without one, a time after all others."""
        return float("inf") if self._deadline is None else self._deadline.when()

    def _limit(self, seconds: float) -> None:
        self._stop_limit()
        self._deadline = self.loop.call_later(seconds, self.abort)

    def _stop_limit(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def longest_waiting(connections: Iterable[Any], newest: _LimitedConnection) -> _LimitedConnection:
    """Return the connection that has waited longest for its client; the newest one if all others are served."""
    log.warning("the HTTP server has more than %d connections and closes the one that has waited longest", MAX_CONNECTIONS)
    return min(
        (each for each in connections if isinstance(each, _LimitedConnection)),
        key=lambda each: each.waits_until(),
        default=newest,
    )


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

    @property
    def connections(self) -> int:
        """Number of open connections; 0 before `start`."""
        return len(self._server.server_state.connections) if self._server else 0

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
            http=_LimitedConnection,
            ws="none",
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
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
