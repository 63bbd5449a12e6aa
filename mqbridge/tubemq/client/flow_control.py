"""Flow control rules that administrators set for a group or for all groups: how long a partition waits before its next get.

The rules are a JSON array of objects with a type:
    0   in a time window (GMT+8), with more than dltInM MiB unread: at most limitInM MiB a minute and a twelfth of that in 5 s;
        beyond it, wait freqInMs. Java compares the unread bytes with dltInM itself, which must be a mistake; we use MiB.
    1   after zeroCnt gets in a row that found nothing: wait freqInMs
    3   after a get that found something: wait normFreqInMs, or filterFreqInMs with a filter, minDataFilterFreqInMs near its end
Type 2 is obsolete. A group's own rules take precedence, type by type: if it has no matching rule of a type, the default ones
apply. Time is always an argument.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mqbridge.errors import RemoteProtocolError

log = logging.getLogger(__name__)

NOT_FOUND_WAIT_S = 0.4
"""Wait after a get that found nothing, if there is no rule for it."""
MIB = 1 << 20
MINUTE_S = 60.0
SLICE_S = 5.0
SLICES = 12
LEAST_LIMIT_WAIT_MS = 200
IMMEDIATE_S = 0.01
"""Waits up to this are skipped."""
GMT_8_MIN = 8 * 60
DAY_MIN = 24 * 60


@dataclass(slots=True)
class SizeLimit:
    """A rule of type 0. Minutes of the day, bytes, seconds; `minute_bytes` is the limit per minute."""

    start: int
    end: int
    lag_bytes: int
    minute_bytes: int
    wait_s: float


@dataclass(slots=True)
class FlowRules:
    """The rules of one text; falsy without any."""

    limits: list[SizeLimit] = field(default_factory=list)
    misses: list[tuple[int, float]] = field(default_factory=list)
    """(gets that found nothing, wait), ascending."""
    waits: tuple[float, float, float] | None = None
    """After success: without a filter, with one, with one near the end."""

    def __bool__(self) -> bool:
        return bool(self.limits or self.misses or self.waits)


def parse_rules(text: str) -> FlowRules:
    """Parse a rule text; a blank one has no rules. Raises RemoteProtocolError if it is malformed."""
    rules = FlowRules()
    if not text.strip():
        return rules
    try:
        for item in json.loads(text):
            _add(rules, int(item["type"]), item["rule"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise RemoteProtocolError(f"flow control rules cannot be parsed: {text[:200]!r}: {error!r}") from error
    rules.limits.sort(key=lambda limit: limit.lag_bytes, reverse=True)
    rules.misses.sort()
    return rules


def _readable(text: str, before: FlowRules) -> FlowRules:
    try:
        return parse_rules(text)
    except RemoteProtocolError as error:
        log.warning("the flow control rules in force stay as they are: %s", error)
        return before


def _add(rules: FlowRules, kind: int, items: Iterable[dict[str, Any]]) -> None:
    for rule in items:
        if kind == 0:
            rules.limits.append(_size_limit(rule))
        elif kind == 1:
            rules.misses.append((int(rule["zeroCnt"]), int(rule["freqInMs"]) / 1000))
        elif kind == 3:
            names = ("normFreqInMs", "filterFreqInMs", "minDataFilterFreqInMs")
            normal, filtered, near_end = (int(rule.get(name, 0)) / 1000 for name in names)
            rules.waits = (normal, filtered, near_end)


def _size_limit(rule: dict[str, Any]) -> SizeLimit:
    wait_ms = max(LEAST_LIMIT_WAIT_MS, int(rule["freqInMs"]))
    lag, limit = int(rule["dltInM"]) * MIB, int(rule["limitInM"]) * MIB
    return SizeLimit(_minute(rule["start"]), _minute(rule["end"]), lag, limit, wait_ms / 1000)


def _fitting(limits: list[SizeLimit], minute: int, lag_bytes: int) -> SizeLimit | None:
    return next((limit for limit in limits if limit.start <= minute <= limit.end and lag_bytes > limit.lag_bytes), None)


def _minute(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)


class FlowControl:
    """The rules in force for a consumer: its group's, else the default ones."""

    def __init__(self) -> None:
        self.default_id = self.group_id = -2
        self.in_force = False
        """True if there are any rules; without rules no pack is measured."""
        self.group_in_force = False
        """True if the group has rules of its own: it then asks the Broker not to limit it as well (escFlowCtrl)."""
        self._default, self._group = FlowRules(), FlowRules()

    @property
    def misses(self) -> list[tuple[int, float]]:
        """The rules for gets in a row that found nothing."""
        return self._group.misses or self._default.misses

    @property
    def waits(self) -> tuple[float, float, float] | None:
        """The rule for gets that found something."""
        return self._default.waits if self._group.waits is None else self._group.waits

    @property
    def has_limits(self) -> bool:
        """True if there is any limit, in any time window."""
        return bool(self._group.limits or self._default.limits)

    def limit(self, minute: int, lag_bytes: int) -> SizeLimit | None:
        """Return the limit for a reader with this lag in this minute of the day."""
        return _fitting(self._group.limits, minute, lag_bytes) or _fitting(self._default.limits, minute, lag_bytes)

    def learn(self, default: tuple[int, str], group: tuple[int, str]) -> None:
        """Apply ids and texts of a Master's response; a text is used if its id is new and not negative.

        A malformed text is logged once and the previous rules stay: the rest of the response (events included) is still used.
        """
        if default[0] >= 0 and default[0] != self.default_id:
            self.default_id, self._default = default[0], _readable(default[1], self._default)
        if group[0] >= 0 and group[0] != self.group_id:
            self.group_id, self._group = group[0], _readable(group[1], self._group)
        self.group_in_force = bool(self._group)
        self.in_force = bool(self._group or self._default)


