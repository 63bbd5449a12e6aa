"""The life of one consumer and its positions in the topic: a table per axis, a method per transition. No IO.

    link   DETACHED -> SUBSCRIBING -> SUBSCRIBED -> DETACHED -> ... -> ENDED
           SUBSCRIBING and SUBSCRIBED are about one SUBSCRIBE; its number, the `epoch`, is what the broker writes on entries.
    role   STANDBY <-> ACTIVE
           The broker's last word on a failover subscription. Other types are ACTIVE all the time.
    place  FRESH -> READING -> FRESH -> ...;  SEEKING while a SEEK has no answer
           FRESH: nothing was handed out in this run. A run begins whenever positions are set back or lose their meaning.

An entry is taken only while SUBSCRIBED, ACTIVE and not SEEKING, from the current epoch, and, where one consumer has the whole
topic in order, only behind `handed`: what a lost connection brings again is skipped.

    handed    the last entry handed out in this run
    acked     everything up to here is acknowledged by the application; never beyond `handed`
    told      the last cumulative acknowledgement that was sent
    start     where a reader begins while nothing was handed out; LATEST is replaced by the cursor at the first subscribing

    told <= acked <= handed, where one consumer has the whole topic and acknowledges cumulatively

Positions are forgotten together, when another one decides where to go on: a seek, a consumer that takes over (failover), a reset
by an operator, a topic that moved to another cluster. For a reset the broker closes the consumer, and its cursor is then before
`told`, or before the first entry of the run; an acknowledgement that was on its way when the broker closed the consumer looks the
same, and costs a repetition. After
a connection is lost an older cursor means lost acknowledgements (a broker that is killed forgets the last seconds of them): then
positions stay, and `told` is repeated.
"""

from enum import Enum, auto

from mqbridge.errors import LocalProtocolError
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.ids import EntryId, entry_id
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageIdData


class State(Enum):
    """Of all three axes."""

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
    """What happens to a consumer."""

    SUBSCRIBE = auto()
    SUCCESS = auto()
    LEAVE = auto()
    END = auto()

    ACTIVATE = auto()
    DEACTIVATE = auto()

    HAND_OUT = auto()
    REWIND = auto()
    FORGET = auto()
    SEEK = auto()
    SOUGHT = auto()


S, E = State, Event

LINK = {
    (S.DETACHED, E.SUBSCRIBE): S.SUBSCRIBING,
    (S.DETACHED, E.LEAVE): S.DETACHED,  # the broker closes the consumer, then the connection ends
    (S.DETACHED, E.END): S.ENDED,
    (S.SUBSCRIBING, E.SUBSCRIBE): S.SUBSCRIBING,  # the attempt before has failed
    (S.SUBSCRIBING, E.SUCCESS): S.SUBSCRIBED,
    (S.SUBSCRIBING, E.LEAVE): S.DETACHED,
    (S.SUBSCRIBING, E.END): S.ENDED,
    (S.SUBSCRIBED, E.LEAVE): S.DETACHED,
    (S.SUBSCRIBED, E.END): S.ENDED,
    (S.ENDED, E.LEAVE): S.ENDED,
    (S.ENDED, E.END): S.ENDED,
}

ROLE = {
    (S.STANDBY, E.ACTIVATE): S.ACTIVE,
    (S.STANDBY, E.DEACTIVATE): S.STANDBY,  # said again to every new session
    (S.ACTIVE, E.ACTIVATE): S.ACTIVE,
    (S.ACTIVE, E.DEACTIVATE): S.STANDBY,
}

PLACE = {
    (S.FRESH, E.HAND_OUT): S.READING,
    (S.FRESH, E.REWIND): S.FRESH,
    (S.FRESH, E.FORGET): S.FRESH,
    (S.FRESH, E.SEEK): S.SEEKING,
    (S.READING, E.HAND_OUT): S.READING,
    (S.READING, E.REWIND): S.FRESH,
    (S.READING, E.FORGET): S.FRESH,
    (S.READING, E.SEEK): S.SEEKING,
    (S.SEEKING, E.FORGET): S.SEEKING,
    (S.SEEKING, E.REWIND): S.SEEKING,  # the seek decides
    (S.SEEKING, E.SEEK): S.SEEKING,
    (S.SEEKING, E.SOUGHT): S.FRESH,
    (S.FRESH, E.SOUGHT): S.FRESH,  # of two seeks at once the second is done
}


