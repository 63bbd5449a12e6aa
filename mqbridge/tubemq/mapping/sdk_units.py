"""Units of a listener's TubeMQ SDKs <-> messages, where the backing stores no units of TubeMQ.

A message that an SDK sent keeps its attribute string, so `unit_of_message` gives back the same data and flag. If the fields of
the message cannot tell them, `message_of_unit` adds one property with them (see `sent_block`). If neither fits the message, it is
another system's, or was changed on the way; then its fields are written as an attribute string:

    [$msgType$] , [$msgTime$] , user's pairs ...

Names and values are escaped (see `escapes`). `$` is escaped, too, where Java SDKs would take a user's pair for the type or the
time, because its name or value contains the name of one. The properties of gateways (`mqbridge.…`) are left out: they have no
meaning for an SDK, and one that sends the message on would write them as its own. Fields that TubeMQ has no pair for are left out
too, because only a gateway reads them from a reserved pair.

The body of a message without a payload is empty: SDKs take empty bodies, although brokers refuse to store them.
"""

import re
from collections.abc import Sequence
from datetime import UTC

from mqbridge.mapping.raw_form import RAW_FORM
from mqbridge.message import MSG_TIME, MSG_TYPE, RESERVED_PREFIX, Message, Pair, Position, Unit
from mqbridge.tubemq.mapping.escapes import escape_text
from mqbridge.tubemq.mapping.properties import AttributesMessage, is_string_of
from mqbridge.tubemq.mapping.sent_block import read_sent_block, write_sent_block
from mqbridge.tubemq.mapping.table import BLOCK, DEFECT
from mqbridge.tubemq.mapping.times import msg_time_texts_of, msg_times_of
from mqbridge.tubemq.mapping.unit_format import MessageFormat, split_unit, unit_of_data
from mqbridge.tubemq.wire.payload import HAS_ATTRIBUTES, join_payload

MAX_DEFECT_CHARS = 1000
"""Longer texts of a defect are cut."""
_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Lone surrogates that stand for no byte, see `wire/text.py`."""
_SYSTEM_NAMES = (MSG_TYPE, MSG_TIME)
_MSG_TIMES, _MSG_TIME_TEXTS = msg_times_of(UTC), msg_time_texts_of(UTC)
"""Times by `$msgTime$` value and back, in the default time zone of clusters."""


class SentMessageFormat(MessageFormat):
    """The format of units that SDKs sent: a backing without units stores their messages with the property BLOCK, if needed."""

    def decode(self, unit: Unit, positions: Sequence[Position]) -> Sequence[Message]:
        """Return the message of the unit; raises nothing. A unit with another number of messages is damaged."""
        if len(positions) != 1:
            return super().decode(unit, positions)
        return [message_of_unit(unit._replace(position=positions[0]))]


def message_of_unit(unit: Unit) -> Message:
    """Return the message to store for what an SDK sent. A unit that cannot be read becomes a message with a `defect`."""
    [message] = MessageFormat().decode(unit, [unit.position])
    if message.defect is not None:
        return message
    flag, data = split_unit(unit.data)
    if message.__class__ is AttributesMessage:
        is_told = flag == HAS_ATTRIBUTES
    else:
        is_told = _mapped_data(message) == (data, flag) and all(name != BLOCK for name, _ in message.properties)
    if not is_told:
        # A value that the SDK itself sent is in the attribute string only, because it must not be mistaken for this one.
        others = tuple([pair for pair in message.properties if pair[0] != BLOCK])
        value = write_sent_block(data, flag, message, others)
        message = message.replace(properties=((BLOCK, value), *others))
    return message


def unit_of_message(message: Message) -> Unit:
    """Return what an SDK gets for a stored message: what another SDK sent, or its fields as attributes. Raises nothing.

    The body of a message with a `defect` is its raw payload, and attributes say so.
    """
    data, flag = _sent_data(message) or _mapped_data(message)
    return unit_of_data(data, flag)._replace(published_ms=message.publish_time, position=message.position)


def _sent_data(message: Message) -> tuple[bytes, int] | None:
    """Return data and flag from the property BLOCK; None if the message has not exactly one, or one that does not fit it."""
    value = message.property(BLOCK)
    if value is None or message.defect is not None:
        return None
    others = [pair for pair in message.properties if pair[0] != BLOCK]
    return read_sent_block(value, message, others) if len(others) == len(message.properties) - 1 else None


def _mapped_data(message: Message) -> tuple[bytes, int]:
    """Return the data and the flag that the fields of a message tell: with its own attribute string if this agrees with them."""
    attributes = message.attributes
    if attributes is None or message.defect is not None or not _is_unchanged(message, attributes):
        attributes = _build(message)
    return join_payload(attributes, message.payload or b"")


def _is_unchanged(message: Message, attributes: bytes) -> bool:
    """Return True if the attribute string is that of the message: only a string with a time tells an event time."""
    if message.__class__ is not AttributesMessage and not is_string_of(message, attributes, _MSG_TIMES):
        return False
    return message.event_time is None or message.property(MSG_TIME) is not None


def _build(message: Message) -> bytes | None:
    """Return the attribute string for the fields of a message, None if it needs none."""
    pairs: list[Pair] = []
    if message.msg_type:
        pairs.append((MSG_TYPE, _escape(message.msg_type)))
    if msg_time := _msg_time(message):
        pairs.append((MSG_TIME, _escape(msg_time)))
    for name, value in message.properties:
        if not name.startswith(RESERVED_PREFIX) and name not in _SYSTEM_NAMES:
            pairs.append((_escape(name), _escape(value)))
    if message.defect is not None:
        if form := message.property(RAW_FORM):
            pairs.append((RAW_FORM, _escape(form)))
        pairs.append((DEFECT, _escape(message.defect[:MAX_DEFECT_CHARS])))
    return ",".join([f"{name}={value}" for name, value in pairs]).encode() if pairs else None


def _msg_time(message: Message) -> str | None:
    """Return the value of `$msgTime$`: the property of this name, or the event time if that is no time."""
    value, event_time = message.property(MSG_TIME), message.event_time
    if event_time is None or (value is not None and value.isascii() and _MSG_TIMES[value.encode()] is not None):
        return value
    return _MSG_TIME_TEXTS[event_time // 1000]


def _escape(text: str) -> str:
    """Return a name or a value as SDKs can read it, with the replacement character for lone surrogates that stand for no byte."""
    escaped = escape_text(_NO_BYTES.sub("\ufffd", text))
    return escaped.replace("$", "%24") if MSG_TYPE in escaped or MSG_TIME in escaped else escaped
