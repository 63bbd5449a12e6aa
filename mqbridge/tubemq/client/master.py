"""The Masters of a cluster: one is active, the others answer with StandbyException.

A call goes to the one that answered last and, when that is standby, gone or silent, to each of the others once. Every answer
may bring a new visit token, which Brokers may ask for. With credentials every request carries a fresh signature: a Master that
asks for them does so each time, and takes none that is older than a few seconds.
"""

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import count
from typing import TypeVar

from google.protobuf.message import Message

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, Unreachable
from mqbridge.net.connectivity import level_of
from mqbridge.tubemq.client.credentials import Credentials, Role
from mqbridge.tubemq.client.session import Session
from mqbridge.tubemq.client.sessions import Sessions
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
from mqbridge.tubemq.wire.rpc import MASTER, Standby
from mqbridge.tubemq.wire.text import DEFAULT_BROKER_PORT, DEFAULT_BROKER_TLS_PORT

log = logging.getLogger(__name__)

DEFAULT_PORT = 8715
DEFAULT_TLS_PORT = 8716
NO_TOKEN = -2
MAX_TOPICS = 1024
"""The most that a Master lets one client name."""
SHOWN_TOPICS = 3
REGISTER_TRIES = 5
REGISTER_PAUSE_S = 1.0
CLIENT_VERSION = "mqbridge-1"
LOOPBACK = "127.0.0.1"

Answer = (
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

_ELSEWHERE = (Standby, ConnectionLost, Unreachable, RequestTimeout)
_clients = count(1)


class Masters:
    """Calls to whichever Master is active."""

    def __init__(self, addresses: Sequence[tuple[str, int]], sessions: Sessions, credentials: Credentials | None = None) -> None:
        self.addresses = list(addresses)
        self.sessions = sessions
        self.authorized = AuthorizedInfo(visitAuthorizedToken=NO_TOKEN)
        """What goes with requests to Brokers; another object when it has changed."""
        self._credentials = credentials or Credentials()
        self._visit_token = NO_TOKEN
        self._token = ""
        """What a Master that authenticates clients handed out; blank when it does not."""
        self._signed: Signed | None = None
        """What the last request to a Master was signed with."""
        self._current = 0

    async def call(self, method: int, request: Message, answer: type[M]) -> M:
        """Ask the active Master.

        Raises the last error when none of them answers: Unreachable, ConnectionLost, RequestTimeout, Standby; RemoteError
        when the active one threw.
        """
        errors: list[ClusterError] = []
        for index in self._in_turn():
            try:
                found = await self._session(index).call(MASTER, method, request, answer)
            except _ELSEWHERE as error:
                errors.append(error)
                self._leave(index)
            else:
                self._current = index
                return found
        if len(errors) > 1:
            raise Unreachable("no Master is active: " + "; ".join(map(str, errors)), _together(errors)) from errors[-1]
        raise errors[0]

    def _session(self, index: int) -> Session:
        return self.sessions.to(*self.addresses[index])

    def _in_turn(self) -> Iterator[int]:
        """Each Master once, from the one that answered last; calls that fail side by side do not push each other past one."""
        tried: set[int] = set()
        while len(tried) < len(self.addresses):
            index = self._current
            while index in tried:
                index = (index + 1) % len(self.addresses)
            tried.add(index)
            yield index

    def _leave(self, index: int) -> None:
        """This one did not answer: whoever asks next begins with another, unless a call beside this one found one already."""
        if self._current == index:
            self._current = (index + 1) % len(self.addresses)

    @property
    def broker_port(self) -> int:
        """Where a Broker is whose port a Master leaves out."""
        return DEFAULT_BROKER_TLS_PORT if self.sessions.is_encrypted else DEFAULT_BROKER_PORT

    # --- who we are -------------------------------------------------------------------------------------------------

    async def certificate(self) -> MasterCertificateInfo | None:
        """What goes with a request to the Master: a signature of now, and the token that it has handed out.

        Raises ClusterError (FATAL) when the password cannot be read.
        """
        self._signed = await self._credentials.sign()
        self._authorize()
        if self._signed is None:
            return MasterCertificateInfo(authorizedToken=self._token) if self._token else None
        return MasterCertificateInfo(authInfo=self._signed.for_master, authorizedToken=self._token or None)

    def learn(self, info: MasterAuthorizedInfo) -> None:
        """Keep the tokens of an answer: each replaces the one before."""
        self._visit_token = info.visitAuthorizedToken
        if info.authAuthorizedToken:
            self._token = info.authAuthorizedToken
        self._authorize()

    def _authorize(self) -> None:
        """A Broker that asks for more than the visit token takes the Master's token or, without one, a signature."""
        token = self._token or (self._signed.for_broker if self._signed is not None else None)
        if (self._visit_token, token or "") != (self.authorized.visitAuthorizedToken, self.authorized.authAuthorizedToken):
            self.authorized = AuthorizedInfo(visitAuthorizedToken=self._visit_token, authAuthorizedToken=token)

    def check(self, what: str, answer: Answer, role: Role, *, is_good: bool) -> None:
        """Raise what a refusal means; a good answer says that we were let in."""
        if not is_good:
            raise self._credentials.refused(what, answer.errCode, answer.errMsg, role)
        self._credentials.taken(role)
        self.sessions.connectivity.admitted = True

    async def local_host(self) -> str:
        """Our IPv4 address as the Master sees it, or loopback. Raises Unreachable when there is no Master."""
        errors: list[ClusterError] = []
        for index in self._in_turn():
            session = self._session(index)
            try:
                await session.connected()
            except Unreachable as error:
                errors.append(error)
                self._leave(index)
            else:
                host = session.local_host
                return LOOPBACK if ":" in host or not host else host
        raise Unreachable("no Master can be reached: " + "; ".join(map(str, errors)), _together(errors))


def _together(errors: Sequence[ClusterError]) -> Failure:
    """FATAL when every Master failed for good, as by its certificate; one that is merely away may come back and let us in."""
    return Failure.FATAL if all(error.failure is Failure.FATAL for error in errors) else Failure.RETRY


def default_port(*, is_encrypted: bool) -> int:
    """Where a Master is whose port nobody gave."""
    return DEFAULT_TLS_PORT if is_encrypted else DEFAULT_PORT


def client_id(host: str, group: str = "") -> str:
    """A client id that no other has, in the Java clients' form; Brokers take host and process from it for their statistics."""
    start = f"{group}_" if group else ""
    kind = "-Pull" if group else ""
    unique = f"{time.time_ns()}-{random.getrandbits(31)}"
    return f"{start}{host}-{os.getpid()}-{unique}{next(_clients)}{kind}-{CLIENT_VERSION}"


def shown(topics: Collection[str]) -> str:
    """Topics in a sentence, of many the first ones."""
    rest = len(topics) - SHOWN_TOPICS
    first = ", ".join(sorted(topics)[:SHOWN_TOPICS])
    return f"{first} and {rest:,} more" if rest > 0 else first


async def retried(what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try a registration as often as the SDKs do. FATAL refusals and the last failure are raised at once."""
    for left in range(REGISTER_TRIES - 1, -1, -1):
        try:
            return await attempt()
        except ClusterError as error:
            if not left or error.failure is Failure.FATAL:
                raise
            log.log(level_of(error, logging.WARNING), "%s failed, %d tries left: %s", what, left, error)
            await asyncio.sleep(REGISTER_PAUSE_S)
    raise AssertionError("unreachable")
