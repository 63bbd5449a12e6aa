"""Lazy messages of batches."""

from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.lazy_properties import LazyMessage
from mqbridge.mapping.reserved_properties import ATTRIBUTES, HOPS, KEYS, ORIGIN, TYPE, read_carried
from mqbridge.message import Message


class BatchedMessage(LazyMessage):
    """A message that has a payload and no ordering key, and nothing that a gateway carried."""

    __slots__ = ()

    attributes: bytes | None = None
    keys: tuple[str, ...] = ()


class CarriedMessage(BatchedMessage):
    """A message that a gateway wrote."""

    __slots__ = ("attributes", "hops", "keys", "origin")
    origin: str | None  # type: ignore[assignment]  # not the constant that other lazy messages have


class CarriedFields:
    """Indexes, among the values of a template, of the reserved properties that most gateways write; 0 for none."""

    __slots__ = ("_attributes", "_hops", "_keys", "_origin", "_type")

    NAMES = frozenset(name.encode() for name in (ATTRIBUTES, KEYS, TYPE, ORIGIN, HOPS))

    def __init__(self, indexes: dict[bytes, int]) -> None:
        self._attributes, self._keys, self._type, self._origin, self._hops = (
            indexes.get(name.encode(), 0) for name in (ATTRIBUTES, KEYS, TYPE, ORIGIN, HOPS)
        )

    def fill(self, message: Message, fields: tuple[bytes, ...]) -> bool:
        """Set these fields of the message; False when a value is none that a gateway writes."""
        message.attributes = fields[index] if (index := self._attributes) else None
        message.keys = _keys[fields[index]] if (index := self._keys) else ()
        if index := self._type:
            message.msg_type = fields[index].decode()
        message.origin = fields[index].decode() if (index := self._origin) else None
        message.hops = 1 if index else 0
        if index := self._hops:
            _, carried = read_carried([(ORIGIN, ""), (HOPS, fields[index].decode())], blank=False)
            message.hops = carried["hops"]
            return message.hops > 1 and message.origin is not None
        return True


def _read_keys(value: bytes) -> tuple[str, ...]:
    keys: tuple[str, ...] = read_carried([(KEYS, value.decode())], blank=False)[1]["keys"]
    return keys


_keys: BoundedCache[bytes, tuple[str, ...]] = BoundedCache(_read_keys)
