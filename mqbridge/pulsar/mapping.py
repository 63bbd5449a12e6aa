"""Pulsar message <-> `Message`.

Outgoing messages are framed as batch entries. Their SingleMessageMetadata is written by hand: its pieces are memoised per
property pair, which was measured at half the cost of filling a protobuf object. Every property keeps its name and place; what
Pulsar has no field for is carried (see `mqbridge.carried`), the TubeMQ attribute string among it, byte for byte.

`$msgType$` is Pulsar's spelling of a message type too: a property of that name, whoever wrote it, is read as `msg_type`.
"""

import base64
import struct
from collections.abc import Iterable, Sequence

from mqbridge.adapter import MessageFailure
from mqbridge.attributes import MEMO_ENTRIES, read_pair
from mqbridge.carried import ATTRIBUTES, EVENT_TIME, ORIGIN, carry, escape_user, uncarry
from mqbridge.errors import Failure, RemoteProtocolError
from mqbridge.message import RESERVED_PREFIX, Message, Pair, format_position
from mqbridge.pulsar.wire.batch import property_bytes, split_batch
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from mqbridge.wire.varint import SMALL, encode_varint

MSG_TYPE = "$msgType$"
CARRIED = ("keys", "attributes")

# Field tags of SingleMessageMetadata.
_PARTITION_KEY, _PAYLOAD_SIZE, _EVENT_TIME, _B64_KEY = b"\x12", b"\x18", b"\x28", b"\x30\x01"
_ORDERING_KEY, _NULL_VALUE = b"\x3a", b"\x48\x01"
_PROPERTY, _VALUE = b"\x0a", b"\x12"
_LENGTH = struct.Struct(">I")
_UINT64 = (1 << 64) - 1


def _encoded_key(key: str) -> bytes:
    """The key of a property up to the length of its value, tags included."""
    return b"\x0a" + encode_varint(len(key)) + key.encode() + _VALUE


_ATTRIBUTES_KEY, _ORIGIN_KEY = _encoded_key(ATTRIBUTES), _encoded_key(ORIGIN)
_ATTRIBUTES_KEY_BYTES, _ORIGIN_KEY_BYTES = len(_ATTRIBUTES_KEY), len(_ORIGIN_KEY)
MAX_SHORT = 8192
"""Attribute strings up to here are encoded the short way, whose lengths are all in the table of small varints."""

_encoded: dict[Pair, bytes] = {}
_encoded_items: dict[bytes, bytes] = {}
_times: dict[int, bytes] = {}


class Limits:
    """What an entry may hold. A message beyond `max_bytes` makes an entry by itself."""

    __slots__ = ("max_bytes", "max_messages")

    def __init__(self, max_messages: int = 5000, max_bytes: int = 512 << 10) -> None:
        self.max_messages, self.max_bytes = max_messages, max_bytes


class Outgoing:
    """An entry to send: its metadata lacks what the producer fills in (name, sequence id, publish time); not compressed yet."""

    __slots__ = ("count", "indexes", "metadata", "payload")

    def __init__(self, metadata: MessageMetadata, payload: bytes, indexes: range) -> None:
        self.metadata, self.payload, self.indexes, self.count = metadata, payload, indexes, len(indexes)


# --- out --------------------------------------------------------------------------------------------------------------


def encode(messages: Sequence[Message], origin: str | None, limits: Limits) -> tuple[list[Outgoing], list[MessageFailure]]:
    """Entries that hold all readable messages in order, and a failure for each that never was readable.

    `origin` is what every stamp begins with, None for no stamps. A message that must be delivered later travels alone, as Pulsar
    demands; one beyond `limits.max_bytes` does too, for the producer to try: compression may make it small enough.
    """
    entries: list[Outgoing] = []
    failures: list[MessageFailure] = []
    parts: list[bytes] = []
    size = start = 0
    stamp = None if origin is None else origin.encode()
    pack_length, max_bytes, max_messages = _LENGTH.pack, limits.max_bytes, limits.max_messages
    for index, message in enumerate(messages):
        if message.defect is not None or message.deliver_at is not None:
            if parts:
                entries.append(_batch(messages, parts, range(start, index)))
                parts, size = [], 0
            start = index + 1
            if message.defect is not None:
                failures.append(MessageFailure(index, Failure.REFUSED, f"it could not be read: {message.defect}"))
            else:
                entries.append(_plain(message, origin, index))
            continue
        payload = message.payload or b""
        head = (_native_head if message.only_attributes else _head)(message, stamp, len(payload))
        cost = len(head) + len(payload) + 4
        if parts and (size + cost > max_bytes or index - start >= max_messages):
            entries.append(_batch(messages, parts, range(start, index)))
            parts, size, start = [], 0, index
        parts += (pack_length(len(head)), head, payload)
        size += cost
    if parts:
        entries.append(_batch(messages, parts, range(start, len(messages))))
    return entries, failures


