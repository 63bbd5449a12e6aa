"""RocketMQ record <-> `Message`.

Messages travel in batches, whose elements keep their property strings as written; a delayed one, or one that is too large for a
batch, is sent alone. What becomes of which field is in `fields`; `reading` and `writing` do it in the plain way, `native` fast.
"""

from collections.abc import Callable, Sequence

from mqbridge.adapter import MessageFailure
from mqbridge.errors import Failure
from mqbridge.message import Message, format_position
from mqbridge.rocketmq.native import RecordMessage, read_stamped, write_ordinary
from mqbridge.rocketmq.reading import PLACEHOLDER, read
from mqbridge.rocketmq.wire.batch import OVERHEAD_BYTES, encode_element
from mqbridge.rocketmq.wire.properties import MAX_BYTES, Name
from mqbridge.rocketmq.wire.record import Record
from mqbridge.rocketmq.writing import write

BROKER_BYTES = 1024
"""What brokers append to the properties that they store: cluster, region, trace, ids, and the topics of a delay or a retry."""
MAX_PROPERTIES_BYTES = MAX_BYTES - BROKER_BYTES
IDS = 256
"""Taken at once: a tenth of the time of one by one."""

Reserve = Callable[[int], tuple[str, int]]
"""Gives so many ids in a row: how all begin, and the first one's counter, which are the last four hex digits."""


class Limits:
    """What a batch may hold, and what the broker takes of one message."""

    __slots__ = ("max_bytes", "max_delay_ms", "max_message_bytes", "max_messages")

    def __init__(
        self,
        max_bytes: int = 1 << 20,
        max_messages: int = 1000,
        max_message_bytes: int = 4 << 20,
        max_delay_ms: int = 3 * 24 * 3600 * 1000,
    ) -> None:
        self.max_bytes, self.max_messages = max_bytes, max_messages
        self.max_message_bytes, self.max_delay_ms = max_message_bytes, max_delay_ms


class Outgoing:
    """What one send request carries: a batch, or one message with its properties.

    `indexes` are the places of its messages among those to be sent, `born` is the header's timestamp (ms). A `delayed` one is
    first stored elsewhere: the offset in the broker's answer is not one of its queue.
    """

    __slots__ = ("body", "born", "delayed", "flag", "indexes", "is_batch", "properties", "sys_flag")

    def __init__(
        self,
        body: bytes,
        indexes: range,
        *,
        born: int,
        is_batch: bool,
        properties: bytes = b"",
        flag: int = 0,
        sys_flag: int = 0,
        delayed: bool = False,
    ) -> None:
        self.body, self.properties, self.flag, self.sys_flag = body, properties, flag, sys_flag
        self.born, self.indexes, self.is_batch, self.delayed = born, indexes, is_batch, delayed

    @property
    def count(self) -> int:
        """How many messages it has."""
        return len(self.indexes)


# --- in ---------------------------------------------------------------------------------------------------------------


def decode(records: Sequence[Record]) -> list[Message]:
    """The messages of records; one that is damaged becomes a Message with its `defect`."""
    messages: list[Message] = []
    append = messages.append
    for record in records:
        if record.defect is not None:
            append(read(record))
        elif b"mqbridge." in record.properties:
            append(read_stamped(record))
        else:
            append(RecordMessage(record))
    return messages


# --- out --------------------------------------------------------------------------------------------------------------


def encode(
    messages: Sequence[Message], origin: str | None, limits: Limits, now: int, reserve_ids: Reserve | None = None
) -> tuple[list[Outgoing], list[MessageFailure]]:
    """Batches and single sends that hold the messages in order, and a failure for each that RocketMQ cannot hold.

    `origin` is what every stamp begins with, None for no stamps. A message whose `deliver_at` lies after `now` (ms) is sent
    alone, with a timer. `reserve_ids` gives ids to messages without one: only by its UNIQ_KEY has a message the same id for Java
    consumers each time that it is delivered. Such an id stands behind what is ours, where readers take it for a broker's.
    """
    run = _Run(limits, now, reserve_ids)
    room = min(limits.max_bytes, limits.max_message_bytes)
    for index, message in enumerate(messages):
        if message.defect is not None:
            run.refuse(index, f"it could not be read: {message.defect}")
            continue
        stamp = None if origin is None else origin + format_position(message.position)
        try:
            if message.deliver_at is not None and message.deliver_at > now:
                run.add_delayed(index, message, stamp)
                continue
            properties, flag = write_ordinary(message, stamp)
        except UnicodeEncodeError as error:
            run.refuse(index, f"its texts are no Unicode text: {error}")
            continue
        body = message.payload or PLACEHOLDER
        identified = run.identified(properties)
        size = len(body) + len(identified) + OVERHEAD_BYTES
        if size > room or len(properties) > MAX_PROPERTIES_BYTES:
            run.add_large(index, message, stamp, properties, flag)
        else:
            run.add(index, message, encode_element(body, identified, flag))
    run.flush(len(messages))
    return run.sends, run.failures


