"""Messages whose properties stay the bytes that they arrived as, until somebody asks for text.

Names repeat from message to message and values mostly do not, so they are kept apart: all messages with the same names share one
`PropertyNames`, and a message holds only its values. Each target prepares once per `PropertyNames` what it needs to write them;
writing a message's properties is then one formatting of its values, and no value is decoded, looked up or cached.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mqbridge.mapping.bounded_cache import BoundedCache, total_length
from mqbridge.message import Message, Pair

MAX_SETS, MAX_NAMES_BYTES = 4096, 4096
"""How many sets of names are cached at once, and how long the names of one may be in all."""


class PropertyNames:
    """The names of a message's properties, in order: `names` as bytes, `texts` as text; `targets` is what each has prepared."""

    __slots__ = ("names", "targets", "texts")

    def __init__(self, names: tuple[bytes, ...]) -> None:
        self.names = names
        self.texts = tuple([name.decode() for name in names])
        self.targets: dict[str, Any] = {}

    def target_cache(self, target: str, make: "Callable[[PropertyNames], Any]") -> Any:
        """What a target prepared for these names; made on its first call."""
        try:
            return self.targets[target]
        except KeyError:
            prepared = self.targets[target] = make(self)
            return prepared


def names_cache(make: Callable[[Any], Any] | None = None) -> BoundedCache[Any, Any]:
    """A cache whose keys are tuples of property names."""
    return BoundedCache(make, entries=MAX_SETS, longest=MAX_NAMES_BYTES, length=total_length)


_by_names: BoundedCache[tuple[bytes, ...], PropertyNames] = names_cache(PropertyNames)


def property_names(names: tuple[bytes, ...]) -> PropertyNames:
    """The shared `PropertyNames` of these names. Raises UnicodeDecodeError when one is not UTF-8."""
    return _by_names[names]


class LazyMessage(Message):
    """A message whose properties become text when somebody asks.

    `property_names` and `values` (UTF-8) are its properties; `lengths` are those of the values where the decoder knows them. The
    payload is bytes (no tombstone); key and attribute string, if any, are text. Fields that ordinary messages of a system do
    not have are constants of the subclass, so that making a message sets few slots.

    `from_attributes` is True where the attribute string alone says the properties, type and time.
    """

    __slots__ = ("lengths", "property_names", "values")
    property_names: PropertyNames
    values: tuple[bytes, ...]
    lengths: tuple[int, ...] | None

    ordering_key = deliver_at = origin = defect = None
    hops = 0
    from_attributes = False

    @property
    def properties(self) -> tuple[Pair, ...]:  # type: ignore[override]
        """Names and values as text."""
        return tuple(zip(self.property_names.texts, [value.decode() for value in self.values], strict=True))


def split_properties(properties: Sequence[Pair]) -> tuple[PropertyNames, tuple[bytes, ...]]:
    """Names and UTF-8 values of properties. Raises UnicodeEncodeError for lone surrogates."""
    if not properties:
        return NO_NAMES, ()
    names, values = zip(*properties, strict=True)
    return _by_texts[names], tuple([value.encode() for value in values])


def _encode_names(texts: tuple[str, ...]) -> PropertyNames:
    return property_names(tuple([text.encode() for text in texts]))


_by_texts: BoundedCache[tuple[str, ...], PropertyNames] = names_cache(_encode_names)
NO_NAMES = PropertyNames(())


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
