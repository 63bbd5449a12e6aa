"""The order of a message's properties, which brokers mix up when a message is sent alone: `mqbridge.order` restores it.

Its value gives, for each property in order, the index of the property among all of them sorted by name; `-` for no properties.
"""

from collections.abc import Sequence

from mqbridge.mapping.reserved_properties import read_number
from mqbridge.message import Pair
from mqbridge.rocketmq.wire.properties import Name


def write_order(names: Sequence[str]) -> str:
    """The value of `mqbridge.order` for properties of these names."""
    index = {name: rank for rank, name in enumerate(sorted(names))}
    return ",".join(str(index[name]) for name in names) or "-"


def read_order(text: str) -> list[int] | None:
    """The indexes of a value; None for a text that no gateway wrote."""
    try:
        order = [] if text == "-" else [read_number(index) for index in text.split(",")]
    except ValueError:
        return None
    return order if sorted(order) == list(range(len(order))) else None


def restore_order(text: str, names: Sequence[str], pairs: list[Pair]) -> list[Pair]:
    """The pairs in their first order, without the UNIQ_KEY that the broker added; `names` are their names as stored.

    Where somebody added or removed others the stored order stays.
    """
    order = read_order(text) or []
    found = sorted(zip(names, pairs, strict=True), key=lambda named: named[0])
    if len(found) == len(order) + 1:
        found = [named for named in found if named[0] != Name.UNIQ_KEY]
    return [found[index][1] for index in order] if len(found) == len(order) else pairs
