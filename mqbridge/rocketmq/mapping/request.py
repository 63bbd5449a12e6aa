"""`Message` -> RocketMQ send requests: batches within the limits, and alone what no batch can hold.

Elements of a batch keep their property strings as written. A delayed message, and one that fits the broker's limit only without a
batch's framing, is sent alone. The compiled module encodes where it is installed; `encode_plain` says what it has to give.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import Failure
from mqbridge.message import Message, Pair, format_position
from mqbridge.native import compiled, is_native
from mqbridge.rocketmq.mapping.limits import MAX_PROPERTIES_BYTES, Limits, too_many
from mqbridge.rocketmq.mapping.open_batch import OpenBatch, born_at
from mqbridge.rocketmq.mapping.read_block import PLACEHOLDER
from mqbridge.rocketmq.mapping.write_block import write_block
from mqbridge.rocketmq.wire.batch import OVERHEAD_BYTES, Element, encode_batch
from mqbridge.rocketmq.wire.properties import VALUE_END, Name, opening

IDS = 256
"""Taken at once: a tenth of the time of one by one."""

Reserve = Callable[[int], tuple[str, int]]
"""Gives so many ids in a row: how all begin, and the first one's counter, which are the last four hex digits."""

_ID = opening(Name.UNIQ_KEY)
_ID_END = VALUE_END.encode()
_LATER_ID = _ID_END + _ID


class EncodedRequest:
    """What one send request carries: a batch, or one message with its properties.

    `indexes` are those of its messages among the messages to be sent, `born` is the header's timestamp (ms). A `delayed` one is
    first stored elsewhere: the offset in the broker's response is not one of its queue.
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


def encode(
    messages: Sequence[Message], origin: str | None, limits: Limits, now: int, reserve_ids: Reserve | None = None
) -> tuple[list[EncodedRequest], list[MessageFailure]]:
    """Batches and single sends that hold the messages in order, and a failure for each that RocketMQ cannot hold.

    `origin` is what every stamp begins with, None for no stamps. A message whose `deliver_at` lies after `now` (ms) is sent
    alone, with a timer. `reserve_ids` gives ids to messages without one: only by its UNIQ_KEY has a message the same id for Java
    consumers each time that it is delivered. Such an id stands behind the gateway's pairs, where readers take it for a broker's.
    """
    if compiled is not None:
        native = messages if is_native(messages) else compiled.Messages.of(messages)
        found = None if native is None else compiled.rocketmq_encode(native, origin, limits.numbers, now, reserve_ids)
        if found is not None:
            requests, refused = found
            return (
                [_request(*fields) for fields in requests],
                [MessageFailure(index, Failure.REFUSED, reason) for index, reason in refused],
            )
    return encode_plain(messages, origin, limits, now, reserve_ids)


def _request(
    body: bytes, begin: int, count: int, born: int, is_batch: bool, properties: bytes, flag: int, delayed: bool
) -> "EncodedRequest":
    return EncodedRequest(
        body, range(begin, begin + count), born=born, is_batch=is_batch, properties=properties, flag=flag, delayed=delayed
    )


def encode_plain(
    messages: Sequence[Message], origin: str | None, limits: Limits, now: int, reserve_ids: Reserve | None = None
) -> tuple[list[EncodedRequest], list[MessageFailure]]:
    """As `encode`, without the compiled module."""
    requests = _Requests(limits, origin, now, reserve_ids)
    requests.add_all(messages)
    return requests.made, requests.failures


class _Requests:
    """Messages on their way into requests."""

    __slots__ = ("_batch", "_ids", "_limits", "_now", "_origin", "failures", "made")

    def __init__(self, limits: Limits, origin: str | None, now: int, reserve_ids: Reserve | None) -> None:
        self._limits, self._origin, self._now = limits, origin, now
        self._ids = None if reserve_ids is None else _ids(reserve_ids)
        self.made: list[EncodedRequest] = []
        self.failures: list[MessageFailure] = []
        self._batch = OpenBatch(limits.max_bytes, limits.max_messages, partial(_add_batch, self.made))

    def add_all(self, messages: Sequence[Message]) -> None:
        """Add messages in order, or refuse them."""
        origin, now, identified = self._origin, self._now, self._identified
        add, most = self._batch.add, self._limits.max_message_bytes - OVERHEAD_BYTES
        for index, message in enumerate(messages):
            if message.defect is not None:
                self._refuse(index, f"it could not be read: {message.defect}")
                continue
            stamp = None if origin is None else origin + format_position(message.position)
            try:
                if message.deliver_at is not None and message.deliver_at > now:
                    self._add_delayed(index, message, stamp)
                    continue
                block, flag = write_block(message, stamp, alone=False)
            except UnicodeEncodeError as error:
                self._refuse(index, f"its texts are no Unicode text: {error}")
                continue
            body, properties = message.payload or PLACEHOLDER, identified(block)
            if len(block) > MAX_PROPERTIES_BYTES:
                self._refuse(index, too_many(block))
            elif len(body) + len(properties) > most:
                # The broker's limit leaves no room for a batch of its own, which would keep its properties in order.
                self._add_alone(index, message, stamp, None)
            else:
                add(index, born_at(message.event_time, now), (flag, body, properties))
        self._batch.close()

    def _identified(self, block: bytes) -> bytes:
        """The property string with a UNIQ_KEY; of several the last is what Java shows, so there must not be two."""
        if self._ids is None or (block.find(_ID) >= 0 and (block.startswith(_ID) or _LATER_ID in block)):
            return block
        return block + next(self._ids)

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
        block, flag = write_block(message, stamp, alone=True, delay=delay)
        if len(block) > MAX_PROPERTIES_BYTES:
            self._refuse(index, too_many(block))
            return
        self._batch.close()
        self.made.append(
            EncodedRequest(
                body,
                range(index, index + 1),
                born=born_at(message.event_time, self._now),
                is_batch=False,
                properties=self._identified(block),
                flag=flag,
                delayed=delay is not None,
            )
        )

    def _refuse(self, index: int, reason: str) -> None:
        """Not to be sent, ever."""
        self._batch.close()
        self.failures.append(MessageFailure(index, Failure.REFUSED, reason))


def _add_batch(made: list[EncodedRequest], elements: list[Element], begin: int, born: int) -> None:
    """No method of `_Requests`: with the open batch they would be a cycle, and hold all bytes until garbage is collected."""
    made.append(EncodedRequest(encode_batch(elements), range(begin, begin + len(elements)), born=born, is_batch=True))


def _ids(reserve: Reserve) -> Iterator[bytes]:
    """UNIQ_KEY, another one each time."""
    while True:
        start, first = reserve(IDS)
        before = _ID + start.encode()
        for number in range(first, first + IDS):
            yield b"%b%04X%b" % (before, number, _ID_END)
