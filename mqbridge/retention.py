"""Retention warnings (`Operations.warnings`) for systems that delete messages by age, whether they were read or not.

A group gets a warning when it lags by half of the retention time: there is still time to act, and a group that keeps up never
lags that much. A target gets a warning if it keeps messages for less than a day: a consumer that is down for a night misses some.
"""

from collections.abc import Mapping

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position

SHORT_S = 24 * 3600.0
LATE = 0.5
"""Fraction of the retention time; a group that lags by more is late."""


def group_warnings(
    topic: str,
    group: str,
    kept: str,
    committed: Mapping[str, Position],
    bounds: Mapping[str, Bounds],
    late: Mapping[str, Position],
) -> list[str]:
    """Return warnings about messages that are deleted, or will be, before the group reads them. Mappings are by partition name.

    `kept` is the retention setting, by the system's own name and value. A partition's `late` position is the first message of the
    younger half of the retention time: it is kept for at least another half.
    """
    known = {name: position for name, position in committed.items() if name in bounds and name in late}
    lost = [name for name, position in known.items() if position < bounds[name].first]
    at_risk = [name for name, position in known.items() if bounds[name].first <= position < late[name]]
    warnings = []
    if lost:
        warnings.append(
            f"messages of {topic} that group {group!r} had not read were deleted ({kept}; {_partitions(lost)}): the group will"
            " find a gap when it continues; increase the retention time"
        )
    if at_risk:
        warnings.append(
            f"group {group!r} is late in {topic}: messages that it has not read are older than half of the retention time"
            f" ({kept}; {_partitions(at_risk)}), and will be deleted at its end, read or not; let the group catch up, or"
            " increase the retention time"
        )
    return warnings


def target_warnings(topic: str, kept: str, kept_s: float | None) -> list[str]:
    """Return a warning if a target keeps messages for less than a day; None means forever."""
    if kept_s is None or kept_s >= SHORT_S:
        return []
    problem = f"{topic} keeps messages for only {kept_s / 3600:g} hours ({kept}) and then deletes them, read or not"
    return [f"{problem}: consumers that are down for longer miss messages; increase the retention time"]


def _partitions(names: list[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    return f"partition{'' if len(shown) == 1 else 's'} {', '.join(shown[:5])}{more}"
