"""Signed requests of one connection that wait for responses, each with the keys that signed it.

If a broker refuses a signature, the credentials are read again. If they have changed, the request is signed and sent once more,
with the same opaque, so that its caller gets the response to the second attempt.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mqbridge.errors import ConnectionLost
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.connection.credentials import Credentials, Keys
from mqbridge.rocketmq.wire.access_denials import AccessDenial


class SignedRequest(NamedTuple):
    """A request with everything that is needed to sign it again. `repeated`: this is the second attempt."""

    code: int
    ext: Mapping[str, str]
    body: bytes
    keys: Keys
    repeated: bool = False


Send = Callable[[int, SignedRequest], None]
"""(opaque, request) -> None; writes the request to the connection. Raises ConnectionLost."""
Reject = Callable[[int, SignedRequest, AccessDenial], None]
"""(opaque, request, the broker's reason) -> None; lets the request fail."""


class SignedRequests:
    """The pending signed requests of the connection to `name` (an address), by opaque: the number that a response repeats."""

    def __init__(self, credentials: Credentials, name: str, send: Send, reject: Reject) -> None:
        self._credentials, self._name = credentials, name
        self._send, self._reject = send, reject
        self._pending: dict[int, SignedRequest] = {}
        self._denied: list[tuple[int, AccessDenial]] = []
        """Opaque and denial of requests that wait for the credentials to be read again."""
        self._read_task: asyncio.Task[None] | None = None

    @property
    def keys(self) -> Keys:
        """The keys that sign new requests."""
        return self._credentials.keys

    def send(self, opaque: int, request: SignedRequest) -> None:
        """Send a request, and keep it until `forget`. Raises ConnectionLost."""
        self._send(opaque, request)
        self._pending[opaque] = request

    def forget(self, opaque: int) -> None:
        """Remove a request that has its response or has failed."""
        self._pending.pop(opaque, None)

    def on_denial(self, opaque: int, denial: AccessDenial) -> None:
        """Handle a response that denies access: repeat the request if new credentials may help, else let it fail."""
        request = self._pending.get(opaque)
        if request is None:
            return
        # New credentials do not help if only a permission is missing. A request is repeated once.
        if not denial.of_credentials or request.repeated:
            self._reject(opaque, request, denial)
            return
        self._denied.append((opaque, denial))
        if self._read_task is None:
            self._read_task = spawn(self._read_and_repeat(request.keys), f"credentials for {self._name}")

    def close(self) -> None:
        """Stop reading the credentials, because the connection has ended and its requests fail."""
        if self._read_task is not None:
            self._read_task.cancel()

    async def _read_and_repeat(self, refused_keys: Keys) -> None:
        """Read the credentials unless they already differ from these keys, then repeat the denied requests or let them fail.

        If reading fails, the keys stay the same, so the requests fail.
        """
        try:
            await self._credentials.read(instead_of=refused_keys)
        finally:
            self._read_task = None
            denied, self._denied = self._denied, []
            for opaque, denial in denied:
                self._repeat_or_reject(opaque, denial)

    def _repeat_or_reject(self, opaque: int, denial: AccessDenial) -> None:
        """Repeat a denied request if the keys have changed since it was signed, else let it fail."""
        request, keys = self._pending.get(opaque), self.keys
        if request is None:
            return
        if keys == request.keys:
            self._reject(opaque, request, denial)
        else:
            with contextlib.suppress(ConnectionLost):  # the end of the connection lets all pending requests fail
                self.send(opaque, request._replace(keys=keys, repeated=True))