class FlowMeter:
    """Measures one partition's gets and returns the wait after each. `now` is in seconds of any monotonic clock."""

    def __init__(self, control: FlowControl, *, filtered: bool) -> None:
        self._control, self._filtered = control, filtered
        self._misses = 0
        self._limit: SizeLimit | None = None
        self._minute_at = self._slice_at = float("-inf")
        self._minute_bytes = self._slice_bytes = 0

    def missed(self) -> float:
        """Note a get that found nothing; return the wait."""
        self._misses += 1
        wait = NOT_FOUND_WAIT_S
        for count, seconds in self._control.misses:
            if count <= self._misses:
                wait = seconds
        return wait

    def found(self, size: int, lag_bytes: int, now: float, wall: float, *, near_end: bool, escaped: bool = False) -> float:
        """Note a get that read `size` bytes and left `lag_bytes`; return the wait. `wall` is the time since the epoch.

        `escaped` is True if the Broker exempts this reader.
        """
        self._misses = 0
        control = self._control
        wait = self._over_limit(size, lag_bytes, now, wall) if control.has_limits else 0.0
        if escaped or wait:
            return 0.0 if escaped else wait
        if control.waits is None:
            return 0.0
        normal, filtered, slow = control.waits
        wait = normal if not self._filtered else slow if near_end else filtered
        return wait if wait > IMMEDIATE_S else 0.0

    def _over_limit(self, size: int, lag_bytes: int, now: float, wall: float) -> float:
        if now >= self._minute_at + MINUTE_S:
            self._minute_at, self._minute_bytes = now, 0
            self._limit = self._control.limit((int(wall) // 60 + GMT_8_MIN) % DAY_MIN, lag_bytes)
        if now >= self._slice_at + SLICE_S:
            self._slice_at, self._slice_bytes = now, 0
        self._minute_bytes += size
        self._slice_bytes += size
        limit = self._limit
        if limit is None:
            return 0.0
        over = self._minute_bytes >= limit.minute_bytes or self._slice_bytes >= limit.minute_bytes / SLICES
        return limit.wait_s if over else 0.0
