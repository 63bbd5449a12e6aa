"""State machine of one consumer and its positions in the topic: a table per axis, a method per transition. No IO.

    link   DETACHED -> SUBSCRIBING -> SUBSCRIBED -> DETACHED -> ... -> ENDED
           Each SUBSCRIBE has a number, the `epoch`, which the broker repeats on entries.
    role   STANDBY <-> ACTIVE
           The broker's last ACTIVE_CONSUMER_CHANGE on a failover subscription. Other types are always ACTIVE.
    progress  FRESH -> READING -> FRESH -> ...;  SEEKING while a SEEK has no response
           FRESH: nothing was delivered in this generation. A generation begins whenever positions are set back or become invalid.

An entry is accepted only while the consumer is SUBSCRIBED, ACTIVE and not SEEKING, and only from the current epoch. If one
consumer has the whole topic in order, only entries after `delivered` are accepted: entries that the broker repeats after a lost
connection are skipped.

    delivered      the last entry delivered to the application in this generation
    acked_up_to    the application has acknowledged everything up to this entry; never after `delivered`
    last_sent_ack  the last cumulative acknowledgement that was sent
    reader_start   where a reader begins before its first delivery; the first SUBSCRIBE replaces LATEST by the cursor

    last_sent_ack <= acked_up_to <= delivered, if one consumer has the whole topic and acknowledges cumulatively

All positions are discarded together when the next position is decided elsewhere: by a seek, by another consumer that becomes
active (failover), by an operator's reset, or by the migration of the topic to another cluster.

On a reset the broker closes the consumer, and its cursor is then before `last_sent_ack`, or before the first entry of the
generation. An acknowledgement in flight when the broker closed the consumer looks the same; then entries are delivered twice.
After a lost connection an older cursor means lost acknowledgements (a killed broker forgets those of the last seconds): then the
positions stay, and `last_sent_ack` is sent again.
"""

from enum import Enum, auto

from mqbridge.errors import LocalProtocolError
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.ids import EntryId, entry_id
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageIdData


class State(Enum):
    """States of all three axes."""

    DETACHED = auto()
    SUBSCRIBING = auto()
    SUBSCRIBED = auto()
    ENDED = auto()

    STANDBY = auto()
    ACTIVE = auto()

    FRESH = auto()
    READING = auto()
    SEEKING = auto()


class Event(Enum):
    """Events of all three axes."""

    SUBSCRIBE = auto()
    SUCCESS = auto()
    DETACH = auto()
    END = auto()

    ACTIVATE = auto()
    DEACTIVATE = auto()

    DELIVER = auto()
    REWIND = auto()
    FORGET = auto()
    SEEK = auto()
    SEEK_DONE = auto()


S, E = State, Event

LINK = {
    (S.DETACHED, E.SUBSCRIBE): S.SUBSCRIBING,
    (S.DETACHED, E.DETACH): S.DETACHED,  # the broker closes the consumer, then the connection ends
    (S.DETACHED, E.END): S.ENDED,
    (S.SUBSCRIBING, E.SUBSCRIBE): S.SUBSCRIBING,  # the previous attempt has failed
    (S.SUBSCRIBING, E.SUCCESS): S.SUBSCRIBED,
    (S.SUBSCRIBING, E.DETACH): S.DETACHED,
    (S.SUBSCRIBING, E.END): S.ENDED,
    (S.SUBSCRIBED, E.DETACH): S.DETACHED,
    (S.SUBSCRIBED, E.END): S.ENDED,
    (S.ENDED, E.DETACH): S.ENDED,
    (S.ENDED, E.END): S.ENDED,
}

ROLE = {
    (S.STANDBY, E.ACTIVATE): S.ACTIVE,
    (S.STANDBY, E.DEACTIVATE): S.STANDBY,  # repeated after every SUBSCRIBE
    (S.ACTIVE, E.ACTIVATE): S.ACTIVE,
    (S.ACTIVE, E.DEACTIVATE): S.STANDBY,
}

PROGRESS = {
    (S.FRESH, E.DELIVER): S.READING,
    (S.FRESH, E.REWIND): S.FRESH,
    (S.FRESH, E.FORGET): S.FRESH,
    (S.FRESH, E.SEEK): S.SEEKING,
    (S.READING, E.DELIVER): S.READING,
    (S.READING, E.REWIND): S.FRESH,
    (S.READING, E.FORGET): S.FRESH,
    (S.READING, E.SEEK): S.SEEKING,
    (S.SEEKING, E.FORGET): S.SEEKING,
    (S.SEEKING, E.REWIND): S.SEEKING,  # the seek decides
    (S.SEEKING, E.SEEK): S.SEEKING,
    (S.SEEKING, E.SEEK_DONE): S.FRESH,
    (S.FRESH, E.SEEK_DONE): S.FRESH,  # the second of two concurrent seeks
}


