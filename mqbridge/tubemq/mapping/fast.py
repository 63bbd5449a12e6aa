"""Packs as TubeMQ producers filled them, read fast; whatever is not as usual is read by `reading`.

An attribute string is cut into names and values at once, and what the names mean is remembered by all of them together.
"""

from collections.abc import Sequence
from datetime import tzinfo
from functools import partial
from struct import Struct

from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.lazy_properties import is_utf8, names_cache, property_names
from mqbridge.mapping.parse_templates import ParseTemplate, ParseTemplates
from mqbridge.message import MSG_TIME, MSG_TYPE, Message
from mqbridge.tubemq.mapping.escapes import OURS
from mqbridge.tubemq.mapping.properties import NativeMessage, read
from mqbridge.tubemq.mapping.times import minutes_of
from mqbridge.tubemq.wire.payload import CHECKSUM_MASK, HAS_ATTRIBUTES
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from mqbridge.wire.checksum import crc32

_LENGTH = Struct(">i")
_DAMAGED = "its checksum does not match its content"


class _Form:
    """What an attribute string of these names says. `text` is the string but for the values; -1 stands for no place in it."""

    __slots__ = ("count", "names", "property_names", "text", "time_at", "type_at")

    def __init__(self, names: tuple[bytes, ...]) -> None:
        self.names = names
        self.property_names = property_names(names)
        self.count = len(names)
        self.text = b",".join([name + b"=%b" for name in names])
        texts = self.property_names.texts
        self.type_at, self.time_at = (texts.index(name) if name in texts else -1 for name in (MSG_TYPE, MSG_TIME))


class _StringShape(ParseTemplate):
    """The shape of a string."""

    __slots__ = ("commas", "form", "lengths")

    def __init__(self, data: bytes, form: _Form, values: tuple[bytes, ...]) -> None:
        self.form, self.commas = form, form.count - 1
        self.lengths = tuple(map(len, values))
        # A name with its equals sign, and from the second on with its comma.
        cuts = [cut for name, length in zip(form.names, self.lengths, strict=True) for cut in (len(name) + 2, length)]
        super().__init__(data, [cuts[0] - 1, *cuts[1:]])


_shapes = ParseTemplates[_StringShape]()
_types: BoundedCache[bytes, str] = BoundedCache(bytes.decode)


def read_all(pack: Sequence[TransferedMessage], offset: int, zone: tzinfo) -> list[Message]:
    """The messages of one fetch that began at `offset`. One that is damaged becomes a Message with its `defect`."""
    messages: list[Message] = []
    minutes, type_of = minutes_of(zone), _types.get
    by_length, length_of, new = _shapes.by_length, _LENGTH.unpack_from, object.__new__
    for index, item in enumerate(pack):
        body = item.payLoadData
        if crc32(body) & CHECKSUM_MASK != item.checkSum:
            messages.append(Message(body, position=(offset, index), defect=_DAMAGED))
            continue
        # The Java SDK's clearAttribute() sets the flag without writing the block: then all of it is the body.
        if not item.flag & HAS_ATTRIBUTES or len(body) < 4 or not 0 <= (end := length_of(body)[0]) <= len(body) - 4:
            messages.append(Message(body, position=(offset, index)))
            continue
        attributes, body = body[4 : end + 4], body[end + 4 :]
        shape = by_length.get(end)
        if (
            shape is not None
            and (fields := shape.unpack(attributes))[::2] == shape.fixed
            # All commas and equals signs are in the fixed bytes: there is no other way to cut it.
            and attributes.count(b",") == shape.commas
            and attributes.count(b"=") == shape.commas + 1
        ):
            form, values, lengths = shape.form, fields[1::2], shape.lengths
        elif (cut := _cut(attributes)) is not None:
            (form, values), lengths = cut, None
        else:
            messages.append(read(body, attributes, (offset, index), minutes))
            continue
        if not (attributes.isascii() or is_utf8(attributes)):
            messages.append(read(body, attributes, (offset, index), minutes))
            continue
        message = new(NativeMessage)
        message.payload, message.attributes, message.position = body, attributes, (offset, index)
        message.property_names, message.lengths, message.values = form.property_names, lengths, values
        message.msg_type = None if (at := form.type_at) < 0 else type_of(values[at]) or _types[values[at]]
        message.event_time = None if (at := form.time_at) < 0 else minutes[values[at]]
        messages.append(message)
    _shapes.earn(len(messages))
    return messages


def _cut(attributes: bytes) -> tuple[_Form, tuple[bytes, ...]] | None:
    """Names and values; None where they do not take turns, and for names that a gateway may have written."""
    parts = attributes.replace(b"=", b",").split(b",")
    names, values = tuple(parts[::2]), tuple(parts[1::2])
    form = _forms[names]
    # Written again it is the same: then commas and equals signs take turns, and no value holds one.
    if form is None or len(values) != form.count or form.text % values != attributes:
        return None
    _shapes.learn(len(attributes), partial(_StringShape, attributes, form, values))
    return form, values


def _are_plain(names: bytes) -> bool:
    """Text, and nobody's but the user's: whatever the values are, no gateway wrote such items."""
    return OURS not in names and b"%" not in names and is_utf8(names)


def _form_of(names: tuple[bytes, ...]) -> _Form | None:
    return _Form(names) if all(names) and _are_plain(b"=".join(names)) else None


_forms = names_cache(_form_of)
