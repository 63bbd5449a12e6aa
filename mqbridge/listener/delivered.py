"""The units of a feed: what is stored as one, with its state and what consumers have acknowledged of it."""

from enum import Enum

from mqbridge.message import Batch, Message, Position, Unit


class State(Enum):
    """The state of a unit; `mqbridge.listener.feed` has the table of its changes."""

    QUEUED = "queued"
    OUT = "out"
    DELAYED = "delayed"
    DONE = "done"


class HeldBatch:
    """A batch whose bytes are held until all of its units are DONE: its units refer to them."""

    __slots__ = ("batch", "is_whole", "open_units", "size")

    def __init__(self, batch: Batch, size: int) -> None:
        """`size` are the bytes that it holds."""
        self.batch, self.size = batch, size
        self.open_units = 0
        """Number of its units that are not DONE."""
        self.is_whole = True
        """False if one of its units came again with a later batch: the source is told about each of the others by itself."""


class Delivered:
    """A unit of a feed, or a message that was stored without one.

    number      number of its first message; that of message k is `number + k`
    count       number of messages
    unit        the stored unit, in the format of the feed; None if there is none
    message     the message, if there is no unit
    remaining   bits of the messages that are not acknowledged
    deliveries  number of deliveries before this one that count
    is_withheld True if consumers do not get it, so that they cannot acknowledge it either
    taker       whoever has taken it may note itself here; the feed does not use it
    size        bytes of its content
    """

    __slots__ = (
        "count",
        "deliveries",
        "end",
        "end_index",
        "generation",
        "held",
        "is_withheld",
        "message",
        "number",
        "remaining",
        "size",
        "state",
        "taker",
        "unit",
    )

    def __init__(
        self, number: int, content: Unit | Message, held: HeldBatch, first_index: int, end: Position, generation: int
    ) -> None:
        """`first_index` is the index of its first message in the batch, `end` the position after it."""
        if isinstance(content, Unit):
            self.unit: Unit | None = content
            self.message: Message | None = None
            self.count, self.size, self.deliveries = content.message_count, len(content.data), 0
            self.remaining = ((1 << self.count) - 1) & ~content.left_out
        else:
            self.unit, self.message = None, content
            self.count, self.size, self.deliveries = 1, len(content.payload or b""), content.delivery_count
            self.remaining = 1
        self.number, self.held, self.end, self.generation = number, held, end, generation
        self.end_index = first_index + self.remaining.bit_count()
        """Index in the batch after its last message; messages that are left out of the batch do not count."""
        self.state = State.QUEUED
        self.taker: object | None = None
        self.is_withheld = False

    @property
    def acknowledged(self) -> int:
        """Bits of the messages that are acknowledged, or were left out of the batch because they were before."""
        return ((1 << self.count) - 1) & ~self.remaining

    def indexes_in_batch(self, bits: int) -> list[int]:
        """Return the indexes in the batch of the messages with these bits; messages that are left out of it have none."""
        left_out = 0 if self.unit is None else self.unit.left_out
        first = self.end_index - self.count + left_out.bit_count()
        indexes = []
        while bits:
            bit = (bits & -bits).bit_length() - 1
            indexes.append(first + bit - (left_out & ((1 << bit) - 1)).bit_count())
            bits &= bits - 1
        return indexes

    def take_content(self, again: "Delivered") -> None:
        """Replace the content by that of a newer delivery; the acknowledgements, the state and the taker stay."""
        self.unit, self.message, self.size = again.unit, again.message, again.size
        self.held, self.end_index, self.end = again.held, again.end_index, again.end

    def finish(self) -> None:
        """Make the unit DONE, and forget its content."""
        self.state, self.unit, self.message = State.DONE, None, None