def _next(table: dict[tuple[State, Event], State], state: State, event: Event) -> State:
    try:
        return table[state, event]
    except KeyError:
        raise LocalProtocolError(f"invalid transition of a Pulsar consumer: {event.name} in state {state.name}") from None


def _last_whole(mark: MessageIdData) -> EntryId:
    """Return the last entry whose messages are all acknowledged by this cumulative acknowledgement."""
    ledger, entry = entry_id(mark)
    return ledger, entry - 1 if mark.ack_set else entry


class ConsumerState:
    """State of one consumer.

    `in_order` is True if the consumer has the whole topic in order, with ascending ids. `start` is the start of a reader, None
    for a durable subscription.
    """

    def __init__(self, *, in_order: bool, failover: bool, start: EntryId | None) -> None:
        self.link, self.role, self.progress = S.DETACHED, S.STANDBY if failover else S.ACTIVE, S.FRESH
        self.epoch = -1
        self.generation = 0
        """Number of the generation. Acknowledgements and responses that belong to an older one have no effect."""
        self.reader_start = start
        self.delivered = self.acked_up_to = ids.EARLIEST
        self.last_skipped: EntryId = ids.EARLIEST
        """The last entry that was skipped: a repeated chunk, or an entry whose messages are all acknowledged."""
        self.last_sent_ack: MessageIdData | None = None
        self.ack_may_be_lost = False
        """True if `last_sent_ack` may not have reached the broker and must be sent again."""
        self._in_order, self._is_reader = in_order, start is not None
        self._resume_at: EntryId = ids.EARLIEST
        self._floor: EntryId = ids.EARLIEST
        """The cursor that replaced LATEST: a reader subscribes at this entry, but does not deliver it."""
        self._before_first: EntryId = ids.EARLIEST
        """The entry before the first one of this generation, or a later cursor. An earlier cursor means that the subscription
        was reset."""
        self._start_known = start != ids.LATEST
        self._closed = False
        """True if the broker has closed the consumer since the last SUBSCRIBE."""
        self._acks_individually = False
        """True after the first individual acknowledgement by the application, which may send more of them."""

    # --- link and role ----------------------------------------------------------------------------------------------

    def subscribing(self) -> EntryId | None:
        """Begin a SUBSCRIBE; return the start of a reader, None for a durable subscription."""
        self.link = _next(LINK, self.link, E.SUBSCRIBE)
        self.epoch += 1
        return self.reader_start if self.progress is S.FRESH or not self._is_reader else self._resume_at

    @property
    def needs_cursor(self) -> bool:
        """True if `subscribed` needs the broker's cursor."""
        if self._is_reader:
            return not self._start_known
        return self.last_sent_ack is not None or (self._closed and self._in_order and self.progress is S.READING)

    def subscribed(self, cursor: EntryId | None) -> bool:
        """Note a successful SUBSCRIBE; `cursor` is the last entry acknowledged at the broker, None if unknown.

        Return True if the subscription was reset by somebody else, so that all positions were discarded.
        """
        self.link = _next(LINK, self.link, E.SUCCESS)
        closed, self._closed = self._closed, False
        self.ack_may_be_lost = False
        if self._is_reader:
            if not self._start_known and cursor is not None:
                self.reader_start, self._start_known = cursor, True
                self._floor = cursor
                self.delivered = max(self.delivered, cursor)
            return False
        known = self._before_first if self.last_sent_ack is None else max(self._before_first, _last_whole(self.last_sent_ack))
        if cursor is not None and cursor >= known:
            self._before_first = max(self._before_first, cursor)
            return False
        if closed and cursor is not None and known[1] >= 0:  # else no cursor can have exactly this position
            self.forget()
            return True
        self.ack_may_be_lost = self.last_sent_ack is not None
        return False

    def detached(self, first_open: EntryId, *, closed: bool = False) -> bool:
        """Note the end of the registration: `closed` by the broker, or by a lost connection, or by this client.

        `first_open` is the result of `ReceiverQueue.first_open`. Return True if entries that were delivered are skipped when the
        broker repeats them after the next SUBSCRIBE.
        """
        was_subscribed = self.link is S.SUBSCRIBED
        self.link = _next(LINK, self.link, E.DETACH)
        self._closed |= closed
        if not self._in_order:
            self.delivered = ids.EARLIEST
        elif self._acks_individually:
            # Individual acknowledgements may be lost (a killed broker also forgets those of earlier connections). No later
            # acknowledgement covers them, so the entries must be delivered again.
            self.rewind()
        if was_subscribed:
            self._resume_at = min(self.delivered, first_open)
        return self._in_order and not self._acks_individually

    def activated(self) -> None:
        """Note that the broker delivers to this consumer."""
        self.role = _next(ROLE, self.role, E.ACTIVATE)

    def deactivated(self) -> None:
        """Note that the broker delivers to another consumer, whose acknowledgements now move the cursor."""
        self.role = _next(ROLE, self.role, E.DEACTIVATE)
        self.forget()

    def ended(self) -> None:
        """Note the end of the consumer."""
        self.link = _next(LINK, self.link, E.END)

    @property
    def takes_entries(self) -> bool:
        """True if entries of the current epoch are accepted."""
        return self.link is S.SUBSCRIBED and self.role is S.ACTIVE and self.progress is not S.SEEKING

    # --- positions --------------------------------------------------------------------------------------------------

    def is_current(self, epoch: int | None) -> bool:
        """Return True if entries of this epoch are accepted (None: the broker does not send epochs)."""
        return self.takes_entries and (epoch is None or epoch >= self.epoch)

    def is_new(self, entry: EntryId) -> bool:
        """Return False for an entry that was already delivered, before its connection was lost."""
        return not self._in_order or entry > self.delivered

    def needs_ack(self, entry: EntryId) -> bool:
        """Return True if the application has acknowledged the entry, but no acknowledgement was sent to the broker.

        That happens if an earlier chunked message was incomplete at the time.
        """
        return (
            self._in_order
            and entry <= self.acked_up_to
            and (self.last_sent_ack is None or entry > _last_whole(self.last_sent_ack))
        )

    def skip(self, entry: EntryId) -> None:
        """Note an entry that is not delivered: a repeated chunk, or an entry whose messages are all acknowledged."""
        self.last_skipped = max(self.last_skipped, entry)

    def deliver(self, entry: EntryId, first_chunk: EntryId | None = None) -> None:
        """Note the delivery of an entry to the application."""
        if self.progress is S.FRESH:
            ledger, begin = first_chunk or entry
            self._before_first = ledger, begin - 1
        if self.progress is not S.READING:  # READING stays READING
            self.progress = _next(PROGRESS, self.progress, E.DELIVER)
        self.delivered = max(self.delivered, entry)

    def acknowledged(self, entry: EntryId, *, whole: bool = True) -> bool:
        """Note a cumulative acknowledgement before this entry; including the entry if `whole`.

        Return False for an entry of another generation.
        """
        if self.progress is not S.READING or entry > self.delivered:
            return False
        self.acked_up_to = max(self.acked_up_to, entry if whole else (entry[0], entry[1] - 1))
        return True

    def acknowledged_individually(self) -> None:
        """Note the acknowledgement of a single entry on an ordered subscription."""
        self._acks_individually = self._in_order

    def ack_sent(self, mark: MessageIdData) -> None:
        """Note that a cumulative acknowledgement is sent."""
        self.last_sent_ack, self.ack_may_be_lost = mark, False

    def rewind(self) -> None:
        """Set the positions back to the last acknowledged entry; a new SUBSCRIBE redelivers everything after it."""
        self.progress = _next(PROGRESS, self.progress, E.REWIND)
        self.generation += 1
        self.delivered = self._resume_at = max(self.acked_up_to, self._floor)

    def forget(self) -> None:
        """Discard all positions; the broker's cursor decides where delivery continues."""
        self.progress = _next(PROGRESS, self.progress, E.FORGET)
        self.generation += 1
        self.delivered = self.acked_up_to = self.last_skipped = ids.EARLIEST
        self._resume_at = self._floor = self._before_first = ids.EARLIEST
        self.last_sent_ack, self.ack_may_be_lost, self._closed = None, False, False

    def migrated(self) -> None:
        """Note the migration to another cluster, which has other ids; a reader starts at the earliest entry there."""
        self.forget()
        if self._is_reader:
            self.reader_start, self._start_known = ids.EARLIEST, True

    def seeking(self) -> None:
        """Begin a SEEK. Entries that arrive now may be from before or after the SEEK, and an acknowledgement would undo it."""
        self.progress = _next(PROGRESS, self.progress, E.SEEK)
        self.last_sent_ack, self.ack_may_be_lost = None, False

    def seek_done(self, to: EntryId | None) -> None:
        """Note the end of a SEEK, even if its result is unknown.

        `to` is None for a SEEK to a publish time: then the cursor shows the entry.
        """
        self.forget()
        self.progress = _next(PROGRESS, self.progress, E.SEEK_DONE)
        if self._is_reader:
            # If the connection is lost before the entry of a publish time is known, the reader starts at the earliest entry:
            # it reads too much rather than too little.
            self.reader_start, self._start_known = to or ids.EARLIEST, to is not None and to != ids.LATEST
