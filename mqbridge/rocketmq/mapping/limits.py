"""Limits of a send request, and the broker's limits of one message."""

from bisect import bisect_left
from collections.abc import Sequence

from mqbridge.message import Pair
from mqbridge.rocketmq.wire.properties import MAX_BYTES, Name
from mqbridge.rocketmq.wire.record import MAX_MESSAGE_BYTES

BROKER_BYTES = 1024
"""Room for the properties that brokers append: cluster, region, trace, ids, and the topics of a delay or a retry."""
MAX_PROPERTIES_BYTES = MAX_BYTES - BROKER_BYTES


class Limits:
    """Limits of a batch, and the broker's limits of one message.

    `levels` are the delays (ms), from level 1 on, of a broker that supports only delay levels; empty if it delays until any time.
    """

    __slots__ = ("_levels", "max_bytes", "max_delay_ms", "max_message_bytes", "max_messages")

    def __init__(
        self,
        max_bytes: int = 1 << 20,
        max_messages: int = 1000,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_delay_ms: int = 3 * 24 * 3600 * 1000,
        levels: Sequence[int] = (),
    ) -> None:
        self.max_bytes, self.max_messages = max_bytes, max_messages
        self.max_message_bytes, self.max_delay_ms = max_message_bytes, max(levels, default=max_delay_ms)
        self._levels = sorted((delay, level) for level, delay in enumerate(levels, 1))

    @property
    def numbers(self) -> tuple[int, int, int, int, list[tuple[int, int]]]:
        """All limits, for the compiled encoder; the last item is delays (ms) and their levels."""
        return self.max_bytes, self.max_messages, self.max_message_bytes, self.max_delay_ms, self._levels

    def delay(self, deliver_at: int, now: int) -> Pair:
        """Return the property that delays a message until `deliver_at` (ms), or up to the next delay level.

        Raises ValueError if the broker does not support so long a delay.
        """
        wait = deliver_at - now
        if wait > self.max_delay_ms:
            setting = "messageDelayLevel" if self._levels else "timerMaxDelaySec"
            raise ValueError(f"it is due in {wait} ms, the broker holds messages for {self.max_delay_ms} ms at most ({setting})")
        if not self._levels:
            return Name.TIMER_DELIVER_MS, str(deliver_at)
        return Name.DELAY, str(self._levels[bisect_left(self._levels, (wait, 0))][1])


def too_many(block: bytes) -> str:
    """Return why a property string beyond MAX_PROPERTIES_BYTES is refused."""
    return (
        f"it has {len(block)} bytes of properties, RocketMQ holds {MAX_BYTES} "
        f"and {BROKER_BYTES} of these are left to what the broker adds"
    )
