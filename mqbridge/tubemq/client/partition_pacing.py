"""When the next get of a partition may be sent: after a pack, after nothing, after an error."""

import asyncio
import time

from mqbridge.net.backoff import Backoff
from mqbridge.tubemq.client.flow import NOT_FOUND_WAIT_S, Meter
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C

AUTH_TRIES = 5
"""Visit tokens change every few minutes and come with heartbeats; five refusals in a row are no coincidence."""
WAITS_S = {codes.MOVED: 0.2, codes.FORBIDDEN: 2.0, codes.CERTIFICATE_FAILURE: 2.0}
WAIT_S = 0.3
"""Before the next get after an error, as the Java clients have it."""


class PartitionPacing:
    """The waits of one partition; `meter` knows the administrator's rules. Made inside a running loop."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._next_at = 0.0
        self._auth_failures = 0
        self._backoff = Backoff()
        self._loop = asyncio.get_running_loop()

    @property
    def wait_s(self) -> float:
        """Seconds from now to the next get; not above 0 when it may be sent."""
        return self._next_at - self._loop.time()

    def clear(self) -> None:
        """The next get may be sent at once: it reads elsewhere."""
        self._next_at = 0.0

    def answered(self) -> None:
        """A try ended without an error: the waits after lost answers are short again."""
        self._backoff.reset()

    def found(self, answer: GetMessageResponseB2C, size: int, lag_bytes: int) -> None:
        """A get read `size` bytes and left `lag_bytes`."""
        now = self._loop.time()
        self._auth_failures = 0
        near_end, escaped = answer.requireSlow, answer.escFlowCtrl
        self._next_at = now + self._meter.found(size, lag_bytes, now, time.time(), near_end=near_end, escaped=escaped)

    def found_nothing(self) -> None:
        """There is nothing to read now."""
        self._auth_failures = 0
        self._next_at = self._loop.time() + self._meter.missed()

    def limited(self, wait_ms: int) -> None:
        """The Broker slows us down by so much, or does not say by how much."""
        self._next_at = self._loop.time() + (wait_ms / 1000 or NOT_FOUND_WAIT_S)

    def rejected(self, delay_s: float) -> None:
        """The pack that was out is to come again, and not before `delay_s` seconds."""
        self._next_at = max(self._next_at, self._loop.time() + delay_s)

    def failed(self) -> float:
        """A request got no answer: the wait before the next."""
        return self._wait(self._backoff.delay())

    def refused(self, code: int) -> float:
        """A request was refused with this code: the wait before the next."""
        return self._wait(WAITS_S.get(code, WAIT_S))

    def gives_up(self, code: int) -> bool:
        """Count a refusal of our tokens; whether it was one too many."""
        if code == codes.CERTIFICATE_FAILURE:
            self._auth_failures += 1
        return self._auth_failures >= AUTH_TRIES

    def _wait(self, seconds: float) -> float:
        self._next_at = self._loop.time() + seconds
        return seconds
