"""A message as a TubeMQ producer sent it: a body and one attribute string that says everything else.

The string is cut into names and values at once, and what the names mean is remembered by all of them together. `$msgType$` and
`$msgTime$` are the system's own pairs among the user's.
"""

from datetime import datetime, tzinfo
from functools import partial

from mqbridge.attributes import read_pairs
from mqbridge.memo import remember
from mqbridge.message import Message, Pair, Position
from mqbridge.raw import RawMessage, is_text, keep, lay_out, layout_of
from mqbridge.shapes import Shape, Shapes
from mqbridge.tubemq.fields import MSG_TIME, MSG_TYPE

MSG_TIME_DIGITS = 12


class Minutes(dict[bytes, int | None]):
    """Times by the values of `$msgTime$`, in one zone; None for what is no time. Bounded like every memo."""

    def __init__(self, zone: tzinfo) -> None:
        super().__init__()
        self._zone = zone

    def __missing__(self, value: bytes) -> int | None:
        return remember(self, value, self._read(value.decode()), len(value))

    def _read(self, text: str) -> int | None:
        """Milliseconds since the epoch of twelve digits; None for anything else."""
        if len(text) != MSG_TIME_DIGITS or not (text.isascii() and text.isdigit()):
            return None
        try:
            # strptime would take "2026112 3 4" apart as well; fixed places do not.
            parts = (int(text[:4]), int(text[4:6]), int(text[6:8]), int(text[8:10]), int(text[10:]))
            return int(datetime(*parts, tzinfo=self._zone).timestamp()) * 1000
        except (ValueError, OverflowError):
            return None


_minutes: dict[tzinfo, Minutes] = {}


def minutes_of(zone: tzinfo) -> Minutes:
    """The memo of a zone."""
    return _minutes.get(zone) or _minutes.setdefault(zone, Minutes(zone))


def system_fields(properties: tuple[Pair, ...], minutes: Minutes) -> tuple[str | None, int | None]:
    """Type and time: the first of each, as native readers take them. SDKs write them first, so the rest is seldom looked at."""
    msg_type = minute = None
    for key, value in properties:
        if key == MSG_TYPE:
            msg_type = value if msg_type is None else msg_type
        elif key == MSG_TIME:
            minute = value if minute is None else minute
        else:
            continue
        if msg_type is not None and minute is not None:
            break
    return msg_type, None if minute is None else minutes[minute.encode()]


class NativeMessage(RawMessage):
    """A message as it came from a TubeMQ producer: its attribute string, which is text, says all there is besides the body."""

    __slots__ = ()

    only_attributes = True
    key = publish_time = None
    keys: tuple[str, ...] = ()
    delivery_count = 0


class _Form:
    """What an attribute string of these names says. `text` is the string but for the values; -1 stands for no place in it."""

    __slots__ = ("count", "layout", "names", "text", "time_at", "type_at")

    def __init__(self, names: tuple[bytes, ...]) -> None:
        self.names = names
        self.layout = layout_of(names)
        self.count = len(names)
        self.text = b",".join([name.replace(b"%", b"%%") + b"=%b" for name in names])
        texts = self.layout.texts
        self.type_at, self.time_at = (texts.index(name) if name in texts else -1 for name in (MSG_TYPE, MSG_TIME))


class _StringShape(Shape):
    """The shape of a string."""

    __slots__ = ("commas", "form", "lengths")

    def __init__(self, data: bytes, form: _Form, values: tuple[bytes, ...]) -> None:
        self.form, self.commas = form, form.count - 1
        self.lengths = tuple(map(len, values))
        # A name with its equals sign, and from the second on with its comma.
        cuts = [cut for name, length in zip(form.names, self.lengths, strict=True) for cut in (len(name) + 2, length)]
        super().__init__(data, [cuts[0] - 1, *cuts[1:]])


_forms: dict[tuple[bytes, ...], _Form | None] = {}
_shapes = Shapes[_StringShape]()
_types: dict[bytes, str] = {}


def read_native(body: bytes, attributes: bytes, position: Position, minutes: Minutes) -> Message:
    """A message that no gateway wrote."""
    shape = _shapes.by_length.get(len(attributes))
    if (
        shape is not None
        and (fields := shape.unpack(attributes))[::2] == shape.fixed
        # All commas and equals signs are in the fixed bytes: there is no other way to cut it.
        and attributes.count(b",") == shape.commas
        and attributes.count(b"=") == shape.commas + 1
    ):
        form, values, lengths = shape.form, fields[1::2], shape.lengths
    elif (cut := _cut(attributes)) is not None:
        form, values = cut
        lengths = None
    else:
        return _read_plainly(body, attributes, position, minutes)
    if not attributes.isascii():
        try:
            attributes.decode()
        except UnicodeDecodeError:
            return _read_plainly(body, attributes, position, minutes)
    message = _new(NativeMessage)
    message.payload, message.attributes, message.position = body, attributes, position
    message.layout, message.lengths, message.values = form.layout, lengths, values
    message.msg_type = None if (at := form.type_at) < 0 else _types.get(values[at]) or _type(values[at])
    message.event_time = None if (at := form.time_at) < 0 else minutes[values[at]]
    return message


_new = object.__new__


def learn_more(messages: int) -> None:
    """So many were read."""
    _shapes.earn(messages)


def _cut(attributes: bytes) -> tuple[_Form, tuple[bytes, ...]] | None:
    """Names and values; None where they do not take turns."""
    parts = attributes.replace(b"=", b",").split(b",")
    names, values = tuple(parts[::2]), tuple(parts[1::2])
    try:
        form = _forms[names]
    except KeyError:
        form = _learn(names)
    # Written again it is the same: then commas and equals signs take turns, and no value holds one.
    if form is None or len(values) != form.count or form.text % values != attributes:
        return None
    _shapes.learn(len(attributes), partial(_StringShape, attributes, form, values))
    return form, values


def _learn(names: tuple[bytes, ...]) -> _Form | None:
    return keep(_forms, names, _Form(names) if all(names) and is_text(b"=".join(names)) else None)


def _type(value: bytes) -> str:
    return remember(_types, value, value.decode(), len(value))


def _read_plainly(body: bytes, attributes: bytes, position: Position, minutes: Minutes) -> Message:
    """Whatever the string is: items that are no pairs, values with equals signs, bytes that are no text."""
    properties = read_pairs(attributes)
    msg_type, event_time = system_fields(properties, minutes)
    if not is_text(attributes):
        return Message(body, properties, attributes=attributes, msg_type=msg_type, event_time=event_time, position=position)
    message = NativeMessage.__new__(NativeMessage)
    message.payload, message.attributes, message.position = body, attributes, position
    message.layout, message.values = lay_out(properties)
    message.lengths = None
    message.msg_type, message.event_time = msg_type, event_time
    return message
