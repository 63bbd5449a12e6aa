"""Flow control rules that administrators set for a group or for all groups: how long a partition waits before its next get.

The rules are a JSON array of objects with a type:
    0   in a time window (GMT+8), with more than dltInM MiB unread: at most limitInM MiB per minute and a twelfth of that per 5 s;
        above this limit, wait freqInMs. The Java client compares unread bytes with dltInM itself, probably by mistake; we use
    MiB. 1   after zeroCnt consecutive gets without data: wait freqInMs
    3   after a get with data: wait normFreqInMs; with a filter filterFreqInMs, or minDataFilterFreqInMs near the end of the data
Type 2 is obsolete. A group's own rules take precedence over the default rules, separately for each type. If the group has no
matching rule of a type, the default rules of this type apply. No function reads a clock: the caller passes the time.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mqbridge.errors import RemoteProtocolError

log = logging.getLogger(__name__)

NOT_FOUND_WAIT_S = 0.4
"""Wait after a get without data, if no rule of type 1 matches."""
MIB = 1 << 20
MINUTE_S = 60.0
SLICE_S = 5.0
SLICES = 12
MIN_LIMIT_WAIT_MS = 200
IMMEDIATE_S = 0.01
"""Waits up to this length are skipped."""
GMT_8_MIN = 8 * 60
DAY_MIN = 24 * 60


@dataclass(slots=True)
class SizeLimit:
    """A rule of type 0. `start` and `end` are minutes of the day; `minute_bytes` is the limit per minute."""

    start: int
    end: int
    lag_bytes: int
    minute_bytes: int
    wait_s: float


@dataclass(slots=True)
class FlowRules:
    """The parsed rules of one rule text; false if there are none."""

    limits: list[SizeLimit] = field(default_factory=list)
    misses: list[tuple[int, float]] = field(default_factory=list)
    """Rules of type 1: (consecutive gets without data, wait in seconds), ascending."""
    waits: tuple[float, float, float] | None = None
    """The rule of type 3, waits in seconds: without a filter, with a filter, with a filter near the end of the data."""

    def __bool__(self) -> bool:
        return bool(self.limits or self.misses or self.waits)


def parse_rules(text: str) -> FlowRules:
    """Parse a rule text; a blank text has no rules. Raises RemoteProtocolError if it is malformed."""
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


def _parse_or_keep(text: str, previous: FlowRules) -> FlowRules:
    """Parse a rule text; if it is malformed, log this and return the previous rules."""
    try:
        return parse_rules(text)
    except RemoteProtocolError as error:
        log.warning("new flow control rules from the Master are ignored, the previous rules stay active: %s", error)
        return previous


def _add(rules: FlowRules, rule_type: int, items: Iterable[dict[str, Any]]) -> None:
    for rule in items:
        if rule_type == 0:
            rules.limits.append(_size_limit(rule))
        elif rule_type == 1:
            rules.misses.append((int(rule["zeroCnt"]), int(rule["freqInMs"]) / 1000))
        elif rule_type == 3:
            names = ("normFreqInMs", "filterFreqInMs", "minDataFilterFreqInMs")
            normal, filtered, near_end = (int(rule.get(name, 0)) / 1000 for name in names)
            rules.waits = (normal, filtered, near_end)


def _size_limit(rule: dict[str, Any]) -> SizeLimit:
    wait_ms = max(MIN_LIMIT_WAIT_MS, int(rule["freqInMs"]))
    lag, limit = int(rule["dltInM"]) * MIB, int(rule["limitInM"]) * MIB
    return SizeLimit(_minute(rule["start"]), _minute(rule["end"]), lag, limit, wait_ms / 1000)


def _matching_limit(limits: list[SizeLimit], minute: int, lag_bytes: int) -> SizeLimit | None:
    return next((limit for limit in limits if limit.start <= minute <= limit.end and lag_bytes > limit.lag_bytes), None)


def _minute(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)


class FlowControl:
    """The active rules of a consumer: those of its group and, for types without a group rule, the default rules."""

    def __init__(self) -> None:
        self.default_id = self.group_id = -2
        self.has_rules = False
        """True if there are any rules; without rules the size of packs is not measured."""
        self.has_group_rules = False
        """True if the group has its own rules: its gets then ask the Broker not to apply flow control too (escFlowCtrl)."""
        self._default, self._group = FlowRules(), FlowRules()

    @property
    def misses(self) -> list[tuple[int, float]]:
        """The rules for consecutive gets without data."""
        return self._group.misses or self._default.misses

    @property
    def waits(self) -> tuple[float, float, float] | None:
        """The rule for gets with data."""
        return self._default.waits if self._group.waits is None else self._group.waits

    @property
    def has_limits(self) -> bool:
        """True if there is a size limit for any time of the day."""
        return bool(self._group.limits or self._default.limits)

    def limit(self, minute: int, lag_bytes: int) -> SizeLimit | None:
        """Return the limit for a reader with this lag in this minute of the day; None if no limit matches."""
        return _matching_limit(self._group.limits, minute, lag_bytes) or _matching_limit(self._default.limits, minute, lag_bytes)

    def apply_rules(self, default: tuple[int, str], group: tuple[int, str]) -> None:
        """Apply the (id, rule text) pairs of a Master's response; a text is used if its id is new and not negative.

        A malformed text is logged once and the previous rules stay active. The caller can still use the rest of the response.
        """
        if default[0] >= 0 and default[0] != self.default_id:
            self.default_id, self._default = default[0], _parse_or_keep(default[1], self._default)
        if group[0] >= 0 and group[0] != self.group_id:
            self.group_id, self._group = group[0], _parse_or_keep(group[1], self._group)
        self.has_group_rules = bool(self._group)
        self.has_rules = bool(self._group or self._default)


class FlowMeter:
    """Measures the gets of one partition and returns the wait after each. `now` is the time of a monotonic clock in seconds."""

    def __init__(self, control: FlowControl, *, filtered: bool) -> None:
        self._control, self._filtered = control, filtered
        self._misses = 0
        self._limit: SizeLimit | None = None
        self._minute_at = self._slice_at = float("-inf")
        self._minute_bytes = self._slice_bytes = 0

    def missed(self) -> float:
        """Note a get without data; return the wait."""
        self._misses += 1
        wait = NOT_FOUND_WAIT_S
        for count, seconds in self._control.misses:
            if count <= self._misses:
                wait = seconds
        return wait

    def found(self, size: int, lag_bytes: int, now: float, wall: float, *, near_end: bool, escaped: bool = False) -> float:
        """Note a get that read `size` bytes and left `lag_bytes` unread; return the wait. `wall` is seconds since the epoch.

        `escaped` is True if the Broker exempts this reader from flow control.
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
