"""Fast code for ordinary RocketMQ messages, both directions; anything unusual falls back to the plain code.

`read_records` and `write_run` are all that others use. They give what `stored.read` and `properties.write_block` give.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from mqbridge.mapping.bounded_cache import BoundedCache, total_length
from mqbridge.mapping.lazy_properties import LazyMessage, PropertyNames, is_utf8, property_names, split_properties
from mqbridge.mapping.property_string import PropertyStringParser, StringForm, string_format
from mqbridge.mapping.reserved_properties import ATTRIBUTES, EVENT_TIME, GATEWAY_MARKER, HOPS, ORIGIN, origin_properties
from mqbridge.message import RESERVED_PREFIX, Message, format_position
from mqbridge.rocketmq.mapping.limits import MAX_PROPERTIES_BYTES
from mqbridge.rocketmq.mapping.open_batch import OpenBatch, born_at
from mqbridge.rocketmq.mapping.properties import PLACEHOLDER, first_key
from mqbridge.rocketmq.mapping.table import IGNORED_NAMES, SHARDED, is_plain
from mqbridge.rocketmq.wire.batch import OVERHEAD_BYTES
from mqbridge.rocketmq.wire.properties import NAME_END, TRANSIENT_PREFIX, VALUE_END, Name, fault, join, opening
from mqbridge.rocketmq.wire.record import Record

_SEPARATOR, _END = NAME_END.encode(), VALUE_END.encode()
_EMPTY_VALUE = _SEPARATOR + _END

# --- records -> messages ----------------------------------------------------------------------------------------------

_TAGS, _KEYS, _UNIQUE, _SHARDING, _TIMER = (
    name.encode() for name in (Name.TAGS, Name.KEYS, Name.UNIQ_KEY, Name.SHARDING_KEY, Name.TIMER_DELIVER_MS)
)
_FIELDS = frozenset({_TAGS, _KEYS, _SHARDING})
_ORIGIN, _ATTRIBUTES, _TIME, _MARKER = ORIGIN.encode(), ATTRIBUTES.encode(), EVENT_TIME.encode(), GATEWAY_MARKER[0].encode()
_OURS = RESERVED_PREFIX.encode()
_CARRIED = frozenset({_ORIGIN, _ATTRIBUTES, _TIME, _MARKER})
"""The gateway's properties that most messages of a gateway have; a string with any other is left to the plain code."""

Picker = Callable[[Sequence[bytes]], tuple[bytes, ...]]


class RecordMessage(LazyMessage):
    """A message of a record that no gateway wrote."""

    __slots__ = ()

    attributes: bytes | None = None


class _GatewayMessage(RecordMessage):
    """A message that a gateway wrote."""

    __slots__ = ("attributes", "hops", "origin")
    origin: str | None  # type: ignore[assignment]  # not the constant that other lazy messages have


class _Form(StringForm):
    """A property string with these names: which of its values are the user's, the tag and the keys; -1 for none.

    `rest` is for what not all messages have.
    """

    __slots__ = ("keys_at", "kind", "pick", "property_names", "rest", "tag_at")

    def __init__(self, names: tuple[bytes, ...], users: Sequence[int]) -> None:
        super().__init__(names)
        carried = not _CARRIED.isdisjoint(names)
        self.kind = _GatewayMessage if carried else RecordMessage
        self.rest = _Rest(names, users, carried=carried) if carried or _SHARDING in names else None
        self.property_names = property_names(tuple([names[index] for index in users]))
        self.pick = _picker(users)
        self.tag_at, self.keys_at = _index(names, _TAGS), _index(names, _KEYS)

    def lengths(self, values: Sequence[bytes]) -> tuple[int, ...]:
        """The lengths of the user's values."""
        return tuple(map(len, self.pick(values)))


class _Rest:
    """Fills in the carried fields, and a key of its own."""

    __slots__ = ("_attributes_at", "_carried", "_key_at", "_marker_at", "_origin_at", "_sharded", "_time_at")

    def __init__(self, names: tuple[bytes, ...], users: Sequence[int], *, carried: bool) -> None:
        self._carried = carried
        self._key_at, self._origin_at, self._attributes_at, self._time_at, self._marker_at = (
            _index(names, name) for name in (_SHARDING, _ORIGIN, _ATTRIBUTES, _TIME, _MARKER)
        )
        self._sharded = property_names((*(names[index] for index in users), SHARDED.encode()))

    def fill(self, message: RecordMessage, values: tuple[bytes, ...]) -> bool:
        """Set the fields; False when the plain code has to read the record."""
        if self._carried and not (isinstance(message, _GatewayMessage) and self._fill_carried(message, values)):
            return False
        if self._key_at >= 0:
            key = values[self._key_at].decode()
            if key == message.key:  # KEYS say it too
                message.property_names, message.lengths, message.values = self._sharded, None, (*message.values, b"1")
            message.key = key
        return True

    def _fill_carried(self, message: _GatewayMessage, values: tuple[bytes, ...]) -> bool:
        if message.payload == PLACEHOLDER or (self._marker_at >= 0 and values[self._marker_at] != b"1"):
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


