"""A TCP port that accepts connections, each of which gets a session of the protocol that the port speaks.

Whoever can reach the port may open connections, so their number is limited, and each has to complete the protocol's handshake in
time. What a connection sends is cut into frames by the session's own `measure`, which refuses frames that are too long before
they are received.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol

from mqbridge.errors import ConnectionLost, PeerSilent
from mqbridge.net.endpoint import Endpoint

log = logging.getLogger(__name__)

BACKLOG = 512
"""Maximum number of connections that wait to be accepted."""
REFUSAL_LOG_S = 30.0
"""Pause between two log lines about refused connections."""


class ListenLimits(NamedTuple):
    """Limits of a port: the number of open connections, and the time for a handshake in seconds."""

    connections: int
    handshake_s: float


class ClientSession(Protocol):
    """The server's side of one connection."""

    def measure(self, data: bytes | bytearray, at: int) -> int:
        """Return the length of a frame, see `mqbridge.wire.cutter.Measure`."""

    def on_connected(self, endpoint: "ServedEndpoint") -> None:
        """Begin: the connection is made."""

    def on_frames(self, frames: list[bytes]) -> None:
        """Handle the frames of one read. A ProtocolError that is raised ends the connection."""

    def on_lost(self, error: Exception) -> None:
        """End: the connection is lost or was closed. Called once, if `on_connected` was."""


class ServedEndpoint(Endpoint):
    """A connection of a port: counts as open, and has a limited time for its handshake."""

    def __init__(self, port: "ListeningPort", session: ClientSession) -> None:
        super().__init__(session.measure, session.on_frames, self._on_end)
        self._port, self._session = port, session
        self.on_bytes: Callable[[bytes], None] | None = None
        """Gets what is received, if the session has set it: it cuts its frames itself. A ProtocolError ends the connection."""
        self._is_refused = False
        self._handshake_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the session, or refuse the connection if there are too many."""
        super().connection_made(transport)
        if not self._port.admit(self):
            self._is_refused = True
            self.try_send(self._port.refusal)
            assert self._transport is not None  # noqa: S101 - it has just been made
            self._flush()
            self._transport.close()
            return
        handshake_s = self._port.limits.handshake_s
        self._handshake_timer = self._loop.call_later(
            handshake_s, self.abort, PeerSilent(f"{self.peer} did not complete the handshake within {handshake_s:g} s")
        )
        self._session.on_connected(self)

    def data_received(self, data: bytes) -> None:
        """Ignore what a refused connection sends."""
        if not self._is_refused:
            super().data_received(data)

    def _process(self, data: bytes) -> None:
        if self.on_bytes is not None:
            self.on_bytes(data)
        else:
            super()._process(data)

    def handshake_done(self) -> None:
        """End the time limit of the handshake."""
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None

    def _on_end(self, error: Exception) -> None:
        self.handshake_done()
        if not self._is_refused:
            self._port.forget(self)
            self._session.on_lost(error)


class ListeningPort:
    """One port. Call `bind` and `start`, and `close` at the end."""

    def __init__(
        self, host: str, port: int, make_session: Callable[[], ClientSession], limits: ListenLimits, refusal: bytes = b""
    ) -> None:
        """`refusal` are the bytes that a connection gets when there are too many; it is then closed."""
        self.limits, self.refusal = limits, refusal
        self.refused = 0
        """Number of connections that were refused because there were too many."""
        self.connections: set[Endpoint] = set()
        """The open connections."""
        self._address = (host, port)
        self._make_session = make_session
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._is_closing = False
        self._logged_at = float("-inf")
        """Loop time at which refused connections were logged last."""
        self._no_connections = asyncio.Event()
        self._no_connections.set()

    @property
    def port(self) -> int:
        """The bound port; 0 before `bind`."""
        return 0 if self._socket is None else int(self._socket.getsockname()[1])

    def bind(self) -> None:
        """Bind the port. Raises OSError, for example because it is in use."""
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)

    async def start(self) -> None:
        """Accept connections."""
        assert self._socket is not None, "`bind` comes first"  # noqa: S101 - a bug of the caller
        make = self._make_session
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ServedEndpoint(self, make()), sock=self._socket, backlog=BACKLOG
        )

    def admit(self, connection: Endpoint) -> bool:
        """Count a new connection; return False if there are too many, or if the port was closed while it was accepted."""
        if self._is_closing:
            return False
        if len(self.connections) >= self.limits.connections:
            self.refused += 1
            now = asyncio.get_running_loop().time()
            if now - self._logged_at >= REFUSAL_LOG_S:
                self._logged_at = now
                log.warning(
                    "port %d refuses connections, because %d are open (limits.connections): %d refused so far",
                    self.port,
                    len(self.connections),
                    self.refused,
                )
            return False
        self.connections.add(connection)
        self._no_connections.clear()
        return True

    def forget(self, connection: Endpoint) -> None:
        """Count a connection no longer."""
        self.connections.discard(connection)
        if not self.connections:
            self._no_connections.set()

    def stop_accepting(self) -> None:
        """Close the port for new connections; the open ones stay."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()

    async def close(self, deadline: float) -> None:
        """Accept no more connections, wait for the end of the open ones, and end those that are left at the deadline (loop time).

        The owner sends the clients away first.
        """
        self.stop_accepting()
        try:
            async with asyncio.timeout_at(deadline):
                await self._no_connections.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort(ConnectionLost("the listener was closed"), intended=True)
            await self._no_connections.wait()
