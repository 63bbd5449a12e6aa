"""Limits of a send request, and the broker's limits of one message."""

from bisect import bisect_left
from collections.abc import Sequence

from mqbridge.message import Pair
from mqbridge.rocketmq.wire.properties import MAX_BYTES, Name
from mqbridge.rocketmq.wire.record import MAX_MESSAGE_BYTES

BROKER_BYTES = 1024
"""Bytes kept free for the properties that brokers append: cluster, region, trace, ids, and the topics of a delay or a retry."""
MAX_PROPERTIES_BYTES = MAX_BYTES - BROKER_BYTES
"""The longest property string that a gateway writes."""


class Limits:
    """Limits of a send request (`max_bytes`, `max_messages`), and the broker's limits of one message.

    `max_bytes` limits the encoded messages of a request, `max_message_bytes` is the broker's maxMessageSize.

    `levels` are the delays (ms), from level 1 on, of a broker that supports only delay levels. It is empty for a broker that can
    deliver a message at any time; only then, `max_delay_ms` limits the delay, otherwise the longest level does. `requires_keys`
    is True for a compacted topic, whose messages need KEYS.

    `codec` (one of `compression.NAMES`; None: none) compresses the bodies that it makes smaller, from MIN_COMPRESSED_BYTES on.
    Such messages are sent alone, and `max_message_bytes` limits the compressed body.
    """

    __slots__ = ("_levels", "codec", "max_bytes", "max_delay_ms", "max_message_bytes", "max_messages", "requires_keys")

    def __init__(
        self,
        max_bytes: int = 1 << 20,
        max_messages: int = 1000,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_delay_ms: int = 3 * 24 * 3600 * 1000,
        levels: Sequence[int] = (),
        *,
        requires_keys: bool = False,
        codec: int | None = None,
    ) -> None:
        self.requires_keys, self.codec = requires_keys, codec
        self.max_bytes, self.max_messages = max_bytes, max_messages
        self.max_message_bytes, self.max_delay_ms = max_message_bytes, max(levels, default=max_delay_ms)
        self._levels = sorted((delay, level) for level, delay in enumerate(levels, 1))

    @property
    def has_timers(self) -> bool:
        """True for a broker that can deliver a message at any time; False if it knows delay levels only."""
        return not self._levels

    @property
    def compiled_arguments(self) -> tuple[int, int, int, int, list[tuple[int, int]]]:
        """All limits, for the compiled encoder; the last item lists the delays (ms) with their levels, shortest first."""
        return self.max_bytes, self.max_messages, self.max_message_bytes, self.max_delay_ms, self._levels

    def delay_property(self, deliver_at: int, now: int) -> Pair:
        """Return the property that makes the broker delay a message until `deliver_at`; both times are in ms since the epoch.

        With delay levels, the level is the shortest that is long enough. Raises ValueError if the delay is longer than the broker
        supports.
        """
        wait_ms = deliver_at - now
        if wait_ms > self.max_delay_ms:
            setting = "messageDelayLevel" if self._levels else "timerMaxDelaySec"
            raise ValueError(
                f"it is due in {wait_ms} ms, the broker holds messages for {self.max_delay_ms} ms at most ({setting})"
            )
        if not self._levels:
            return Name.TIMER_DELIVER_MS, str(deliver_at)
        index = bisect_left(self._levels, (wait_ms, 0))  # of the first level whose delay is at least `wait_ms`
        return Name.DELAY, str(self._levels[index][1])


def oversize_reason(properties: bytes) -> str:
    """Return the reason for refusing a property string of more than MAX_PROPERTIES_BYTES."""
    return (
        f"it has {len(properties)} bytes of properties, RocketMQ holds {MAX_BYTES} "
        f"and {BROKER_BYTES} of these are left to what the broker adds"
    )
