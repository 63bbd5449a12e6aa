"""What a send request may hold, and what a broker takes of one message."""

from bisect import bisect_left
from collections.abc import Sequence

from mqbridge.message import Pair
from mqbridge.rocketmq.wire.properties import MAX_BYTES, Name

BROKER_BYTES = 1024
"""What brokers append to the properties that they store: cluster, region, trace, ids, and the topics of a delay or a retry."""
MAX_PROPERTIES_BYTES = MAX_BYTES - BROKER_BYTES


class Limits:
    """What a batch may hold, and what the broker takes of one message.

    `levels` are the delays (ms) of a broker that knows no others, from level 1 on; empty for one that holds until a given time.
    """

    __slots__ = ("_levels", "max_bytes", "max_delay_ms", "max_message_bytes", "max_messages")

    def __init__(
        self,
        max_bytes: int = 1 << 20,
        max_messages: int = 1000,
        max_message_bytes: int = 4 << 20,
        max_delay_ms: int = 3 * 24 * 3600 * 1000,
        levels: Sequence[int] = (),
    ) -> None:
        self.max_bytes, self.max_messages = max_bytes, max_messages
        self.max_message_bytes, self.max_delay_ms = max_message_bytes, max(levels, default=max_delay_ms)
        self._levels = sorted((delay, level) for level, delay in enumerate(levels, 1))

    @property
    def numbers(self) -> tuple[int, int, int, int, list[tuple[int, int]]]:
        """All of it, as the compiled encoder takes it; the last are delays (ms) and their levels."""
        return self.max_bytes, self.max_messages, self.max_message_bytes, self.max_delay_ms, self._levels

    def delay(self, deliver_at: int, now: int) -> Pair:
        """The property that has the broker hold a message until then, or somewhat longer. Raises ValueError for too long."""
        wait = deliver_at - now
        if wait > self.max_delay_ms:
            setting = "messageDelayLevel" if self._levels else "timerMaxDelaySec"
            raise ValueError(f"it is due in {wait} ms, the broker holds messages for {self.max_delay_ms} ms at most ({setting})")
        if not self._levels:
            return Name.TIMER_DELIVER_MS, str(deliver_at)
        return Name.DELAY, str(self._levels[bisect_left(self._levels, (wait, 0))][1])


def too_many(block: bytes) -> str:
    """Why a property string beyond MAX_PROPERTIES_BYTES is refused."""
    return (
        f"it has {len(block)} bytes of properties, RocketMQ holds {MAX_BYTES} "
        f"and {BROKER_BYTES} of these are left to what the broker adds"
    )
