"""The Masters of a cluster: one is active, the others respond with StandbyException.

A call goes first to the Master that responded last. If that Master is standby, unreachable or silent, the call goes to each of
the others once. With credentials every request has a fresh signature: a Master that authenticates clients checks each request and
rejects signatures older than a few seconds. Responses may contain two tokens: the visit token, which Brokers may require of all
clients, and from a Master that authenticates clients the auth token, which replaces the signature in requests to Brokers.
"""

import asyncio
import logging
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import count
from typing import Any, TypeVar

from google.protobuf.message import Message

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, Unreachable
from mqbridge.net.connectivity import retry_log_level
from mqbridge.tubemq.client.connection.connection_pool import ConnectionPool
from mqbridge.tubemq.client.connection.credentials import Credentials, Role
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.wire.credentials import SignedCredentials
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

NO_TOKEN = -2
"""Value of visitAuthorizedToken in requests until a Master has issued a token."""
MAX_TOPICS = 1024
"""A Master accepts at most this many topics from one client."""
SHOWN_TOPICS = 3
"""Topics that `format_topics` names in a log line."""
REGISTER_ATTEMPTS = 5
REGISTER_PAUSE_S = 1.0
"""Number of attempts of `call_with_retries`, by which clients register at startup, and the pause between two of them."""
CLIENT_VERSION = "mqbridge-1"
"""The last part of our client ids, where the Java clients put their version."""
MAX_SHOWN_GROUP_CHARS = 600
MAX_CLIENT_NAME_CHARS = 200
"""Parts of the names of group and client that are shown in a client id, which has 1024 characters at most."""
_NOT_IN_CLIENT_IDS = re.compile(r"[^\w.-]", re.ASCII)
"""Characters such as `@` and `#`, which separate the parts of a member's report."""
LOOPBACK = "127.0.0.1"
"""Stands for our address in client ids if our connection to the Master does not use IPv4."""

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

_TRY_NEXT_MASTER = (StandbyError, ConnectionLost, Unreachable, RequestTimeout)
_client_numbers = count(1)


class Masters:
    """Sends calls to the active Master."""

    def __init__(
        self, addresses: Sequence[tuple[str, int]], connections: ConnectionPool, credentials: Credentials | None = None
    ) -> None:
        self.addresses = list(addresses)
        self.connections = connections
        self.broker_auth = AuthorizedInfo(visitAuthorizedToken=NO_TOKEN)
        """The authorization field of requests to Brokers; replaced by a new object when it changes."""
        self._credentials = credentials or Credentials()
        self._visit_token = NO_TOKEN
        self._auth_token = ""
        """The auth token; empty until a Master that authenticates clients has issued one."""
        self._last_signature: SignedCredentials | None = None
        """The signature of the last request to a Master."""
        self._current = 0
        """Index of the Master that the next call tries first."""

    async def call(self, method: int, request: Message, response_type: type[M]) -> M:
        """Call the active Master.

        If no Master is active, raises Unreachable, whose text has the errors of all Masters. If only one Master is configured,
        raises its error: Unreachable, ConnectionLost, RequestTimeout or StandbyError. Raises RemoteError if the active Master
        reports an exception.
        """
        errors: list[ClusterError] = []
        for index in self._masters_to_try():
            if errors:  # a Master has been tried before this one
                await self._sign_again(request)
            try:
                response = await self._connection_to(index).call(MASTER, method, request, response_type)
            except _TRY_NEXT_MASTER as error:
                errors.append(error)
                self._prefer_next_after(index)
            else:
                self._current = index
                return response
        if len(errors) > 1:
            raise Unreachable("no Master is active: " + "; ".join(map(str, errors)), _combined_failure(errors)) from errors[-1]
        raise errors[0]

    def _connection_to(self, index: int) -> ServerConnection:
        return self.connections.connection_to(*self.addresses[index])

    def _masters_to_try(self) -> Iterator[int]:
        """Yield the index of each Master once, starting with the current one.

        If a concurrent call changes `_current` meanwhile, the iteration continues from the new value.
        """
        tried: set[int] = set()
        while len(tried) < len(self.addresses):
            index = self._current
            while index in tried:
                index = (index + 1) % len(self.addresses)
            tried.add(index)
            yield index

    def _prefer_next_after(self, index: int) -> None:
        """Make the Master after this one current, because this one failed. Does nothing if another one is current by now."""
        if self._current == index:
            self._current = (index + 1) % len(self.addresses)

    @property
    def broker_port(self) -> int:
        """The port of Brokers whose address, as the Master lists it, has no port."""
        return DEFAULT_BROKER_TLS_PORT if self.connections.is_encrypted else DEFAULT_BROKER_PORT

    # --- authentication ---------------------------------------------------------------------------------------------

    async def auth_info(self) -> MasterCertificateInfo | None:
        """Return the `authInfo` field of a request to the Master: a fresh signature and the auth token.

        Returns None if there is neither a signature (no credentials) nor an auth token. Raises ClusterError (FATAL) if the
        password cannot be read.
        """
        self._last_signature = await self._credentials.sign()
        self._update_broker_auth()
        if self._last_signature is None:
            return MasterCertificateInfo(authorizedToken=self._auth_token) if self._auth_token else None
        return MasterCertificateInfo(authInfo=self._last_signature.for_master, authorizedToken=self._auth_token or None)

    async def _sign_again(self, request: Any) -> None:
        """Sign the request again for the next Master: the signature may have expired while the previous Master was silent."""
        if self._last_signature is not None:
            request.authInfo.CopyFrom(await self.auth_info())

    def store_tokens(self, info: MasterAuthorizedInfo) -> None:
        """Store the visit token and, if there is one, the auth token of a response; they replace the previous ones."""
        self._visit_token = info.visitAuthorizedToken
        if info.authAuthorizedToken:
            self._auth_token = info.authAuthorizedToken
        self._update_broker_auth()

    def _update_broker_auth(self) -> None:
        """Update `broker_auth` if a token or the signature for Brokers changed.

        A Broker that requires more than the visit token accepts the auth token or a signature in `authAuthorizedToken`.
        """
        auth = self._auth_token or (self._last_signature.for_broker if self._last_signature is not None else None)
        if (self._visit_token, auth or "") != (self.broker_auth.visitAuthorizedToken, self.broker_auth.authAuthorizedToken):
            self.broker_auth = AuthorizedInfo(visitAuthorizedToken=self._visit_token, authAuthorizedToken=auth)

    def raise_if_refused(self, request: str, response: MasterResponse, role: Role, *, is_success: bool) -> None:
        """Raise ServerRefused with the response's error, unless `is_success`; `request` describes the request in the error.

        The caller passes `is_success` because only some types of responses have a field for it. After a success, record that the
        Master accepts our credentials in this role.
        """
        if not is_success:
            raise self._credentials.refusal_error(request, response.errCode, response.errMsg, role)
        self._credentials.record_acceptance(role)
        self.connections.connectivity.credentials_accepted = True

    async def local_host(self) -> str:
        """Return our IPv4 address on the connection to the Master, which client ids contain; loopback if it is not IPv4.

        Raises Unreachable if no Master can be reached.
        """
        errors: list[ClusterError] = []
        for index in self._masters_to_try():
            connection = self._connection_to(index)
            try:
                await connection.connect()
            except Unreachable as error:
                errors.append(error)
                self._prefer_next_after(index)
            else:
                host = connection.local_host
                return LOOPBACK if ":" in host or not host else host
        raise Unreachable("no Master can be reached: " + "; ".join(map(str, errors)), _combined_failure(errors))


