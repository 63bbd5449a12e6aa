"""The name servers: independent of each other, each knows what registered with it. One is asked at a time, until it fails.

A server that cannot be reached, that refuses, or whose answer makes no sense is passed over for the next one. "Not found" is
believed only when all that answer say so: one that was just restarted knows nothing until the brokers have registered again.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from mqbridge.errors import ClusterError, ConnectionLost, Failure, ProtocolError, Unreachable
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.dial import split_address
from mqbridge.rocketmq.client.connection import REQUEST_TIMEOUT_S
from mqbridge.rocketmq.client.pool import Pool
from mqbridge.rocketmq.wire.codes import Status, name_of, refused
from mqbridge.rocketmq.wire.command import Command

log = logging.getLogger(__name__)

DEFAULT_PORT = 9876

T = TypeVar("T")


def parse_name_servers(text: str) -> list[str]:
    """The addresses of `a:9876;b`, separated by `;` or `,`. Raises ValueError."""
    parts = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    if not parts:
        raise ValueError("no name server is given")
    return [_parse(part) for part in parts]


def _parse(part: str) -> str:
    try:
        return join_address(*split_address(part, DEFAULT_PORT))
    except ValueError as error:
        raise ValueError(f"{part!r} is not the host:port of a name server") from error


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class NameServers:
    """The list of one cluster, and whose turn it is."""

    def __init__(self, addresses: Sequence[str], pool: Pool, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        if not addresses:
            raise ValueError("no name server is given")
        self.addresses = tuple(addresses)
        self._pool, self._timeout_s = pool, timeout_s
        self._turn = 0

    @property
    def connectivity(self) -> Connectivity:
        """Of the whole cluster."""
        return self._pool.connectivity

    def skip(self) -> None:
        """Begin with the next server from now on: what this one said was of no use."""
        self._turn += 1

    async def connect(self) -> str:
        """Reach one; our own address as it sees us. Raises Unreachable, which names all, FATAL when none will let us in."""
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
        """What the first server that can say it says, read by `read` (RemoteProtocolError: it makes no sense).

        None when no server has it: an answer whose code is in `absent`. Raises ServerRefused (FATAL, REFUSED) at once, and
        Unreachable with every server's reason when none gave an answer, FATAL when none will let us in.
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
                    raise refused(f"{name_of(code)} at {address}", answer.code, answer.remark)
                missing = True
            except ProtocolError as error:
                failed.append(ClusterError(f"{address} said what makes no sense: {error}"))
            except (Unreachable, ConnectionLost) as error:
                failed.append(error)
            except ClusterError as error:
                if error.failure in (Failure.FATAL, Failure.REFUSED):
                    raise
                failed.append(error)
            self.skip()
        if missing:
            return None
        raise _unreachable(f"no name server answered {name_of(code)}", failed)

    async def each(self, code: int, ext: Mapping[str, str]) -> None:
        """Ask every server, not only one (what deletes must reach all). Raises ClusterError."""
        for address in self.addresses:
            answer = await self._one(address, code, ext)
            if answer.code != Status.SUCCESS:
                raise refused(f"{name_of(code)} at {address}", answer.code, answer.remark)

    async def _one(self, address: str, code: int, ext: Mapping[str, str]) -> Command:
        connection = await self._pool.get(address)
        return await connection.request(code, ext, b"", self._timeout_s)

    def _current(self) -> str:
        return self.addresses[self._turn % len(self.addresses)]


def _unreachable(problem: str, failed: Sequence[ClusterError]) -> Unreachable:
    """FATAL when every server failed for good, as by our certificate; one that is merely away may come back and let us in."""
    fatal = all(error.failure is Failure.FATAL for error in failed)
    return Unreachable(f"{problem}: {'; '.join(map(str, failed))}", Failure.FATAL if fatal else Failure.RETRY)
