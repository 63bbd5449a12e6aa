"""When the next get of a partition may be sent: after a pack, after nothing, after an error."""

import asyncio
import time

from mqbridge.net.backoff import Backoff
from mqbridge.tubemq.client.flow import NOT_FOUND_WAIT_S, FlowControl, Meter
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C

AUTH_TRIES = 5
"""Visit tokens change every few minutes and come with heartbeats; five refusals in a row are no coincidence."""
WAITS_S = {codes.MOVED: 0.2, codes.FORBIDDEN: 2.0, codes.CERTIFICATE_FAILURE: 2.0}
WAIT_S = 0.3
"""Before the next get after an error, as the Java clients have it."""


class PartitionPacing:
    """The waits of one partition; `rules` are the administrator's. Made inside a running loop.

    A pack that is read without rules, and after no failure, is followed by the next get at once: it is no business of this class.
    """

    def __init__(self, rules: FlowControl, *, filtered: bool) -> None:
        self.rules = rules
        self.next_at = 0.0
        """Loop time of the next get. It is over when an answer comes, since the get was not sent before it."""
        self.is_disturbed = False
        """Failures or misses were counted, which end with the next pack."""
        self._meter = Meter(rules, filtered=filtered)
        self._auth_failures = 0
        self._backoff = Backoff()
        self._loop = asyncio.get_running_loop()

    def clear(self) -> None:
        """The next get may be sent at once: it reads elsewhere."""
        self.next_at = 0.0

    def found(self, answer: GetMessageResponseB2C, size: int, lag_bytes: int) -> None:
        """A get read `size` bytes and left `lag_bytes`. To be told of while `is_disturbed`, and where rules are in force."""
        now = self._loop.time()
        self._recovered()
        self.is_disturbed = False
        near_end, escaped = answer.requireSlow, answer.escFlowCtrl
        self.next_at = now + self._meter.found(size, lag_bytes, now, time.time(), near_end=near_end, escaped=escaped)

    def found_nothing(self) -> None:
        """There is nothing to read now."""
        self._recovered()
        if self.rules.in_force:
            self.is_disturbed = True
            self._wait(self._meter.missed())
        else:
            self._wait(NOT_FOUND_WAIT_S)

    def limited(self, wait_ms: int) -> None:
        """The Broker slows us down by so much, or does not say by how much."""
        self._recovered()
        self._wait(wait_ms / 1000 or NOT_FOUND_WAIT_S)

    def rejected(self, delay_s: float) -> None:
        """The pack that was out is to come again, and not before `delay_s` seconds."""
        self.next_at = max(self.next_at, self._loop.time() + delay_s)

    def failed(self) -> float:
        """A request got no answer: the wait before the next."""
        self.is_disturbed = True
        return self._wait(self._backoff.delay())

    def refused(self, code: int) -> float:
        """A request was refused with this code: the wait before the next."""
        return self._wait(WAITS_S.get(code, WAIT_S))

    def gives_up(self, code: int) -> bool:
        """Count a refusal of our tokens; whether it was one too many."""
        if code == codes.CERTIFICATE_FAILURE:
            self.is_disturbed = True
            self._auth_failures += 1
        return self._auth_failures >= AUTH_TRIES

    def _recovered(self) -> None:
        """A get was answered: our tokens are good, and the waits after lost answers are short again."""
        if self.is_disturbed:
            self._auth_failures = 0
            self._backoff.reset()

    def _wait(self, seconds: float) -> float:
        self.next_at = self._loop.time() + seconds
        return seconds