class _Run:
    """Messages on their way into batches."""

    __slots__ = ("_born", "_id", "_id_start", "_ids_left", "_limits", "_now", "_parts", "_reserve", "_size", "_start", "failures",
                 "sends")  # fmt: skip

    def __init__(self, limits: Limits, now: int, reserve_ids: Reserve | None) -> None:
        self._limits, self._now, self._reserve = limits, now, reserve_ids
        self._id_start, self._id, self._ids_left = b"", 0, 0
        self.sends: list[Outgoing] = []
        self.failures: list[MessageFailure] = []
        self._parts: list[bytes] = []
        self._start = self._size = 0
        self._born = now

    def identified(self, properties: bytes) -> bytes:
        """The property string with a UNIQ_KEY; of several the last is what Java shows, so there must not be two."""
        if self._reserve is None or _ID_LATER in properties or properties.startswith(_ID_FIRST):
            return properties
        if not self._ids_left:
            start, self._id = self._reserve(IDS)
            self._id_start, self._ids_left = _ID_FIRST + start.encode(), IDS
        number, self._id, self._ids_left = self._id, self._id + 1, self._ids_left - 1
        return b"%b%b%04X\x02" % (properties, self._id_start, number)

    def refuse(self, index: int, reason: str) -> None:
        """Not to be sent, ever."""
        self.flush(index)
        self.failures.append(MessageFailure(index, Failure.REFUSED, reason))

    def add(self, index: int, message: Message, element: bytes) -> None:
        """Into the batch, a new one if it is full."""
        parts, limits = self._parts, self._limits
        if parts and (self._size + len(element) > limits.max_bytes or len(parts) >= limits.max_messages):
            self.flush(index)
            parts = self._parts
        if not parts:
            self._start, self._born = index, self._time_of(message)
        parts.append(element)
        self._size += len(element)

    def add_large(self, index: int, message: Message, stamp: str | None, properties: bytes, flag: int) -> None:
        """A batch of its own, which keeps its properties in order, or alone where the broker's limit leaves no room for that."""
        body, identified = message.payload or PLACEHOLDER, self.identified(properties)
        if len(properties) > MAX_PROPERTIES_BYTES:
            self.refuse(index, _too_many(properties))
        elif len(body) + len(identified) + OVERHEAD_BYTES > self._limits.max_message_bytes:
            self._add_alone(index, message, stamp, delayed=False)
        else:
            self.add(index, message, encode_element(body, identified, flag))

    def add_delayed(self, index: int, message: Message, stamp: str | None) -> None:
        """Alone, with a timer."""
        delay, most = (message.deliver_at or 0) - self._now, self._limits.max_delay_ms
        if delay > most:
            self.refuse(index, f"it is due in {delay} ms, the broker holds messages for {most} ms at most (timerMaxDelaySec)")
        else:
            self._add_alone(index, message, stamp, delayed=True)

    def _add_alone(self, index: int, message: Message, stamp: str | None, *, delayed: bool) -> None:
        body, most = message.payload or PLACEHOLDER, self._limits.max_message_bytes
        if len(body) > most:
            self.refuse(index, f"its payload has {len(body)} bytes, the broker takes {most} (maxMessageSize)")
            return
        written = write(message, stamp, alone=True, delayed=delayed)
        properties = written.encoded()
        if len(properties) > MAX_PROPERTIES_BYTES:
            self.refuse(index, _too_many(properties))
            return
        self.flush(index)
        self.sends.append(
            Outgoing(
                body,
                range(index, index + 1),
                born=self._time_of(message),
                is_batch=False,
                properties=self.identified(properties),
                flag=written.flag,
                delayed=delayed,
            )
        )

    def flush(self, end: int) -> None:
        """Close the batch that ends before the message `end`."""
        if self._parts:
            self.sends.append(Outgoing(b"".join(self._parts), range(self._start, end), born=self._born, is_batch=True))
            self._parts = []
            self._size = 0

    def _time_of(self, message: Message) -> int:
        time = message.event_time
        return time if time is not None and 0 < time <= _INT64 else self._now


_INT64 = (1 << 63) - 1
_ID_FIRST = f"{Name.UNIQ_KEY}\x01".encode()
_ID_LATER = b"\x02" + _ID_FIRST


def _too_many(properties: bytes) -> str:
    return (
        f"it has {len(properties)} bytes of properties, RocketMQ holds {MAX_BYTES} "
        f"and {BROKER_BYTES} of these are left to what the broker adds"
    )
