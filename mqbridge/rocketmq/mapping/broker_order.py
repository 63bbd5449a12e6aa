"""Property `mqbridge.order`: the original order of a message's properties.

It is needed for a message that is sent alone, because brokers reorder its properties; those of a batch keep their order. The
value lists, for each user property in the original order, its index among all user properties sorted by name; `-` means no
properties.
"""

from collections.abc import Sequence

from mqbridge.mapping.reserved_properties import read_number
from mqbridge.message import Pair
from mqbridge.rocketmq.wire.properties import Name


def write_order(names: Sequence[str]) -> str:
    """Return the value of `mqbridge.order` for properties with these names, in their order."""
    index = {name: rank for rank, name in enumerate(sorted(names))}
    return ",".join(str(index[name]) for name in names) or "-"


def read_order(text: str) -> list[int] | None:
    """Parse the value to indexes; return None if it is not a valid order, which means that no gateway wrote it."""
    try:
        order = [] if text == "-" else [read_number(index) for index in text.split(",")]
    except ValueError:
        return None
    return order if sorted(order) == list(range(len(order))) else None


def restore_order(text: str, names: Sequence[str], pairs: list[Pair]) -> list[Pair]:
    """Return the pairs in the order that `text`, a valid value of `mqbridge.order`, describes.

    `names` are the names of the pairs as they are stored, that is, escaped. If there is one pair more than in the original
    message, a UNIQ_KEY is removed, because the broker or the gateway added it. If the number still differs, another client
    changed the properties, and the stored order stays.
    """
    order = read_order(text) or []
    by_name = sorted(zip(names, pairs, strict=True), key=lambda name_and_pair: name_and_pair[0])
    if len(by_name) == len(order) + 1:
        by_name = [(name, pair) for name, pair in by_name if name != Name.UNIQ_KEY]
    return [by_name[index][1] for index in order] if len(by_name) == len(order) else pairs
