"""The result of sending a message: the stored message's id and offset, or an error."""

from collections.abc import Callable
from typing import NamedTuple

from mqbridge.errors import ClusterError, ConnectionLost, Failure, LocalProtocolError, MappingError, MqbridgeError


class SendResult(NamedTuple):
    """A Broker's response for a stored message: its id, its offset in the store's index, and its time of storage.

    `append_time` is in milliseconds since the epoch.
    """

    message_id: int
    offset: int
    append_time: int


SendCallback = Callable[[SendResult | MqbridgeError], None]
"""A function that is called once per message, with its result or error, in the event loop; it must not raise."""


class SenderClosed(ConnectionLost):
    """The sender was closed before the message had a response; an earlier attempt to send it may have stored it."""


class Withdrawn(ClusterError):
    """The caller withdrew the message before its result was known: it may be stored."""


def failure_of(error: MqbridgeError) -> Failure:
    """Return whether to retry after an error; REFUSED if a message cannot be encoded, RETRY for an invalid response."""
    if isinstance(error, ClusterError):
        return error.failure
    return Failure.REFUSED if isinstance(error, (LocalProtocolError, MappingError)) else Failure.RETRY
