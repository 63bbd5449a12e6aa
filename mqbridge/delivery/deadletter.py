"""Where messages go that the target refuses: as they were, with why and where they came from.

A dead letter keeps payload, properties and every other field; it gains

    mqbridge.dead.reason   what the target (or the reader) said
    mqbridge.dead.route    the route that could not deliver it
    mqbridge.dead.target   the topic that would not take it

and `mqbridge.origin` as every message does. It counts as stored for its source only when the dead-letter topic has stored it.
"""

import itertools
from collections.abc import Sequence

from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.receipt import MessageFailure
from mqbridge.message import Batch, Message, Partition, Share, format_position

MAX_REASON_CHARS = 1000


class DeadLetters:
    """The dead-letter topic of a route; `label` is its name for people."""

    def __init__(self, route: str, outbound: Outbound, label: str) -> None:
        self.outbound = outbound
        self.label = label
        self._route = route
        self._turn = itertools.count()

    def next_partition(self) -> int:
        """Where the next ones go: the partitions take turns."""
        return next(self._turn) % self.outbound.partitions

    def of(self, target: str, messages: Sequence[Message], failures: Sequence[MessageFailure], source: Partition) -> Share:
        """What is to be stored for these messages that `target` refused."""
        where = ("mqbridge.dead.route", self._route), ("mqbridge.dead.target", target)
        said: tuple[tuple[str, str], ...] = ()
        reason, letters = None, list[Message]()
        for failure in failures:
            if failure.reason != reason:  # mostly one for all: pairs of its own would double what a small message takes
                reason = failure.reason
                said = ("mqbridge.dead.reason", reason[:MAX_REASON_CHARS]), *where
            message = messages[failure.index]
            letters.append(message.replace(properties=message.properties + said if message.properties else said, defect=None))
        return Share(Batch.of(letters, source))


def describe(message: Message, source: Partition) -> str:
    """The message by its place, for people."""
    return f"the message at {source} position {format_position(message.position)}"
