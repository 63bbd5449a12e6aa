"""TubeMQ message <-> `Message`.

A TubeMQ message is a body and one attribute string of `key=value` pairs joined by commas. Coming in, the string is kept
in `attributes` byte for byte and its pairs become properties of the same names, `$msgType$` and `$msgTime$` among them.

Going out, a message that still has its attribute string, unchanged, gets it back verbatim. For any other one is built:

    user pairs , mqbridge.v=1 , $msgType$=… , $msgTime$=… , mqbridge.… = …

Everything in a built string is percent-encoded where it holds `%`, `,` or `=`, because native readers split on these;
`mqbridge.v=1` says that this was done, and that the string is ours and no attribute string of a user. Origin and hops are
appended to either kind.
"""

import re
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any
from urllib.parse import quote, unquote

from mqbridge.attributes import read_pair, read_pairs
from mqbridge.carried import (
    BUILT,
    CARRIED_KEYS,
    EVENT_TIME,
    HOPS,
    KEY,
    KEYS,
    ORIGIN,
    USER_PREFIX,
    WITHOUT,
    carry,
    escape_user,
    is_carried,
    keys_text,
    stamps,
    uncarry,
)
from mqbridge.errors import MappingError
from mqbridge.memo import ENTRIES, remember
from mqbridge.message import Message, Pair
from mqbridge.raw import Layout, lay_out
from mqbridge.tubemq.fields import MSG_TIME, MSG_TYPE, TABLE
from mqbridge.tubemq.native import MSG_TIME_DIGITS, Minutes, learn_more, minutes_of, read_native, system_fields
from mqbridge.tubemq.wire.payload import CHECKSUM_MASK, HAS_ATTRIBUTES, join_payload
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from mqbridge.wire.checksum import crc32

ALWAYS_CARRIED = (*(field for field in TABLE.carried_fields() if field not in {"origin", "hops"}), "payload")
"""What nothing native says, a missing payload among it; `stamps` writes the other two."""

_LENGTH = struct.Struct(">i")
_MARKER_TEXT = f"{BUILT[0]}={BUILT[1]}"
_MARKER = _MARKER_TEXT.encode()
_OURS = b"mqbridge."
_ESCAPES = str.maketrans({"%": "%25", ",": "%2C", "=": "%3D"})
_PLAIN_KEYS = CARRIED_KEYS | {BUILT[0], MSG_TYPE, MSG_TIME}


class Encoded:
    """The fields of a send request."""

    __slots__ = ("data", "flag", "msg_time", "msg_type")

    def __init__(self, data: bytes, flag: int, msg_type: str | None, msg_time: str | None) -> None:
        self.data, self.flag, self.msg_type, self.msg_time = data, flag, msg_type, msg_time


# --- in ---------------------------------------------------------------------------------------------------------------


def decode(pack: Sequence[TransferedMessage], offset: int, zone: tzinfo = UTC) -> list[Message]:
    """The messages of one fetch that began at `offset`. One that is damaged becomes a Message with its `defect`."""
    messages: list[Message] = []
    minutes = minutes_of(zone)
    for index, item in enumerate(pack):
        data = item.payLoadData
        if crc32(data) & CHECKSUM_MASK != item.checkSum:
            messages.append(Message(data, position=(offset, index), defect="its checksum does not match its content"))
            continue
        attributes = None
        if item.flag & HAS_ATTRIBUTES and len(data) >= 4:
            end = 4 + _LENGTH.unpack_from(data)[0]
            # The Java SDK's clearAttribute() sets the flag without writing the block: then all of it is the body.
            if 4 <= end <= len(data):
                attributes = data[4:end]
                data = data[end:]
        if attributes is None:
            messages.append(Message(data, position=(offset, index)))
        elif _OURS in attributes:
            messages.append(_from_stamped(data, attributes, (offset, index), minutes))
        else:
            messages.append(read_native(data, attributes, (offset, index), minutes))
    learn_more(len(pack))
    return messages


def _from_stamped(body: bytes, attributes: bytes, position: tuple[int, int], minutes: Minutes) -> Message:
    items = attributes.split(b",")
    if _MARKER in items:
        properties, fields = _read_built(items, minutes, blank=not body)
    else:
        properties, fields = _read_appended(items, minutes, blank=not body)
    return Message(fields.pop("payload", body), properties, position=position, **fields)


