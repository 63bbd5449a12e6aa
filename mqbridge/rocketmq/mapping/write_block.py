"""Message -> the property string (the block) that a gateway writes. `read_block` is the other direction.

    user's pairs ... [TIMER_DELIVER_MS or DELAY] [TAGS] [KEYS] [__SHARDINGKEY] carried fields ... origin, hops [mqbridge.order]

Pairs in brackets are written only if the message needs them; `mqbridge.order` is written only for a message that is sent
alone, because the broker reorders its properties. Carried fields are those that no system property can hold; each is written
as a reserved property, whose name begins with `mqbridge.`. A block contains at least one reserved property, by which it is
recognized as a gateway's.
"""

from collections.abc import Sequence
from typing import TypeGuard

from mqbridge.mapping.reserved_properties import (
    GATEWAY_MARKER,
    NULL_PAYLOAD,
    WITHOUT,
    carry_fields,
    escape_user_property,
    origin_properties,
    read_number,
)
from mqbridge.message import RESERVED_PREFIX, Message, Pair
from mqbridge.rocketmq.mapping.broker_order import write_order
from mqbridge.rocketmq.mapping.escapes import escape
from mqbridge.rocketmq.mapping.read_block import first_key
from mqbridge.rocketmq.mapping.table import EMPTY, ESCAPED_NAMES, FLAG, ORDER, SHARDED, TABLE
from mqbridge.rocketmq.wire.properties import EMPTY_VALUE, NAME_END, TRANSIENT_PREFIX, VALUE_END, Name, join
from mqbridge.wire.text import encode_text

ALWAYS_CARRIED = (*(field for field in TABLE.carried_fields() if field not in {"origin", "hops"}), "event_time")
"""The fields that no system property can hold, without `origin` and `hops`, which `origin_properties` writes."""
_SYNTHETIC = frozenset({FLAG, SHARDED})
"""The properties that `read_block` adds for parts of the record that no field of a message can hold."""
_INT32 = range(-(1 << 31), 1 << 31)


def write_block(message: Message, stamp: str | None, *, alone: bool, delay: Pair | None = None) -> tuple[bytes, int]:
    """Return the property string of a message, and the flag to send with it.

    `stamp` is the origin to write; None keeps the message's own. `alone` is True for a single send, whose properties the broker
    reorders. `delay` is the property that makes the broker delay the message; None: it is not delayed. Raises UnicodeEncodeError
    for lone surrogates.
    """
    properties, flag, sharded = take_synthetic(message)
    system_pairs, not_in_system = write_system(message, delay, sharded=sharded)
    carried = _write_carried(message, not_in_system) + origin_properties(message, stamp) or [GATEWAY_MARKER]
    pairs = (*properties, *system_pairs, *carried)
    text = join(pairs)
    if not (_are_plain_names(properties) and _is_unambiguous(text, len(pairs))):
        # System pairs need no escaping: `write_system` writes only values that the string can hold.
        escaped, count = escape([*map(escape_user_property, properties), *carried]), len(properties)
        properties = escaped[:count]
        text = join((*properties, *system_pairs, *escaped[count:]))
    if alone:
        text += join([(ORDER, write_order([name for name, _ in properties]))])
    return encode_text(text), flag


def _are_plain_names(properties: Sequence[Pair]) -> bool:
    """Return True if no name needs escaping: they are distinct, and none is a system property or contains a reserved prefix."""
    names = {name for name, _ in properties}
    if len(names) < len(properties) or not names.isdisjoint(ESCAPED_NAMES):
        return False
    joined = "".join(names)  # one search instead of one per name, because few names contain a prefix
    return RESERVED_PREFIX not in joined and TRANSIENT_PREFIX not in joined


def _is_unambiguous(text: str, count: int) -> bool:
    """Return True if decoding the text yields its `count` pairs again: no value is empty, and no pair contains a separator."""
    return text.count(NAME_END) == text.count(VALUE_END) == count and EMPTY_VALUE not in text


def take_synthetic(message: Message) -> tuple[Sequence[Pair], int, bool]:
    """Divide the properties: return those without FLAG and SHARDED, the flag, and True if SHARDED requires a __SHARDINGKEY."""
    properties = message.properties
    flag, sharded = 0, False
    if not properties or properties[-1][0] not in _SYNTHETIC:  # the usual case
        return properties, flag, sharded
    if _ends_with(properties, FLAG) and (flag := _parse_flag(properties[-1][1])):
        properties = properties[:-1]
    # Without SHARDED, no __SHARDINGKEY would be written for a key that is derived from the index keys.
    if _ends_with(properties, SHARDED) and properties[-1][1] == "1" and _is_writable(message.key) and _is_key_derived(message):
        sharded, properties = True, properties[:-1]
    return properties, flag, sharded


def _ends_with(properties: Sequence[Pair], name: str) -> bool:
    """Return True if the last property, and no other, has this name."""
    return bool(properties) and properties[-1][0] == name and all(pair[0] != name for pair in properties[:-1])


def _parse_flag(text: str) -> int:
    """Return the flag in the value of FLAG; 0 if it is not a 32-bit number."""
    try:
        value = read_number(text)
    except ValueError:
        return 0
    return value if value in _INT32 else 0


def _is_key_derived(message: Message) -> bool:
    """Return True if the key is the one that `read_block` derives from the index keys, so that it needs no __SHARDINGKEY."""
    keys = message.keys
    return message.key == (first_key(keys) if keys else None)


def _is_writable(text: str | bytes | None) -> TypeGuard[str]:
    """Return True for a text that can be a value in the property string."""
    return isinstance(text, str) and text != "" and NAME_END not in text and VALUE_END not in text


def write_system(message: Message, delay: Pair | None, *, sharded: bool) -> tuple[list[Pair], list[str]]:
    """Return the system properties, and the names of the fields that they cannot hold exactly.

    `deliver_at` is such a field if there is no `delay` (the time has passed), or if `delay` is a level, which is not exact.
    """
    pairs = [] if delay is None else [delay]
    not_in_system: list[str] = []
    msg_type, keys, key = message.msg_type, message.keys, message.key
    if _is_writable(msg_type):
        pairs.append((Name.TAGS, msg_type))
    else:
        not_in_system.append("msg_type")
    if keys:
        joined = " ".join(keys)
        if is_writable := _is_writable(joined):
            pairs.append((Name.KEYS, joined))
        if not is_writable or tuple(joined.split(" ")) != keys:  # KEYS cannot hold the text, or a key contains a blank
            not_in_system.append("keys")
    if sharded or not _is_key_derived(message):
        if _is_writable(key):
            pairs.append((Name.SHARDING_KEY, key))
        else:
            not_in_system.append("key")
    if message.deliver_at is not None and (delay is None or delay[0] != Name.TIMER_DELIVER_MS):
        not_in_system.append("deliver_at")
    return pairs, not_in_system


def _write_carried(message: Message, not_in_system: Sequence[str]) -> list[Pair]:
    """Return the pairs that carry the fields that no system property can hold, in general or for this message."""
    pairs = carry_fields(message, ALWAYS_CARRIED)
    if message.payload is None:
        pairs.append(NULL_PAYLOAD)
    if not_in_system:
        pairs += carry_fields(message, not_in_system)
    if message.payload == b"":  # brokers refuse an empty body, so one zero byte is sent
        pairs.append((EMPTY, "1"))
    if message.key is None and "key" in not_in_system:  # otherwise the first index key would be read as the key
        pairs.append((WITHOUT, "key"))
    return pairs
