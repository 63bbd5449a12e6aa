"""Units of a listener's RocketMQ SDKs <-> messages, where the backing stores no units of RocketMQ.

A message that an SDK sent is not a copy. `message_of_unit` maps it as `decode_record` does, so that native consumers of the
backing read its keys, tag and properties, and adds one property (BLOCK) with all that the SDK sent beside the body.
`unit_of_message` gives back exactly this. If the property is missing or does not fit the message (see `sent_block`), the message
is another system's, or was changed on the way; then its fields are written as properties of RocketMQ:

    user's pairs ... [TAGS] [KEYS] [__SHARDINGKEY]

Pairs that the property string cannot hold are escaped, as `write_block` does. The properties of gateways (`mqbridge.…`) are left
out: they have no meaning for an SDK, and one that sends the message on would write them as its own. Fields that RocketMQ has no
property for are left out too, because only a gateway reads them from a reserved property.
"""

import hashlib
import re
from collections.abc import Sequence

from mqbridge.errors import RemoteProtocolError
from mqbridge.mapping.raw_form import RAW_FORM
from mqbridge.message import RESERVED_PREFIX, Message, Pair, Partition, Position, Unit, format_position
from mqbridge.rocketmq.mapping.escapes import escape
from mqbridge.rocketmq.mapping.limits import MAX_PROPERTIES_BYTES
from mqbridge.rocketmq.mapping.read_block import PLACEHOLDER
from mqbridge.rocketmq.mapping.sent_block import SentBlock, read_sent_block, write_sent_block
from mqbridge.rocketmq.mapping.stored import decode_record
from mqbridge.rocketmq.mapping.table import BLOCK, CUT, DEFECT
from mqbridge.rocketmq.mapping.unit_format import RecordFormat
from mqbridge.rocketmq.mapping.write_block import take_synthetic, write_system
from mqbridge.rocketmq.wire.neutral_record import encode_neutral
from mqbridge.rocketmq.wire.properties import MAX_BYTES, NAME_END, VALUE_END, Name, find, join, name_prefix
from mqbridge.rocketmq.wire.record import decode_records
from mqbridge.wire.text import encode_text

