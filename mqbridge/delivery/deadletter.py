"""Where messages go that the target refuses: as they were, with why and where they came from.

A dead letter keeps payload, properties and every other field; it gains

    mqbridge.dead.reason   what the target (or the reader) said
    mqbridge.dead.route    the route that could not deliver it
    mqbridge.dead.target   the topic that would not take it

and `mqbridge.origin` as every message does. It counts as stored for its source only when the dead-letter topic has stored it.
"""

import itertools
from collections.abc import Sequence

from mqbridge.adapter import MessageFailure, Outbound
from mqbridge.errors import DeliveryError
from mqbridge.message import Batch, Message, Partition, Share, format_position

MAX_REASON_CHARS = 1000


class DeadLetters:
    """The dead-letter topic of a route."""

    def __init__(self, route: str, outbound: Outbound, topic: str) -> None:
        self._route = route
        self._outbound = outbound
        self._topic = topic
        self._turn = itertools.cycle(range(outbound.partitions))

    async def put(self, target: str, messages: Sequence[Message], failures: Sequence[MessageFailure], source: Partition) -> None:
        """Store refused messages. Raises DeliveryError naming the first that even this topic refuses."""
        letters = [self._letter(target, messages[failure.index], failure) for failure in failures]
        receipt = await self._outbound.send(next(self._turn), Share(Batch.of(letters, source)))
        if receipt.failures:
            first = receipt.failures[0]
            raise DeliveryError(
                f"{describe(messages[failures[first.index].index], source)} was refused by {target} "
                f"({failures[first.index].reason}) and by its dead-letter topic {self._topic} ({first.reason})"
            )

    def _letter(self, target: str, message: Message, failure: MessageFailure) -> Message:
        said = (
            ("mqbridge.dead.reason", failure.reason[:MAX_REASON_CHARS]),
            ("mqbridge.dead.route", self._route),
            ("mqbridge.dead.target", target),
        )
        return message.replace(properties=message.properties + said, defect=None)


def describe(message: Message, source: Partition) -> str:
    """The message by its place, for people."""
    return f"the message at {source} position {format_position(message.position)}"
