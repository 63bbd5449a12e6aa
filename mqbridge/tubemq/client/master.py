"""The Masters of a cluster: one is active, the others respond with StandbyException.

A call goes to the Master that responded last and, if that one is standby, unreachable or silent, to each of the others once.
Every response may bring a new visit token, which Brokers may require. With credentials every request carries a fresh signature: a
Master that authenticates clients checks each request, and accepts no signature older than a few seconds.
"""

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import count
from typing import Any, TypeVar

from google.protobuf.message import Message

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, Unreachable
from mqbridge.net.connectivity import level_of
from mqbridge.tubemq.client.connection_pool import ConnectionPool
from mqbridge.tubemq.client.credentials import Credentials, Role
from mqbridge.tubemq.client.server_connection import ServerConnection
from mqbridge.tubemq.wire.credentials import Signed
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo
from mqbridge.tubemq.wire.pb.master_pb2 import (
    GetPartMetaResponseM2C,
    HeartResponseM2C,
    HeartResponseM2CV2,
    HeartResponseM2P,
    MasterAuthorizedInfo,
    MasterCertificateInfo,
    RegisterResponseM2C,
    RegisterResponseM2CV2,
    RegisterResponseM2P,
)
from mqbridge.tubemq.wire.rpc import MASTER, StandbyError
from mqbridge.tubemq.wire.string_formats import DEFAULT_BROKER_PORT, DEFAULT_BROKER_TLS_PORT

log = logging.getLogger(__name__)

DEFAULT_PORT = 8715
DEFAULT_TLS_PORT = 8716
NO_TOKEN = -2
MAX_TOPICS = 1024
"""A Master accepts at most this many topics from one client."""
SHOWN_TOPICS = 3
REGISTER_TRIES = 5
REGISTER_PAUSE_S = 1.0
CLIENT_VERSION = "mqbridge-1"
LOOPBACK = "127.0.0.1"

MasterResponse = (
    RegisterResponseM2P
    | HeartResponseM2P
    | RegisterResponseM2C
    | HeartResponseM2C
    | RegisterResponseM2CV2
    | HeartResponseM2CV2
    | GetPartMetaResponseM2C
)
M = TypeVar("M", bound=Message)
T = TypeVar("T")

_TRY_NEXT = (StandbyError, ConnectionLost, Unreachable, RequestTimeout)
_clients = count(1)