def _next(table: dict[tuple[State, Event], State], state: State, event: Event) -> State:
    try:
        return table[state, event]
    except KeyError:
        raise LocalProtocolError(f"a Pulsar consumer that is {state.name} cannot {event.name}") from None


def _last_whole(mark: MessageIdData) -> EntryId:
    """The last entry that is acknowledged with all of its messages."""
    ledger, entry = entry_id(mark)
    return ledger, entry - 1 if mark.ack_set else entry


class ConsumerState:
    """`tracks`: one consumer has the whole topic, and ids grow. `start`: of a reader, None for a kept subscription."""

    def __init__(self, *, tracks: bool, failover: bool, start: EntryId | None) -> None:
        self.link, self.role, self.place = S.DETACHED, S.STANDBY if failover else S.ACTIVE, S.FRESH
        self.epoch = -1
        self.run = 0
        """Counts the runs: acknowledgements and answers of an older one move nothing."""
        self.start = start
        self.handed = self.acked = ids.EARLIEST
        self.skipped: EntryId = ids.EARLIEST
        """The last entry that was not handed out because it only repeated chunks."""
        self.told: MessageIdData | None = None
        self.repeats = False
        """`told` may not have reached the broker: it is sent once more."""
        self._tracks, self._reads = tracks, start is not None
        self._resume_at: EntryId = ids.EARLIEST
        self._floor: EntryId = ids.EARLIEST
        """The cursor that LATEST stood for: SUBSCRIBE names it, and it is not to be handed out."""
        self._before_run: EntryId = ids.EARLIEST
        """The entry before the first one of this run, or where the cursor was seen since: a cursor before it was set back."""
        self._settled = start != ids.LATEST
        self._closed = False
        self._single_acks = False
        """The application acknowledges single entries: one that did so once may do so again."""

    # --- link and role ----------------------------------------------------------------------------------------------

    def subscribing(self) -> EntryId | None:
        """A SUBSCRIBE is sent; where a reader begins."""
        self.link = _next(LINK, self.link, E.SUBSCRIBE)
        self.epoch += 1
        return self.start if self.place is S.FRESH or not self._reads else self._resume_at

    @property
    def asks_cursor(self) -> bool:
        """Whether `subscribed` needs to know where the broker's cursor is."""
        if self._reads:
            return not self._settled
        return self.told is not None or (self._closed and self._tracks and self.place is S.READING)

    def subscribed(self, cursor: EntryId | None) -> bool:
        """SUBSCRIBE succeeded; `cursor` is the last entry that the broker counts as acknowledged, None if it does not say.

        True when positions were forgotten, because somebody else has set the cursor back.
        """
        self.link = _next(LINK, self.link, E.SUCCESS)
        closed, self._closed = self._closed, False
        self.repeats = False
        if self._reads:
            if not self._settled and cursor is not None:
                self.start, self._settled = cursor, True
                self._floor = cursor
                self.handed = max(self.handed, cursor)
            return False
        known = self._before_run if self.told is None else max(self._before_run, _last_whole(self.told))
        if cursor is not None and cursor >= known:
            self._before_run = max(self._before_run, cursor)
            return False
        if closed and cursor is not None and known[1] >= 0:  # else no cursor is exactly there
            self.forget()
            return True
        self.repeats = self.told is not None
        return False

    def left(self, first_open: EntryId, *, closed: bool = False) -> bool:
        """The session is over, `closed` by the broker; `first_open` is the first chunk of what is not complete, or LATEST.

        Whether what was handed out is skipped when the next session brings it again.
        """
        was_subscribed = self.link is S.SUBSCRIBED
        self.link = _next(LINK, self.link, E.LEAVE)
        self._closed |= closed
        if not self._tracks:
            self.handed = ids.EARLIEST
        elif self._single_acks:
            # Single acknowledgements may be lost (a broker that is killed forgets those of earlier sessions, too), and nothing
            # later covers them: the entries must come again.
            self.rewound()
        if was_subscribed:
            self._resume_at = min(self.handed, first_open)
        return self._tracks and not self._single_acks

    def activated(self) -> None:
        """The broker delivers to this consumer."""
        self.role = _next(ROLE, self.role, E.ACTIVATE)

    def deactivated(self) -> None:
        """The broker delivers to another consumer: from now on that one decides what is acknowledged."""
        self.role = _next(ROLE, self.role, E.DEACTIVATE)
        self.forget()

    def ended(self) -> None:
        """Nothing comes any more."""
        self.link = _next(LINK, self.link, E.END)

    @property
    def takes_entries(self) -> bool:
        """Whether entries of the current epoch are taken."""
        return self.link is S.SUBSCRIBED and self.role is S.ACTIVE and self.place is not S.SEEKING

    # --- positions --------------------------------------------------------------------------------------------------

    def is_current(self, epoch: int | None) -> bool:
        """Whether an entry that was read for this SUBSCRIBE (None: the broker does not say) is taken."""
        return self.takes_entries and (epoch is None or epoch >= self.epoch)

    def is_new(self, entry: EntryId) -> bool:
        """False for an entry that was handed out before a connection was lost."""
        return not self._tracks or entry > self.handed

    def is_untold(self, entry: EntryId) -> bool:
        """Whether the application has acknowledged it, and the broker was not told: something before it was open then."""
        return self._tracks and entry <= self.acked and (self.told is None or entry > _last_whole(self.told))

    def skip(self, entry: EntryId) -> None:
        """It is not handed out: it repeats a chunk."""
        self.skipped = max(self.skipped, entry)

    def handed_out(self, entry: EntryId, first_chunk: EntryId | None = None) -> None:
        """The application has it."""
        if self.place is S.FRESH:
            ledger, begin = first_chunk or entry
            self._before_run = ledger, begin - 1
        if self.place is not S.READING:  # which it stays
            self.place = _next(PLACE, self.place, E.HAND_OUT)
        self.handed = max(self.handed, entry)

    def acknowledged(self, entry: EntryId, *, whole: bool = True) -> bool:
        """All up to this entry, itself only if `whole`, is acknowledged. False for what was not handed out in this run."""
        if self.place is not S.READING or entry > self.handed:
            return False
        self.acked = max(self.acked, entry if whole else (entry[0], entry[1] - 1))
        return True

    def acknowledged_alone(self) -> None:
        """A single entry of a topic in order is acknowledged, not what is before it."""
        self._single_acks = self._tracks

    def sent(self, mark: MessageIdData) -> None:
        """A cumulative acknowledgement is on its way."""
        self.told, self.repeats = mark, False

    def rewound(self) -> None:
        """Everything that is not acknowledged is to be handed out again, by a new SUBSCRIBE."""
        self.place = _next(PLACE, self.place, E.REWIND)
        self.run += 1
        self.handed = self._resume_at = max(self.acked, self._floor)

    def forget(self) -> None:
        """The positions have lost their meaning; the broker's cursor decides."""
        self.place = _next(PLACE, self.place, E.FORGET)
        self.run += 1
        self.handed = self.acked = self.skipped = ids.EARLIEST
        self._resume_at = self._floor = self._before_run = ids.EARLIEST
        self.told, self.repeats, self._closed = None, False, False

    def migrated(self) -> None:
        """The topic is in another cluster, whose ids are others; a reader takes all that is there."""
        self.forget()
        if self._reads:
            self.start, self._settled = ids.EARLIEST, True

    def seeking(self) -> None:
        """A SEEK is asked for: what comes from now on may be of either side, and an acknowledgement would undo it."""
        self.place = _next(PLACE, self.place, E.SEEK)
        self.told, self.repeats = None, False

    def sought(self, to: EntryId | None) -> None:
        """It is answered, or nobody knows; `to` None is a time, whose entry the cursor tells."""
        self.forget()
        self.place = _next(PLACE, self.place, E.SOUGHT)
        if self._reads:
            # Should the position of a time be lost before it is known, all comes rather than less.
            self.start, self._settled = to or ids.EARLIEST, to is not None and to != ids.LATEST
