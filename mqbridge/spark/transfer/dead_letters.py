"""Dead letters, as many as are allowed: a pipeline in which everything is refused has a fault, and is to say so."""

from collections.abc import Sequence

from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.receipt import MessageFailure
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import DeliveryError, Failure
from mqbridge.message import Message, Partition, Share


class BoundedDeadLetters(DeadLetters):
    """The dead-letter topic of a transfer; more letters than `most` end it."""

    def __init__(self, route: str, outbound: Outbound, label: str, most: int | None) -> None:
        super().__init__(route, outbound, label)
        self._most = most
        self.made = 0
        """Since it was opened."""

    def make(self, target: str, messages: Sequence[Message], failures: Sequence[MessageFailure], source: Partition) -> Share:
        """What is to be stored. Raises DeliveryError when there are too many."""
        self.made += len(failures)
        if self._most is not None and self.made > self._most:
            reason = failures[0].reason
            problem = f"{target} refuses more than {self._most} messages of {source}, the last because {reason}"
            raise DeliveryError(f"{problem}. Mend that, or raise maxDeadLetters", Failure.REFUSED)
        return super().make(target, messages, failures, source)
