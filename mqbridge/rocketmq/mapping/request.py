"""`Message` -> RocketMQ send requests: batches within the limits, and single sends for messages that cannot be in a batch.

Batches are preferred because brokers store the property strings of their messages unchanged. Three kinds of messages are
sent alone: delayed ones, those that are within the broker's limit only without the framing of a batch, and compressed ones. If
the compiled module is installed, it encodes; `encode_plain` is the reference, and alone encodes what the module cannot.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import Failure
from mqbridge.message import Message, Pair, format_position
from mqbridge.native import compiled, is_native
from mqbridge.rocketmq.mapping.batch_builder import BatchBuilder, born_at
from mqbridge.rocketmq.mapping.compacted import NO_KEY, with_index_key
from mqbridge.rocketmq.mapping.compressed_body import MIN_COMPRESSED_BYTES, compress_body
from mqbridge.rocketmq.mapping.limits import MAX_PROPERTIES_BYTES, Limits, oversize_reason
from mqbridge.rocketmq.mapping.read_block import PLACEHOLDER
from mqbridge.rocketmq.mapping.write_block import write_block
from mqbridge.rocketmq.wire.batch import OVERHEAD_BYTES, Element, encode_batch
from mqbridge.rocketmq.wire.properties import VALUE_END, Name, name_prefix

IDS_PER_RESERVATION = 256
"""Unique ids per reservation; an id then takes a tenth of the time that it takes if each is reserved alone."""

ReserveIds = Callable[[int], tuple[str, int]]
"""Reserves this number of consecutive ids: returns their common prefix and the counter of the first.

