"""Decides when the next get of a partition may be sent: after a pack, after an empty result, after an error."""

import asyncio
import time

from mqbridge.net.backoff import Backoff
from mqbridge.tubemq.client.consumer.flow_control import NOT_FOUND_WAIT_S, FlowControl, FlowMeter
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C

MAX_AUTH_FAILURES = 5
"""After this many consecutive refusals of our tokens, the partition counts as lost: it is revoked.

Visit tokens change every few minutes. The responses to heartbeats to the Master contain the new ones, so a few refusals are
normal.
"""
REFUSAL_WAITS_S = {codes.MOVED: 0.2, codes.FORBIDDEN: 2.0, codes.CERTIFICATE_FAILURE: 2.0}
"""Wait before the next get, by the error code with which the Broker refused the previous one."""
DEFAULT_REFUSAL_WAIT_S = 0.3
"""Wait after a refusal with any other error code, as in the Java clients."""


class PartitionPacing:
    """Computes when the next get of one partition may be sent.

    `rules` are the administrators' flow control rules; `filtered` is True if the reader filters by message type. Without rules
    and earlier failures the next get may follow a pack at once; the reader then does not call `on_data`. Needs a running event
    loop.
    """

    def __init__(self, rules: FlowControl, *, filtered: bool) -> None:
        self.rules = rules
        self.next_get_at = 0.0
        """Event loop time from which the next get may be sent; a time in the past allows it at once."""
        self.is_disturbed = False
        """True if `on_data` has a failure or a wait to reset.

        Set by a get without response and by a refusal of our tokens; with rules also by a get without data.
        """
        self._meter = FlowMeter(rules, filtered=filtered)
        self._auth_failures = 0
        self._backoff = Backoff()
        self._loop = asyncio.get_running_loop()

    def clear(self) -> None:
        """Allow the next get at once, after a seek."""
        self.next_get_at = 0.0

    def on_data(self, response: GetMessageResponseB2C, size_bytes: int, lag_bytes: int) -> None:
        """Handle a get that read `size_bytes` and left `lag_bytes` unread.

        The call is needed only if `is_disturbed` or if there are rules.
        """
        now = self._loop.time()
        self._reset_errors()
        self.is_disturbed = False
        near_end, is_exempt = response.requireSlow, response.escFlowCtrl
        self.next_get_at = now + self._meter.on_data(
            size_bytes, lag_bytes, now, time.time(), near_end=near_end, is_exempt=is_exempt
        )

    def on_no_data(self) -> None:
        """Handle a get without data."""
        self._reset_errors()
        if self.rules.has_rules:
            self.is_disturbed = True
            self._delay_next_get(self._meter.on_no_data())
        else:
            self._delay_next_get(NOT_FOUND_WAIT_S)

    def on_speed_limit(self, wait_ms: int) -> None:
        """Handle a refusal by the Broker's flow control, which requests a wait of `wait_ms`; with 0, wait NOT_FOUND_WAIT_S."""
        self._reset_errors()
        self._delay_next_get(wait_ms / 1000 or NOT_FOUND_WAIT_S)

    def delay_redelivery(self, delay_s: float) -> None:
        """Delay the redelivery of a rejected pack by `delay_s` seconds."""
        self.next_get_at = max(self.next_get_at, self._loop.time() + delay_s)

    def on_failure(self) -> float:
        """Handle a get without response; return the wait before the next get, in seconds."""
        self.is_disturbed = True
        return self._delay_next_get(self._backoff.delay())

    def on_refusal(self, code: int) -> float:
        """Handle a get that was refused with this error code; return the wait before the next get, in seconds."""
        return self._delay_next_get(REFUSAL_WAITS_S.get(code, DEFAULT_REFUSAL_WAIT_S))

    def count_token_refusal(self, code: int) -> bool:
        """Count a refusal of our tokens, if `code` is one; return True after MAX_AUTH_FAILURES consecutive ones."""
        if code == codes.CERTIFICATE_FAILURE:
            self.is_disturbed = True
            self._auth_failures += 1
        return self._auth_failures >= MAX_AUTH_FAILURES

    def _reset_errors(self) -> None:
        """Reset the counter of refused tokens and the backoff: the Broker has responded to a get and accepted our tokens."""
        if self.is_disturbed:
            self._auth_failures = 0
            self._backoff.reset()

    def _delay_next_get(self, seconds: float) -> float:
        """Allow the next get only in `seconds` seconds; return `seconds`."""
        self.next_get_at = self._loop.time() + seconds
        return seconds
