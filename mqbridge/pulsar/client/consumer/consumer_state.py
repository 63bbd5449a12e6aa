"""State machine of one consumer, and the consumer's positions in the topic.

The state has four independent axes. Each axis has a table of its transitions, and a method for each event. No IO happens here.

    link   DETACHED -> SUBSCRIBING -> SUBSCRIBED -> DETACHED -> ... -> ENDED
           Each SUBSCRIBE has a number, the `epoch`. The broker sends it back with each entry.
           ENDED: by `end_error`, for good; every later call of the application raises this error.
    intent OPEN -> CLOSED;  UNSUBSCRIBING while UNSUBSCRIBE has no response
           What the application has asked for. CLOSED precedes ENDED while the consumer is being closed, and follows it if the
           consumer failed before.
    role   STANDBY <-> ACTIVE
           The broker's last ACTIVE_CONSUMER_CHANGE on a failover subscription. Other types are always ACTIVE.
    progress  AT_START -> READING -> AT_START -> ...;  SEEKING while a SEEK has no response
           AT_START: nothing was delivered in this generation. A new generation begins whenever the positions are set back or
           become invalid.

An entry is accepted only while the consumer is SUBSCRIBED, ACTIVE and not SEEKING, and not from an earlier epoch. If one
consumer receives the whole topic in order, only entries after `delivered` are accepted. So entries that the broker repeats after
a lost connection are skipped.

    delivered      the last entry delivered to the application in this generation
    acked_up_to    the application has acknowledged everything up to this entry; never after `delivered`
    last_sent_ack  the last cumulative acknowledgement that was sent
    _confirmed     the last of the sent ones that the broker has received for certain
    reader_start   the first entry that a reader (a consumer without a durable subscription) requests, until its first delivery.
                   LATEST is replaced after the first SUBSCRIBE by the broker's cursor, the newest entry at that time.

If one consumer receives the whole topic and acknowledges cumulatively, _confirmed <= last_sent_ack <= acked_up_to <= delivered.

All positions are discarded together when the next position is decided elsewhere: by a seek, by another consumer that becomes
active (failover), by an operator's reset, or by the migration of the topic to another cluster.

The cursor is the broker's position of the subscription: the last entry that is acknowledged there. An operator may reset it, also
while the consumer is not connected. So it is requested after a SUBSCRIBE has succeeded, if `needs_cursor`, and compared with the
position that the broker had for certain. That position depends on how the last registration ended:

- The broker closed the consumer, or this client left it over a live connection to subscribe again: `last_sent_ack`. An
  acknowledgement that was in flight when the broker closed the consumer looks like a reset; entries are then delivered twice.
- The connection was lost: `_confirmed`, because later acknowledgements may be lost with it.
- In any case, the position before the first entry of the generation.

If the cursor is older, the subscription was reset, or a killed broker has forgotten its newest acknowledgements. These two cannot
be told apart, so all positions are discarded: entries are delivered twice rather than never. Otherwise the positions stay, and
`last_sent_ack` is sent again if the cursor does not include it. A reset that would leave no trace is assumed in two cases:

- The broker does not report the cursor: it is too old, or it refuses the request for good.
- Entries were acknowledged one by one, and the connection was lost or the broker closed the consumer: the reset may have been to
  a position between them.

One reset is not noticed: entries are acknowledged one by one, the consumer leaves to subscribe again, and before that the reset
sets the cursor to where it was. Then messages of partly acknowledged batches are not delivered again.
"""

from enum import Enum, auto

from mqbridge.errors import ClusterError, LocalProtocolError
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.ids import EntryId, entry_id
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageIdData


class State(Enum):
    """The states of the four axes: link, intent, role and progress."""

    DETACHED = auto()
    SUBSCRIBING = auto()
    SUBSCRIBED = auto()
    ENDED = auto()

    OPEN = auto()
    UNSUBSCRIBING = auto()
    CLOSED = auto()

    STANDBY = auto()
    ACTIVE = auto()

    AT_START = auto()
    READING = auto()
    SEEKING = auto()


class Event(Enum):
    """The events of the four axes: link, intent, role and progress."""

    SUBSCRIBE = auto()
    SUCCESS = auto()
    DETACH = auto()
    END = auto()

    UNSUBSCRIBE = auto()
    UNSUBSCRIBE_DONE = auto()
    CLOSE = auto()

    ACTIVATE = auto()
    DEACTIVATE = auto()

    DELIVER = auto()
    REWIND = auto()  # the positions are set back to the last acknowledged entry
    FORGET = auto()  # all positions are discarded
    SEEK = auto()
    SEEK_DONE = auto()


