"""State machine of one producer: its registration at a broker, and what the broker has said about it. No IO happens here.

    DETACHED -> REGISTERING -> REGISTERED -> DETACHED -> ... -> ENDED
                REGISTERING -> WAITING -> REGISTERED

    REGISTERING  a PRODUCER command has no response yet. Each PRODUCER has a number, the `epoch`, by which the broker recognizes
                 the producer's newest registration
    WAITING      another producer has exclusive access; the broker registers this one when the other one closes
    ENDED        for good; `end_error` says why

A producer with a configured name may be its `sole_sender`. If the broker then has a higher sequence id of this name than the
producer has sent, another producer has used the name while the connection was lost: the broker could drop pending entries as
duplicates of the other one's. `foreign_sequence_id` is that id.
"""

from enum import Enum, auto

from mqbridge.errors import ClusterError, LocalProtocolError
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb


class State(Enum):
    """State of a producer's registration; the module's docstring explains them."""

    DETACHED = auto()
    REGISTERING = auto()
    WAITING = auto()
    REGISTERED = auto()
    ENDED = auto()


class Event(Enum):
    """Event that changes the state."""

    REGISTER = auto()
    NOT_READY = auto()
    SUCCESS = auto()
    DETACH = auto()
    END = auto()


S, E = State, Event

TRANSITIONS = {
    (S.DETACHED, E.REGISTER): S.REGISTERING,
    (S.DETACHED, E.DETACH): S.DETACHED,  # the broker has closed the producer, and now its connection ends
    (S.DETACHED, E.END): S.ENDED,
    (S.REGISTERING, E.REGISTER): S.REGISTERING,  # the previous attempt has failed
    (S.REGISTERING, E.NOT_READY): S.WAITING,
    (S.REGISTERING, E.SUCCESS): S.REGISTERED,
    (S.REGISTERING, E.DETACH): S.DETACHED,
    (S.REGISTERING, E.END): S.ENDED,
    (S.WAITING, E.REGISTER): S.REGISTERING,  # the wait has failed
    (S.WAITING, E.SUCCESS): S.REGISTERED,
    (S.WAITING, E.DETACH): S.DETACHED,
    (S.WAITING, E.END): S.ENDED,
    (S.REGISTERED, E.DETACH): S.DETACHED,
    (S.REGISTERED, E.END): S.ENDED,
    (S.ENDED, E.DETACH): S.ENDED,
    (S.ENDED, E.SUCCESS): S.ENDED,  # the response to an attempt that was in progress
    (S.ENDED, E.END): S.ENDED,
}
"""(state, event) -> next state. An event that the table does not list for a state is a bug."""


class ProducerState:
    """State of one producer. `name` is its configured name, None if the broker generates it."""

    def __init__(self, name: str | None, *, sole_sender: bool) -> None:
        self.link = S.DETACHED
        self.name = name
        """Name of the producer; None until the broker has generated it, if none is configured."""
        self.epoch = -1
        """Number of the last PRODUCER command; -1 before the first one."""
        self.registrations = 0
        """Number of successful registrations at a broker."""
        self.last_sequence_id = -1
        """The highest sequence id of this name that the broker had stored at the first registration; -1 if none."""
        self.topic_epoch: int | None = None
        """The number that the broker assigned to this producer's exclusive access; None without exclusive access."""
        self.foreign_sequence_id: int | None = None
        """The last sequence id of another producer that used this name; None if there was none, or it is allowed."""
        self.closing = False
        """True once the producer is to close: it only waits for receipts."""
        self.end_error: ClusterError | None = None
        """The error that ended the producer; None while it has not ended."""
        self._sole_sender = sole_sender

    def _transition(self, event: Event) -> None:
        try:
            self.link = TRANSITIONS[self.link, event]
        except KeyError:
            raise LocalProtocolError(f"invalid transition of a Pulsar producer: {event.name} in state {self.link.name}") from None

    @property
    def was_opened(self) -> bool:
        """True once a broker has accepted the producer."""
        return self.registrations > 0

    def begin_register(self) -> int:
        """Begin a registration; return the epoch for its PRODUCER."""
        self._transition(E.REGISTER)
        self.epoch += 1
        return self.epoch

    def on_not_ready(self) -> None:
        """Record that the producer waits for exclusive access."""
        self._transition(E.NOT_READY)

    def on_response(self, response: pb.CommandProducerSuccess, *, is_own: bool) -> None:
        """Record what the broker says of a producer that it has registered.

        `is_own`: the last sequence id can be from this producer. The registration counts only with `on_registered`.
        """
        if response.HasField("topic_epoch"):
            self.topic_epoch = response.topic_epoch
        if not self.was_opened:
            self.name, self.last_sequence_id = response.producer_name, response.last_sequence_id
        elif self._sole_sender and not is_own:
            self.foreign_sequence_id = response.last_sequence_id

    def on_registered(self) -> bool:
        """Record that the registration counts; return False if the producer has ended meanwhile."""
        self._transition(E.SUCCESS)
        self.registrations += self.link is S.REGISTERED
        return self.link is S.REGISTERED

    def on_detached(self) -> None:
        """Record that the registration, or an attempt to register, has ended."""
        self._transition(E.DETACH)

    def on_ended(self, error: ClusterError) -> None:
        """Record that the producer has ended for good; the last error counts."""
        self._transition(E.END)
        self.end_error = error