def _combined_failure(errors: Sequence[ClusterError]) -> Failure:
    """Return FATAL if all errors are FATAL (e.g. invalid TLS certificates), else RETRY: another Master may recover."""
    return Failure.FATAL if all(error.failure is Failure.FATAL for error in errors) else Failure.RETRY


def new_client_id(host: str, group: str = "", name: str | None = None) -> str:
    """Return a unique client id in the Java clients' format; Brokers parse host and process id from it for their statistics.

    A consumer's id contains its `group`; a producer has none. `name` is a name of the client for operators, of which characters
    that an id cannot have are replaced. Both are shortened if they are too long for an id.
    """
    names = [group[:MAX_SHOWN_GROUP_CHARS], *([] if name is None else [name[:MAX_CLIENT_NAME_CHARS]])] if group else []
    prefix = "".join(_NOT_IN_CLIENT_IDS.sub("-", each) + "_" for each in names)
    suffix = "-Pull" if group else ""
    unique = f"{time.time_ns()}-{random.getrandbits(31)}"
    return f"{prefix}{host}-{os.getpid()}-{unique}{next(_client_numbers)}{suffix}-{CLIENT_VERSION}"


def format_topics(topics: Collection[str]) -> str:
    """Return topic names for a log line: the first SHOWN_TOPICS, and the number of the others."""
    remaining = len(topics) - SHOWN_TOPICS
    first = ", ".join(sorted(topics)[:SHOWN_TOPICS])
    return f"{first} and {remaining:,} more" if remaining > 0 else first


async def call_with_retries(action: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Call `attempt` up to REGISTER_ATTEMPTS times, as the SDKs do at startup; `action` names it in log lines.

    Raises FATAL errors at once, and other ClusterErrors after the last attempt.
    """
    for attempts_left in range(REGISTER_ATTEMPTS - 1, -1, -1):
        try:
            return await attempt()
        except ClusterError as error:
            if not attempts_left or error.failure is Failure.FATAL:
                raise
            text = "%s failed, retrying in %g s (%d attempts left): %s"
            log.log(retry_log_level(error, logging.WARNING), text, action, REGISTER_PAUSE_S, attempts_left, error)
            await asyncio.sleep(REGISTER_PAUSE_S)
    raise AssertionError("the loop over the attempts ended without a result or an error")
