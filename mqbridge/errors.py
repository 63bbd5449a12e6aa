"""Every exception that mqbridge raises on purpose.

    MqbridgeError
    ├── ConfigError                invalid configuration; tells the location, and a hint such as the nearest valid word
    ├── ProtocolError              bytes or calls that violate the protocol
    │   ├── LocalProtocolError     we violated the protocol: a bug of mqbridge
    │   └── RemoteProtocolError    the peer violated the protocol: the connection is closed
    ├── ClusterError               a request to a cluster failed; `failure` tells which remedy helps
    │   ├── Unreachable            no connection could be made
    │   ├── ConnectionLost         the connection ended before the response
    │   │   └── PeerSilent         we closed it, because the server sent nothing for too long
    │   ├── RequestTimeout         no response within the deadline
    │   ├── ServerRefused          the server responded with an error code of its protocol
    │   │   ├── NotPermitted       an administrator does not permit it now, and may permit it again
    │   │   └── TopicTerminated    the topic accepts no more messages, for ever
    │   └── TopicChanged           the topic of an open producer was deleted, or lost its partition
    ├── LaneRevoked                the partition of a lane (one assigned partition) was revoked; the normal end of a lane
    ├── GapError                   the source lost data that was never read: the partition stops and reports it
    ├── DeliveryError              a message could not be stored in a target, or in the route's dead-letter topic
    ├── MappingError               a message has a value that the target cannot represent
    └── RequestRefused             a listener refuses a request of a client

Any other exception that escapes is a bug. An error text says what is wrong and where, and, if we know it, what to do next.
"""

from enum import Enum
from typing import Any, Self


class Failure(Enum):
    """What helps against a failure; each system's error table maps the system's error codes to these kinds of failures."""

    RETRY = "retry"
    """Transient: the same request may succeed later."""
    REFRESH = "refresh"
    """Our metadata or registration is outdated, for example because the partition moved: refresh it, then retry."""
    REFUSED = "refused"
    """This message is never accepted as it is; other messages may be."""
    FATAL = "fatal"
    """Every request fails until a person changes something (permissions, a missing topic, a wrong configuration)."""


class MqbridgeError(Exception):
    """The base class of every error that mqbridge raises on purpose.

    Errors can be copied and pickled, so they pass from one process to another with all their attributes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to copy or pickle this error.

        Exception's own method would call the class with `args`, which is only the text: constructors with more parameters fail.
        """
        return self._rebuild, (self.args,), self.__dict__

    @classmethod
    def _rebuild(cls, args: tuple[Any, ...]) -> Self:
        """Return an error with these `args` and no other attributes, without calling the constructor."""
        return cls.__new__(cls, *args)


class ConfigError(MqbridgeError):
    """Invalid configuration.

    `location` reads like ``file.yaml:12`` and `path` like ``routes[0].to.topic``; `hint` tells how to correct the value. Each
    of these may be empty.
    """

    def __init__(self, problem: str, *, location: str = "", path: str = "", hint: str = "") -> None:
        self.problem, self.location = problem, location
        self.path, self.hint = path, hint
        where = ": ".join(part for part in (location, path) if part)
        super().__init__(f"{where + ': ' if where else ''}{problem}{'. ' + hint if hint else ''}")


class ProtocolError(MqbridgeError):
    """Bytes or calls that violate the protocol."""


class LocalProtocolError(ProtocolError):
    """We violated the protocol: a bug of mqbridge."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol; the connection must be closed."""


class ClusterError(MqbridgeError):
    """A request to a cluster failed; `failure` tells which remedy helps, see `Failure`."""

    def __init__(self, problem: str, failure: Failure = Failure.RETRY) -> None:
        super().__init__(problem)
        self.failure = failure


class Unreachable(ClusterError):
    """No connection could be made; the text names every address that was tried."""


class ConnectionLost(ClusterError):
    """The connection ended before the response."""


class PeerSilent(ConnectionLost):
    """We closed the connection, because the server sent nothing for too long."""


class RequestTimeout(ClusterError):
    """No response within the deadline of the request."""