def _form_of(names: tuple[bytes, ...]) -> _Form | None:
    """None for unusual names: repeats, escapes, the gateway's less common properties."""
    users: list[int] = []
    carried = False
    for index, name in enumerate(names):
        if not name or not is_utf8(name) or name == _TIMER:
            return None
        again = name in names[:index]
        if name == _UNIQUE:
            if not again and not carried:  # the others were made by a broker
                users.append(index)
        elif again:
            return None
        elif name.startswith(_OURS):
            if name not in _CARRIED:
                return None
            carried = True
        elif not (name in _FIELDS or (text := name.decode()) in IGNORED_NAMES or text.startswith(TRANSIENT_PREFIX)):
            users.append(index)
    return _Form(names, users)


def _index(names: tuple[bytes, ...], name: bytes) -> int:
    return names.index(name) if name in names else -1


def _picker(indexes: Sequence[int]) -> Picker:
    """Takes the values at these indexes."""
    if len(indexes) > 1:
        return itemgetter(*indexes)
    return lambda values: tuple([values[index] for index in indexes])


def _read_keys(value: bytes) -> tuple[tuple[str, ...], str | None]:
    keys = tuple(value.decode().split(" "))
    return keys, first_key(keys)


_parser = PropertyStringParser(_SEPARATOR, _END, _form_of, terminated=True, empty_values=False)
_keys = BoundedCache(_read_keys)
"""Index keys and key by the value of KEYS."""
_tags: BoundedCache[bytes, str] = BoundedCache(bytes.decode)


def read_records(records: Sequence[Record], read_plain: Callable[[Record], Message]) -> list[Message]:
    """The messages of records."""
    messages: list[Message] = []
    templates = _parser.templates
    append, by_length, split, new = messages.append, templates.by_length, _parser.split, RecordMessage.__new__
    keys_of, tag_of, separator, end = _keys.get, _tags.get, _SEPARATOR, _END
    for record in records:
        block = record.properties
        if record.flag or record.defect is not None:
            append(read_plain(record))
            continue
        template = by_length.get(len(block))
        if (
            template is not None
            and (fields := template.unpack(block))[::2] == template.fixed
            and block.count(separator) == template.separators
            and block.count(end) == template.ends
        ):
            form, values, lengths = template.form, fields[1::2], template.lengths
        elif (found := split(block)) is not None:
            form, values = found
            lengths = None
        else:
            append(read_plain(record))
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
            message.msg_type = tag_of(value) or _tags[value]
        else:
            message.msg_type = None
        if (at := form.keys_at) >= 0:
            value = values[at]
            message.keys, message.key = keys_of(value) or _keys[value]
        else:
            message.keys, message.key = (), None
        append(message if form.rest is None or form.rest.fill(message, values) else read_plain(record))
    templates.read += len(records)
    return messages


# --- messages -> blocks -----------------------------------------------------------------------------------------------


class _Prepared:
    """How properties of these names are written: `text` takes their values, `count` is their number."""

    __slots__ = ("count", "has_id", "text")

    def __init__(self, names: PropertyNames) -> None:
        self.text = string_format(names.names, _SEPARATOR, _END, terminated=True)
        self.count = len(names.names)
        self.has_id = Name.UNIQ_KEY in names.texts


def _prepare(names: PropertyNames) -> _Prepared | None:
    """None for names that are to be escaped, or that may mean something to the plain code."""
    texts = names.texts
    ordinary = all(is_plain(text) and fault(text, "x") is None and not text.startswith(RESERVED_PREFIX) for text in texts)
    return _Prepared(names) if ordinary and len(set(texts)) == len(texts) else None


def _write_tag(tag: str) -> bytes:
    return join([(Name.TAGS, tag)])


def _write_keys(keys: tuple[str, ...]) -> tuple[bytes, str]:
    """KEYS, and the first of the keys; nothing where a reader could not split them again."""
    joined = " ".join(keys)
    ordinary = keys[0] and ((len(keys) == 1 and " " not in joined) or tuple(joined.split(" ")) == keys)
    return (join([(Name.KEYS, joined)]), keys[0]) if ordinary else (b"", "")