def _head(message: Message, origin: bytes | None, payload_size: int) -> bytes:
    """SingleMessageMetadata, by hand."""
    properties = message.properties
    head = [_encoded.get(pair) or _encode_pair(pair) for pair in properties]
    attributes = message.attributes
    if attributes is not None:
        if attributes.isascii() or _is_text(attributes):
            _append_property(head, _ATTRIBUTES_KEY, attributes)
        else:
            head += _pairs(carry(message, ("attributes",)))
    # A TubeMQ message nearly always has its type in its first pair: then there is nothing to carry.
    if message.keys or (message.msg_type is not None and not (properties and properties[0][1] is message.msg_type)):
        head += _pairs(_rarely_carried(message))
    if origin is not None:
        _append_property(head, _ORIGIN_KEY, origin + format_position(message.position).encode())
    if message.key is not None:
        head.append(_key(message.key))
    head += (_PAYLOAD_SIZE, SMALL[payload_size] if payload_size < 16384 else encode_varint(payload_size))
    if message.event_time is not None:
        head.append(_times.get(message.event_time) or _encode_time(message.event_time))
    if message.ordering_key is not None:
        head += (_ORDERING_KEY, encode_varint(len(message.ordering_key)), message.ordering_key)
    if message.payload is None:
        head.append(_NULL_VALUE)
    return b"".join(head)


def _native_head(message: Message, origin: bytes | None, payload_size: int) -> bytes:
    """The same bytes as `_head`, for a message whose attribute string says everything: its items are looked up as they are.

    Once per message on the main path, so calls are spelled out: this way takes half the time of `_head`.
    """
    attributes = message.attributes or b""
    size = len(attributes)
    if size > MAX_SHORT or not (attributes.isascii() or _is_text(attributes)):
        return _head(message, origin, payload_size)
    try:
        head = [_encoded_items[item] for item in attributes.split(b",")]
    except KeyError:
        head = [_encoded_items.get(item) or _encode_item(item) for item in attributes.split(b",")]
    length = SMALL[size]
    head += (_PROPERTY, SMALL[_ATTRIBUTES_KEY_BYTES + len(length) + size], _ATTRIBUTES_KEY, length, attributes)
    if origin is not None:
        value = origin + format_position(message.position).encode()
        length = encode_varint(len(value))
        head += (_PROPERTY, encode_varint(_ORIGIN_KEY_BYTES + len(length) + len(value)), _ORIGIN_KEY, length, value)
    head += (_PAYLOAD_SIZE, SMALL[payload_size] if payload_size < 16384 else encode_varint(payload_size))
    event_time = message.event_time
    if event_time is not None:
        head.append(_times.get(event_time) or _encode_time(event_time))
    return b"".join(head)


def _encode_item(item: bytes) -> bytes:
    if len(_encoded_items) >= MEMO_ENTRIES:
        _encoded_items.clear()
    pair = read_pair(item)
    data = _encoded_items[item] = b"" if pair is None else _encode_pair(pair)
    return data


def _append_property(head: list[bytes], key: bytes, value: bytes) -> None:
    """A property whose encoded key with its tags is at hand."""
    length = encode_varint(len(value))
    head += (_PROPERTY, encode_varint(len(key) + len(length) + len(value)), key, length, value)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rarely_carried(message: Message) -> list[Pair]:
    """Index keys, and a message type that no property says."""
    told = message.msg_type is None or message.property(MSG_TYPE) == message.msg_type
    return carry(message, ("keys",) if told else ("keys", "msg_type"))


def _pairs(pairs: Iterable[Pair]) -> list[bytes]:
    return [property_bytes(key, value.encode()) for key, value in pairs]


def _encode_pair(pair: Pair) -> bytes:
    if len(_encoded) >= MEMO_ENTRIES:
        _encoded.clear()
    key, value = escape_user(pair)
    _encoded[pair] = data = property_bytes(key, value.encode())
    return data


