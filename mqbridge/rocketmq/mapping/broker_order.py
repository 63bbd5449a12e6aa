"""Property `mqbridge.order`: the order of a message's properties, which brokers change when a message is sent alone.

The value lists, for each property in order, its index among all properties sorted by name; `-` means no properties.
"""

from collections.abc import Sequence

from mqbridge.mapping.reserved_properties import read_number
from mqbridge.message import Pair
from mqbridge.rocketmq.wire.properties import Name


def write_order(names: Sequence[str]) -> str:
    """Return the value of `mqbridge.order` for properties of these names."""
    index = {name: rank for rank, name in enumerate(sorted(names))}
    return ",".join(str(index[name]) for name in names) or "-"


def read_order(text: str) -> list[int] | None:
    """Parse the value to indexes; None if it is not a valid order, and so not written by a gateway."""
    try:
        order = [] if text == "-" else [read_number(index) for index in text.split(",")]
    except ValueError:
        return None
    return order if sorted(order) == list(range(len(order))) else None


def restore_order(text: str, names: Sequence[str], pairs: list[Pair]) -> list[Pair]:
    """Return the pairs in their original order, without the UNIQ_KEY that the broker added; `names` are their stored names.

    If another client added or removed properties, the stored order stays.
    """
    order = read_order(text) or []
    by_name = sorted(zip(names, pairs, strict=True), key=lambda named: named[0])
    if len(by_name) == len(order) + 1:
        by_name = [named for named in by_name if named[0] != Name.UNIQ_KEY]
    return [by_name[index][1] for index in order] if len(by_name) == len(order) else pairs
