"""Every exception that mqbridge raises on purpose.

    MqbridgeError
    ├── ConfigError                invalid configuration: its location, and the nearest valid word
    ├── ProtocolError              bytes or calls that violate the protocol
    │   ├── LocalProtocolError     we tried something illegal: a bug of mqbridge
    │   └── RemoteProtocolError    the peer sent something illegal: the connection is closed
    ├── ClusterError               a request to a cluster failed; `failure` says what helps
    │   ├── Unreachable            no connection could be made
    │   ├── ConnectionLost         the connection ended before the response
    │   │   └── PeerSilent         we closed it, because the server sent nothing for too long
    │   ├── RequestTimeout         no response within the deadline
    │   └── ServerRefused          the server responded with an error code of its protocol
    ├── LaneRevoked                another consumer holds the partition now; the normal end of a lane, not an error
    ├── GapError                   the source lost data that was never read: the partition stops and reports it
    ├── DeliveryError              a message could not be stored anywhere that its route allows
    └── MappingError               a message has a value that the target cannot represent

Any other exception that escapes is a bug. Each error text says what is wrong, where, and what to do next.
"""

from enum import Enum


class Failure(Enum):
    """The remedy for a failure; every system's error table maps its own codes to one of these."""

    RETRY = "retry"
    """Transient: the same request may succeed later."""
    REFRESH = "refresh"
    """The route to the partition changed: refresh the metadata, then retry."""
    REFUSED = "refused"
    """This message will never be accepted as it is; other messages will."""
    FATAL = "fatal"
    """Nothing will be accepted until a person changes something (rights, missing topic, wrong configuration)."""


class MqbridgeError(Exception):
    """The root of the tree."""


class ConfigError(MqbridgeError):
    """Invalid configuration.

    `location` reads like ``file.yaml:12`` and `path` like ``routes[0].to.topic``; both may be empty.
    """

    def __init__(self, problem: str, *, location: str = "", path: str = "", hint: str = "") -> None:
        self.problem, self.location, self.path, self.hint = problem, location, path, hint
        where = ": ".join(part for part in (location, path) if part)
        super().__init__(f"{where + ': ' if where else ''}{problem}{'. ' + hint if hint else ''}")


class ProtocolError(MqbridgeError):
    """Bytes or calls that violate the protocol."""


class LocalProtocolError(ProtocolError):
    """We tried something illegal."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something illegal; the connection must be closed."""


class ClusterError(MqbridgeError):
    """A request to a cluster failed. `failure` tells the caller what helps."""

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
    """The server responded with an error code of its protocol."""

    def __init__(self, problem: str, code: int, failure: Failure) -> None:
        super().__init__(problem, failure)
        self.code = code


class LaneRevoked(MqbridgeError):
    """The lane's partition was revoked; a late acknowledgement of its messages is ignored."""


class GapError(MqbridgeError):
    """The source no longer holds messages that were never read.

    `resume` is the first position that it still holds; None if its positions went back, so that it is unknown what was read.
    """

    def __init__(self, problem: str, resume: tuple[int, ...] | None = None) -> None:
        super().__init__(problem)
        self.resume = resume


class DeliveryError(MqbridgeError):
    """A message could not be stored, and its route has no dead-letter topic for it.

    `failure` is REFUSED if a retry does not help.
    """

    def __init__(self, problem: str, failure: Failure = Failure.RETRY) -> None:
        super().__init__(problem)
        self.failure = failure


class MappingError(MqbridgeError):
    """A message has a value that the target system cannot represent."""
