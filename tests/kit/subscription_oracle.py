"""An oracle for subscriptions: it knows what was delivered and what was acknowledged, and when.

Each message has a number of its own, and a position in its partition. A server may deliver again what lies between the oldest
message that is not acknowledged and the newest that was delivered, when a partition moves to another server or its server is
started again. It must not deliver again what lies before, and must not lose a message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_EXAMPLES = 5
"""Maximum number of examples in a verdict."""


class Seen(NamedTuple):
    """A message that a consumer got: when (microseconds since 1970), its number, partition and position, and the consumer."""

    at: int
    number: int
    partition: int
    position: int
    who: str = ""


class Confirmed(NamedTuple):
    """An acknowledgement that a server has confirmed."""

    at: int
    partition: int
    position: int


class SubscriptionVerdict(NamedTuple):
    """What the oracle has found."""

    expected: int
    lost: list[int]
    """Numbers that no consumer got."""
    twice: int
    """Deliveries of messages that a consumer had got before."""
    confirmed_twice: int
    """Those of messages whose acknowledgement had been confirmed before the cause."""
    too_early: int
    """Those that lie before the oldest unacknowledged message."""
    behind: int
    """The largest distance of these from the oldest unacknowledged message."""
    spans: list[int]
    """For each cause, the messages from the oldest unacknowledged one to the newest delivered, in the worst partition."""
    examples: list[str]

    def __str__(self) -> str:
        spans = ", ".join(map(str, self.spans))
        return (
            f"{self.expected} messages, {len(self.lost)} lost, {self.twice} handed out twice, {self.confirmed_twice} of them "
            f"acknowledged, {self.too_early} before the span (by {self.behind} at most); spans: {spans}"
        )


class SubscriptionOracle:
    """See the module."""

    def __init__(self, numbers: Iterable[int]) -> None:
        """`numbers` are those of the messages that were stored."""
        self._numbers = set(numbers)
        self._causes: dict[int, int] = {}
        """The causes, with the time until which acknowledgements count."""

    def cause(self, at: int, lag_s: float = 0.0) -> None:
        """Take note that from this time on (microseconds since 1970) partitions move, or begin anew.

        A server that was killed had told the cluster of a group's positions up to `lag_s` before.
        """
        self._causes[at] = at - int(lag_s * 1_000_000)

    def judge(self, seen: Iterable[Seen], confirmed: Iterable[Confirmed]) -> SubscriptionVerdict:
        """Judge everything that the consumers got, and what the servers confirmed."""
        ordered = sorted(seen)
        first_confirmed: dict[tuple[int, int], int] = {}
        for each in sorted(confirmed):
            first_confirmed.setdefault((each.partition, each.position), each.at)
        for key, at in _unanswered(ordered, first_confirmed).items():
            first_confirmed[key] = min((cause for cause in self._causes if cause > at), default=at)
        positions: dict[int, set[int]] = defaultdict(set)
        for delivery in ordered:
            positions[delivery.partition].add(delivery.position)
        oldest = {
            at: {partition: _oldest(partition, sorted(each), first_confirmed, until) for partition, each in positions.items()}
            for at, until in self._causes.items()
        }
        twice = confirmed_twice = too_early = behind = 0
        examples: list[str] = []
        before: set[tuple[int, int]] = set()
        for delivery in ordered:
            key = delivery.partition, delivery.position
            if key not in before:
                before.add(key)
                continue
            twice += 1
            cause = max((at for at in self._causes if at <= delivery.at), default=None)
            if cause is None:
                too_early += 1
                examples.append(f"{delivery} came again without a cause")
                continue
            confirmed_twice += first_confirmed.get(key, delivery.at) <= self._causes[cause]
            distance = oldest[cause][delivery.partition] - delivery.position
            if distance > 0:
                too_early += 1
                behind = max(behind, distance)
                examples.append(f"{delivery} is {distance} messages before the oldest unacknowledged one")
        return SubscriptionVerdict(
            len(self._numbers),
            sorted(self._numbers - {each.number for each in ordered}),
            twice,
            confirmed_twice,
            too_early,
            behind,
            [_span(at, oldest[at], ordered) for at in self._causes],
            examples[:MAX_EXAMPLES],
        )


def _unanswered(ordered: Iterable[Seen], confirmed: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """Return when messages were delivered for the last time whose acknowledgements nobody has confirmed.

    They did not come again after the next cause, so the server had the acknowledgement; only its answer was lost.
    """
    keys = {(each.partition, each.position): each.at for each in ordered}
    return {key: at for key, at in keys.items() if key not in confirmed}


def _oldest(partition: int, positions: Sequence[int], confirmed: dict[tuple[int, int], int], at: int) -> int:
    """Return the first position whose acknowledgement was not confirmed at a time."""
    for position in positions:
        if (time := confirmed.get((partition, position))) is None or time > at:
            return position
    return positions[-1] + 1


def _span(at: int, oldest: dict[int, int], ordered: Iterable[Seen]) -> int:
    newest: dict[int, int] = {}
    for each in ordered:
        if each.at <= at:
            newest[each.partition] = max(newest.get(each.partition, 0), each.position)
    return max((max(0, position + 1 - oldest[partition]) for partition, position in newest.items()), default=0)
