"""Retention warnings (`Operations.warnings`) for systems that delete messages by age, whether they were read or not.

A group gets a warning when it lags by more than half of the retention time: there is still time to act, and a group that keeps up
never lags that much. A target gets a warning if it keeps messages for less than a day: a consumer that is down for a night would
miss some.
"""

from collections.abc import Mapping

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position

MIN_TARGET_RETENTION_S = 24 * 3600.0
"""A target that keeps messages for less than this time gets a warning."""
LATE_FRACTION = 0.5
"""A group is late if it has not read messages that are older than this fraction of the retention time."""


def group_warnings(
    topic: str,
    group: str,
    setting: str,
    committed: Mapping[str, Position],
    bounds: Mapping[str, Bounds],
    half_age_positions: Mapping[str, Position],
    *,
    is_contiguous: bool = True,
) -> list[str]:
    """Return warnings about messages that were deleted, or will be, before the group reads them. Mappings are by partition name.

    `setting` is the retention setting as the system shows it, such as `fileReservedTime=72`. `half_age_positions` are the
    positions of the first messages that are younger than half of the retention time. A partition that is missing in one of the
    mappings gets no warning. `is_contiguous` says that each position stands for a message of the partition. Without that, the
    positions that were deleted may all be those of other partitions.
    """
    compared = {name: position for name, position in committed.items() if name in bounds and name in half_age_positions}
    lost = [name for name, position in compared.items() if position < bounds[name].first]
    at_risk = [name for name, position in compared.items() if bounds[name].first <= position < half_age_positions[name]]
    warnings = []
    if lost:
        deleted = (
            f"messages of {topic} that group {group!r} had not read were deleted"
            if is_contiguous
            else f"data of {topic} that group {group!r} had not read was deleted, and may have had messages of these partitions"
        )
        effect = "the group will find a gap" if is_contiguous else "the group may find a gap"
        warnings.append(
            f"{deleted} ({setting}; {_format_partitions(lost)}): {effect} when it continues; increase the retention time"
        )
    if at_risk:
        warnings.append(
            f"group {group!r} is late in {topic}: messages that it has not read are older than half of the retention time"
            f" ({setting}; {_format_partitions(at_risk)}), and will be deleted at its end, read or not; let the group catch up,"
            " or increase the retention time"
        )
    return warnings


def target_warnings(topic: str, setting: str, retention_s: float | None) -> list[str]:
    """Return a warning if a target keeps messages for less than a day; `retention_s` is None if it keeps them forever."""
    if retention_s is None or retention_s >= MIN_TARGET_RETENTION_S:
        return []
    problem = f"{topic} keeps messages for only {retention_s / 3600:g} hours ({setting}) and then deletes them, read or not"
    return [f"{problem}: consumers that are down for longer miss messages; increase the retention time"]


def _format_partitions(names: list[str]) -> str:
    """Return the names of up to five partitions, and how many more there are."""
    names = sorted(names)
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"partition{'' if len(names) == 1 else 's'} {', '.join(names[:5])}{more}"