def _encode_time(event_time: int) -> bytes:
    if len(_times) >= MEMO_ENTRIES:
        _times.clear()
    # On the wire 0 means none, so the first millisecond of all is carried.
    said = _EVENT_TIME + encode_varint(event_time & _UINT64) if event_time else property_bytes(EVENT_TIME, b"0")
    _times[event_time] = said
    return said


def _key(key: str | bytes) -> bytes:
    text = key.encode() if isinstance(key, str) else base64.b64encode(key)
    return _PARTITION_KEY + encode_varint(len(text)) + text + (b"" if isinstance(key, str) else _B64_KEY)


def _batch(messages: Sequence[Message], parts: list[bytes], indexes: range) -> Outgoing:
    metadata = MessageMetadata(num_messages_in_batch=len(indexes))
    _set_keys(metadata, messages[indexes.start])
    return Outgoing(metadata, b"".join(parts), indexes)


def _set_keys(metadata: MessageMetadata, message: Message) -> None:
    """Pulsar dispatches a whole entry by the keys of its first message."""
    if isinstance(message.key, bytes):
        metadata.partition_key = base64.b64encode(message.key).decode()
        metadata.partition_key_b64_encoded = True
    elif message.key is not None:
        metadata.partition_key = message.key
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key


def _plain(message: Message, origin: str | None, index: int) -> Outgoing:
    """An entry of one message that is no batch."""
    metadata = MessageMetadata(null_value=message.payload is None or None, deliver_at_time=message.deliver_at)
    _set_keys(metadata, message)
    pairs = [escape_user(pair) for pair in message.properties] + carry(message, ("attributes",)) + _rarely_carried(message)
    if message.event_time == 0:
        pairs.append((EVENT_TIME, "0"))
    if origin is not None:
        pairs.append((ORIGIN, origin + format_position(message.position)))
    for key, value in pairs:
        metadata.properties.add(key=key, value=value)
    if message.event_time:
        metadata.event_time = message.event_time & _UINT64
    return Outgoing(metadata, message.payload or b"", range(index, index + 1))


# --- in ---------------------------------------------------------------------------------------------------------------


def decode(entry: Entry) -> list[Message]:
    """The messages of an entry that are still to be delivered; a damaged entry is one message with its `defect`."""
    entry.unpack()
    singles = []
    if entry.defect is None and entry.is_batch:
        try:
            singles = split_batch(entry.payload, entry.count)
        except RemoteProtocolError as error:
            entry.defect = str(error)
    if entry.defect is not None:
        return [Message(entry.payload, position=(entry.ledger, entry.entry, 0), defect=entry.defect)]
    if not entry.is_batch:
        return [_message(entry.metadata, entry.payload, entry, 0)]
    messages = []
    for index, (single, payload) in enumerate(singles):
        if single.compacted_out or (entry.ack_set and not _is_due(entry.ack_set, index)):
            continue
        messages.append(_message(single, payload, entry, index))
    return messages


def _is_due(ack_set: Sequence[int], index: int) -> bool:
    word, bit = divmod(index, 64)
    return word < len(ack_set) and bool(ack_set[word] >> bit & 1)


def _message(said: MessageMetadata | SingleMessageMetadata, payload: bytes, entry: Entry, index: int) -> Message:
    properties: tuple[Pair, ...] = tuple([(pair.key, pair.value) for pair in said.properties])
    metadata = entry.metadata
    key: str | bytes | None = None
    if said.HasField("partition_key"):
        key = base64.b64decode(said.partition_key) if said.partition_key_b64_encoded else said.partition_key
    message = Message(
        None if said.null_value else payload,
        properties,
        key,
        said.ordering_key if said.HasField("ordering_key") else None,
        (),
        None,
        None,
        _signed(said.event_time) if said.event_time else None,
        metadata.publish_time,
        metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None,
        entry.redelivery_count,
        (entry.ledger, entry.entry, index),
    )
    for name, value in properties:
        if name == MSG_TYPE and message.msg_type is None:
            message.msg_type = value
        elif name.startswith(RESERVED_PREFIX):
            message.properties, fields = uncarry(properties)
            for field, carried in fields.items():
                setattr(message, field, carried)
            break
    if message.msg_type is None:
        message.msg_type = message.property(MSG_TYPE)
    return message


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
