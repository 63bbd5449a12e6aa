"""Results of messages submitted to a Broker."""

from collections.abc import Callable
from typing import NamedTuple

from mqbridge.errors import ClusterError, ConnectionLost, Failure, LocalProtocolError, MappingError, MqbridgeError


class SendResult(NamedTuple):
    """A stored message: its id, its offset in the store's index, and the time when it was stored, in ms."""

    message_id: int
    offset: int
    append_time: int


SendCallback = Callable[[SendResult | MqbridgeError], None]
"""A function that is called once per message with its result, in the event loop; it must not raise."""


class SenderClosed(ConnectionLost):
    """The sender was closed before the message was stored."""


class Withdrawn(ClusterError):
    """The caller withdrew the message before it was known to be stored."""


def failure_of(error: MqbridgeError) -> Failure:
    """Return the failure class of a message's error, which tells whether a retry helps."""
    if isinstance(error, ClusterError):
        return error.failure
    return Failure.REFUSED if isinstance(error, (LocalProtocolError, MappingError)) else Failure.RETRY
