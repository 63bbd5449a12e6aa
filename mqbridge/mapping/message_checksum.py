"""Checksum of a message's fields, by which a property with what an SDK sent tells whether it still belongs to the message.

It does not fit after a route has edited the message, or when a consumer has sent another message on with copies of its
properties. Its fields are the payload, the properties in their order, key, ordering key, index keys, type, attributes, event time
and delivery time. Origin and hops are not among them: they change when a route copies the message.
"""

from collections.abc import Sequence
from itertools import chain

from mqbridge.message import Message, Pair
from mqbridge.wire.checksum import crc32

CHECKSUM_DIGITS = 8
_BETWEEN = "\0"
"""Separates the texts whose CRC is computed."""


def message_checksum(text: str, message: Message, properties: Sequence[Pair]) -> str:
    """Return the CRC-32 of a text and the message's fields as hex digits; `properties` are its properties without the checksum's.

    It is that of the texts in the order below, joined by NUL, in UTF-8 (lone surrogates included).
    """
    payload, event_time, deliver_at = message.payload, message.event_time, message.deliver_at
    texts = (
        text,
        "" if payload is None else f"{crc32(payload):08x}",
        _tagged(message.key),
        _tagged(message.ordering_key),
        _tagged(message.msg_type),
        _tagged(message.attributes),
        "" if event_time is None else str(event_time),
        "" if deliver_at is None else str(deliver_at),
        str(len(message.keys)),
        *message.keys,
        *chain.from_iterable(properties),
    )
    return f"{crc32(_BETWEEN.join(texts).encode('utf-8', 'surrogatepass')):08x}"


def _tagged(value: str | bytes | None) -> str:
    """Return a text that tells texts, bytes and None apart."""
    if value is None:
        return ""
    return f"t{value}" if isinstance(value, str) else f"b{value.hex()}"