class Masters:
    """Sends calls to the active Master."""

    def __init__(
        self, addresses: Sequence[tuple[str, int]], connections: ConnectionPool, credentials: Credentials | None = None
    ) -> None:
        self.addresses = list(addresses)
        self.connections = connections
        self.authorized = AuthorizedInfo(visitAuthorizedToken=NO_TOKEN)
        """The authorization in requests to Brokers; replaced by a new object when it changes."""
        self._credentials = credentials or Credentials()
        self._visit_token = NO_TOKEN
        self._token = ""
        """The token of a Master that authenticates clients; blank without authentication."""
        self._signed: Signed | None = None
        """The signature of the last request to a Master."""
        self._current = 0

    async def call(self, method: int, request: Message, response_type: type[M]) -> M:
        """Call the active Master.

        If none responds, raises the last error: Unreachable, ConnectionLost, RequestTimeout, StandbyError. Raises RemoteError if
        the active one threw.
        """
        errors: list[ClusterError] = []
        for index in self._in_turn():
            if errors:
                await self._sign_again(request)
            try:
                found = await self._connection_to(index).call(MASTER, method, request, response_type)
            except _TRY_NEXT as error:
                errors.append(error)
                self._skip(index)
            else:
                self._current = index
                return found
        if len(errors) > 1:
            raise Unreachable("no Master is active: " + "; ".join(map(str, errors)), _combined_failure(errors)) from errors[-1]
        raise errors[0]

    def _connection_to(self, index: int) -> ServerConnection:
        return self.connections.to(*self.addresses[index])

    def _in_turn(self) -> Iterator[int]:
        """Yield each Master once, starting with the one that responded last; concurrent failing calls do not skip a Master."""
        tried: set[int] = set()
        while len(tried) < len(self.addresses):
            index = self._current
            while index in tried:
                index = (index + 1) % len(self.addresses)
            tried.add(index)
            yield index

    def _skip(self, index: int) -> None:
        """Start the next call with another Master, unless a concurrent call has already found one."""
        if self._current == index:
            self._current = (index + 1) % len(self.addresses)

    @property
    def broker_port(self) -> int:
        """Port of Brokers whose address comes without one."""
        return DEFAULT_BROKER_TLS_PORT if self.connections.is_encrypted else DEFAULT_BROKER_PORT

    # --- who we are -------------------------------------------------------------------------------------------------

    async def certificate(self) -> MasterCertificateInfo | None:
        """Return the certificate for a request to the Master: a fresh signature, and the token that the Master handed out.

        Raises ClusterError (FATAL) if the password cannot be read.
        """
        self._signed = await self._credentials.sign()
        self._authorize()
        if self._signed is None:
            return MasterCertificateInfo(authorizedToken=self._token) if self._token else None
        return MasterCertificateInfo(authInfo=self._signed.for_master, authorizedToken=self._token or None)

    async def _sign_again(self, request: Any) -> None:
        """Sign the request anew for the next Master: the previous one may have been silent until the signature expired."""
        if self._signed is not None:
            request.authInfo.CopyFrom(await self.certificate())

    def learn(self, info: MasterAuthorizedInfo) -> None:
        """Keep the tokens of a response; they replace the previous ones."""
        self._visit_token = info.visitAuthorizedToken
        if info.authAuthorizedToken:
            self._token = info.authAuthorizedToken
        self._authorize()

    def _authorize(self) -> None:
        """A Broker that requires more than the visit token accepts the Master's token or, without one, a signature."""
        token = self._token or (self._signed.for_broker if self._signed is not None else None)
        if (self._visit_token, token or "") != (self.authorized.visitAuthorizedToken, self.authorized.authAuthorizedToken):
            self.authorized = AuthorizedInfo(visitAuthorizedToken=self._visit_token, authAuthorizedToken=token)

    def check(self, request: str, response: MasterResponse, role: Role, *, is_success: bool) -> None:
        """Raise the error of a refusal; a successful response proves that the credentials are accepted."""
        if not is_success:
            raise self._credentials.refused(request, response.errCode, response.errMsg, role)
        self._credentials.accepted(role)
        self.connections.connectivity.admitted = True

    async def local_host(self) -> str:
        """Return our IPv4 address on the connection to the Master, or loopback. Raises Unreachable if no Master responds."""
        errors: list[ClusterError] = []
        for index in self._in_turn():
            connection = self._connection_to(index)
            try:
                await connection.connected()
            except Unreachable as error:
                errors.append(error)
                self._skip(index)
            else:
                host = connection.local_host
                return LOOPBACK if ":" in host or not host else host
        raise Unreachable("no Master can be reached: " + "; ".join(map(str, errors)), _combined_failure(errors))


def _combined_failure(errors: Sequence[ClusterError]) -> Failure:
    """FATAL if every Master failed for good, e.g. by its certificate; one that is merely away may come back and accept us."""
    return Failure.FATAL if all(error.failure is Failure.FATAL for error in errors) else Failure.RETRY


def default_port(*, is_encrypted: bool) -> int:
    """Return the Master's default port."""
    return DEFAULT_TLS_PORT if is_encrypted else DEFAULT_PORT


def new_client_id(host: str, group: str = "") -> str:
    """Return a unique client id in the Java clients' form; Brokers parse host and process from it for their statistics."""
    start = f"{group}_" if group else ""
    kind = "-Pull" if group else ""
    unique = f"{time.time_ns()}-{random.getrandbits(31)}"
    return f"{start}{host}-{os.getpid()}-{unique}{next(_clients)}{kind}-{CLIENT_VERSION}"


def topics_text(topics: Collection[str]) -> str:
    """Return topic names for a log line: the first three, and the number of the others."""
    others = len(topics) - SHOWN_TOPICS
    first = ", ".join(sorted(topics)[:SHOWN_TOPICS])
    return f"{first} and {others:,} more" if others > 0 else first


async def with_retries(action: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try a registration as often as the SDKs do. FATAL refusals and the last failure are raised at once."""
    for tries_left in range(REGISTER_TRIES - 1, -1, -1):
        try:
            return await attempt()
        except ClusterError as error:
            if not tries_left or error.failure is Failure.FATAL:
                raise
            log.log(level_of(error, logging.WARNING), "%s failed, %d tries left: %s", action, tries_left, error)
            await asyncio.sleep(REGISTER_PAUSE_S)
    raise AssertionError("unreachable")
