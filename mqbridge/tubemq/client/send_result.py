"""Results of messages submitted to a Broker."""

from collections.abc import Callable
from typing import NamedTuple

from mqbridge.errors import ClusterError, ConnectionLost, Failure, LocalProtocolError, MappingError, MqbridgeError


class SendResult(NamedTuple):
    """A stored message: its id, its offset in the store's index, and the time of storing, in ms."""

    message_id: int
    offset: int
    append_time: int


SendCallback = Callable[[SendResult | MqbridgeError], None]
"""Called once per message with its result, in the event loop; must not raise."""


class SenderClosed(ConnectionLost):
    """The sender was closed before the message was stored."""


class Withdrawn(ClusterError):
    """The message was withdrawn by its submitter and, as far as is known, not stored."""


def failure_of(error: MqbridgeError) -> Failure:
    """Return the failure kind of a message's error."""
    if isinstance(error, ClusterError):
        return error.failure
    return Failure.REFUSED if isinstance(error, (LocalProtocolError, MappingError)) else Failure.RETRY
