"""A parked message: one that waits in a topic of the backing until it is due, for one group or for its whole topic.

It is stored as a message whose payload is the unit, or as the message itself if there was no unit. One property says to whom it
goes, and when. One that goes to its whole topic was never there before: it is a deposit, see `deposits`.

Parking topics are ordered by time, each by itself: every message of a level waits equally long from when it was stored there.
What is due later than that goes on to a level that fits the rest.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from mqbridge.adapter.numbering import Numbering
from mqbridge.message import Message, Position, Unit

PARKED = "mqbridge.parked"
"""The property of a parked message, as JSON: a list of the fields of `Parked`."""
FIRST_NUMBER = 1 << 62
"""Number of the first message of a topic with messages that are due, see `DueNumbering`."""
MAX_FIELD = 1 << 64
"""Largest number in a field of a parked message."""
LEVELS_S = {
    "1s": 1,
    "5s": 5,
    "10s": 10,
    "30s": 30,
    "1m": 60,
    "2m": 120,
    "3m": 180,
    "4m": 240,
    "5m": 300,
    "6m": 360,
    "7m": 420,
    "8m": 480,
    "9m": 540,
    "10m": 600,
    "20m": 1200,
    "30m": 1800,
    "1h": 3600,
    "2h": 7200,
}
"""The levels, with the seconds for which a message waits there: those of RocketMQ, from the shortest to the longest."""
ALL_LEVELS = tuple(LEVELS_S)
GROUP_LEVELS = ALL_LEVELS[ALL_LEVELS.index("1m") :]
"""The levels for messages that wait for one group: listeners hold shorter delays in memory."""


class InvalidParked(ValueError):
    """A message of a parking topic that was not parked."""


class Parked(NamedTuple):
    """Where a parked message goes, and when.

    topic       the topic in the cluster from which it was delivered
    partition   the index of its partition, as clients count them
    group       the group that gets it, by the name that clients use; empty: it is a deposit, and all groups of the topic get it
    due_ms      when the group gets it, or when it is stored in its topic (ms since the epoch)
    parked_ms   when it was stored in the topic of its level (ms since the epoch)
    moved_ms    the last time that the group was moved before, see `Parking.moving`; 0: never
    unit        number of messages of the unit that its payload is; 0: it is a message
    published   publish time of the unit, in ms since the epoch; 0: not known
    """

    topic: str
    partition: int
    group: str
    due_ms: int
    parked_ms: int
    moved_ms: int
    unit: int = 0
    published: int = 0

    @property
    def is_deposit(self) -> bool:
        """True if it goes to its whole topic, where it was not stored before."""
        return not self.group

    def level_at(self, now_ms: int) -> str:
        """Return the level in which it waits next."""
        return level_for((self.due_ms - now_ms) / 1000, ALL_LEVELS if self.is_deposit else GROUP_LEVELS)


def level_for(remaining_s: float, levels: Sequence[str] = GROUP_LEVELS) -> str:
    """Return the level with the longest time that is not longer than this one; the first level if there is none."""
    return max((level for level in levels if LEVELS_S[level] <= remaining_s), key=LEVELS_S.__getitem__, default=levels[0])


def wrap(parked: Parked, content: Unit | Message) -> Message:
    """Return the message to store."""
    if isinstance(content, Message):
        value = json.dumps(parked._replace(unit=0))
        return content.replace(properties=(*content.properties, (PARKED, value)), position=())
    value = json.dumps(parked._replace(unit=content.message_count, published=content.published_ms or 0))
    return Message(content.data, ((PARKED, value),))


def unwrap(message: Message) -> tuple[Parked, Unit | Message]:
    """Return what `wrap` got. Raises InvalidParked."""
    values = message.property_values(PARKED)
    if message.defect is not None or not values:
        raise InvalidParked(message.defect or "it was not parked")
    try:
        parked = Parked(*json.loads(values[-1]))  # a client may have sent one of its own before
        topic, partition, group, *numbers = parked
        are_numbers = all(type(each) is int and 0 <= each <= MAX_FIELD for each in (partition, *numbers))
        if not (isinstance(topic, str) and isinstance(group, str) and are_numbers):
            raise InvalidParked("fields of another type, or too large")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParked(f"it is not known where it goes: {error}") from error
    if parked.unit:
        return parked, Unit(message.payload or b"", parked.unit, parked.published or None)
    properties = list(message.properties)
    del properties[max(index for index, (name, _) in enumerate(properties) if name == PARKED)]
    return parked, message.replace(properties=tuple(properties), position=())


class DueNumbering:
    """The numbers of messages that were parked and are due: behind those of all other messages, so that no two are equal."""

    def __init__(self, numbering: Numbering) -> None:
        """`numbering` is that of the cluster."""
        self._numbering, self.dense = numbering, numbering.dense

    def number(self, position: Position) -> int:
        """Return the number of a position. Raises ValueError if it has none."""
        number = self._numbering.number(position)
        if number >= FIRST_NUMBER:
            raise ValueError(f"{position} has too large a number")
        return FIRST_NUMBER + number

    def position(self, number: int) -> Position:
        """Return the position with this number. Raises ValueError for a number that no position has."""
        return self._numbering.position(number - FIRST_NUMBER)