MAX_DEFECT_CHARS = 1000
"""Longer texts of a defect are cut."""
_SEPARATOR = VALUE_END.encode()
_UNIQUE_ID_PREFIX = name_prefix(Name.UNIQ_KEY)
_UNIQUE_ID_BYTES = 16
"""Bytes of a unique id, which is written as hex digits: as many as in an id of a client with an IPv4 address."""
_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Lone surrogates that stand for no byte, see `wire/text.py`."""
_INT64 = range(-(1 << 63), 1 << 63)


class SentRecordFormat(RecordFormat):
    """The format of units that SDKs sent: a backing without units stores their messages with the property BLOCK."""

    def decode(self, unit: Unit, positions: Sequence[Position]) -> Sequence[Message]:
        """Return the message of the unit; raises nothing. A unit with another number of messages is damaged."""
        if len(positions) != 1:
            return super().decode(unit, positions)
        return [message_of_unit(unit._replace(position=positions[0]))]


def message_of_unit(unit: Unit) -> Message:
    """Return the message to store for what an SDK sent. A unit that cannot be read becomes a message with a `defect`."""
    try:
        records = decode_records(unit.data)
    except RemoteProtocolError:
        records = []
    if len(records) != 1:
        return RecordFormat().decode(unit, [unit.position])[0]
    [record] = records
    message = decode_record(record)
    message.position, message.publish_time = unit.position, unit.published_ms
    if message.defect is None:
        sent = SentBlock(record.properties, record.flag, record.reconsume_times, record.born_timestamp)
        # A value that the SDK itself sent is in the property string only, because it must not be mistaken for this one.
        others = tuple([pair for pair in message.properties if pair[0] != BLOCK])
        # At the front, because a RocketMQ target takes the flag from a property at the end (see `take_synthetic`).
        message.properties = ((BLOCK, write_sent_block(sent, message, others)), *others)
    return message


def unit_of_message(message: Message, partition: Partition | None = None) -> Unit:
    """Return what an SDK gets for a stored message: what another SDK sent, or its fields as properties. Raises nothing.

    With the `partition` that stores the message, a message without a unique id gets one (see `with_unique_id`). The body of a
    message with a `defect` is its raw payload, and properties say so. An empty or missing payload becomes PLACEHOLDER.
    """
    content = _sent_content(message) or _mapped_content(message)
    properties = content.properties
    if partition is not None:
        properties = with_unique_id(properties, partition, message.position)
    data = encode_neutral(
        message.payload or PLACEHOLDER,
        properties,
        flag=content.flag,
        born_timestamp=content.born_timestamp,
        reconsume_times=content.reconsume_times,
    )
    return Unit(data, 1, message.publish_time, message.position)


def with_unique_id(properties: bytes, partition: Partition, position: Position) -> bytes:
    """Return the property string with a UNIQ_KEY, by which clients recognize a message that is delivered again.

    A missing one is added. It is computed from the position, so it is the same at each delivery and at each gateway, whatever
    name the cluster has there. Nothing is added without a position, or if the string would become too long.
    """
    if not position or find(properties, Name.UNIQ_KEY) is not None:
        return properties
    source = f"{partition.topic}/{partition.name}|{format_position(position)}"
    digest = hashlib.blake2b(source.encode("utf-8", "surrogatepass"), digest_size=_UNIQUE_ID_BYTES)
    before = properties if not properties or properties.endswith(_SEPARATOR) else properties + _SEPARATOR
    extended = b"%b%b%b%b" % (before, _UNIQUE_ID_PREFIX, digest.hexdigest().upper().encode(), _SEPARATOR)
    return extended if len(extended) <= MAX_BYTES else properties


def _sent_content(message: Message) -> SentBlock | None:
    """Return what an SDK sent; None if the message has not exactly one BLOCK, or one that does not fit it."""
    value = message.property(BLOCK)
    if value is None or message.defect is not None:
        return None
    others = [pair for pair in message.properties if pair[0] != BLOCK]
    return read_sent_block(value, message, others) if len(others) == len(message.properties) - 1 else None


def _mapped_content(message: Message) -> SentBlock:
    """Return the fields of a message that no SDK sent, or that was changed, as fields of a record."""
    properties, flag, sharded = take_synthetic(message)
    user_pairs = escape([pair for pair in properties if not pair[0].startswith(RESERVED_PREFIX)])
    added_pairs, _ = write_system(message, None, sharded=sharded)
    if message.defect is not None:
        added_pairs += _defect_pairs(message, message.defect)
    string = _encode(join((*user_pairs, *added_pairs)))
    if len(string) > MAX_PROPERTIES_BYTES:
        string = _cut(user_pairs, added_pairs)
    return SentBlock(string, flag, 0, _born_timestamp(message))


def _born_timestamp(message: Message) -> int:
    """Return the event time, else the publish time, else 0."""
    for time in (message.event_time, message.publish_time):
        if time is not None and time in _INT64:
            return time
    return 0


def _defect_pairs(message: Message, defect: str) -> list[Pair]:
    """Return the pairs that tell an SDK why the body is raw, and in which form."""
    pairs = ((RAW_FORM, message.property(RAW_FORM) or ""), (DEFECT, defect[:MAX_DEFECT_CHARS]))
    return [(name, value.replace(NAME_END, " ").replace(VALUE_END, " ")) for name, value in pairs if value]


def _cut(user_pairs: list[Pair], added_pairs: list[Pair]) -> bytes:
    """Return a property string within the limit: with as many pairs as fit, and the number of those that do not.

    The unique id and the system properties come first, because clients and filters need them.
    """
    left = MAX_PROPERTIES_BYTES - len(_encode(join([(CUT, str(len(user_pairs) + len(added_pairs)))])))
    kept: list[bytes] = []
    cut_count = 0
    for pair in sorted((*added_pairs, *user_pairs), key=lambda pair: pair[0] != Name.UNIQ_KEY):
        entry = _encode(join([pair]))
        if len(entry) <= left:
            kept.append(entry)
            left -= len(entry)
        else:
            cut_count += 1
    return b"".join((*kept, _encode(join([(CUT, str(cut_count))]))))


def _encode(text: str) -> bytes:
    """Return the bytes of a text, with the replacement character for lone surrogates that stand for no byte."""
    try:
        return encode_text(text)
    except UnicodeEncodeError:
        return encode_text(_NO_BYTES.sub("\ufffd", text))