An id is the prefix and its counter as four hex digits.
"""

_ID_PREFIX = name_prefix(Name.UNIQ_KEY)
"""The bytes before the value of UNIQ_KEY, if it is the first property."""
_ID_END = VALUE_END.encode()
_LATER_ID_PREFIX = _ID_END + _ID_PREFIX
"""The bytes before the value of UNIQ_KEY, if there are properties before it."""


class EncodedRequest:
    """The content of one send request: a batch, or one message with its properties.

    `indexes` are the indexes of its messages in the sequence passed to `encode`; `born` is the born timestamp (ms) of the
    request. A broker stores a `delayed` message in another topic first, so the offset in the response is not an offset of the
    target queue. `properties` and `flag` are those of a single message; in a batch, they are part of `body`. `sys_flag` consists
    of the bits of `record.SysFlag`: from `encode` those of a compressed body; the library sets others. `sys_flag` and
    `reconsume_times`, the number of redeliveries, are those of every message of the request.
    """

    __slots__ = ("body", "born", "delayed", "flag", "indexes", "is_batch", "properties", "reconsume_times", "sys_flag")

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
        reconsume_times: int = 0,
        delayed: bool = False,
    ) -> None:
        self.body, self.properties = body, properties
        self.flag, self.sys_flag, self.reconsume_times = flag, sys_flag, reconsume_times
        self.born, self.indexes = born, indexes
        self.is_batch, self.delayed = is_batch, delayed

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.indexes)


def encode(
    messages: Sequence[Message], origin: str | None, limits: Limits, now: int, reserve_ids: ReserveIds | None = None
) -> tuple[list[EncodedRequest], list[MessageFailure]]:
    """Encode messages, in order, to batches and single sends; return a failure for each message that RocketMQ cannot store.

    `origin` is the prefix of every origin stamp, to which the position of the message is appended; None for no stamps. A message
    whose `deliver_at` is after `now` (both in ms since the epoch) is sent alone, with a timer or a delay level. `reserve_ids`
    (None: no ids are made) makes a UNIQ_KEY for messages without one: without it, Java consumers may see another message id on
    each delivery. The new id comes after the gateway's own pairs: this tells `read_block` that no producer set it.
    """
    if compiled is not None and not _needs_plain(messages, limits):
        compiled_messages = messages if is_native(messages) else compiled.Messages.of(messages)
        encoded = (
            None
            if compiled_messages is None
            else compiled.rocketmq_encode(compiled_messages, origin, limits.compiled_arguments, now, reserve_ids)
        )
        if encoded is not None:  # None: only the plain encoder can encode these messages
            requests, refused = encoded
            return (
                [_request_of(*fields) for fields in requests],
                [MessageFailure(index, Failure.REFUSED, reason) for index, reason in refused],
            )
    return encode_plain(messages, origin, limits, now, reserve_ids)


def _needs_plain(messages: Sequence[Message], limits: Limits) -> bool:
    """Return True if only the plain encoder can encode the messages: with KEYS for a compacted topic, or compressed bodies."""
    if limits.requires_keys:
        return True
    return limits.codec is not None and any(len(message.payload or b"") >= MIN_COMPRESSED_BYTES for message in messages)


def _request_of(
    body: bytes, first_index: int, count: int, born: int, is_batch: bool, properties: bytes, flag: int, delayed: bool
) -> EncodedRequest:
    """Return the request that the compiled encoder described by these values; its messages are consecutive."""
    return EncodedRequest(
        body,
        range(first_index, first_index + count),
        born=born,
        is_batch=is_batch,
        properties=properties,
        flag=flag,
        delayed=delayed,
    )


def encode_plain(
    messages: Sequence[Message], origin: str | None, limits: Limits, now: int, reserve_ids: ReserveIds | None = None
) -> tuple[list[EncodedRequest], list[MessageFailure]]:
    """Encode like `encode`, without the compiled module."""
    builder = _RequestBuilder(limits, origin, now, reserve_ids)
    builder.add_all(messages)
    return builder.requests, builder.failures


class _RequestBuilder:
    """Encodes messages, and collects the `requests` for them and the `failures` of those that cannot be sent."""

    __slots__ = ("_batch", "_id_entries", "_limits", "_now", "_origin", "failures", "requests")

    def __init__(self, limits: Limits, origin: str | None, now: int, reserve_ids: ReserveIds | None) -> None:
        self._limits, self._origin, self._now = limits, origin, now
        self._id_entries = None if reserve_ids is None else _id_entries(reserve_ids)
        self.requests: list[EncodedRequest] = []
        self.failures: list[MessageFailure] = []
        self._batch = BatchBuilder(limits.max_bytes, limits.max_messages, partial(_add_batch, self.requests))

    def add_all(self, messages: Sequence[Message]) -> None:
        """Add messages in order; record a failure for each that cannot be sent."""
        origin, now, with_id = self._origin, self._now, self._with_id
        add_to_batch, max_bytes_in_batch = self._batch.add, self._limits.max_message_bytes - OVERHEAD_BYTES
        requires_keys, codec = self._limits.requires_keys, self._limits.codec
        for index, original in enumerate(messages):
            if original.defect is not None:
                self._refuse(index, f"it could not be read: {original.defect}")
                continue
            message = with_index_key(original) if requires_keys else original
            if message is None:
                self._refuse(index, NO_KEY)
                continue
            stamp = None if origin is None else origin + format_position(message.position)
            try:
                if message.deliver_at is not None and message.deliver_at > now:
                    self._add_delayed(index, message, stamp)
                    continue
                if codec is not None:
                    compressed, compression_bits = compress_body(codec, message.payload or PLACEHOLDER)
                    if compression_bits:
                        self._add_alone(index, message, stamp, None, compressed, compression_bits)
                        continue
                block, flag = write_block(message, stamp, alone=False)
            except UnicodeEncodeError as error:
                self._refuse(index, f"it has texts that are not valid Unicode: {error}")
                continue
            body, properties = message.payload or PLACEHOLDER, with_id(block)  # brokers refuse an empty body
            if len(block) > MAX_PROPERTIES_BYTES:  # this limit leaves room for an added id
                self._refuse(index, oversize_reason(block))
            elif len(body) + len(properties) > max_bytes_in_batch:
                # With the framing of a batch, the message would exceed the broker's limit.
                self._add_alone(index, message, stamp, None, body)
            else:
                add_to_batch(index, born_at(message.event_time, now), (flag, body, properties))
        self._batch.close()

    def _with_id(self, block: bytes) -> bytes:
        """Return the property string `block` with a UNIQ_KEY, added only if it has none: Java reads the last of several."""
        if self._id_entries is None:
            return block
        # The first search also finds longer names that end with UNIQ_KEY; it saves most blocks the two exact tests.
        if block.find(_ID_PREFIX) >= 0 and (block.startswith(_ID_PREFIX) or _LATER_ID_PREFIX in block):
            return block
        return block + next(self._id_entries)

    def _add_delayed(self, index: int, message: Message, stamp: str | None) -> None:
        """Add a message, whose delivery time is in the future, as a single send with a timer or a delay level."""
        try:
            delay = self._limits.delay_property(message.deliver_at or 0, self._now)
        except ValueError as error:
            self._refuse(index, str(error))
        else:
            self._add_alone(index, message, stamp, delay, *compress_body(self._limits.codec, message.payload or PLACEHOLDER))

    def _add_alone(
        self, index: int, message: Message, stamp: str | None, delay: Pair | None, body: bytes, compression_bits: int = 0
    ) -> None:
        """Add a message as a single send with this body; `delay` is the property that delays it, if any."""
        max_bytes = self._limits.max_message_bytes
        if len(body) > max_bytes:
            compressed = " when compressed" if compression_bits else ""
            self._refuse(index, f"its payload has {len(body)} bytes{compressed}, the broker takes {max_bytes} (maxMessageSize)")
            return
        block, flag = write_block(message, stamp, alone=True, delay=delay)
        if len(block) > MAX_PROPERTIES_BYTES:
            self._refuse(index, oversize_reason(block))
            return
        self._batch.close()
        self.requests.append(
            EncodedRequest(
                body,
                range(index, index + 1),
                born=born_at(message.event_time, self._now),
                is_batch=False,
                properties=self._with_id(block),
                flag=flag,
                sys_flag=compression_bits,
                delayed=delay is not None,
            )
        )

    def _refuse(self, index: int, reason: str) -> None:
        """Record that the message can never be sent. The current batch ends, because its messages must be consecutive."""
        self._batch.close()
        self.failures.append(MessageFailure(index, Failure.REFUSED, reason))


def _add_batch(requests: list[EncodedRequest], elements: list[Element], first_index: int, born: int) -> None:
    """Append the request of a finished batch.

    This is not a method, because `_RequestBuilder` and its batch builder would then form a reference cycle, which keeps all bytes
    until the next garbage collection.
    """
    requests.append(
        EncodedRequest(encode_batch(elements), range(first_index, first_index + len(elements)), born=born, is_batch=True)
    )


def _id_entries(reserve_ids: ReserveIds) -> Iterator[bytes]:
    """Yield entries for a property string, each with a new UNIQ_KEY."""
    while True:
        id_prefix, first = reserve_ids(IDS_PER_RESERVATION)
        prefix = _ID_PREFIX + id_prefix.encode()
        for counter in range(first, first + IDS_PER_RESERVATION):
            yield b"%b%04X%b" % (prefix, counter, _ID_END)
