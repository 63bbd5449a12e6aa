"""Fast code for ordinary TubeMQ messages, both directions; anything unusual falls back to the plain code.

`read_pack` and `write_block` are all that others use. They give what `stored.read` and `properties.write_block` give.
"""

import re
from collections.abc import Callable, Sequence

from mqbridge.mapping.bounded_cache import BoundedCache, total_length
from mqbridge.mapping.lazy_properties import LazyMessage, PropertyNames, is_utf8, property_names, split_properties
from mqbridge.mapping.property_string import PropertyStringParser, StringForm
from mqbridge.mapping.reserved_properties import (
    EVENT_TIME,
    HOPS,
    KEY,
    KEYS,
    ORIGIN,
    escape_user_property,
    join_keys,
    origin_properties,
)
from mqbridge.message import MSG_TIME, MSG_TYPE, Message, Position
from mqbridge.tubemq.mapping.escapes import MARKER_TEXT, OURS, escape
from mqbridge.tubemq.mapping.properties import append, read_pairs, system_fields
from mqbridge.tubemq.mapping.times import Minutes
from mqbridge.tubemq.wire.attributes import PAIR_END, SEPARATOR
from mqbridge.tubemq.wire.payload import CHECKSUM_MASK, DAMAGED, HAS_ATTRIBUTES, LENGTH_BYTES, read_length
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from mqbridge.wire.checksum import crc32

# --- pack -> messages -------------------------------------------------------------------------------------------------


class AttributesMessage(LazyMessage):
    """A message of a TubeMQ producer: its attribute string, which is text, says everything but the body."""

    __slots__ = ()

    from_attributes = True
    key = publish_time = None
    keys: tuple[str, ...] = ()
    delivery_count = 0


class _Form(StringForm):
    """An attribute string with these names; -1 stands for no type or no time in it."""

    __slots__ = ("property_names", "time_at", "type_at")

    def __init__(self, names: tuple[bytes, ...]) -> None:
        super().__init__(names)
        self.property_names = property_names(names)
        texts = self.property_names.texts
        self.type_at, self.time_at = (texts.index(name) if name in texts else -1 for name in (MSG_TYPE, MSG_TIME))


def _form_of(names: tuple[bytes, ...]) -> _Form | None:
    """None for names of no text, and for names that a gateway may have written."""
    joined = SEPARATOR.join(names)
    return None if not all(names) or OURS in joined or b"%" in joined or not is_utf8(joined) else _Form(names)


_parser = PropertyStringParser(SEPARATOR, PAIR_END, _form_of, terminated=False, empty_values=True)
_types: BoundedCache[bytes, str] = BoundedCache(bytes.decode)


def read_pack(
    pack: Sequence[TransferedMessage],
    offset: int,
    minutes: Minutes,
    read_plain: Callable[[bytes, bytes, Position, Minutes], Message],
    first: int = 0,
) -> list[Message]:
    """The messages of one fetch, counted from `offset` on, the first of them with the index `first`.

    `read_plain` takes body, attribute string, position and `minutes`.
    """
    messages: list[Message] = []
    templates = _parser.templates
    by_length, split, length_of, type_of, new = templates.by_length, _parser.split, read_length, _types.get, object.__new__
    for index, item in enumerate(pack, first):
        data = item.payLoadData
        if crc32(data) & CHECKSUM_MASK != item.checkSum:
            messages.append(Message(data, position=(offset, index), defect=DAMAGED))
            continue
        if (
            not item.flag & HAS_ATTRIBUTES
            or len(data) < LENGTH_BYTES
            or not 0 <= (length := length_of(data)[0]) <= len(data) - LENGTH_BYTES
        ):
            messages.append(Message(data, position=(offset, index)))
            continue
        attributes, body = data[LENGTH_BYTES : length + LENGTH_BYTES], data[length + LENGTH_BYTES :]
        if not (attributes.isascii() or is_utf8(attributes)):
            messages.append(read_plain(body, attributes, (offset, index), minutes))
            continue
        template = by_length.get(length)
        if (
            template is not None
            and (fields := template.unpack(attributes))[::2] == template.fixed
            and attributes.count(PAIR_END) == template.ends  # a value may hold equals signs
        ):
            form, values, lengths = template.form, fields[1::2], template.lengths
        elif (found := split(attributes)) is not None:
            (form, values), lengths = found, None
        elif OURS not in attributes:
            messages.append(_read_pairs(body, attributes, (offset, index), minutes))
            continue
        else:
            messages.append(read_plain(body, attributes, (offset, index), minutes))
            continue
        message = new(AttributesMessage)
        message.payload, message.attributes, message.position = body, attributes, (offset, index)
        message.property_names, message.lengths, message.values = form.property_names, lengths, values
        message.msg_type = None if (at := form.type_at) < 0 else type_of(values[at]) or _types[values[at]]
        message.event_time = None if (at := form.time_at) < 0 else minutes[values[at]]
        messages.append(message)
    templates.read += len(messages)
    return messages


