"""How many messages a consumer may ask for, so that what it holds stays within a number of bytes.

Pulsar's credit (FLOW) counts messages and knows nothing of their size, and it cannot be taken back. A broker that has credit of n
messages reads n whole entries at a time, however many messages are in each, and sends them all. So n is the room divided by what
an entry costs, which is estimated: the largest possible one until the first has been seen, from then on upwards at once and
downwards slowly. After such a read the credit is mostly negative; the next grant makes up for that.

Consumers of one application share a pool. Each may hold and ask for its share, and all together no more than there is; but
whoever holds nothing may always ask for one message, or it would never hear of any. That is not counted.
"""

from mqbridge.pulsar.wire.compression import MAX_UNCOMPRESSED_BYTES
from mqbridge.pulsar.wire.entry import ENTRY_BYTES, PROPERTY_BYTES, Entry

MAX_OUTSTANDING = 100_000
"""Messages asked for and not received; even empty messages cost something."""
MAX_GRANT = 0x7FFFFFFF
_FORGET = 0.05
"""How much of the distance the estimate goes towards a smaller entry."""
_FORGET_LEAST = _FORGET / 1024


def memory_of(entry: Entry, size: int) -> int:
    """What an entry that came in `size` bytes takes once it is unpacked, which is what it takes at most."""
    metadata = entry.metadata
    if (unpacked := metadata.uncompressed_size) > size:
        size = max(size, min(unpacked, MAX_UNCOMPRESSED_BYTES))
    return size + ENTRY_BYTES + PROPERTY_BYTES * len(metadata.properties)


class CreditPool:
    """The bytes that some consumers may hold together. `consumers` is how many there will be at least."""

    __slots__ = ("committed", "consumers", "held", "max_bytes", "members")

    def __init__(self, max_bytes: int, consumers: int = 1) -> None:
        self.max_bytes, self.consumers = max_bytes, consumers
        self.members: set[Credit] = set()
        self.held = 0
        """Bytes received and not yet handed over."""
        self.committed = 0.0
        """These, and what is on its way by the estimates."""

    @property
    def share(self) -> int:
        """What one of them may have."""
        return self.max_bytes // max(1, self.consumers, len(self.members))


class Credit:
    """The books of one consumer's credit with the broker."""

    __slots__ = ("_committed", "_estimate", "_exempt", "_forget", "_largest", "_newest", "_pool", "held", "lent", "outstanding")

    def __init__(self, pool: CreditPool, max_message_bytes: int) -> None:
        self._pool = pool
        pool.members.add(self)
        self._largest = max_message_bytes
        self._estimate = self._committed = 0.0
        self._forget = _FORGET
        self._newest = self._exempt = 0
        self.held = 0
        """Bytes received and not yet handed over, those lent among them."""
        self.lent = 0
        """Bytes that were taken and count until they are given back."""
        self.outstanding = 0
        """Messages granted minus messages received."""

    @property
    def share(self) -> int:
        """Bytes that may be held."""
        return self._pool.share

    @property
    def overflowed(self) -> bool:
        """Entries became so much larger that more is held than may be, without the one that came last."""
        return self._pool.held - max(self._newest, self._exempt) > self._pool.max_bytes

    def reset(self) -> None:
        """A new session: the broker has forgotten what it was granted."""
        self.outstanding = 0
        self._commit(0)

    def close(self) -> None:
        """Nothing more will come: leave the pool."""
        self.outstanding = 0
        self._commit(-self.held)
        self.lent = 0
        self._pool.members.discard(self)

    def received(self, messages: int, *sizes: int) -> None:
        """Entries of these sizes came that are charged with so many messages."""
        self.outstanding -= messages
        self._newest = sizes[-1]
        known = self._estimate
        for size in sizes:
            known = size if size > known else known + (size - known) * self._forget
        self._estimate = known
        self._commit(sum(sizes))

    def shed(self) -> None:
        """So much was held that all was given back: large entries are remembered for twice as long, until `calm`.

        Else a consumer to which the same small entries come again before the large ones would give those back for ever.
        """
        self._forget = max(self._forget / 2, _FORGET_LEAST)

    def calm(self) -> None:
        """What was given back has come again."""
        self._forget = _FORGET

    def hold(self, size: int) -> None:
        """A message was joined from chunks that were let go before; one of this size is no sign that too much is held."""
        self._exempt = max(self._exempt, size)
        self._commit(size)

    def handed_over(self, size: int) -> None:
        """An entry was taken, or dropped."""
        self._commit(-size)

    def lend(self, size: int) -> None:
        """An entry was taken by somebody who keeps its bytes on this account."""
        self.lent += size

    def give_back(self) -> None:
        """Somebody else counts what was lent."""
        lent, self.lent = self.lent, 0
        self._commit(-lent)

    def _commit(self, size: int) -> None:
        """So many bytes more are held; and what is on its way may have changed."""
        pool, before = self._pool, self._committed
        self.held += size
        on_the_way = self.outstanding - 1
        self._committed = self.held + (on_the_way * (self._estimate or self._largest) if on_the_way > 0 else 0)
        pool.held += size
        pool.committed += self._committed - before

    def grant(self) -> int:
        """How many messages to ask for now; 0 while it is not worth a command or there is no room.

        With nothing on its way it is worth one when half of what may be held is free, so that brokers read some entries at once.
        """
        pool, held = self._pool, self.held
        most = min(float(pool.share), pool.max_bytes - pool.committed + self._committed)
        room = most - held
        if held and room < (most / 2 if self.outstanding <= 0 else 1):
            return 0
        target = max(1, min(MAX_OUTSTANDING, int(room / (self._estimate or self._largest))))
        wanted = target - self.outstanding
        if wanted <= 0 or (wanted < target // 2 and self.outstanding > 0):
            return 0
        granted = min(wanted, MAX_GRANT)
        self.outstanding += granted
        self._commit(0)
        return granted
