"""Warnings of systems that delete messages by their age, read or not: what `Operations.warnings` says there.

A group is warned about that is as late as half of the time for which messages are kept: there is still time to do something, and
a group that keeps up is never that late. So is a target that keeps them for less than a day: a consumer that is away for a night
misses some.
"""

from collections.abc import Mapping

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position

SHORT_S = 24 * 3600.0
LATE = 0.5
"""The part of the time for which messages are kept after which a group counts as late."""


def group_warnings(
    topic: str,
    group: str,
    kept: str,
    committed: Mapping[str, Position],
    bounds: Mapping[str, Bounds],
    late: Mapping[str, Position],
) -> list[str]:
    """What is going to be deleted, or was, before the group read it. All mappings are by partition name.

    `kept` is the setting that decides, in the system's words; a partition's `late` position is the first of the younger messages:
    those that are kept for another half of the time at least.
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
    """A target that keeps messages only for a short time. None is for ever."""
    if kept_s is None or kept_s >= SHORT_S:
        return []
    what = f"{topic} keeps messages for {kept_s / 3600:g} hours only ({kept}) and then deletes them, read or not"
    return [f"{what}: its consumers must not be away for so long; keep messages for longer"]


def _partitions(names: list[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    return f"partition{'' if len(shown) == 1 else 's'} {', '.join(shown[:5])}{more}"
