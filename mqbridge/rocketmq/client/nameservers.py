"""The name servers of a cluster. Each knows the brokers that registered with it. One is used until it fails.

A server that is unreachable, refuses, or sends an invalid response is skipped for the next one. "Not found" counts only if all
reachable servers say so: a server that just restarted knows nothing until the brokers register again.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from mqbridge.errors import ClusterError, ConnectionLost, Failure, ProtocolError, Unreachable
from mqbridge.net.connectivity import Connectivity
from mqbridge.rocketmq.client.connection import REQUEST_TIMEOUT_S
from mqbridge.rocketmq.client.connection_pool import ConnectionPool
from mqbridge.rocketmq.wire.codes import Status, refused, request_name
from mqbridge.rocketmq.wire.command import Command

log = logging.getLogger(__name__)

T = TypeVar("T")


class NameServers:
    """The name servers of one cluster, and the one in use."""

    def __init__(self, addresses: Sequence[str], pool: ConnectionPool, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        if not addresses:
            raise ValueError("no name server is given")
        self.addresses = tuple(addresses)
        self._pool, self._timeout_s = pool, timeout_s
        self._index = 0

    @property
    def connectivity(self) -> Connectivity:
        """The connectivity of the whole cluster."""
        return self._pool.connectivity

    def skip(self) -> None:
        """Use the next server from now on: this one was of no use."""
        self._index += 1

    async def connect(self) -> str:
        """Connect to one; return our local address. Raises Unreachable, which names all servers, FATAL if none will accept us."""
        failed: list[ClusterError] = []
        for _ in self.addresses:
            try:
                return (await self._pool.get(self._current())).local_host
            except ClusterError as error:
                failed.append(error)
                self.skip()
        raise _unreachable("no name server can be reached", failed)

    async def ask(
        self,
        code: int,
        ext: Mapping[str, str],
        read: Callable[[Command], T],
        *,
        absent: frozenset[int] = frozenset(),
    ) -> T | None:
        """Return the response of the first server that has one, decoded by `read` (which may raise RemoteProtocolError).

        None if all responses have a code in `absent`. Raises ServerRefused (FATAL, REFUSED) at once, and Unreachable with every
        server's reason if none responded, FATAL if none will accept us.
        """
        failed: list[ClusterError] = []
        missing = False
        for _ in self.addresses:
            address = self._current()
            try:
                answer = await self._one(address, code, ext)
                if answer.code == Status.SUCCESS:
                    return read(answer)
                if answer.code not in absent:
                    raise refused(f"{request_name(code)} at {address}", answer.code, answer.remark)
                missing = True
            except ProtocolError as error:
                failed.append(ClusterError(f"{address} sent an invalid response: {error}"))
            except (Unreachable, ConnectionLost) as error:
                failed.append(error)
            except ClusterError as error:
                if error.failure in (Failure.FATAL, Failure.REFUSED):
                    raise
                failed.append(error)
            self.skip()
        if missing:
            return None
        raise _unreachable(f"no name server answered {request_name(code)}", failed)

    async def each(self, code: int, ext: Mapping[str, str]) -> None:
        """Send a request to every server, such as a deletion. Raises ClusterError."""
        for address in self.addresses:
            answer = await self._one(address, code, ext)
            if answer.code != Status.SUCCESS:
                raise refused(f"{request_name(code)} at {address}", answer.code, answer.remark)

    async def _one(self, address: str, code: int, ext: Mapping[str, str]) -> Command:
        connection = await self._pool.get(address)
        return await connection.request(code, ext, b"", self._timeout_s)

    def _current(self) -> str:
        return self.addresses[self._index % len(self.addresses)]


def _unreachable(problem: str, failed: Sequence[ClusterError]) -> Unreachable:
    """FATAL if every server failed for good, as by our certificate; a server that is merely away may come back and accept us."""
    fatal = all(error.failure is Failure.FATAL for error in failed)
    return Unreachable(f"{problem}: {'; '.join(map(str, failed))}", Failure.FATAL if fatal else Failure.RETRY)
