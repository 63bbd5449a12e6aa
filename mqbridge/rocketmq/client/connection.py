"""One connection: requests in both directions, matched by opaque, answered in any order.

There is no handshake. The two directions are separate number spaces: what a broker asks may carry the opaque of a request of ours
that is still waiting. A late answer to a request that was given up finds nobody and is dropped.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping

from mqbridge.errors import ClusterError, ConnectionLost, PeerSilent, RequestTimeout
from mqbridge.net.connectivity import Connectivity, Link
from mqbridge.net.dial import dial, split_address
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.pending import Pending
from mqbridge.net.tls.tls import Tls
from mqbridge.rocketmq.wire.codes import name_of
from mqbridge.rocketmq.wire.command import ONEWAY, RESPONSE, Command, decode, encode, measure

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
"""The Java clients' default."""
REQUEST_TIMEOUT_S = 10.0
"""For one answer. The Java clients give up after 3 s; a send that is given up and repeated is stored twice, so we wait longer."""

Sign = Callable[[Command], None]
"""Signs a request in place, as the last thing before it is encoded (access control lists)."""
OnRequest = Callable[["Connection", Command], None]
OnLost = Callable[["Connection", Exception], None]


class Connection:
    """A connection that `open_connection` made. `on_request` gets what the broker asks, `on_lost` is called once at the end."""

    def __init__(self, address: str, on_request: OnRequest, on_lost: OnLost, sign: Sign | None = None) -> None:
        self.address = address
        self.endpoint = _Local(measure, self._on_frames, self._ended)
        self._on_request, self._on_lost, self._sign = on_request, on_lost, sign
        self._opaques = itertools.count()
        self._pending: Pending[int, Command] = Pending(address)
        self._loop = asyncio.get_running_loop()

    @property
    def alive(self) -> bool:
        """Whether requests may be sent."""
        return self.endpoint.alive

    @property
    def local_host(self) -> str:
        """Our own address on this connection."""
        return self.endpoint.local_host

    # --- sending ----------------------------------------------------------------------------------------------------

    def post(self, code: int, ext: Mapping[str, str], body: bytes, timeout: float) -> "asyncio.Future[Command]":
        """Send a request now; the future gets the answer, whatever its code, or RequestTimeout or ConnectionLost.

        Raises ConnectionLost when the connection is over already.
        """
        opaque = _int32(next(self._opaques))
        frame = self._frame(code, opaque, 0, ext, body)
        self.endpoint.send(frame)
        return self._pending.add(opaque, name_of(code), timeout)

    async def request(self, code: int, ext: Mapping[str, str], body: bytes, timeout: float) -> Command:
        """Send a request and wait for its answer, whatever its code. Raises RequestTimeout or ConnectionLost.

        A peer that has said nothing at all since the request was sent is taken for dead: the connection ends.
        """
        sent_at = self._loop.time()
        try:
            return await self.post(code, ext, body, timeout)
        except RequestTimeout as error:
            self.suspect(sent_at, error)
            raise

    def suspect(self, since: float, error: Exception) -> None:
        """A request from `since` (loop time) had no answer: end the connection if the peer has been silent ever since."""
        if self.alive and self.endpoint.received_at <= since:
            self.endpoint.abort(PeerSilent(f"{self.address} has been silent: {error}"))

    def oneway(self, code: int, ext: Mapping[str, str], body: bytes, remark: str | None = None) -> None:
        """Send what is not answered. Raises ConnectionLost when the connection is over already."""
        self.endpoint.send(self._frame(code, _int32(next(self._opaques)), ONEWAY, ext, body, remark))

    def answer(self, request: Command, response: Command) -> None:
        """Answer what the broker asked. When the connection is over by now, nobody waits for it any more."""
        if self.alive:
            response.opaque, response.flag = request.opaque, RESPONSE
            self.endpoint.send(encode(response, binary=request.binary))

    def _frame(self, code: int, opaque: int, flag: int, ext: Mapping[str, str], body: bytes, remark: str | None = None) -> bytes:
        command = Command(code=code, opaque=opaque, flag=flag, ext=dict(ext), body=body, remark=remark)
        if self._sign is not None:
            self._sign(command)
        return encode(command)

    # --- what arrives -----------------------------------------------------------------------------------------------

    def _on_frames(self, frames: list[bytes]) -> None:
        for frame in frames:
            command = decode(frame)
            if command.is_response:
                self._pending.resolve(command.opaque, command)
            else:
                self._on_request(self, command)

    def _ended(self, error: Exception) -> None:
        lost = error if isinstance(error, ClusterError) else ConnectionLost(f"the connection to {self.address}: {error}")
        self._pending.fail_all(lost)
        self._on_lost(self, lost)

    async def close(self) -> None:
        """Write what is queued and close; requests that wait fail."""
        await self.endpoint.close()


class _Local(Endpoint):
    """Also knows our own end's address, of which client ids are made."""

    local_host = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.local_host = (transport.get_extra_info("sockname") or ("",))[0]


def _int32(number: int) -> int:
    """Opaques wrap through the negative numbers, as Java's do."""
    return (number + 0x80000000 & 0xFFFFFFFF) - 0x80000000


async def open_connection(
    address: str,
    on_request: OnRequest,
    on_lost: OnLost,
    *,
    tls: Tls | None = None,
    sign: Sign | None = None,
    timeout: float = CONNECT_TIMEOUT_S,
    connectivity: Connectivity | None = None,
) -> Connection:
    """Connect to `host:port`. Raises Unreachable, ValueError for an address that is none."""
    host, port = split_address(address, 0)
    connection = Connection(address, on_request, on_lost, sign)
    link = None if connectivity is None else Link(connectivity, host, port)
    await dial(host, port, lambda: connection.endpoint, tls=tls, timeout=timeout, link=link)
    return connection
