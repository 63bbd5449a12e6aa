"""Flow permits of a consumer, granted so that the received entries stay within a memory budget.

Pulsar's permits (granted with FLOW) count messages, not bytes, and cannot be revoked. A broker with n permits reads n entries at
once and sends them all, however many messages each entry contains. So this client grants n permits, where n is the free part of
the budget divided by the estimated size of an entry, or before the first entry by the largest possible size. From then on, a
larger entry raises the estimate at once, and smaller entries lower it slowly. After a read of batches the number of outstanding
permits is usually negative, because each message uses one; the next grant compensates for this.

Several consumers can share a budget. Each of them may hold and request bytes up to its share, and all together up to the budget.
One exception: a consumer that holds nothing may always request one message, otherwise it might never receive any. The bytes
expected for that message are not counted.
"""

from mqbridge.pulsar.wire.compression import MAX_UNCOMPRESSED_BYTES
from mqbridge.pulsar.wire.entry import ENTRY_BYTES, PROPERTY_BYTES, Entry

MAX_OUTSTANDING = 100_000
"""Maximum number of permits that are granted and not yet used by a message: even empty messages take memory."""
MAX_GRANT = 0x7FFFFFFF
"""Maximum number of permits of one FLOW: brokers read the number as a signed 32-bit integer."""
_DECAY = 0.05
"""For each smaller entry, the estimate falls by this fraction of the difference."""
_MIN_DECAY = _DECAY / 1024
"""Minimum of this fraction: each overflow halves it, see `slow_decay`."""


def entry_memory(entry: Entry, size: int) -> int:
    """Return the bytes of memory that an entry of `size` received bytes takes when it is unpacked, with its Python objects."""
    metadata = entry.metadata
    packed = size if metadata.compression and entry.keeps_packed else 0
    if (unpacked := metadata.uncompressed_size) > size:
        size = max(size, min(unpacked, MAX_UNCOMPRESSED_BYTES))
    if (min_bytes := entry.min_bytes) > size:
        size = min_bytes
    return packed + size + ENTRY_BYTES + PROPERTY_BYTES * len(metadata.properties)


class ReceiveBudget:
    """Memory budget of one or several consumers, in bytes.

    `consumers` is the number of consumers that are expected to share it; their shares become smaller if there are more members.
    """

    __slots__ = ("committed", "consumers", "held", "max_bytes", "members")

    def __init__(self, max_bytes: int, consumers: int = 1) -> None:
        self.max_bytes, self.consumers = max_bytes, consumers
        self.members: set[FlowPermits] = set()
        """The permits of the consumers that share the budget now."""
        self.held = 0
        """Bytes received and not yet released."""
        self.committed = 0.0
        """Bytes held, plus the estimated bytes of messages that are granted but not received."""

    @property
    def share(self) -> int:
        """Bytes that one consumer may hold."""
        return self.max_bytes // max(1, self.consumers, len(self.members))


