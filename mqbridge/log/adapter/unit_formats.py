"""The formats of units that a log stores: all that installed adapters know.

The log does not look into units. It needs their formats only to decode them for readers that use messages.
All adapters are loaded before the first unit is stored or read, so that sends and reads only look a format up.
"""

import asyncio
import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

from mqbridge.adapter.formats import JoinableFormat, UnitFormat, message_positions
from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.mapping.raw_form import raw_properties
from mqbridge.message import Message, Unit

log = logging.getLogger(__name__)


class StoredFormats(Collection[str]):
    """The names of all formats that were loaded."""

    def __contains__(self, name: object) -> bool:
        return name in FORMATS

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(FORMATS))

    def __len__(self) -> int:
        return len(FORMATS)


STORED_FORMATS = StoredFormats()
FORMATS: dict[str, UnitFormat] = {}
"""The formats of all adapters that could be loaded, by name; empty before `prepare_formats`."""
_problems: dict[str, str] = {}
"""Why adapters could not be loaded, by system."""
_loading = threading.Lock()


async def prepare_formats() -> None:
    """Load all installed adapters, once in a process and in a thread: that takes hundreds of milliseconds."""
    if not FORMATS and not _problems:
        await asyncio.to_thread(load_formats)


def load_formats() -> None:
    """Load all installed adapters, once in a process."""
    with _loading:
        if not FORMATS and not _problems:
            _load(load_adapters())


def _load(adapters: Mapping[str, Adapter]) -> None:
    for system in adapters:
        try:
            FORMATS.update({each.name: each for each in adapters[system].formats})
        except Exception as error:  # noqa: BLE001 - a fault of another package must not keep the log from being opened
            log.debug("the formats of units of adapter %r are not known: %s", system, error)
            _problems[system] = str(error)


def _find(name: str) -> tuple[UnitFormat | None, str]:
    """Return the format with this name, or None and the reason why it is not known."""
    system = name.partition(".")[0]
    missing = f"no installed adapter knows it: install the adapter of {system!r}, or a later version of it"
    return FORMATS.get(name), _problems.get(system, missing)


def joinable(name: str) -> JoinableFormat | None:
    """Return the format with this name if many of its units may be kept as one."""
    unit_format = FORMATS.get(name)
    return cast("JoinableFormat", unit_format) if hasattr(unit_format, "split") else None


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