def _read_built(items: list[bytes], minutes: Minutes, *, blank: bool) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    at = items.index(_MARKER)
    own = [_without_prefix(_unescape(pair)) for pair in read_pairs(b",".join(items[:at]))]
    rest, fields = uncarry([_unescape(pair) for pair in read_pairs(b",".join(items[at + 1 :]))], blank=blank)
    # What somebody else appended is the user's; the system's own pairs stand there because no property says the same.
    properties = (*own, *(pair for pair in rest if pair[0] not in {MSG_TYPE, MSG_TIME}))
    msg_type = dict(rest).get(MSG_TYPE, system_fields(properties, minutes)[0])
    return properties, {"msg_type": msg_type} | fields


def _read_appended(items: list[bytes], minutes: Minutes, *, blank: bool) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    at = len(items)
    while at and _is_appended(items[at - 1], blank=blank):
        at -= 1
    rest, fields = uncarry([_unescape(pair) for pair in read_pairs(b",".join(items[at:]))], blank=blank)
    if rest:
        at, fields = len(items), {}
    attributes = b",".join(items[:at])
    properties = read_pairs(attributes)
    msg_type, event_time = system_fields(properties, minutes)
    return properties, {"attributes": attributes, "msg_type": msg_type, "event_time": event_time} | fields


def _is_appended(item: bytes, *, blank: bool) -> bool:
    return _OURS in item and (pair := read_pair(item)) is not None and is_carried(_unescape(pair), blank=blank)


def _without_prefix(pair: Pair) -> Pair:
    return (pair[0].removeprefix(USER_PREFIX), pair[1])


# --- out --------------------------------------------------------------------------------------------------------------