class FlowPermits:
    """The permits of one consumer at the broker, and the memory that is charged for its entries."""

    __slots__ = (
        "_budget",
        "_committed",
        "_decay",
        "_estimate",
        "_exempt",
        "_largest",
        "_newest",
        "deferred",
        "held",
        "outstanding",
    )

    def __init__(self, budget: ReceiveBudget, max_message_bytes: int) -> None:
        self._budget = budget
        budget.members.add(self)
        self._largest = max_message_bytes
        """Largest possible size of an entry in bytes, used before there is an estimate."""
        self._estimate = 0.0
        """Estimated bytes of memory of the next entry; 0 until the first entry."""
        self._committed = 0.0
        """This consumer's part of the budget's `committed`."""
        self._decay = _DECAY
        """Fraction of the difference by which a smaller entry lowers the estimate."""
        self._newest = 0
        """Bytes of memory of the newest entry, which never causes an overflow."""
        self._exempt = 0
        """Bytes of memory of the largest message joined from chunks, which never causes an overflow."""
        self.held = 0
        """Bytes received and not yet released, including deferred ones."""
        self.deferred = 0
        """Bytes of entries taken from the queue that are charged until their taker counts them: see `release_deferred`."""
        self.outstanding = 0
        """Number of messages granted minus number of messages received."""

    @property
    def share(self) -> int:
        """Bytes that this consumer may hold."""
        return self._budget.share

    @property
    def overflowed(self) -> bool:
        """True if the budget is exceeded because entries are much larger than estimated.

        The newest entry, or the largest message joined from chunks if that is larger, is not counted.
        """
        return self._budget.held - max(self._newest, self._exempt) > self._budget.max_bytes

    def reset(self) -> None:
        """Set the outstanding permits to 0, as the broker does at a new SUBSCRIBE."""
        self.outstanding = 0
        self._update(0)

    def close(self) -> None:
        """Leave the budget: no more entries will arrive."""
        self.outstanding = 0
        self._update(-self.held)
        self.deferred = 0
        self._budget.members.discard(self)

    def on_received(self, messages: int, *sizes: int) -> None:
        """Record the permits that received entries use, and charge their memory.

        The entries contain `messages` messages together, each of which uses a permit; `sizes` are their bytes of memory.
        """
        self.outstanding -= messages
        self._newest = sizes[-1]
        estimate = self._estimate
        for size in sizes:
            estimate = size if size > estimate else estimate + (size - estimate) * self._decay
        self._estimate = estimate
        self._update(sum(sizes))

    def slow_decay(self) -> None:
        """Halve the speed at which the estimate falls, until `reset_decay`; called when an overflow drops all queued entries.

        Small entries that are redelivered before the large ones would otherwise lower the estimate again, and the consumer would
        overflow for ever.
        """
        self._decay = max(self._decay / 2, _MIN_DECAY)

    def reset_decay(self) -> None:
        """Let the estimate fall at its normal speed again, because the entries that the overflow dropped were delivered."""
        self._decay = _DECAY

    def charge(self, size: int) -> None:
        """Charge a message that was joined from chunks, whose own charges were released. Its size causes no overflow."""
        self._exempt = max(self._exempt, size)
        self._update(size)

    def release(self, size: int) -> None:
        """Release the charge of an entry that was taken or dropped."""
        self._update(-size)

    def defer_release(self, size: int) -> None:
        """Keep a taken entry charged until `release_deferred`."""
        self.deferred += size

    def release_deferred(self) -> None:
        """Release the deferred bytes, because the taker of the entries now counts them itself, or has dropped the entries."""
        deferred, self.deferred = self.deferred, 0
        self._update(-deferred)

    def _update(self, size: int) -> None:
        """Add `size` to the held bytes, and update the budget's committed bytes; one outstanding message is not counted.

        `size` is negative for released bytes, and 0 if only the outstanding permits have changed.
        """
        budget, before = self._budget, self._committed
        self.held += size
        expected = self.outstanding - 1
        self._committed = self.held + (expected * (self._estimate or self._largest) if expected > 0 else 0)
        budget.held += size
        budget.committed += self._committed - before

    def grant(self) -> int:
        """Add permits to the outstanding ones and return their number; 0 if the budget is used up or a FLOW is not worthwhile.

        A FLOW is worthwhile if it lets the broker read several entries at once. So if bytes are held and no permits are
        outstanding, half of the limit must be free. With outstanding permits, the new ones must be at least half of the target,
        which is the number that may be outstanding in all. The limit is this consumer's share, or less if others left less.
        """
        budget, held = self._budget, self.held
        limit = min(float(budget.share), budget.max_bytes - budget.committed + self._committed)
        free = limit - held
        if held and free < (limit / 2 if self.outstanding <= 0 else 1):
            return 0
        target = max(1, min(MAX_OUTSTANDING, int(free / (self._estimate or self._largest))))
        missing = target - self.outstanding
        if missing <= 0 or (missing < target // 2 and self.outstanding > 0):
            return 0
        granted = min(missing, MAX_GRANT)
        self.outstanding += granted
        self._update(0)
        return granted