def _read_pairs(body: bytes, attributes: bytes, position: Position, minutes: Minutes) -> AttributesMessage:
    """A message whose attribute string is text that does not split at once: it has values with equals signs, or items without."""
    message = object.__new__(AttributesMessage)
    message.payload, message.attributes, message.position = body, attributes, position
    properties = read_pairs(attributes)
    message.property_names, message.values = split_properties(properties)
    message.lengths = None
    message.msg_type, message.event_time = system_fields(properties, minutes)
    return message


# --- message -> block -------------------------------------------------------------------------------------------------


def write_block(  # noqa: C901, PLR0912 - per message; calls cost more
    message: Message, stamp: str | None, time: str | None
) -> bytes | None:
    """The attribute string of a message; None for one that only the plain code writes.

    A message of a TubeMQ producer keeps its string. Any other string is written as if nothing had to be escaped, and then checked
    as a whole.
    """
    kind = message.__class__
    if kind is AttributesMessage:
        attributes: bytes = message.attributes  # type: ignore[assignment]  # it always has them
        pairs = origin_properties(message, stamp)
        return append(attributes, pairs) if pairs else attributes
    if message.attributes is not None or message.payload is None:
        return None
    if kind is not Message and isinstance(message, LazyMessage):
        names, values = message.property_names, message.values
    elif message.deliver_at is not None or message.ordering_key is not None or isinstance(message.key, bytes):
        return None
    else:
        try:
            names, values = split_properties(message.properties)
        except UnicodeEncodeError:
            return None
    prepared = names.target_cache("tubemq", _user_pairs)
    if prepared is None:
        return None
    items = [MARKER_TEXT]
    if message.msg_type is not None:
        items.append(f"{MSG_TYPE}={message.msg_type}")
    if time is not None:
        items.append(f"{MSG_TIME}={time}")
    if message.key is not None:
        items.append(f"{KEY}={message.key!s}")
    if keys := message.keys:
        items.append(_keys_items[keys])
    if message.event_time is not None:
        items.append(f"{EVENT_TIME}={message.event_time}")
    if stamp is None or stamp is message.origin:
        items += [f"{name}={value}" for name, value in origin_properties(message, stamp)]
    else:
        items.append(f"{ORIGIN}={stamp}")
        if message.hops:
            items.append(f"{HOPS}={message.hops + 1}")
    try:
        text = b"%b%b" % (prepared[0] % values, ",".join(items).encode())
    except UnicodeEncodeError:
        return None
    # What has to be escaped shows in the counts, or behind an equals sign.
    count = prepared[1] + len(items)
    if text.count(SEPARATOR) != count or text.count(PAIR_END) != count - 1 or b"%" in text or _BLANK.search(text) is not None:
        return None
    return text if count > 1 else None


def _user_pairs(names: PropertyNames) -> tuple[bytes, int] | None:
    """The format of pairs with these names, and their number; None for names that are to be escaped, or the system's."""
    if MSG_TYPE in names.texts or MSG_TIME in names.texts:
        return None
    items = [escape(escape_user_property((name, "x")))[:-1] for name in names.texts]
    text = "".join([f"{item}%b," for item in items]).encode()
    return None if text.count(b"%") != len(items) else (text, len(items))


_BLANK = re.compile(
    rb"=(?:,|$|[\t-\r\x1c- ]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)"
)
"""A value that is empty, or that begins with anything that `str.isspace` takes for a blank."""


def _keys_item(keys: tuple[str, ...]) -> str:
    return f"{KEYS}={join_keys(keys)}"


_keys_items: BoundedCache[tuple[str, ...], str] = BoundedCache(_keys_item, length=total_length)
