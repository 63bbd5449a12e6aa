"""Signed requests of one connection that wait for responses, each with the keys that signed it.

A request whose signature is refused is repeated once if the credentials have changed since, under the same opaque: its caller
does not notice.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mqbridge.errors import ConnectionLost
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.credentials import Credentials, Keys
from mqbridge.rocketmq.wire.access_denials import AccessDenial


class SignedRequest(NamedTuple):
    """A request with all that is needed to sign it again."""

    code: int
    ext: Mapping[str, str]
    body: bytes
    keys: Keys
    repeated: bool = False


Send = Callable[[int, SignedRequest], None]
Reject = Callable[[int, SignedRequest, AccessDenial], None]


class SignedRequests:
    """Pending requests by opaque. `send` writes one; `reject` fails one that cannot usefully be repeated."""

    def __init__(self, credentials: Credentials, name: str, send: Send, reject: Reject) -> None:
        self._credentials, self._name, self._send, self._reject = credentials, name, send, reject
        self._waiting: dict[int, SignedRequest] = {}
        self._refused: list[tuple[int, AccessDenial]] = []
        """Denied requests that wait for the credentials to be read again."""
        self._read_task: asyncio.Task[None] | None = None

    @property
    def keys(self) -> Keys:
        """The current keys."""
        return self._credentials.keys

    def send(self, opaque: int, request: SignedRequest) -> None:
        """Send a request, and keep it until `forget`. Raises ConnectionLost."""
        self._send(opaque, request)
        self._waiting[opaque] = request

    def forget(self, opaque: int) -> None:
        """Drop a request that has its response."""
        self._waiting.pop(opaque, None)

    def refused(self, opaque: int, denial: AccessDenial) -> None:
        """Handle a response that denies access."""
        request = self._waiting.get(opaque)
        if request is None:
            return
        if not denial.of_credentials or request.repeated:
            self._reject(opaque, request, denial)
            return
        self._refused.append((opaque, denial))
        if self._read_task is None:
            self._read_task = spawn(self._read(request.keys), f"credentials for {self._name}")

    def close(self) -> None:
        """The connection has ended and its requests have failed."""
        if self._read_task is not None:
            self._read_task.cancel()

    async def _read(self, refused: Keys) -> None:
        try:
            await self._credentials.read(instead_of=refused)
        finally:
            self._read_task = None
            waiting, self._refused = self._refused, []
            for opaque, denial in waiting:
                self._repeat(opaque, denial)

    def _repeat(self, opaque: int, denial: AccessDenial) -> None:
        request, keys = self._waiting.get(opaque), self.keys
        if request is None:
            return
        if keys == request.keys:
            self._reject(opaque, request, denial)
        else:
            with contextlib.suppress(ConnectionLost):  # which fails the request
                self.send(opaque, request._replace(keys=keys, repeated=True))