_written_tags = BoundedCache(_write_tag)
_written_keys = BoundedCache(_write_keys, length=total_length)
_KEY_FORMAT = opening(Name.SHARDING_KEY).decode() + "{}" + VALUE_END
_ATTRIBUTES_FORMAT = opening(ATTRIBUTES) + b"%b" + _END
_ORIGIN_OPENING = opening(ORIGIN)
_TIME_FORMAT, _HOPS_FORMAT = opening(EVENT_TIME) + b"%d" + _END, opening(HOPS) + b"%d" + _END
_LAST_NUMBER_FORMAT = b"%b%d" + _END
_MARKER_PAIR = join([GATEWAY_MARKER])


def write_run(  # noqa: C901, PLR0912, PLR0915 - per message; calls cost more
    messages: Sequence[Message],
    start: int,
    origin: str | None,
    ids: Iterator[bytes] | None,
    now: int,
    max_message_bytes: int,
    batch: OpenBatch,
) -> int:
    """Fill batches with messages from `start` up to the first that is not ordinary, whose index it returns.

    The bytes are those of `properties.write_block`, with the next of `ids` behind them where the message has none. Every stamp
    begins with `origin`; `now` (ms) is the timestamp of a message without a time.
    """
    tag_of, keys_of, concat = _written_tags.get, _written_keys.get, b"".join
    stem, stem_of = b"", None
    known, prepared = None, None
    kind, lazy = None, False
    elements, free = batch.elements, batch.free
    most, largest = batch.max_messages, min(batch.max_bytes, max_message_bytes)
    index = start
    try:
        for index in range(start, len(messages)):
            message = messages[index]
            body = message.payload
            if message.__class__ is not kind:
                kind = message.__class__
                lazy = issubclass(kind, LazyMessage)
            if lazy:
                names, values = message.property_names, message.values  # type: ignore[attr-defined]
            elif _is_ordinary(message):
                names, values = split_properties(message.properties)
            else:
                return index
            if names is not known:
                known, prepared = names, names.target_cache("rocketmq", _prepare)
            if prepared is None or not body:
                return index
            pieces = [prepared.text % values]
            if (tag := message.msg_type) is not None:
                pieces.append(tag_of(tag) or _written_tags[tag])
            first = None
            if keys := message.keys:
                piece, first = keys_of(keys) or _written_keys[keys]
                pieces.append(piece)
            if (key := message.key) != first:
                if not isinstance(key, str):
                    return index
                pieces.append(_KEY_FORMAT.format(key).encode())
            native = len(pieces)
            if (attributes := message.attributes) is not None:
                pieces.append(_ATTRIBUTES_FORMAT % attributes)
            if (time := message.event_time) is not None:
                pieces.append(_TIME_FORMAT % time)
            if origin is not None:
                position = message.position
                if position[:-1] != stem_of:  # those of an entry or a pack differ in the last number only
                    stem_of = position[:-1]
                    stem = _ORIGIN_OPENING + (origin + (f"{format_position(stem_of)}:" if stem_of else "")).encode()
                pieces.append(_LAST_NUMBER_FORMAT % (stem, position[-1]))
                if message.hops:
                    pieces.append(_HOPS_FORMAT % (message.hops + 1))
            elif message.origin is not None:
                pieces += [join([pair]) for pair in origin_properties(message, None)]
            if len(pieces) == native:
                pieces.append(_MARKER_PAIR)
            block = concat(pieces)
            # A separator inside a text shows in the counts, an empty text by two side by side.
            count = prepared.count + len(pieces) - 1
            if block.count(_SEPARATOR) != count or block.count(_END) != count or _EMPTY_VALUE in block:
                return index
            if ids is not None and not prepared.has_id:
                block += next(ids)
            size = OVERHEAD_BYTES + len(body) + len(block)
            if size > largest or len(block) > MAX_PROPERTIES_BYTES:
                return index
            if not elements or size > free or len(elements) >= most:
                elements, free = batch.begin(index, born_at(time, now)), batch.max_bytes
            elements.append((0, body, block))
            free -= size
    except UnicodeEncodeError:
        return index
    finally:
        batch.free = free
    return len(messages)


def _is_ordinary(message: Message) -> bool:
    """Whether a message that is not lazy has nothing that only the plain code writes."""
    return (
        message.deliver_at is None
        and message.ordering_key is None
        and message.defect is None
        and message.position != ()
        and (message.attributes is None or is_utf8(message.attributes))
    )
