"""Messages whose properties are still the bytes that they came as.

Names repeat from message to message and values mostly do not, so these are kept apart: the names are a `Layout`, of which there
is one however many messages have it, and a message brings its values. What a target makes of the names it makes once per layout;
the properties of a message are then one formatting of its values, and no value is looked up, remembered or decoded.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mqbridge.message import Message, Pair

MAX_LAYOUTS, MAX_NAMES_BYTES = 4096, 4096
"""What is remembered: so many at once, of names that are so long in all."""

N = TypeVar("N", str, bytes)
V = TypeVar("V")

_layouts: dict[tuple[bytes, ...], "Layout"] = {}


class Layout:
    """Names of properties, in their order.

    `plans` is for targets: what each of them, by its name, has made of these names.
    """

    __slots__ = ("names", "plans", "texts")

    def __init__(self, names: tuple[bytes, ...]) -> None:
        self.names = names
        self.texts = tuple([name.decode() for name in names])
        self.plans: dict[str, Any] = {}

    def plan(self, target: str, make: "Callable[[Layout], Any]") -> Any:
        """What a target made of it, or makes now."""
        try:
            return self.plans[target]
        except KeyError:
            plan = self.plans[target] = make(self)
            return plan


def keep(memo: dict[tuple[N, ...], V], names: tuple[N, ...], value: V) -> V:
    """Remember what names mean; gives that back. They are forgotten all at once when they vary too much."""
    if sum(map(len, names)) <= MAX_NAMES_BYTES:
        if len(memo) >= MAX_LAYOUTS:
            memo.clear()
        memo[names] = value
    return value


def layout_of(names: tuple[bytes, ...]) -> Layout:
    """The layout of these names. Raises UnicodeDecodeError when one is not UTF-8."""
    layout = _layouts.get(names)
    if layout is None:
        layout = keep(_layouts, names, Layout(names))
    return layout


class RawMessage(Message):
    """A message whose properties become text when somebody asks: `layout` has their names, `values` are UTF-8.

    `lengths` are those of the values where whoever read it knew them. It has a payload of bytes; its key, if any, is text, and so
    is its attribute string. What the ordinary message of a system does not have is a constant of its class, so that making one
    sets few slots.
    """

    __slots__ = ("layout", "lengths", "values")
    layout: Layout

    ordering_key = deliver_at = origin = defect = None
    hops = 0

    @property
    def properties(self) -> tuple[Pair, ...]:  # type: ignore[override]
        """Names and values as text."""
        return tuple(zip(self.layout.texts, [value.decode() for value in self.values], strict=True))


def lay_out(properties: Sequence[Pair]) -> tuple[Layout, tuple[bytes, ...]]:
    """Layout and values of properties. Raises UnicodeEncodeError for lone surrogates."""
    if not properties:
        return EMPTY, ()
    names, values = zip(*properties, strict=True)
    layout = _by_texts.get(names)
    if layout is None:
        layout = keep(_by_texts, names, layout_of(tuple([name.encode() for name in names])))
    return layout, tuple([value.encode() for value in values])


_by_texts: dict[tuple[str, ...], Layout] = {}
EMPTY = Layout(())


def is_text(data: bytes) -> bool:
    """Whether bytes are UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
