"""Flow control rules that administrators set for a group or for all groups: how long a partition waits before its next get.

The rules are a JSON array of objects with a type:

    0   In a time window (GMT+8), for a reader with more than dltInM MiB unread: read at most limitInM MiB per minute, and at
        most a twelfth of that per 5 s. Wait freqInMs after a get that reaches one of these two limits.
    1   After zeroCnt consecutive gets without data: wait freqInMs.
    2   Obsolete; ignored.
    3   After a get with data: wait normFreqInMs. With a filter, wait filterFreqInMs, or minDataFilterFreqInMs near the end of the
        data.

The Java client compares the number of unread bytes with dltInM, probably by mistake; here dltInM is in MiB. A group's own rules
take precedence over the default rules, separately for each type: the default rules of a type apply if the group has no rule of
this type, for type 0 also if none of its rules matches. No function reads a clock: the caller passes the time.
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
"""A minute has SLICES slices of SLICE_S. In each slice a reader may read its part of the limit per minute."""
MIN_LIMIT_WAIT_MS = 200
"""Rules of type 0 with a shorter wait use this one."""
IMMEDIATE_S = 0.01
"""Waits of rules of type 3 up to this length are skipped."""
GMT_8_MIN = 8 * 60
"""Offset of GMT+8, the time zone of the rules, in minutes."""
DAY_MIN = 24 * 60


@dataclass(slots=True)
class SizeLimit:
    """A rule of type 0. It applies from minute `start` of the day to minute `end` (inclusive), to lags above `lag_bytes`.

    `minute_bytes` is the limit per minute, `wait_s` the wait after a get that reaches it.
    """

    start: int
    end: int
    lag_bytes: int
    minute_bytes: int
    wait_s: float


@dataclass(slots=True)
class FlowRules:
    """The parsed rules of one rule text; falsy if there are none."""

    limits: list[SizeLimit] = field(default_factory=list)
    no_data_waits: list[tuple[int, float]] = field(default_factory=list)
    """Rules of type 1: (consecutive gets without data, wait in seconds), ascending."""
    data_waits: tuple[float, float, float] | None = None
    """The rule of type 3 as waits in seconds: without a filter, with a filter, with a filter near the end of the data."""

    def __bool__(self) -> bool:
        return bool(self.limits or self.no_data_waits or self.data_waits)


def parse_rules(text: str) -> FlowRules:
    """Parse a rule text; a blank text has no rules. Raises RemoteProtocolError if it is malformed."""
    rules = FlowRules()
    if not text.strip():
        return rules
    try:
        for item in json.loads(text):
            _add_rules(rules, int(item["type"]), item["rule"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise RemoteProtocolError(f"flow control rules cannot be parsed: {text[:200]!r}: {error!r}") from error
    rules.limits.sort(key=lambda limit: limit.lag_bytes, reverse=True)  # the first match has the highest threshold
    rules.no_data_waits.sort()
    return rules


def _parse_or_keep(scope: str, text: str, previous: FlowRules) -> FlowRules:
    """Parse a rule text; if it is malformed, log this and return the previous rules. `scope` names the rules in the log."""
    try:
        return parse_rules(text)
    except RemoteProtocolError as error:
        log.warning("the Master's new flow control rules for %s are ignored, the previous ones stay active: %s", scope, error)
        return previous


def _add_rules(rules: FlowRules, rule_type: int, items: Iterable[dict[str, Any]]) -> None:
    """Add the JSON objects of one type to the parsed rules."""
    for rule in items:
        if rule_type == 0:
            rules.limits.append(_size_limit(rule))
        elif rule_type == 1:
            rules.no_data_waits.append((int(rule["zeroCnt"]), int(rule["freqInMs"]) / 1000))
        elif rule_type == 3:
            names = ("normFreqInMs", "filterFreqInMs", "minDataFilterFreqInMs")
            normal, filtered, near_end = (int(rule.get(name, 0)) / 1000 for name in names)
            rules.data_waits = (normal, filtered, near_end)


def _size_limit(rule: dict[str, Any]) -> SizeLimit:
    wait_ms = max(MIN_LIMIT_WAIT_MS, int(rule["freqInMs"]))
    lag, limit = int(rule["dltInM"]) * MIB, int(rule["limitInM"]) * MIB
    return SizeLimit(_minute(rule["start"]), _minute(rule["end"]), lag, limit, wait_ms / 1000)


def _matching_limit(limits: list[SizeLimit], minute: int, lag_bytes: int) -> SizeLimit | None:
    return next((limit for limit in limits if limit.start <= minute <= limit.end and lag_bytes > limit.lag_bytes), None)


def _minute(text: str) -> int:
    """Return the minute of the day of a time such as 08:30."""
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)


class FlowControl:
    """The active rules of a consumer: those of its group and, for types without a group rule, the default rules."""

    def __init__(self) -> None:
        self.default_id = self.group_id = -2
        """Ids of the last texts of default and group rules, also of malformed ones; -2 ("undefined" in TubeMQ) before the first.

        Requests to the Master contain these ids, so that it sends only newer texts.
        """
        self.has_rules = False
        """True if there are any rules; without rules the caller need not measure the data of a get."""
        self.has_group_rules = False
        """True if the group has its own rules: its gets then ask the Broker not to apply its flow control (escFlowCtrl)."""
        self._default, self._group = FlowRules(), FlowRules()

    @property
    def no_data_waits(self) -> list[tuple[int, float]]:
        """The rules of type 1: (consecutive gets without data, wait in seconds), ascending."""
        return self._group.no_data_waits or self._default.no_data_waits

    @property
    def data_waits(self) -> tuple[float, float, float] | None:
        """The rule of type 3, as in `FlowRules`; None if there is none."""
        return self._default.data_waits if self._group.data_waits is None else self._group.data_waits

    @property
    def has_limits(self) -> bool:
        """True if there is a size limit for any time of the day."""
        return bool(self._group.limits or self._default.limits)

    def limit(self, minute: int, lag_bytes: int) -> SizeLimit | None:
        """Return the rule of type 0 for a reader with this lag in this minute of the day; None if no rule matches."""
        return _matching_limit(self._group.limits, minute, lag_bytes) or _matching_limit(self._default.limits, minute, lag_bytes)

    def apply_rules(self, default: tuple[int, str], group: tuple[int, str]) -> None:
        """Apply the two (id, rule text) pairs of a Master's response: the default rules and the group's rules.

        A pair is ignored if its id is negative (the response has no such rules) or equals the id that is applied already. If a
        text is malformed, this is logged once and the previous rules stay active; the caller can still use the other fields of
        the response.
        """
        if default[0] >= 0 and default[0] != self.default_id:
            self.default_id, self._default = default[0], _parse_or_keep("all groups (default)", default[1], self._default)
        if group[0] >= 0 and group[0] != self.group_id:
            self.group_id, self._group = group[0], _parse_or_keep("this consumer's group", group[1], self._group)
        self.has_group_rules = bool(self._group)
        self.has_rules = bool(self._group or self._default)


class FlowMeter:
    """Measures the gets of one partition and computes the wait after each.

    `filtered` is True if the reader has a filter.
    """

    def __init__(self, control: FlowControl, *, filtered: bool) -> None:
        self._control, self._filtered = control, filtered
        self._gets_without_data = 0
        self._limit: SizeLimit | None = None
        """The rule of type 0 for the current minute; None if none applies."""
        self._minute_started_at = self._slice_started_at = float("-inf")
        self._minute_bytes = self._slice_bytes = 0

    def on_no_data(self) -> float:
        """Count a get without data; return the wait in seconds."""
        self._gets_without_data += 1
        wait = NOT_FOUND_WAIT_S
        for count, seconds in self._control.no_data_waits:
            if count <= self._gets_without_data:
                wait = seconds
        return wait

    def on_data(
        self, size_bytes: int, lag_bytes: int, now: float, unix_time_s: float, *, near_end: bool, is_exempt: bool = False
    ) -> float:
        """Count a get that read `size_bytes` and left `lag_bytes` unread; return the wait in seconds.

        A reached limit of a rule of type 0 decides, otherwise the rule of type 3. `now` is the time of a monotonic clock in
        seconds. `near_end` is True if the Broker reports that little data is left. `is_exempt` is True if the Broker exempts this
        reader from flow control: no wait.
        """
        self._gets_without_data = 0
        control = self._control
        wait = self._limit_wait(size_bytes, lag_bytes, now, unix_time_s) if control.has_limits else 0.0
        if is_exempt or wait:
            return 0.0 if is_exempt else wait
        if control.data_waits is None:
            return 0.0
        unfiltered, filtered, filtered_near_end = control.data_waits
        filtered_wait = filtered_near_end if near_end else filtered
        wait = filtered_wait if self._filtered else unfiltered
        return wait if wait > IMMEDIATE_S else 0.0

    def _limit_wait(self, size_bytes: int, lag_bytes: int, now: float, unix_time_s: float) -> float:
        """Add a get to the current minute and slice; return the wait if it reached the limit of one of them, else 0.

        The rule is chosen at the start of each minute, by the lag at that time.
        """
        if now >= self._minute_started_at + MINUTE_S:
            self._minute_started_at, self._minute_bytes = now, 0
            self._limit = self._control.limit((int(unix_time_s) // 60 + GMT_8_MIN) % DAY_MIN, lag_bytes)
        if now >= self._slice_started_at + SLICE_S:
            self._slice_started_at, self._slice_bytes = now, 0
        self._minute_bytes += size_bytes
        self._slice_bytes += size_bytes
        limit = self._limit
        if limit is None:
            return 0.0
        is_reached = self._minute_bytes >= limit.minute_bytes or self._slice_bytes >= limit.minute_bytes / SLICES
        return limit.wait_s if is_reached else 0.0
