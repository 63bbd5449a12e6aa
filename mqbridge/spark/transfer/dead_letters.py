"""Limits the dead letters of a transfer: if targets refuse very many messages, something is wrong, and the task must fail."""

from collections.abc import Sequence

from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.receipt import MessageFailure
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import DeliveryError, Failure
from mqbridge.message import Message, Partition, Share


class BoundedDeadLetters(DeadLetters):
    """The dead-letter topic of a transfer. The transfer fails if there are more than `max_letters`; None: no limit."""

    def __init__(self, route: str, outbound: Outbound, label: str, max_letters: int | None) -> None:
        super().__init__(route, outbound, label)
        self._max_letters = max_letters
        self._letters = 0
        """Number of dead letters since the topic was opened; a transfer opens it again after a transient failure."""

    def make(self, target: str, messages: Sequence[Message], failures: Sequence[MessageFailure], source: Partition) -> Share:
        """Make the dead letters for these messages of `source`, which `target` refused. Raises DeliveryError above the limit."""
        self._letters += len(failures)
        if self._max_letters is not None and self._letters > self._max_letters:
            reason = failures[0].reason
            problem = f"more than {self._max_letters} messages are refused, one from {source} by {target} because {reason}"
            raise DeliveryError(f"{problem}. Remove the cause, or raise maxDeadLetters", Failure.REFUSED)
        return super().make(target, messages, failures, source)