def encode(message: Message, stamp: str | None, zone: tzinfo = UTC) -> Encoded:
    """What to send for a message; `stamp` is its origin, which counts as passed on when it is the message's own.

    Raises MappingError for a message that was never readable, or whose texts are no Unicode.
    """
    if message.defect is not None:
        raise MappingError(f"the message at {message.position} could not be read: {message.defect}")
    body = message.payload or b""
    time = None if message.event_time is None else _minutes_of(zone)[message.event_time // 1000]
    if (built := _build_ordinary(message, stamp, time)) is not None:
        return Encoded(*join_payload(built, body), message.msg_type, time)
    ours: list[Pair]
    if message.only_attributes or (message.attributes is not None and _unchanged(message, message.attributes, zone)):
        text = message.attributes or b""
        ours = stamps(message, stamp) if message.only_attributes else _besides(message, zone) + stamps(message, stamp)
    else:
        try:
            text, ours = _build(message, time)
        except UnicodeEncodeError as error:
            raise MappingError(f"the message at {message.position} has texts that are no Unicode: {error}") from error
        ours += stamps(message, stamp)
        # The broker refuses a message of no bytes at all; the marker alone makes one of an empty body.
        if not (text or ours) and body:
            return Encoded(body, 0, message.msg_type, time)
        ours.insert(0, BUILT)
    if ours:
        tail = ",".join(map(_escape, ours)).encode()
        text = text + b"," + tail if text else tail
    return Encoded(*join_payload(text, body), message.msg_type, time)


def _unchanged(message: Message, attributes: bytes, zone: tzinfo) -> bool:
    """Whether the attribute string still says what the message says, and would be read as the user's.

    A route may have edited properties or type.
    """
    if _OURS in attributes:
        items = attributes.split(b",")
        if _MARKER in items or _is_appended(items[-1], blank=not message.payload):
            return False
    pairs = read_pairs(attributes)
    return pairs == message.properties and system_fields(pairs, minutes_of(zone))[0] == message.msg_type


def _besides(message: Message, zone: tzinfo) -> list[Pair]:
    """What the attribute string does not say. Where it alone tells a time, that is the message's: who made it left it at that."""
    said = system_fields(message.properties, minutes_of(zone))[1]
    return carry(message, ALWAYS_CARRIED if message.event_time in {None, said} else (*ALWAYS_CARRIED, "event_time"))


def _build(message: Message, time: str | None) -> tuple[bytes, list[Pair]]:
    """The user's pairs as text, and what is to follow the marker."""
    properties = message.properties
    names = dict(properties)
    system: list[Pair] = []
    if message.msg_type is None:
        if MSG_TYPE in names:
            system.append((WITHOUT, "msg_type"))
    elif MSG_TYPE not in names or message.property(MSG_TYPE) != message.msg_type:
        system.append((MSG_TYPE, message.msg_type))
    if time is not None and MSG_TIME not in names:
        system.append((MSG_TIME, time))
    text = ",".join([_escape(escape_user(pair)) for pair in properties])
    return text.encode(), system + carry(message, (*ALWAYS_CARRIED, "event_time", "attributes"))


def _build_ordinary(  # noqa: C901, PLR0912 - per message; calls cost more
    message: Message, stamp: str | None, time: str | None
) -> bytes | None:
    """The whole string of a message of which nothing has to be escaped; None for others. `_build` and `stamps` say the same."""
    layout = message.layout
    if message.attributes is not None or message.payload is None:
        return None
    if layout is not None:
        values = message.values
    elif message.deliver_at is not None or message.ordering_key is not None or isinstance(message.key, bytes):
        return None
    else:
        try:
            layout, values = lay_out(message.properties)
        except UnicodeEncodeError:
            return None
    plan = layout.plan("tubemq", _plan_of)
    if plan is None:
        return None
    said = [_MARKER_TEXT]
    if message.msg_type is not None:
        said.append(f"{MSG_TYPE}={message.msg_type}")
    if time is not None:
        said.append(f"{MSG_TIME}={time}")
    if message.key is not None:
        said.append(f"{KEY}={message.key!s}")
    if keys := message.keys:
        said.append(_said_keys.get(keys) or _say_keys(keys))
    if message.event_time is not None:
        said.append(f"{EVENT_TIME}={message.event_time}")
    if stamp is None or stamp is message.origin:
        said += [f"{name}={value}" for name, value in stamps(message, stamp)]
    else:
        said.append(f"{ORIGIN}={stamp}")
        if message.hops:
            said.append(f"{HOPS}={message.hops + 1}")
    try:
        text = b"%b%b" % (plan[0] % values, ",".join(said).encode())
    except UnicodeEncodeError:
        return None
    # What has to be escaped shows in the counts, or behind an equals sign.
    count = plan[1] + len(said)
    if text.count(b"=") != count or text.count(b",") != count - 1 or b"%" in text or _BLANK.search(text) is not None:
        return None
    return text if count > 1 else None


def _plan_of(layout: Layout) -> tuple[bytes, int] | None:
    """The pairs of these names but for the values, and how many; None for names that are to be escaped, or the system's."""
    if MSG_TYPE in layout.texts or MSG_TIME in layout.texts:
        return None
    items = [_escape(escape_user((name, "x")))[:-1] for name in layout.texts]
    text = "".join([f"{item}%b," for item in items]).encode()
    return None if text.count(b"%") != len(items) else (text, len(items))


_BLANK = re.compile(
    rb"=(?:,|$|[\t-\r\x1c- ]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)"
)
"""A value that is empty, or that begins with anything that `str.isspace` takes for a blank."""
_said_keys: dict[tuple[str, ...], str] = {}


def _say_keys(keys: tuple[str, ...]) -> str:
    text = f"{KEYS}={keys_text(keys)}"
    return remember(_said_keys, keys, text, len(text))


def _escape(pair: Pair) -> str:
    key, value = pair
    return f"{key if key in _PLAIN_KEYS else _escape_text(key)}={value if value.isalnum() else _escape_text(value)}"


def _escape_text(text: str) -> str:
    if "," in text or "=" in text or "%" in text:
        text = text.translate(_ESCAPES)
    # Java readers fail on blank keys and values; a lone percent sign stands for nothing at all.
    return text if text and not text.isspace() else quote(text) or "%"


def _unescape(pair: Pair) -> Pair:
    key, value = ("" if part == "%" else unquote(part) if "%" in part else part for part in pair)
    return key, value


class _MinuteTexts(dict[int, str | None]):
    """`$msgTime$` by seconds since the epoch, in one zone; bounded like every memo."""

    def __init__(self, zone: tzinfo) -> None:
        super().__init__()
        self._zone = zone

    def __missing__(self, second: int) -> str | None:
        if len(self) >= ENTRIES:
            self.clear()
        text: str | None
        try:
            text = datetime.fromtimestamp(second, self._zone).strftime("%Y%m%d%H%M").zfill(MSG_TIME_DIGITS)
        except (ValueError, OverflowError, OSError):
            text = None
        self[second] = text
        return text


_minute_texts: dict[tzinfo, _MinuteTexts] = {}


def _minutes_of(zone: tzinfo) -> _MinuteTexts:
    return _minute_texts.get(zone) or _minute_texts.setdefault(zone, _MinuteTexts(zone))