S, E = State, Event

# The tables: (state, event) -> next state. An event that a table does not list for a state is a bug.

LINK = {
    (S.DETACHED, E.SUBSCRIBE): S.SUBSCRIBING,
    (S.DETACHED, E.DETACH): S.DETACHED,  # the broker has closed the consumer, and now its connection ends
    (S.DETACHED, E.END): S.ENDED,
    (S.SUBSCRIBING, E.SUBSCRIBE): S.SUBSCRIBING,  # the previous attempt has failed
    (S.SUBSCRIBING, E.SUCCESS): S.SUBSCRIBED,
    (S.SUBSCRIBING, E.DETACH): S.DETACHED,
    (S.SUBSCRIBING, E.END): S.ENDED,
    (S.SUBSCRIBED, E.DETACH): S.DETACHED,
    (S.SUBSCRIBED, E.END): S.ENDED,
    (S.ENDED, E.DETACH): S.ENDED,
    (S.ENDED, E.END): S.ENDED,  # a consumer that has failed is closed
}

INTENT = {
    (S.OPEN, E.UNSUBSCRIBE): S.UNSUBSCRIBING,
    (S.OPEN, E.UNSUBSCRIBE_DONE): S.OPEN,  # the response to the second of two concurrent calls
    (S.OPEN, E.CLOSE): S.CLOSED,
    (S.UNSUBSCRIBING, E.UNSUBSCRIBE): S.UNSUBSCRIBING,
    (S.UNSUBSCRIBING, E.UNSUBSCRIBE_DONE): S.OPEN,
    (S.UNSUBSCRIBING, E.CLOSE): S.CLOSED,
    (S.CLOSED, E.UNSUBSCRIBE): S.CLOSED,  # it raises the error with which the consumer was closed
    (S.CLOSED, E.UNSUBSCRIBE_DONE): S.CLOSED,
}

ROLE = {
    (S.STANDBY, E.ACTIVATE): S.ACTIVE,
    (S.STANDBY, E.DEACTIVATE): S.STANDBY,  # repeated after every SUBSCRIBE
    (S.ACTIVE, E.ACTIVATE): S.ACTIVE,
    (S.ACTIVE, E.DEACTIVATE): S.STANDBY,
}

PROGRESS = {
    (S.AT_START, E.DELIVER): S.READING,
    (S.AT_START, E.REWIND): S.AT_START,
    (S.AT_START, E.FORGET): S.AT_START,
    (S.AT_START, E.SEEK): S.SEEKING,
    (S.READING, E.DELIVER): S.READING,
    (S.READING, E.REWIND): S.AT_START,
    (S.READING, E.FORGET): S.AT_START,
    (S.READING, E.SEEK): S.SEEKING,
    (S.SEEKING, E.FORGET): S.SEEKING,
    (S.SEEKING, E.REWIND): S.SEEKING,  # the response to the SEEK will decide the positions
    (S.SEEKING, E.SEEK): S.SEEKING,
    (S.SEEKING, E.SEEK_DONE): S.AT_START,
    (S.AT_START, E.SEEK_DONE): S.AT_START,  # the response to the second of two concurrent seeks
}


def _next(table: dict[tuple[State, Event], State], state: State, event: Event) -> State:
    try:
        return table[state, event]
    except KeyError:
        raise LocalProtocolError(f"invalid transition of a Pulsar consumer: {event.name} in state {state.name}") from None


def _last_complete(ack: MessageIdData) -> EntryId:
    """Return the last entry whose messages are all acknowledged by this cumulative acknowledgement.

    With an `ack_set`, only a part of the messages of its own entry is acknowledged.
    """
    ledger, entry = entry_id(ack)
    return ledger, entry - 1 if ack.ack_set else entry