class ServerRefused(ClusterError):
    """The server responded with `code`, an error code of its protocol. Despite the name, `failure` may be of every kind."""

    def __init__(self, problem: str, code: int, failure: Failure) -> None:
        super().__init__(problem, failure)
        self.code = code


class NotPermitted(ServerRefused):
    """An administrator does not permit the request now, and may permit it again.

    A permission is missing, a topic or a group is closed, or a limit is reached. `failure` is FATAL in general: a single request
    is not repeated. A route waits until it is permitted.
    """


class TopicTerminated(ServerRefused):
    """The topic was terminated: it accepts no more messages, and no administrator can take that back."""


class TopicChanged(ClusterError):
    """The topic of an open producer was deleted, became partitioned, or has no partition of this number any more.

    The producer has ended, and has created nothing. Opening the topic again shows what there is now.
    """

    def __init__(self, problem: str, failure: Failure = Failure.FATAL) -> None:
        super().__init__(problem, failure)


class WrongEventLoop(ClusterError):
    """A client, or a producer or consumer of it, was used outside of the event loop that it belongs to.

    Nothing was sent. Each event loop needs a client of its own; each `asyncio.run` makes a new event loop.
    """

    def __init__(self, problem: str, failure: Failure = Failure.FATAL) -> None:
        super().__init__(problem, failure)


class LaneRevoked(MqbridgeError):
    """The partition of a lane was revoked; acknowledgements of its messages are ignored from then on."""


class GapError(MqbridgeError):
    """The source no longer holds messages that were never read.

    `resume` is the first position after the gap that the source still holds. It is None if the source's positions start again
    below those that were read, as after a backup was restored: it is then unknown which of its messages were read.

    `went_back` is set if the source ended before the position at which reading was to continue, for an unknown reason: its end,
    and that position. Growth beyond the position must not hide that the messages between them were never read.
    """

    def __init__(
        self,
        problem: str,
        resume: tuple[int, ...] | None = None,
        *,
        went_back: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__(problem)
        self.resume = resume
        self.went_back = went_back


class DeliveryError(MqbridgeError):
    """A message could not be stored in a target, or in the route's dead-letter topic.

    `failure` is REFUSED if a retry does not help, FATAL if it helps only after a person has changed something.
    """

    def __init__(self, problem: str, failure: Failure = Failure.RETRY) -> None:
        super().__init__(problem)
        self.failure = failure


class MappingError(MqbridgeError):
    """A message has a value that the target system cannot represent."""


def is_transient(error: Exception) -> bool:
    """Return True if a retry may succeed without any change by a person."""
    return isinstance(error, ClusterError) and error.failure in {Failure.RETRY, Failure.REFRESH}


def can_be_permitted(error: Exception) -> bool:
    """Return True if the failure ends without a change of the configuration: it is transient, or something is not permitted."""
    return is_transient(error) or isinstance(error, NotPermitted)


def can_be_undone(error: Exception) -> bool:
    """Return True if somebody may have caused this failure of a request that succeeded before, and can undo it."""
    return isinstance(error, ClusterError) and error.failure is not Failure.REFUSED and not isinstance(error, TopicTerminated)


class RefusalReason(Enum):
    """Why a listener refuses a request; each protocol has an error code for each reason."""

    TOPIC_MISSING = "topic missing"
    GROUP_MISSING = "group missing"
    INVALID_NAME = "invalid name"
    NOT_ALLOWED = "not allowed"
    """The configuration, or the backing, does not permit it, now or later."""
    BUSY = "busy"
    """Another client, or another gateway, has what is asked for."""
    NOT_READY = "not ready"
    """It cannot be done now: the client may try again."""
    INCOMPATIBLE = "incompatible"
    """A schema is invalid, or does not fit the one that the topic has."""


class RequestRefused(MqbridgeError):
    """A listener refuses a request of a client. The text is sent to it, so it names nothing that the client must not know."""

    def __init__(self, problem: str, reason: RefusalReason) -> None:
        super().__init__(problem)
        self.reason = reason
