"""Units of the format `tubemq.message` -> the messages of a server's response to a get.

If the compiled module is installed, it does the same work.
"""

from collections.abc import Collection, Sequence

from mqbridge.errors import RemoteProtocolError
from mqbridge.message import MSG_TYPE, Unit
from mqbridge.native import compiled
from mqbridge.tubemq.mapping.unit_format import split_unit
from mqbridge.tubemq.wire.attributes import PAIR_SEPARATOR
from mqbridge.tubemq.wire.payload import checksum, split_payload
from mqbridge.wire.varint import encode_varint

_MESSAGE, _ID, _CHECKSUM, _DATA, _FLAG = b"\x22", b"\x08", b"\x10", b"\x1a", b"\x20"
"""The protobuf tags of GetMessageResponseB2C.messages, and of the four fields of TransferedMessage."""
_UINT64_MASK = (1 << 64) - 1
"""Protobuf encodes a negative number as an unsigned 64-bit number."""
_TYPE_NAME = MSG_TYPE.encode()


def encode_pack(units: Sequence[Unit], ids: Sequence[int], types: frozenset[str] = frozenset()) -> tuple[bytes, int]:
    """Return the fields `messages` of a GetMessageResponseB2C, and how many they are.

    They have those units whose `$msgType$` is one of `types` (without `types`: all). `ids` are the message ids of the units, as
    int64. Raises RemoteProtocolError for a unit that is damaged, also if its type is not one of `types`.
    """
    # A lone surrogate becomes bytes that are not UTF-8: such a type passes no message with a valid one.
    encoded_types = frozenset([name.encode("utf-8", "surrogatepass") for name in types])
    if compiled is not None:
        pack: tuple[bytes, int] | None = compiled.tubemq_served_pack(units, ids, encoded_types)
        if pack is not None:
            return pack
    return encode_pack_plain(units, ids, encoded_types)


def encode_pack_plain(units: Sequence[Unit], ids: Sequence[int], types: Collection[bytes]) -> tuple[bytes, int]:
    """Encode like `encode_pack`, without the compiled module; the types are UTF-8."""
    pieces: list[bytes] = []
    count = 0
    for index, ((unit_data, *_), message_id) in enumerate(zip(units, ids, strict=True)):
        try:
            flag, data = split_unit(unit_data)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"unit {index} cannot be served: {error}") from error
        if types and message_type(data, flag) not in types:
            continue
        before = b"".join(
            (
                *(_ID, encode_varint(message_id & _UINT64_MASK), _CHECKSUM, encode_varint(checksum(data))),
                *(_DATA, encode_varint(len(data))),
            )
        )
        after = _FLAG + encode_varint(flag & _UINT64_MASK)
        pieces += (_MESSAGE, encode_varint(len(before) + len(data) + len(after)), before, data, after)
        count += 1
    return b"".join(pieces), count


def message_type(data: bytes, flag: int) -> bytes | None:
    """Return the type of a message as Java consumers read it when they filter; None if it has none, or an empty one.

    It is in the last item of the attribute string that contains `$msgType$` anywhere and has a value: what is behind the first
    `=`, up to the next one.
    """
    attributes, _ = split_payload(data, flag)
    if attributes is None or _TYPE_NAME not in attributes:
        return None
    for item in reversed(attributes.split(PAIR_SEPARATOR)):
        if _TYPE_NAME in item:
            parts = item.rstrip(b"=").split(b"=", 2)  # Java's `split` drops empty parts at the end
            if len(parts) > 1:
                return parts[1] or None
    return None
