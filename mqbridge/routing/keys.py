"""Finds the key of a message for `partitions.by: key`.

The option `partitions.key` names the fields that may hold the key: `key`, `ordering_key`, `keys` (the first index key) and
`property:NAME`. A message's key is the value of the first of these that the message has.
"""

from collections.abc import Callable, Sequence

from mqbridge.config.options.partition_rule import KEY_PROPERTY_PREFIX
from mqbridge.message import Message
from mqbridge.native import is_native

KeyFunction = Callable[[Message], bytes | None]
"""Function that returns the key of a message, or None if the message has none."""


class KeyPicker:
    """Finds the keys of messages, by the names in the configuration."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._key_of = make_key_function(names)

    def keys(self, messages: Sequence[Message]) -> Sequence[bytes | None]:
        """Return the key of each message; None if a message has no value for any of the names."""
        if not is_native(messages):  # Python objects, not messages of the compiled module
            return [self._key_of(message) for message in messages]
        first_keys, *fallbacks = (messages.partition_keys(name) for name in self._names)  # type: ignore[attr-defined]
        keys: Sequence[bytes | None] = first_keys
        for fallback_keys in fallbacks:
            keys = [fallback if key is None else key for key, fallback in zip(keys, fallback_keys, strict=True)]
        return keys


def make_key_function(names: Sequence[str]) -> KeyFunction:
    """Make a function that returns the key of a message, or None if it has no value for any of the names."""
    functions = [_key_function_of_name(name) for name in names]
    if len(functions) == 1:
        return functions[0]

    def first_key(message: Message) -> bytes | None:
        return next((key for key_of in functions if (key := key_of(message)) is not None), None)

    return first_key


def _key_function_of_name(name: str) -> KeyFunction:
    if name == "key":
        return _routing_key
    if name == "ordering_key":
        return lambda message: message.ordering_key
    if name == "keys":
        return lambda message: _encode(message.keys[0]) if message.keys else None
    property_name = name.removeprefix(KEY_PROPERTY_PREFIX)

    def from_property(message: Message) -> bytes | None:
        value = message.property(property_name)
        return None if value is None else _encode(value)

    return from_property


def _routing_key(message: Message) -> bytes | None:
    key = message.key
    return _encode(key) if isinstance(key, str) else key


def _encode(text: str) -> bytes:
    """Return the bytes of a key. Lone surrogates are bytes that are not UTF-8 (see `wire/text.py`), or else kept as they are."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        try:
            return text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return text.encode("utf-8", "surrogatepass")