class ConsumerState:
    """State of one consumer.

    `in_order` is True if the consumer receives the whole topic in order, with ascending ids. `failover` is True for a failover
    subscription. `start` is the entry at which a reader begins, None for a durable subscription.
    """

    def __init__(self, *, in_order: bool, failover: bool, start: EntryId | None) -> None:
        self.link, self.intent = S.DETACHED, S.OPEN
        self.role, self.progress = S.STANDBY if failover else S.ACTIVE, S.AT_START
        self.end_error: ClusterError | None = None
        """The error with which the consumer has ended; None before `link` is ENDED."""
        self.epoch = -1
        """Number of the last SUBSCRIBE; -1 before the first one."""
        self.generation = 0
        """Number of the generation. Acknowledgements and responses that belong to an older one have no effect."""
        self.reader_start = start
        self.delivered = self.acked_up_to = ids.EARLIEST
        self.last_skipped: EntryId = ids.EARLIEST
        """The last entry that `record_skip` got. A check whether the topic is read to its end counts it as received."""
        self.last_sent_ack: MessageIdData | None = None
        self.ack_may_be_lost = False
        """True if `last_sent_ack` may not have reached the broker and must be sent again."""
        self._confirmed: EntryId = ids.EARLIEST
        """The last complete entry of the cumulative acknowledgements that the broker has received; EARLIEST if there is none."""
        self._checks: dict[int, EntryId] = {}
        """Number of a ping on the current connection -> the last complete entry that its response will confirm."""
        self.in_order, self._is_reader = in_order, start is not None
        self._resume_at: EntryId = ids.EARLIEST
        """The entry at which a reader subscribes after its first delivery. It is an earlier chunk that is still needed, or
        else the last delivered entry, which the broker sends again and `is_new` rejects."""
        self._floor: EntryId = ids.EARLIEST
        """The cursor that replaced LATEST, for a reader; EARLIEST without one. The entry at this cursor is never delivered."""
        self._before_first: EntryId = ids.EARLIEST
        """The entry before the first one that was delivered, or a later cursor; EARLIEST if nothing was since the last `forget`.

        A broker's cursor before it is older than expected.
        """
        self._start_known = start != ids.LATEST
        """True if `reader_start` is a definite entry, not LATEST."""
        self._closed_by_broker = False
        """True if the broker has closed the consumer since the last SUBSCRIBE."""
        self._left = False
        """True if this client has left the consumer over a live connection since the last SUBSCRIBE. The broker has received the
        acknowledgements that were sent before; but it reports a reset of the subscription to nobody until the next SUBSCRIBE."""
        self._moved = False
        """True if a SUBSCRIBE since the last successful one was not sent over the connection over which this client has left."""
        self._acks_individually = False
        """True after the application's first individual acknowledgement; more of them are expected."""

    # --- link, intent and role --------------------------------------------------------------------------------------

    def begin_subscribe(self, *, same_connection: bool = True) -> EntryId | None:
        """Begin a SUBSCRIBE; return the entry at which a reader subscribes, None for a durable subscription.

        `same_connection` is True if it is sent over the connection over which this client has left.
        """
        self.link = _next(LINK, self.link, E.SUBSCRIBE)
        self.epoch += 1
        self._moved |= not same_connection
        if self._is_reader and self.progress is not S.AT_START:
            return self._resume_at
        return self.reader_start

    @property
    def needs_cursor(self) -> bool:
        """True if `on_subscribed` needs the broker's cursor: to replace a reader's LATEST, or to notice a reset or lost acks."""
        if self._is_reader:
            return not self._start_known
        has_delivered = self._before_first != ids.EARLIEST  # not `progress`: after a rewind acknowledgements may still wait
        return self.in_order and has_delivered and self.progress is not S.SEEKING

    def on_subscribed(self, cursor: EntryId | None) -> bool:
        """Record a successful SUBSCRIBE; `cursor` is the last entry acknowledged at the broker.

        It is None if it was not needed, or the broker does not report it.

        Return True if the subscription was reset by an operator or another client, or if that cannot be excluded; then this call
        has discarded all positions.
        """
        needed_cursor = self.needs_cursor
        self.link = _next(LINK, self.link, E.SUCCESS)
        closed, self._closed_by_broker = self._closed_by_broker, False
        left, self._left = self._left, False
        moved, self._moved = self._moved, False
        self.ack_may_be_lost = False
        if self._is_reader:
            if not self._start_known and cursor is not None:
                self.reader_start, self._start_known = cursor, True
                self._floor = cursor
                self.delivered = max(self.delivered, cursor)
            return False
        if not needed_cursor:
            return False
        sent = ids.EARLIEST if self.last_sent_ack is None else _last_complete(self.last_sent_ack)
        expected = max(self._before_first, sent if closed or left else self._confirmed)
        # An entry id of -1 means the position before a ledger's first entry. The cursor is then in an earlier ledger even without
        # a reset, so it proves nothing. After leaving, which takes a moment, it does not count as a reset: else every redelivery
        # of a ledger's first entry would. If the connection was lost meanwhile, it took longer.
        proves_nothing = left and not closed and not moved and expected[1] < 0
        if cursor is None or (cursor < expected and not proves_nothing):
            self.forget()
            return True
        self._before_first = max(self._before_first, cursor)
        self.ack_may_be_lost = cursor < sent
        return False

    def on_detached(self, earliest_open_chunk: EntryId, *, closed: bool = False, left: bool = False) -> bool:
        """Record that the subscription, or an attempt to subscribe, has ended.

        `closed`: the broker closed the consumer. `left`: this client leaves it over a live connection, to subscribe again.

        `earliest_open_chunk` is the first chunk of the earliest chunked message that is still needed, LATEST if there is none.
        Return True if delivered entries are skipped when the broker repeats them after the next SUBSCRIBE.
        """
        was_subscribed = self.link is S.SUBSCRIBED
        self.link = _next(LINK, self.link, E.DETACH)
        self._closed_by_broker |= closed
        self._left |= left
        if not self.in_order:  # the broker redelivers unacknowledged entries in any order
            self.delivered = ids.EARLIEST
        elif self._acks_individually:
            # Individual acknowledgements may be lost: a killed broker forgets even those that came over earlier connections. A
            # later acknowledgement does not include them, so the entries must be delivered again. And the subscription may have
            # been reset to a position between them, which the cursor would not show.
            if left:
                self.rewind()
            else:
                self.forget()
        self._checks.clear()
        if was_subscribed:  # a failed attempt to subscribe received nothing, so the earlier value remains right
            self._resume_at = min(self.delivered, earliest_open_chunk)
        return self.in_order and not self._acks_individually

    def on_activated(self) -> None:
        """Record that the broker delivers to this consumer."""
        self.role = _next(ROLE, self.role, E.ACTIVATE)

    def on_deactivated(self) -> None:
        """Record that the broker delivers to another consumer, whose acknowledgements now move the cursor."""
        self.role = _next(ROLE, self.role, E.DEACTIVATE)
        self.forget()

    def on_ended(self, error: ClusterError) -> None:
        """Record that the consumer has ended for good, by this error; a later error replaces an earlier one."""
        self.link = _next(LINK, self.link, E.END)
        self.end_error = error

    def begin_close(self) -> None:
        """Record that the application closes the consumer."""
        self.intent = _next(INTENT, self.intent, E.CLOSE)

    def begin_unsubscribe(self) -> None:
        """Record that UNSUBSCRIBE is being sent; the broker then closes the consumer, before its response."""
        self.intent = _next(INTENT, self.intent, E.UNSUBSCRIBE)

    def end_unsubscribe(self) -> None:
        """Record the response to UNSUBSCRIBE, or its failure. If it was successful, the consumer has ended before."""
        self.intent = _next(INTENT, self.intent, E.UNSUBSCRIBE_DONE)

    @property
    def is_closed(self) -> bool:
        """True once the application has closed the consumer."""
        return self.intent is S.CLOSED

    @property
    def is_over(self) -> bool:
        """True once the consumer must not subscribe again: it has ended, or the application has closed it."""
        return self.link is S.ENDED or self.intent is S.CLOSED

    @property
    def subscribes_after_close(self) -> bool:
        """True if the consumer subscribes again after the broker has closed it.

        SEEK and UNSUBSCRIBE make the broker close the consumer; then their responses decide whether it subscribes again.
        """
        return self.intent is S.OPEN and self.progress is not S.SEEKING and self.link is not S.ENDED

    @property
    def accepts_entries(self) -> bool:
        """True if entries of the current epoch are accepted."""
        return self.link is S.SUBSCRIBED and self.role is S.ACTIVE and self.progress is not S.SEEKING

    # --- positions --------------------------------------------------------------------------------------------------

    def accepts_epoch(self, epoch: int | None) -> bool:
        """Return True if entries of this epoch are accepted; `epoch` is None if the broker does not send epochs."""
        return self.accepts_entries and (epoch is None or epoch >= self.epoch)

    def is_new(self, entry: EntryId) -> bool:
        """Return False for a redelivered entry that the application already has from an earlier connection."""
        return not self.in_order or entry > self.delivered

    def needs_ack(self, entry: EntryId) -> bool:
        """Return True if the application has acknowledged the entry, but no acknowledgement of it was sent to the broker.

        That happens if an earlier chunked message was incomplete: the cumulative acknowledgement had to stop before that message.
        """
        return (
            self.in_order
            and entry <= self.acked_up_to
            and (self.last_sent_ack is None or entry > _last_complete(self.last_sent_ack))
        )

    def record_skip(self, entry: EntryId) -> None:
        """Record an entry that is not delivered: a repeated chunk, or an entry whose messages are all acknowledged."""
        self.last_skipped = max(self.last_skipped, entry)

    def record_delivery(self, entry: EntryId, first_chunk: EntryId | None = None) -> None:
        """Record the delivery of an entry to the application; `first_chunk` is the first chunk if the message has chunks."""
        if self.progress is S.AT_START:
            ledger, first = first_chunk or entry
            self._before_first = ledger, first - 1
        if self.progress is not S.READING:  # saves the table lookup for most entries
            self.progress = _next(PROGRESS, self.progress, E.DELIVER)
        self.delivered = max(self.delivered, entry)

    def record_cumulative_ack(self, entry: EntryId, *, is_whole: bool = True) -> bool:
        """Record that the application acknowledged all entries before this one, and this one too if `is_whole`.

        Change nothing and return False if the entry was not delivered in this generation.
        """
        if self.progress is not S.READING or entry > self.delivered:
            return False
        self.acked_up_to = max(self.acked_up_to, entry if is_whole else (entry[0], entry[1] - 1))
        return True

    def record_individual_ack(self) -> None:
        """Record that the application acknowledges entries one by one; this matters only if `in_order`."""
        self._acks_individually = self.in_order

    def record_sent_ack(self, ack: MessageIdData) -> None:
        """Record that this cumulative acknowledgement is being sent."""
        self.last_sent_ack, self.ack_may_be_lost = ack, False

    def record_ack_check(self, ping: int) -> None:
        """Record the number of the ping whose response will show that the broker has received `last_sent_ack`."""
        if self.last_sent_ack is not None:
            self._checks[ping] = _last_complete(self.last_sent_ack)

    def record_pongs(self, pongs: int) -> None:
        """Record the number of responses to pings on the current connection."""
        for ping in [each for each in self._checks if each <= pongs]:
            self._confirmed = max(self._confirmed, self._checks.pop(ping))

    def record_ack_receipt(self, ack: MessageIdData) -> None:
        """Record the receipt of a cumulative acknowledgement that was sent in this generation."""
        self._confirmed = max(self._confirmed, _last_complete(ack))

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
        self.last_sent_ack, self.ack_may_be_lost = None, False
        self._confirmed = ids.EARLIEST
        self._checks.clear()
        self._closed_by_broker = self._left = False

    def on_migrated(self) -> None:
        """Record the migration to another cluster, whose entries have other ids; a reader starts at the earliest entry there."""
        self.forget()
        if self._is_reader:
            self.reader_start, self._start_known = ids.EARLIEST, True

    def begin_seek(self) -> None:
        """Begin a SEEK. Entries that arrive from now on are rejected: the broker may have read them before or after the SEEK.

        `last_sent_ack` is discarded, because sending it again would undo the SEEK. A new generation begins, so that
        acknowledgements of entries from before the SEEK have no effect while its response is awaited.
        """
        self.generation += 1
        self.progress = _next(PROGRESS, self.progress, E.SEEK)
        self.last_sent_ack, self.ack_may_be_lost = None, False

    def end_seek(self, to: EntryId | None) -> None:
        """Record the end of a SEEK, also of a failed one: the broker may have moved the cursor nevertheless.

        `to` is the entry of the SEEK. It is None for a SEEK to a publish time: then the cursor shows which entry that is.
        """
        self.forget()
        self.progress = _next(PROGRESS, self.progress, E.SEEK_DONE)
        if self._is_reader:
            # EARLIEST is for a SEEK to a publish time whose entry is still unknown when the connection is lost. The reader then
            # reads too much rather than too little.
            self.reader_start, self._start_known = to or ids.EARLIEST, to is not None and to != ids.LATEST
