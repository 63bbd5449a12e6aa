"""Messages on their way into send requests: batches within the limits, and alone what cannot be in one."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from mqbridge.adapter import MessageFailure
from mqbridge.errors import Failure
from mqbridge.mapping.lazy_properties import LazyMessage, is_utf8, split_properties
from mqbridge.mapping.reserved_properties import ATTRIBUTES, EVENT_TIME, GATEWAY_MARKER, HOPS, ORIGIN, origin_properties
from mqbridge.message import Message, Pair, Position, format_position
from mqbridge.rocketmq.mapping.fast import plan_of, written_keys, written_tags
from mqbridge.rocketmq.mapping.properties import write
from mqbridge.rocketmq.mapping.reading import PLACEHOLDER
from mqbridge.rocketmq.wire.batch import OVERHEAD_BYTES, pack_head, pack_length
from mqbridge.rocketmq.wire.properties import MAX_BYTES, Name

BROKER_BYTES = 1024
"""What brokers append to the properties that they store: cluster, region, trace, ids, and the topics of a delay or a retry."""
MAX_PROPERTIES_BYTES = MAX_BYTES - BROKER_BYTES

IDS = 256
"""Taken at once: a tenth of the time of one by one."""

Reserve = Callable[[int], tuple[str, int]]
"""Gives so many ids in a row: how all begin, and the first one's counter, which are the last four hex digits."""

_INT64 = (1 << 63) - 1
_ID = f"{Name.UNIQ_KEY}\x01".encode()
_LATER_ID = b"\x02" + _ID
_ATTRIBUTES = f"{ATTRIBUTES}\x01".encode()
_TIME, _HOPS = f"{EVENT_TIME}\x01%d\x02".encode(), f"{HOPS}\x01%d\x02".encode()
_BUILT = f"{GATEWAY_MARKER[0]}\x01{GATEWAY_MARKER[1]}\x02".encode()


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

    def delay(self, deliver_at: int, now: int) -> Pair:
        """The property that has the broker hold a message until then, or somewhat longer. Raises ValueError for too long."""
        wait = deliver_at - now
        if wait > self.max_delay_ms:
            setting = "messageDelayLevel" if self._levels else "timerMaxDelaySec"
            raise ValueError(f"it is due in {wait} ms, the broker holds messages for {self.max_delay_ms} ms at most ({setting})")
        if not self._levels:
            return Name.TIMER_DELIVER_MS, str(deliver_at)
        return Name.DELAY, str(self._levels[bisect_left(self._levels, (wait, 0))][1])


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


