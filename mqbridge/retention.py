"""Warnings of systems that delete messages by age, read or not: the implementation of `Operations.warnings` there.

A group gets a warning when it is late by half of the retention time: there is still time to act, and a group that keeps up is
never that late. A target gets one if it keeps messages for less than a day: a consumer that is away for a night misses some.
"""

from collections.abc import Mapping

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position

SHORT_S = 24 * 3600.0
LATE = 0.5
"""Fraction of the retention time after which a group counts as late."""


def group_warnings(
    topic: str,
    group: str,
    kept: str,
    committed: Mapping[str, Position],
    bounds: Mapping[str, Bounds],
    late: Mapping[str, Position],
) -> list[str]:
    """Return warnings about messages that are deleted, or will be, before the group reads them. Mappings are by partition name.

    `kept` is the setting that decides, in the system's words. A partition's `late` position is the first message of the younger
    half, which is kept for at least another half of the retention time.
    """
    known = {name: position for name, position in committed.items() if name in bounds and name in late}
    lost = [name for name, position in known.items() if position < bounds[name].first]
    next_to_go = [name for name, position in known.items() if bounds[name].first <= position < late[name]]
    found = []
    if lost:
        found.append(
            f"messages of {topic} that group {group!r} had not read were deleted ({kept}; {_partitions(lost)}): they are a gap"
            " when it goes on; keep messages for longer"
        )
    if next_to_go:
        found.append(
            f"group {group!r} is late in {topic}: messages that it has not read are in the older half of those that are kept"
            f" ({kept}; {_partitions(next_to_go)}), and are deleted when their time is over, read or not; let it catch up, or"
            " keep messages for longer"
        )
    return found


def target_warnings(topic: str, kept: str, kept_s: float | None) -> list[str]:
    """Return a warning about a target that keeps messages only for a short time. None means forever."""
    if kept_s is None or kept_s >= SHORT_S:
        return []
    what = f"{topic} keeps messages for {kept_s / 3600:g} hours only ({kept}) and then deletes them, read or not"
    return [f"{what}: its consumers must not be away for so long; keep messages for longer"]


def _partitions(names: list[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    return f"partition{'' if len(shown) == 1 else 's'} {', '.join(shown[:5])}{more}"
