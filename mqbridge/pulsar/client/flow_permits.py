"""Flow permits of a consumer, granted so that the received entries stay within a memory budget.

Pulsar's permits (FLOW) count messages, not bytes, and cannot be revoked. A broker with n permits reads n whole entries at a time,
however many messages each contains, and sends them all. So n is the free part of the budget divided by the estimated size of an
entry. The estimate is the largest possible size until the first entry; then it rises at once and falls slowly. After a read of
batches the number of permits is usually negative; the next grant compensates for this.

Consumers of one application share a budget. Each may hold and request up to its share, and all together up to the budget. But a
consumer that holds nothing may always request one message, else it might never receive any; that message is not counted.
"""

from mqbridge.pulsar.wire.compression import MAX_UNCOMPRESSED_BYTES
from mqbridge.pulsar.wire.entry import ENTRY_BYTES, PROPERTY_BYTES, Entry

MAX_OUTSTANDING = 100_000
"""Maximum number of messages that are granted but not received: even empty messages take memory."""
MAX_GRANT = 0x7FFFFFFF
_DECAY = 0.05
"""The estimate falls by this fraction of its difference to a smaller entry."""
_MIN_DECAY = _DECAY / 1024


def entry_memory(entry: Entry, size: int) -> int:
    """Return the memory that an entry received in `size` bytes takes when it is unpacked, which is its maximum."""
    metadata = entry.metadata
    if (unpacked := metadata.uncompressed_size) > size:
        size = max(size, min(unpacked, MAX_UNCOMPRESSED_BYTES))
    return size + ENTRY_BYTES + PROPERTY_BYTES * len(metadata.properties)


class ReceiveBudget:
    """Memory budget of one or several consumers, in bytes. `consumers` is their expected minimum number."""

    __slots__ = ("committed", "consumers", "held", "max_bytes", "members")

    def __init__(self, max_bytes: int, consumers: int = 1) -> None:
        self.max_bytes, self.consumers = max_bytes, consumers
        self.members: set[FlowPermits] = set()
        self.held = 0
        """Bytes received and not yet released."""
        self.committed = 0.0
        """Bytes held plus the estimated bytes of granted messages."""

    @property
    def share(self) -> int:
        """Bytes that one consumer may hold."""
        return self.max_bytes // max(1, self.consumers, len(self.members))


class FlowPermits:
    """The permits of one consumer at the broker."""

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
        self._estimate = self._committed = 0.0
        self._decay = _DECAY
        self._newest = self._exempt = 0
        self.held = 0
        """Bytes received and not yet released, including deferred ones."""
        self.deferred = 0
        """Bytes of entries taken from the queue that stay charged until `release_deferred`."""
        self.outstanding = 0
        """Number of messages granted minus number of messages received."""

    @property
    def share(self) -> int:
        """Bytes that this consumer may hold."""
        return self._budget.share

    @property
    def overflowed(self) -> bool:
        """True if the budget is exceeded, not counting the newest entry: entries are much larger than estimated."""
        return self._budget.held - max(self._newest, self._exempt) > self._budget.max_bytes

    def reset(self) -> None:
        """Discard the granted permits, as the broker does with a new SUBSCRIBE."""
        self.outstanding = 0
        self._update(0)

    def close(self) -> None:
        """Leave the budget: no more entries will arrive."""
        self.outstanding = 0
        self._update(-self.held)
        self.deferred = 0
        self._budget.members.discard(self)

    def received(self, messages: int, *sizes: int) -> None:
        """Charge received entries of these sizes in bytes, which contain `messages` messages."""
        self.outstanding -= messages
        self._newest = sizes[-1]
        estimate = self._estimate
        for size in sizes:
            estimate = size if size > estimate else estimate + (size - estimate) * self._decay
        self._estimate = estimate
        self._update(sum(sizes))

    def slow_decay(self) -> None:
        """Halve the decay of the estimate, until `reset_decay`; called when all queued entries were dropped after an overflow.

        Otherwise the small entries, redelivered before the large ones, would lower the estimate again, and the consumer would
        overflow for ever.
        """
        self._decay = max(self._decay / 2, _MIN_DECAY)

    def reset_decay(self) -> None:
        """Restore the normal decay, because the dropped entries were delivered."""
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
        """Release the deferred bytes."""
        deferred, self.deferred = self.deferred, 0
        self._update(-deferred)

    def _update(self, size: int) -> None:
        """Add `size` to the held bytes, and update the committed bytes of the budget."""
        budget, before = self._budget, self._committed
        self.held += size
        expected = self.outstanding - 1
        self._committed = self.held + (expected * (self._estimate or self._largest) if expected > 0 else 0)
        budget.held += size
        budget.committed += self._committed - before

    def grant(self) -> int:
        """Return the number of messages to request now; 0 if a FLOW is not worthwhile yet or the budget is used up.

        With no message outstanding, a FLOW is worthwhile when half of the limit is free, so that the broker reads several
        entries at once.
        """
        budget, held = self._budget, self.held
        limit = min(float(budget.share), budget.max_bytes - budget.committed + self._committed)
        free = limit - held
        if held and free < (limit / 2 if self.outstanding <= 0 else 1):
            return 0
        target = max(1, min(MAX_OUTSTANDING, int(free / (self._estimate or self._largest))))
        wanted = target - self.outstanding
        if wanted <= 0 or (wanted < target // 2 and self.outstanding > 0):
            return 0
        granted = min(wanted, MAX_GRANT)
        self.outstanding += granted
        self._update(0)
        return granted