class Batches:
    """Messages on their way into batches, with stamps that begin with `origin`, None for no stamps."""

    __slots__ = (
        "_born",
        "_count",
        "_ids",
        "_limits",
        "_now",
        "_origin",
        "_parts",
        "_room",
        "_size",
        "_start",
        "failures",
        "sends",
    )

    def __init__(self, limits: Limits, origin: str | None, now: int, reserve_ids: Reserve | None) -> None:
        self._limits, self._origin, self._now = limits, origin, now
        self._ids = None if reserve_ids is None else _ids(reserve_ids)
        self.sends: list[Outgoing] = []
        self.failures: list[MessageFailure] = []
        self._parts: list[bytes] = []
        self._start = self._size = self._count = 0
        self._room = min(limits.max_bytes, limits.max_message_bytes) - OVERHEAD_BYTES
        self._born = now

    def add_all(self, messages: Sequence[Message]) -> None:
        """Add messages in order."""
        index = 0
        while (index := self._add_ordinary(messages, index)) < len(messages):
            self._add_plainly(index, messages[index])
            index += 1
        self._flush(index)

    def _add_ordinary(  # noqa: C901, PLR0912, PLR0915 - per message; calls cost more
        self, messages: Sequence[Message], start: int
    ) -> int:
        """Add messages up to the first that is not ordinary, whose index it returns. The bytes are those that `write` gives."""
        tags, keys_of, ids, join = written_tags.get, written_keys.get, self._ids, b"".join
        stem, stem_of = b"", None
        known, plan = None, None
        index = start
        try:
            for index in range(start, len(messages)):
                message = messages[index]
                body = message.payload
                if isinstance(message, LazyMessage):
                    names, values = message.property_names, message.values
                elif is_ordinary(message):
                    names, values = split_properties(message.properties)
                else:
                    return index
                if names is not known:
                    known, plan = names, names.target_cache("rocketmq", plan_of)
                if plan is None or not body:
                    return index
                pieces = [plan.text % values]
                if (tag := message.msg_type) is not None:
                    pieces.append(tags(tag) or written_tags[tag])
                first = None
                if keys := message.keys:
                    piece, first = keys_of(keys) or written_keys[keys]
                    pieces.append(piece)
                if (key := message.key) != first:
                    if not isinstance(key, str):
                        return index
                    pieces.append(f"{Name.SHARDING_KEY}\x01{key}\x02".encode())
                native = len(pieces)
                if (attributes := message.attributes) is not None:
                    pieces.append(b"%b%b\x02" % (_ATTRIBUTES, attributes))
                if (time := message.event_time) is not None:
                    pieces.append(_TIME % time)
                if self._origin is not None:
                    position = message.position
                    if position[:-1] != stem_of:  # those of an entry or a pack differ in the last number only
                        stem_of = position[:-1]
                        stem = self._stem(stem_of)
                    pieces.append(b"%b%d\x02" % (stem, position[-1]))
                    if message.hops:
                        pieces.append(_HOPS % (message.hops + 1))
                elif message.origin is not None:
                    pieces += _passed_on(message)
                if len(pieces) == native:
                    pieces.append(_BUILT)
                properties = join(pieces)
                # A separator inside a text shows in the counts, an empty text by two side by side.
                count = plan.count + len(pieces) - 1
                if properties.count(b"\x01") != count or properties.count(b"\x02") != count or b"\x01\x02" in properties:
                    return index
                if ids is not None and not plan.has_id:
                    properties += next(ids)
                if len(body) + len(properties) > self._room or len(properties) > MAX_PROPERTIES_BYTES:
                    return index
                self._put(index, message, body, properties, 0)
        except UnicodeEncodeError:
            return index
        return len(messages)

    def _stem(self, numbers: Position) -> bytes:
        """The origin of a message, without the last number of its position."""
        before = f"{format_position(numbers)}:" if numbers else ""
        return f"{ORIGIN}\x01{self._origin}{before}".encode()

    def _add_plainly(self, index: int, message: Message) -> None:
        """Add any message, or refuse it."""
        if message.defect is not None:
            self._refuse(index, f"it could not be read: {message.defect}")
            return
        stamp = None if self._origin is None else self._origin + format_position(message.position)
        try:
            if message.deliver_at is not None and message.deliver_at > self._now:
                self._add_delayed(index, message, stamp)
                return
            written = write(message, stamp, alone=False)
            properties = written.encoded()
        except UnicodeEncodeError as error:
            self._refuse(index, f"its texts are no Unicode text: {error}")
            return
        body, identified = message.payload or PLACEHOLDER, self._identified(properties)
        if len(properties) > MAX_PROPERTIES_BYTES:
            self._refuse(index, _too_many(properties))
        elif len(body) + len(identified) + OVERHEAD_BYTES > self._limits.max_message_bytes:
            # The broker's limit leaves no room for a batch of its own, which would keep its properties in order.
            self._add_alone(index, message, stamp, None)
        else:
            self._put(index, message, body, identified, written.flag)

    def _put(self, index: int, message: Message, body: bytes, properties: bytes, flag: int) -> None:
        """Into the batch, a new one if it is full."""
        length = len(properties)
        size = OVERHEAD_BYTES + len(body) + length
        if self._count and (self._size + size > self._limits.max_bytes or self._count >= self._limits.max_messages):
            self._flush(index)
        if not self._count:
            self._start, self._born = index, self._time_of(message)
        self._parts += (pack_head(size, 0, 0, flag, len(body)), body, pack_length(length), properties)
        self._size += size
        self._count += 1

    def _identified(self, properties: bytes) -> bytes:
        """The property string with a UNIQ_KEY; of several the last is what Java shows, so there must not be two."""
        if self._ids is None or properties.startswith(_ID) or _LATER_ID in properties:
            return properties
        return properties + next(self._ids)

    def _add_delayed(self, index: int, message: Message, stamp: str | None) -> None:
        """Alone, with a timer or a level."""
        try:
            delay = self._limits.delay(message.deliver_at or 0, self._now)
        except ValueError as error:
            self._refuse(index, str(error))
        else:
            self._add_alone(index, message, stamp, delay)

    def _add_alone(self, index: int, message: Message, stamp: str | None, delay: Pair | None) -> None:
        body, most = message.payload or PLACEHOLDER, self._limits.max_message_bytes
        if len(body) > most:
            self._refuse(index, f"its payload has {len(body)} bytes, the broker takes {most} (maxMessageSize)")
            return
        written = write(message, stamp, alone=True, delay=delay)
        properties = written.encoded()
        if len(properties) > MAX_PROPERTIES_BYTES:
            self._refuse(index, _too_many(properties))
            return
        self._flush(index)
        self.sends.append(
            Outgoing(
                body,
                range(index, index + 1),
                born=self._time_of(message),
                is_batch=False,
                properties=self._identified(properties),
                flag=written.flag,
                delayed=delay is not None,
            )
        )

    def _refuse(self, index: int, reason: str) -> None:
        """Not to be sent, ever."""
        self._flush(index)
        self.failures.append(MessageFailure(index, Failure.REFUSED, reason))

    def _flush(self, end: int) -> None:
        """Close the batch that ends before the message `end`."""
        if self._count:
            self.sends.append(Outgoing(b"".join(self._parts), range(self._start, end), born=self._born, is_batch=True))
            self._parts = []
            self._size = self._count = 0

    def _time_of(self, message: Message) -> int:
        time = message.event_time
        return time if time is not None and 0 < time <= _INT64 else self._now


def _ids(reserve: Reserve) -> Iterator[bytes]:
    """UNIQ_KEY, another one each time."""
    while True:
        start, first = reserve(IDS)
        for number in range(first, first + IDS):
            yield b"%b%b%04X\x02" % (_ID, start.encode(), number)


def is_ordinary(message: Message) -> bool:
    """Whether a message that is not raw has nothing that only `write` can say."""
    return (
        message.deliver_at is None
        and message.ordering_key is None
        and message.defect is None
        and message.position != ()
        and (message.attributes is None or is_utf8(message.attributes))
    )


def _passed_on(message: Message) -> list[bytes]:
    """The stamp that the message came with."""
    return [f"{name}\x01{value}\x02".encode() for name, value in origin_properties(message, None)]


def _too_many(properties: bytes) -> str:
    return (
        f"it has {len(properties)} bytes of properties, RocketMQ holds {MAX_BYTES} "
        f"and {BROKER_BYTES} of these are left to what the broker adds"
    )
