r"""Reading and writing the ordinary message fast; `reading` and `writing` are the plain ways, and the reference in tests.

A property string (`name \x01 value \x02` ...) is cut into names and values at once, and what the names mean is remembered by all
of them together. A string that is anything out of the ordinary, or of a gateway, is left to the plain ways.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter

from mqbridge.mapping.bounded_cache import BoundedCache, total_length
from mqbridge.mapping.lazy_properties import LazyMessage, PropertyNames, is_utf8, names_cache, property_names
from mqbridge.mapping.parse_templates import ParseTemplate, ParseTemplates
from mqbridge.mapping.reserved_properties import ATTRIBUTES, EVENT_TIME, GATEWAY_MARKER, ORIGIN
from mqbridge.message import RESERVED_PREFIX, Message
from mqbridge.rocketmq.mapping.reading import PLACEHOLDER, first_key, read
from mqbridge.rocketmq.mapping.table import IGNORED_NAMES, SHARDED, is_plain
from mqbridge.rocketmq.wire.properties import TRANSIENT_PREFIX, Name, fault
from mqbridge.rocketmq.wire.record import Record

_TAGS, _KEYS, _UNIQUE, _SHARDING, _TIMER = (
    name.encode() for name in (Name.TAGS, Name.KEYS, Name.UNIQ_KEY, Name.SHARDING_KEY, Name.TIMER_DELIVER_MS)
)
_FIELDS = frozenset({_TAGS, _KEYS, _SHARDING})
_ORIGIN, _ATTRIBUTES, _TIME, _BUILT = ORIGIN.encode(), ATTRIBUTES.encode(), EVENT_TIME.encode(), GATEWAY_MARKER[0].encode()
_OURS = RESERVED_PREFIX.encode()
_CARRIED = frozenset({_ORIGIN, _ATTRIBUTES, _TIME, _BUILT})
"""What most messages of a gateway have, and nothing else."""

Picker = Callable[[Sequence[bytes]], tuple[bytes, ...]]


class RecordMessage(LazyMessage):
    """A message of a record that no gateway wrote."""

    __slots__ = ()

    attributes: bytes | None = None


# --- in ---------------------------------------------------------------------------------------------------------------


class _CarriedMessage(RecordMessage):
    """A message that a gateway wrote."""

    __slots__ = ("attributes", "hops", "origin")
    origin: str | None  # type: ignore[assignment]  # not the constant that other raw messages have


class _Form:
    """What a property string with these names says: where among its values the user's are, tag and keys, -1 for none.

    `text` is the string but for the values, `rest` is for what not all messages have.
    """

    __slots__ = ("count", "keys_at", "kind", "names", "pick", "property_names", "rest", "tag_at", "text")

    def __init__(self, names: tuple[bytes, ...], users: Sequence[int]) -> None:
        self.names = names
        carried = not _CARRIED.isdisjoint(names)
        self.kind = _CarriedMessage if carried else RecordMessage
        self.rest = _Rest(names, users, carried=carried) if carried or _SHARDING in names else None
        self.count = len(names)
        self.property_names = property_names(tuple([names[place] for place in users]))
        self.pick = picker(users)
        self.tag_at, self.keys_at = _place(names, _TAGS), _place(names, _KEYS)
        self.text = b"".join([name.replace(b"%", b"%%") + b"\x01%b\x02" for name in names])


class _Rest:
    """What a message has that was carried, or has a key of its own."""

    __slots__ = ("_attributes_at", "_built_at", "_carried", "_key_at", "_origin_at", "_sharded", "_time_at")

    def __init__(self, names: tuple[bytes, ...], users: Sequence[int], *, carried: bool) -> None:
        self._carried = carried
        self._key_at, self._origin_at, self._attributes_at, self._time_at, self._built_at = (
            _place(names, name) for name in (_SHARDING, _ORIGIN, _ATTRIBUTES, _TIME, _BUILT)
        )
        self._sharded = property_names((*(names[place] for place in users), SHARDED.encode()))

    def fill(self, message: RecordMessage, values: tuple[bytes, ...]) -> bool:
        """Fill that in; False when some of it is to be read plainly."""
        if self._carried and not (isinstance(message, _CarriedMessage) and self._fill_carried(message, values)):
            return False
        if self._key_at >= 0:
            key = values[self._key_at].decode()
            if key == message.key:  # KEYS say it too
                message.property_names, message.lengths, message.values = self._sharded, None, (*message.values, b"1")
            message.key = key
        return True

    def _fill_carried(self, message: "_CarriedMessage", values: tuple[bytes, ...]) -> bool:
        if message.payload == PLACEHOLDER or (self._built_at >= 0 and values[self._built_at] != b"1"):
            return False
        message.event_time = None
        if self._time_at >= 0:
            time = values[self._time_at]
            if not time.isdigit() or (time[:1] == b"0" and time != b"0"):
                return False
            message.event_time = int(time)
        message.attributes = None if self._attributes_at < 0 else values[self._attributes_at]
        message.origin, message.hops = (None, 0) if self._origin_at < 0 else (values[self._origin_at].decode(), 1)
        return True


class _StringShape(ParseTemplate):
    """The shape of a property string."""

    __slots__ = ("form", "lengths")

    def __init__(self, data: bytes, form: _Form, values: tuple[bytes, ...]) -> None:
        self.form = form
        self.lengths = tuple(map(len, form.pick(values)))
        # A name with the separator behind it, and from the second on with the one before it.
        cuts = [cut for name, value in zip(form.names, values, strict=True) for cut in (len(name) + 2, len(value))]
        super().__init__(data, [cuts[0] - 1, *cuts[1:], 1])


_shapes = ParseTemplates[_StringShape]()


def read_all(records: Sequence[Record]) -> list[Message]:
    """The messages of records."""
    messages: list[Message] = []
    append, shapes, keys_of, tags, new = messages.append, _shapes.by_length, _keys.get, _tags.get, RecordMessage.__new__
    for record in records:
        data = record.properties
        if record.flag or record.defect is not None:
            append(read(record))
            continue
        shape = shapes.get(len(data))
        if (
            shape is not None
            and (fields := shape.unpack(data))[::2] == shape.fixed
            # All separators are in the fixed bytes: there is no other way to cut it.
            and data.count(b"\x01") == shape.form.count
            and data.count(b"\x02") == shape.form.count
        ):
            form, values, lengths = shape.form, fields[1::2], shape.lengths
        elif (cut := _cut(data)) is not None:
            form, values = cut
            lengths = None
        else:
            append(read(record))
            continue
        message = new(form.kind)
        message.payload = record.body
        message.position = (record.queue_offset,)
        message.event_time = record.born_timestamp
        message.publish_time = record.store_timestamp
        message.delivery_count = record.reconsume_times
        message.property_names, message.lengths, message.values = form.property_names, lengths, form.pick(values)
        if (at := form.tag_at) >= 0:
            value = values[at]
            message.msg_type = tags(value) or _tags[value]
        else:
            message.msg_type = None
        if (at := form.keys_at) >= 0:
            value = values[at]
            message.keys, message.key = keys_of(value) or _keys[value]
        else:
            message.keys, message.key = (), None
        append(message if form.rest is None or form.rest.fill(message, values) else read(record))
    _shapes.earn(len(records))
    return messages


def _cut(data: bytes) -> tuple[_Form, tuple[bytes, ...]] | None:
    """Form and values of a string; None for one that is to be read plainly."""
    parts = data.replace(b"\x01", b"\x02").split(b"\x02")
    names, values = tuple(parts[::2]), tuple(parts[1::2])
    form = _forms[names]
    # Written again it is the same: then the separators take turns, and no value holds one.
    if form is None or len(values) != form.count or form.text % values != data or b"\x01\x02" in data:
        return None
    _shapes.learn(len(data), partial(_StringShape, data, form, values))
    return form, values


def _learn(names: tuple[bytes, ...]) -> _Form | None:
    """What these names mean."""
    return _form_of(names[:-1]) if len(names) > 1 and names[-1] == b"" else None


def _form_of(names: tuple[bytes, ...]) -> _Form | None:
    """None for names out of the ordinary: repeats, escapes, what only some gateways write."""
    users: list[int] = []
    carried = False
    for place, name in enumerate(names):
        if not name or not is_utf8(name) or name == _TIMER:
            return None
        again = name in names[:place]
        if name == _UNIQUE:
            if not again and not carried:  # the others were made by a broker
                users.append(place)
        elif again:
            return None
        elif name.startswith(_OURS):
            if name not in _CARRIED:
                return None
            carried = True
        elif not (name in _FIELDS or (text := name.decode()) in IGNORED_NAMES or text.startswith(TRANSIENT_PREFIX)):
            users.append(place)
    return _Form(names, users)


def _place(names: tuple[bytes, ...], name: bytes) -> int:
    return names.index(name) if name in names else -1


def picker(places: Sequence[int]) -> Picker:
    """Takes what is at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple([values[place] for place in places])


