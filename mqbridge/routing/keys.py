"""What stands as a message's key when its partition is chosen by key.

`key`, `ordering_key`, `keys` (the first of the index keys) or `property:NAME`; of several the first that a message has.
"""

from collections.abc import Callable, Sequence

from mqbridge.errors import ConfigError
from mqbridge.message import Message

PROPERTY = "property:"
FIELDS = ("key", "ordering_key", "keys")

Picker = Callable[[Message], bytes | None]


def check_key(name: str) -> str:
    """The name again. Raises ConfigError when it is no place to take a key from."""
    if name not in FIELDS and not (name.startswith(PROPERTY) and len(name) > len(PROPERTY)):
        raise ConfigError(f"{name!r} cannot stand as the key", hint=f"Write {', '.join(FIELDS)} or {PROPERTY}NAME")
    return name


def picker(names: Sequence[str]) -> Picker:
    """Finds the key of a message, None where it has none of these."""
    picks = [_single(check_key(name)) for name in names]
    if len(picks) == 1:
        return picks[0]

    def first(message: Message) -> bytes | None:
        return next((key for pick in picks if (key := pick(message)) is not None), None)

    return first


def _single(name: str) -> Picker:
    if name == "key":
        return _routing_key
    if name == "ordering_key":
        return lambda message: message.ordering_key
    if name == "keys":
        return lambda message: message.keys[0].encode() if message.keys else None
    wanted = name.removeprefix(PROPERTY)

    def from_property(message: Message) -> bytes | None:
        value = message.property(wanted)
        return None if value is None else value.encode()

    return from_property


def _routing_key(message: Message) -> bytes | None:
    key = message.key
    return key.encode() if isinstance(key, str) else key
