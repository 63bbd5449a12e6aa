"""Messages of batches as they are read fast."""

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
    origin: str | None  # type: ignore[assignment]  # not the constant that other raw messages have


class Carried:
    """Where in a head is what most gateways carry: places of its values, 0 for none."""

    __slots__ = ("_attributes_at", "_hops_at", "_keys_at", "_origin_at", "_type_at")

    NAMES = frozenset(name.encode() for name in (ATTRIBUTES, KEYS, TYPE, ORIGIN, HOPS))

    def __init__(self, places: dict[bytes, int]) -> None:
        self._attributes_at, self._keys_at, self._type_at, self._origin_at, self._hops_at = (
            places.get(name.encode(), 0) for name in (ATTRIBUTES, KEYS, TYPE, ORIGIN, HOPS)
        )

    def fill(self, message: Message, fields: tuple[bytes, ...]) -> bool:
        """Set that; False when some of it is not ours after all."""
        message.attributes = fields[at] if (at := self._attributes_at) else None
        message.keys = (_keys.get(fields[at]) or _keys[fields[at]]) if (at := self._keys_at) else ()
        if at := self._type_at:
            message.msg_type = fields[at].decode()
        message.origin = fields[at].decode() if (at := self._origin_at) else None
        message.hops = 1 if at else 0
        if at := self._hops_at:
            _, said = read_carried([(ORIGIN, ""), (HOPS, fields[at].decode())], blank=False)
            message.hops = said["hops"]
            return message.hops > 1 and message.origin is not None
        return True


def _read_keys(said: bytes) -> tuple[str, ...]:
    keys: tuple[str, ...] = read_carried([(KEYS, said.decode())], blank=False)[1]["keys"]
    return keys


_keys: BoundedCache[bytes, tuple[str, ...]] = BoundedCache(_read_keys)
