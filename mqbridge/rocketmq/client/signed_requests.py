"""Signed requests of one connection that wait for their answers, each with the keys that it was signed with.

One whose signature is refused is sent once more when the credentials are others by now, under the same opaque: who waits for its
answer does not notice.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.credentials import Credentials, Keys
from mqbridge.rocketmq.wire.refusals import Refusal


class SignedRequest(NamedTuple):
    """What it takes to sign a request again."""

    code: int
    ext: Mapping[str, str]
    body: bytes
    keys: Keys
    repeated: bool = False


Send = Callable[[int, SignedRequest], None]
Reject = Callable[[int, SignedRequest, Refusal], None]


class SignedRequests:
    """By opaque. `send` writes one; `reject` tells who waits that repeating it does not help, or cannot be done."""

    def __init__(self, credentials: Credentials, name: str, send: Send, reject: Reject) -> None:
        self._credentials, self._name, self._send, self._reject = credentials, name, send, reject
        self._waiting: dict[int, SignedRequest] = {}
        self._refused: list[tuple[int, Refusal]] = []
        """While the credentials are read again."""
        self._reading: asyncio.Task[None] | None = None

    @property
    def keys(self) -> Keys:
        """What to sign with now."""
        return self._credentials.keys

    def send(self, opaque: int, request: SignedRequest) -> None:
        """Write it, and keep it until `forget`. Raises ConnectionLost."""
        self._send(opaque, request)
        self._waiting[opaque] = request

    def forget(self, opaque: int) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(opaque, None)

    def refused(self, opaque: int, refusal: Refusal) -> None:
        """The answer to a request refuses credentials or a right."""
        request = self._waiting.get(opaque)
        if request is None:
            return
        if not refusal.of_credentials or request.repeated:
            self._reject(opaque, request, refusal)
            return
        self._refused.append((opaque, refusal))
        if self._reading is None:
            self._reading = spawn(self._read(request.keys), f"credentials for {self._name}")

    def close(self) -> None:
        """The connection is over; what waits has been told."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, refused: Keys) -> None:
        try:
            await self._credentials.read(instead_of=refused)
        finally:
            self._reading = None
            waiting, self._refused = self._refused, []
            for opaque, refusal in waiting:
                self._repeat(opaque, refusal)

    def _repeat(self, opaque: int, refusal: Refusal) -> None:
        request, keys = self._waiting.get(opaque), self.keys
        if request is None:
            return
        if keys == request.keys:
            self._reject(opaque, request, refusal)
        else:
            self.send(opaque, request._replace(keys=keys, repeated=True))
