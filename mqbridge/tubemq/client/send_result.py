"""What becomes of a message that was submitted to a Broker."""

from collections.abc import Callable
from typing import NamedTuple

from mqbridge.errors import ClusterError, ConnectionLost, Failure, LocalProtocolError, MappingError, MqbridgeError


class SendResult(NamedTuple):
    """Where a message was stored: its id, its place in the store's index, and when, in ms."""

    message_id: int
    offset: int
    append_time: int


Done = Callable[[SendResult | MqbridgeError], None]
"""Called once per message with what became of it, from the event loop; it must not raise."""


class SenderClosed(ConnectionLost):
    """The sender was closed before the message was stored."""


class Withdrawn(ClusterError):
    """The message was taken back by whoever submitted it, and was not stored as far as is known."""


def failure_of(error: MqbridgeError) -> Failure:
    """What helps after an error of one message."""
    if isinstance(error, ClusterError):
        return error.failure
    return Failure.REFUSED if isinstance(error, (LocalProtocolError, MappingError)) else Failure.RETRY