def _keys_of(value: bytes) -> tuple[tuple[str, ...], str | None]:
    keys = tuple(value.decode().split(" "))
    return keys, first_key(keys)


_forms = names_cache(_learn)
"""By the names of a string, and the nothing behind its last separator; None for strings that are to be read plainly."""
_keys = BoundedCache(_keys_of)
"""Index keys and key by the value of KEYS."""
_tags: BoundedCache[bytes, str] = BoundedCache(bytes.decode)


# --- out --------------------------------------------------------------------------------------------------------------


class Plan:
    """How properties of these names stand in a property string, if they may stand there as they are.

    `text` takes their values, `count` is how many there are.
    """

    __slots__ = ("count", "has_id", "text")

    def __init__(self, names: PropertyNames) -> None:
        self.text = b"".join([name.replace(b"%", b"%%") + b"\x01%b\x02" for name in names.names])
        self.count = len(names.names)
        self.has_id = Name.UNIQ_KEY in names.texts


def plan_of(names: PropertyNames) -> Plan | None:
    """The plan of these names; None when one is to be escaped, or may mean something to `writing`."""
    texts = names.texts
    ordinary = all(is_plain(text) and fault(text, "x") is None and not text.startswith(RESERVED_PREFIX) for text in texts)
    return Plan(names) if ordinary and len(set(texts)) == len(texts) else None


NO_KEYS = b"", ""


def write_tag(tag: str) -> bytes:
    """TAGS."""
    return f"{Name.TAGS}\x01{tag}\x02".encode()


def write_keys(keys: tuple[str, ...]) -> tuple[bytes, str]:
    """KEYS, and the first of the keys; NO_KEYS where they cannot be taken apart again."""
    joined = " ".join(keys)
    ordinary = keys[0] and ((len(keys) == 1 and " " not in joined) or tuple(joined.split(" ")) == keys)
    return (f"{Name.KEYS}\x01{joined}\x02".encode(), keys[0]) if ordinary else NO_KEYS


written_tags = BoundedCache(write_tag)
written_keys = BoundedCache(write_keys, length=total_length)
"""KEYS and the first key by the keys."""
