"""The formats of units that a log stores: all that installed adapters know.

The log does not look into units. It needs their formats only to decode them for readers that use messages.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import cache

from mqbridge.adapter.formats import UnitFormat, message_positions
from mqbridge.adapter.registry import find_format, load_adapters
from mqbridge.errors import ConfigError
from mqbridge.mapping.raw_form import raw_properties
from mqbridge.message import Message, Unit


class StoredFormats(Collection[str]):
    """The names of all formats of installed adapters. Adapters are loaded on use: one for `in`, all for iteration."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _find(name)[0] is not None

    def __iter__(self) -> Iterator[str]:
        return iter(_installed_names())

    def __len__(self) -> int:
        return len(_installed_names())


STORED_FORMATS = StoredFormats()


@cache
def _installed_names() -> tuple[str, ...]:
    """Return the names of all formats, sorted, without those of adapters that cannot be loaded."""
    names: list[str] = []
    adapters = load_adapters()
    for system in adapters:
        try:
            names += [each.name for each in adapters[system].formats]
        except ConfigError:
            continue
    return tuple(sorted(names))


def _find(name: str) -> tuple[UnitFormat | None, str]:
    """Return the format with this name, or None and the reason why it is not known."""
    try:
        unit_format = find_format(name)
    except ConfigError as error:
        return None, str(error)
    system = name.partition(".")[0]
    return unit_format, f"no installed adapter knows it: install the adapter of {system!r}, or a later version of it"


def decode_unit(name: str, unit: Unit) -> Sequence[Message]:
    """Return the messages of a unit of this format, `unit.message_count` of them; raises nothing.

    If the format is not known, or does not keep its promise, the messages have a defect: the first one is the unit as it is.
    """
    unit_format, problem = _find(name)
    if unit_format is None:
        return _raw_messages(name, unit, f"the format {name!r} of the stored unit is not known: {problem}")
    try:
        messages = unit_format.decode(unit, message_positions(unit))
    except Exception as error:  # noqa: BLE001 - a fault in one unit must not end the reading of a partition
        return _raw_messages(name, unit, f"the stored unit cannot be decoded as {name!r}: {type(error).__name__}: {error}")
    if len(messages) == unit.message_count:
        return messages
    return _raw_messages(
        name, unit, f"the stored unit was decoded as {name!r} to {len(messages)} messages, but has {unit.message_count}"
    )


def _raw_messages(name: str, unit: Unit, defect: str) -> list[Message]:
    """Return messages with a defect: the bytes of the unit are the payload of the first one, the others have none."""
    return [
        Message(
            b"" if index else unit.data,
            raw_properties((), name),
            position=position,
            publish_time=unit.published_ms,
            defect=f"{defect}; its bytes are those of its first message" if index else defect,
        )
        for index, position in enumerate(message_positions(unit))
    ]
