"""Every exception that mqbridge raises on purpose.

    MqbridgeError
    ├── ConfigError                what a person wrote cannot be used: where it stands, and the nearest right word
    ├── ProtocolError              bytes or calls that the protocol does not allow
    │   ├── LocalProtocolError     we tried something illegal: a bug of ours
    │   └── RemoteProtocolError    the peer sent something illegal: the connection is closed
    ├── ClusterError               a cluster did not do what was asked; `failure` says what helps
    │   ├── Unreachable            no connection could be made
    │   ├── ConnectionLost         the connection ended while an answer was due
    │   │   └── PeerSilent         we ended it, because the server had said nothing for too long
    │   ├── RequestTimeout         no answer within the deadline
    │   └── ServerRefused          the server answered with an error code of its own
    ├── LaneRevoked                the partition now belongs to another consumer; not an error, the way a lane ends
    ├── GapError                   the source lost data that was never read: the partition stops and says so
    ├── DeliveryError              a message could not be stored anywhere that its route allows
    └── MappingError               a message says something that the target cannot carry

Anything else that escapes is a bug. Each message says what was wrong, where, and what to do next.
"""

from enum import Enum


class Failure(Enum):
    """What helps after a failure; every system's error table maps its own codes to one of these."""

    RETRY = "retry"
    """Transient: the same request may succeed later."""
    REFRESH = "refresh"
    """The route to the partition changed: look it up again, then retry."""
    REFUSED = "refused"
    """This message will never be accepted as it is; others will."""
    FATAL = "fatal"
    """Nothing will be accepted until a person changes something (rights, missing topic, wrong configuration)."""


class MqbridgeError(Exception):
    """The root of the tree."""


class ConfigError(MqbridgeError):
    """A configuration that cannot be used.

    `place` reads like ``file.yaml:12`` and `path` like ``routes[0].to.topic``; both may be empty.
    """

    def __init__(self, problem: str, *, place: str = "", path: str = "", hint: str = "") -> None:
        self.problem, self.place, self.path, self.hint = problem, place, path, hint
        where = ": ".join(part for part in (place, path) if part)
        super().__init__(f"{where + ': ' if where else ''}{problem}{'. ' + hint if hint else ''}")


class ProtocolError(MqbridgeError):
    """Bytes or calls that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """We tried something illegal."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something illegal; the connection is of no further use."""


class ClusterError(MqbridgeError):
    """A cluster did not do what was asked. `failure` tells the caller what helps."""

    def __init__(self, problem: str, failure: Failure = Failure.RETRY) -> None:
        super().__init__(problem)
        self.failure = failure


class Unreachable(ClusterError):
    """No connection could be made; names every address that was tried."""


class ConnectionLost(ClusterError):
    """The connection ended while an answer was due."""


class PeerSilent(ConnectionLost):
    """The connection was ended, because the server had said nothing for too long."""


class RequestTimeout(ClusterError):
    """No answer came within the deadline of the request."""


class ServerRefused(ClusterError):
    """The server answered with an error code of its own protocol."""

    def __init__(self, problem: str, code: int, failure: Failure) -> None:
        super().__init__(problem, failure)
        self.code = code


class LaneRevoked(MqbridgeError):
    """The lane's partition was taken away; a late acknowledgement of it is ignored."""


class GapError(MqbridgeError):
    """The source no longer holds messages that were never read.

    `resume`: the position of what it holds next; None when it went back, so that nobody can tell what of it was read.
    """

    def __init__(self, problem: str, resume: tuple[int, ...] | None = None) -> None:
        super().__init__(problem)
        self.resume = resume


class DeliveryError(MqbridgeError):
    """A message could not be stored, and its route has no place for such messages.

    `failure` is REFUSED where trying again does not help.
    """

    def __init__(self, problem: str, failure: Failure = Failure.RETRY) -> None:
        super().__init__(problem)
        self.failure = failure


class MappingError(MqbridgeError):
    """A message says something that the target system cannot carry."""
