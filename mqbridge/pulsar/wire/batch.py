"""The payload of a batch entry: per message a uint32 size, its SingleMessageMetadata and its own payload.

Reading makes one protobuf object per message. Writing is left to who knows the message: `property_bytes` gives the piece that is
worth remembering, `frame_head` is for plain parts, and `frame_message` for a metadata object.
"""

import struct
from collections.abc import Iterable

from google.protobuf.message import DecodeError

from mqbridge.errors import RemoteProtocolError
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import SingleMessageMetadata
from mqbridge.wire.varint import SMALL, encode_varint

_SIZE = struct.Struct(">I")
MEMO_NAMES = 4096
"""Property names that are remembered as bytes; the memo is emptied when it holds this many."""

# A property is field 1 of the metadata; in it the name is field 1 and the value field 2. Tag and length come from tables.
_PROPERTIES = [b"\x0a" + size for size in SMALL]
_VALUES = [b"\x12" + size for size in SMALL]
_names: dict[str, bytes] = {}
_UINT64 = (1 << 64) - 1
MEMO_SIZES = 16384
"""Payloads below this size have their heads remembered."""


def split_batch(payload: bytes, count: int) -> list[tuple[SingleMessageMetadata, bytes]]:
    """The `count` messages of a batch. Raises RemoteProtocolError when the bytes do not hold exactly those."""
    parse, size_at = SingleMessageMetadata.FromString, _SIZE.unpack_from
    messages: list[tuple[SingleMessageMetadata, bytes]] = []
    at, size = 0, len(payload)
    try:
        for _ in range(count):
            head = at + 4
            body = head + size_at(payload, at)[0]
            if body > size:
                break
            single = parse(payload[head:body])
            at = body + single.payload_size
            if not body <= at <= size:
                break
            messages.append((single, payload[body:at]))
    except (struct.error, DecodeError) as error:
        raise RemoteProtocolError(f"message {len(messages)} of a batch of {count} cannot be read: {error}") from error
    if len(messages) != count or at != size:
        raise RemoteProtocolError(f"{size} bytes of a batch of {count} held {len(messages)} messages in {at}")
    return messages


def frame_message(single: SingleMessageMetadata, payload: bytes) -> bytes:
    """One message as it lies in a batch; sets `payload_size`."""
    single.payload_size = len(payload)
    head = single.SerializeToString()
    return _SIZE.pack(len(head)) + head + payload


class _PlainHeads(dict[int, bytes]):
    """What stands before a payload of which nothing else is said, by its size."""

    def __missing__(self, size: int) -> bytes:
        said = b"\x18" + encode_varint(size)
        head = _SIZE.pack(len(said)) + said
        if size < MEMO_SIZES:
            self[size] = head
        return head


PLAIN_HEADS = _PlainHeads()


def frame_head(
    payload_size: int,
    properties: Iterable[tuple[str, str]] = (),
    key: str | None = None,
    is_base64: bool = False,
    ordering_key: bytes | None = None,
    event_time: int = 0,
) -> bytes:
    """The same with all that is said (-1: a null value): the bytes of `frame_message` at less than half its cost."""
    null = payload_size < 0
    size = b"\x18" + encode_varint(0 if null else payload_size)
    head = [property_bytes(name, value.encode()) for name, value in properties]
    if key is not None:
        data = key.encode()
        head += (b"\x12", encode_varint(len(data)), data)
    head.append(size)
    if event_time:
        head += (b"\x28", encode_varint(event_time & _UINT64))
    if is_base64:
        head.append(b"\x30\x01")
    if ordering_key is not None:
        head += (b"\x3a", encode_varint(len(ordering_key)), ordering_key)
    if null:
        head.append(b"\x48\x01")
    whole = b"".join(head)
    return _SIZE.pack(len(whole)) + whole


def join_batch(messages: Iterable[tuple[SingleMessageMetadata, bytes]]) -> bytes:
    """The payload of a batch entry."""
    return b"".join([frame_message(single, payload) for single, payload in messages])


def property_bytes(key: str, value: bytes) -> bytes:
    """A property as it stands in the metadata of a message. `value` is UTF-8."""
    name = _names.get(key) or _name(key)
    try:
        pair = name + _VALUES[len(value)] + value
        return _PROPERTIES[len(pair)] + pair
    except IndexError:
        pair = name + b"\x12" + encode_varint(len(value)) + value
        return b"\x0a" + encode_varint(len(pair)) + pair


def _name(key: str) -> bytes:
    if len(_names) >= MEMO_NAMES:
        _names.clear()
    name = key.encode()
    _names[key] = data = b"\x0a" + encode_varint(len(name)) + name
    return data
