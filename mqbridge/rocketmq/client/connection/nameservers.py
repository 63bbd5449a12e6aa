"""The name servers of a cluster. Each knows the brokers that registered with it. One is used until it fails.

If a server is unreachable, reports a temporary error, or sends an invalid response, the request goes to the next one. A topic
counts as missing only after all servers were tried: a server that has just restarted knows nothing until the brokers register
again.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from mqbridge.errors import ClusterError, ConnectionLost, Failure, ProtocolError, Unreachable
from mqbridge.net.connectivity import Connectivity
from mqbridge.rocketmq.client.connection.connection import REQUEST_TIMEOUT_S
from mqbridge.rocketmq.client.connection.connection_pool import ConnectionPool
from mqbridge.rocketmq.wire.codes import Status, refusal_error, request_name
from mqbridge.rocketmq.wire.command import Command

log = logging.getLogger(__name__)

T = TypeVar("T")


class NameServers:
    """The name servers of one cluster. Requests go to the current one, until it fails or `switch` is called.

    `timeout_s` is the timeout of one response, in seconds.
    """

    def __init__(self, addresses: Sequence[str], pool: ConnectionPool, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        if not addresses:
            raise ValueError("no name server is given: at least one address host:port is needed")
        self.addresses = tuple(addresses)
        self._pool, self._timeout_s = pool, timeout_s
        self._switches = 0
        """Number of switches so far; modulo the number of servers it is the index of the current one."""

    @property
    def connectivity(self) -> Connectivity:
        """The connectivity of the whole cluster."""
        return self._pool.connectivity

    def switch(self) -> None:
        """Send later requests to the next server, because the current one failed or its routes are out of date."""
        self._switches += 1

    async def connect(self) -> str:
        """Connect to the first server that can be reached; return our local IP address on that connection.

        Raises Unreachable, which lists the error of each server: FATAL if all of them refuse this client, else RETRY.
        """
        errors: list[ClusterError] = []
        for number, address in self._addresses_from_current():
            try:
                return (await self._pool.get(address)).local_host
            except ClusterError as error:
                errors.append(error)
                self._switch_after(number)
        raise _unreachable("no name server can be reached", errors)

    async def request(
        self,
        code: int,
        ext: Mapping[str, str],
        decode: Callable[[Command], T],
        *,
        not_found: frozenset[int] = frozenset(),
    ) -> T | None:
        """Send a request to one server after the other until one succeeds; return its response, decoded by `decode`.

        `ext` has the fields of the request's header.
        `not_found` are the response codes for a missing object. Returns None if no server succeeds and at least one responds with
        such a code. `decode` may raise RemoteProtocolError; then the next server is tried.

        Raises ServerRefused (FATAL or REFUSED) without trying further servers. Raises Unreachable, which lists the error of each
        server, if all failed: FATAL if all of them refuse this client, else RETRY.
        """
        errors: list[ClusterError] = []
        missing = False
        for number, address in self._addresses_from_current():
            try:
                response = await self._request_at(address, code, ext)
                if response.code == Status.SUCCESS:
                    return decode(response)
                if response.code not in not_found:
                    raise refusal_error(f"{request_name(code)} at {address}", response.code, response.remark)
                missing = True
            except ProtocolError as error:
                errors.append(ClusterError(f"{address} sent an invalid response: {error}"))
            except (Unreachable, ConnectionLost) as error:
                errors.append(error)
            except ClusterError as error:
                if error.failure in (Failure.FATAL, Failure.REFUSED):
                    raise
                errors.append(error)
            self._switch_after(number)
        if missing:
            return None
        raise _unreachable(f"{request_name(code)} failed at every name server", errors)

    async def request_all(self, code: int, ext: Mapping[str, str]) -> None:
        """Send a request that changes something, such as a deletion, to every server in turn.

        Raises ClusterError for the first server that cannot be reached or refuses; later servers do not get the request.
        """
        for address in self.addresses:
            response = await self._request_at(address, code, ext)
            if response.code != Status.SUCCESS:
                raise refusal_error(f"{request_name(code)} at {address}", response.code, response.remark)

    async def _request_at(self, address: str, code: int, ext: Mapping[str, str]) -> Command:
        connection = await self._pool.get(address)
        return await connection.request(code, ext, b"", self._timeout_s)

    def _addresses_from_current(self) -> list[tuple[int, str]]:
        """Return every server, beginning with the current one, each with the value of `_switches` at which it is the current one.

        A call takes the list at its beginning: other calls switch too, and it would skip a server if it asked the current one.
        """
        numbers = range(self._switches, self._switches + len(self.addresses))
        return [(number, self.addresses[number % len(self.addresses)]) for number in numbers]

    def _switch_after(self, number: int) -> None:
        """Switch away from a server that failed, unless a concurrent call has done so."""
        self._switches = max(self._switches, number + 1)


def _unreachable(problem: str, errors: Sequence[ClusterError]) -> Unreachable:
    """Return the error that lists the error of each server.

    It is FATAL only if all errors are, for example because every server refuses our certificate. A server that is merely down
    may accept us once it is up again.
    """
    fatal = all(error.failure is Failure.FATAL for error in errors)
    return Unreachable(f"{problem}: {'; '.join(map(str, errors))}", Failure.FATAL if fatal else Failure.RETRY)
