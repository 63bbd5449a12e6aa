"""Decides when the next get of a partition may be sent: after a pack, after an empty result, after an error."""

import asyncio
import time

from mqbridge.net.backoff import Backoff
from mqbridge.tubemq.client.flow_control import NOT_FOUND_WAIT_S, FlowControl, FlowMeter
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C

MAX_AUTH_FAILURES = 5
"""Consecutive refusals of our tokens before giving up. Visit tokens change every few minutes; heartbeats bring the new ones."""
WAITS_S = {codes.MOVED: 0.2, codes.FORBIDDEN: 2.0, codes.CERTIFICATE_FAILURE: 2.0}
WAIT_S = 0.3
"""Wait before the next get after an error, as in the Java clients."""


class PartitionPacing:
    """The waits before the gets of one partition; `rules` are the administrators' flow control. Needs a running event loop.

    Without rules and earlier failures the next get follows a pack at once, without a call of this class.
    """

    def __init__(self, rules: FlowControl, *, filtered: bool) -> None:
        self.rules = rules
        self.next_at = 0.0
        """Loop time of the next get. It is in the past when a response arrives, because the get was not sent earlier."""
        self.is_disturbed = False
        """True after failures or gets without data, until the next pack."""
        self._meter = FlowMeter(rules, filtered=filtered)
        self._auth_failures = 0
        self._backoff = Backoff()
        self._loop = asyncio.get_running_loop()

    def clear(self) -> None:
        """Allow the next get at once, after a seek."""
        self.next_at = 0.0

    def found(self, response: GetMessageResponseB2C, size: int, lag_bytes: int) -> None:
        """Note a get that read `size` bytes and left `lag_bytes` unread. Needed only if `is_disturbed` or if there are rules."""
        now = self._loop.time()
        self._recovered()
        self.is_disturbed = False
        near_end, escaped = response.requireSlow, response.escFlowCtrl
        self.next_at = now + self._meter.found(size, lag_bytes, now, time.time(), near_end=near_end, escaped=escaped)

    def found_nothing(self) -> None:
        """Note a get without data."""
        self._recovered()
        if self.rules.has_rules:
            self.is_disturbed = True
            self._wait(self._meter.missed())
        else:
            self._wait(NOT_FOUND_WAIT_S)

    def limited(self, wait_ms: int) -> None:
        """Note a refusal by the Broker's flow control, which requests a wait of `wait_ms`; 0 if it names no time."""
        self._recovered()
        self._wait(wait_ms / 1000 or NOT_FOUND_WAIT_S)

    def rejected(self, delay_s: float) -> None:
        """Delay the redelivery of a rejected pack by `delay_s` seconds."""
        self.next_at = max(self.next_at, self._loop.time() + delay_s)

    def failed(self) -> float:
        """Note a request without response; return the wait before the next get."""
        self.is_disturbed = True
        return self._wait(self._backoff.delay())

    def refused(self, code: int) -> float:
        """Note a refusal with this code; return the wait before the next get."""
        return self._wait(WAITS_S.get(code, WAIT_S))

    def count_refusal(self, code: int) -> bool:
        """Count a refusal of our tokens; return True after MAX_AUTH_FAILURES consecutive ones. Ignore other codes."""
        if code == codes.CERTIFICATE_FAILURE:
            self.is_disturbed = True
            self._auth_failures += 1
        return self._auth_failures >= MAX_AUTH_FAILURES

    def _recovered(self) -> None:
        """Reset the counter of refused tokens and the backoff, after a response to a get."""
        if self.is_disturbed:
            self._auth_failures = 0
            self._backoff.reset()

    def _wait(self, seconds: float) -> float:
        self.next_at = self._loop.time() + seconds
        return seconds
