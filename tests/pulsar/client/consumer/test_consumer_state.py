"""`ConsumerState` against a model of the broker."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqbridge.errors import ClusterError, LocalProtocolError
from mqbridge.pulsar.client.consumer.consumer_state import ConsumerState, State
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.ids import LATEST, EntryId, message_id
from tests.example_counts import examples

LENGTH = 8
Sent = tuple[int, EntryId]
"""An entry that the broker has sent and the consumer has not received, with the epoch for which it was read."""


class ConsumerLife(RuleBasedStateMachine):
    """One consumer and one topic, `ledger` of `length` entries, of which the `cursor` is the last acknowledged one.

    `owed` are the entries that the application must have seen by the time that they are acknowledged, and sooner or later.
    """

    @initialize(kind=st.sampled_from(["exclusive", "failover", "earliest", "latest"]), consumed=st.integers(-2, 5))
    def make(self, kind: str, consumed: int) -> None:
        """Most examples begin after some entries were consumed, because most faults need that."""
        start = {"earliest": ids.EARLIEST, "latest": LATEST}.get(kind)
        self.kind, self.reads = kind, start is not None
        self.state = ConsumerState(in_order=True, failover=kind == "failover", start=start)
        self.ledger, self.length, self.cursor = 9, LENGTH, -1
        self.owed = set() if kind == "latest" else set(range(LENGTH))
        self.subscribed_once = False
        self.wire: list[Sent] = []
        self.late: list[Sent] = []
        self.queue: list[EntryId] = []
        self.unsent: EntryId | None = None
        self.run, self.last = 0, ids.EARLIEST
        self.error: ClusterError | None = None
        self.unsubscribing = self.closing = False
        if consumed >= 0:
            if kind == "failover":
                self.become_active()
            self.subscribe(False)
        if consumed > 0:
            self.consume(consumed, True)

    @property
    def subscribed(self) -> bool:
        return self.state.link is State.SUBSCRIBED

    # --- connections ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.state.link in (State.DETACHED, State.SUBSCRIBING) and not self.closing)
    @rule(fails=st.booleans())
    def subscribe(self, fails: bool) -> None:
        start = self.state.begin_subscribe()
        if fails:
            return
        begin = self.cursor + 1
        if start == LATEST:
            assert not self.subscribed_once, "it counts once"
            begin = self.length
        elif start is not None:
            begin = max(0, start[1]) if start[0] == self.ledger else 0
        cursor = (self.ledger, begin - 1) if self.reads else (self.ledger, self.cursor)
        self.subscribed_once = True
        if self.state.on_subscribed(cursor if self.state.needs_cursor else None):
            self.unsent = None
        self._send_acks()
        self._deliver_from(begin if self.reads else self.cursor + 1)

    def _deliver_from(self, begin: int) -> None:
        self.wire = [(self.state.epoch, (self.ledger, entry)) for entry in range(begin, self.length)]

    def _leave(self, *, closed: bool = False, left: bool = False) -> None:
        self.late += self.wire
        self.wire, self.queue = [], []
        self.state.on_detached(LATEST, closed=closed, left=left)

    @precondition(lambda self: self.subscribed)
    @rule(forgets=st.integers(0, 3))
    def lose_connection(self, forgets: int) -> None:
        """Lose acknowledgements: a killed broker forgets the last ones, and a lost connection loses those in flight."""
        self.cursor = max(-1, self.cursor - forgets)
        self._leave()

    @precondition(lambda self: self.subscribed)
    @rule()
    def unload(self) -> None:
        self._leave(closed=True)

    @precondition(lambda self: self.subscribed and not self.reads)
    @rule(back=st.integers(-3, LENGTH))
    def reset_from_outside(self, back: int) -> None:
        to = max(-1, min(self.cursor - back, self.length - 1))
        self._set_cursor(to)
        self._leave(closed=True)

    @precondition(lambda self: self.subscribed and not self.reads)
    @rule(back=st.integers(-3, LENGTH))
    def reset_during_an_outage(self, back: int) -> None:
        """The broker has confirmed every acknowledgement before, so that a reset can be told from a lost one."""
        if self.state.last_sent_ack is not None:
            self.state.record_ack_receipt(self.state.last_sent_ack)
        self._leave()
        self._set_cursor(max(-1, min(self.cursor - back, self.length - 1)))

    @precondition(lambda self: self.subscribed and self.state.progress is not State.SEEKING)
    @rule()
    def migrate(self) -> None:
        """Migrate the topic to a cluster with smaller ids."""
        self.ledger, self.length, self.cursor = self.ledger - 1, LENGTH, -1
        self.owed = set(range(LENGTH))
        self.state.on_migrated()
        self.unsent = None
        self._leave(closed=True)

    def _set_cursor(self, to: int) -> None:
        """Move the cursor, as an operator does: all entries after it must be delivered, even if they were delivered before."""
        if to < self.cursor:
            self.owed |= set(range(to + 1, self.length))
        self.owed -= set(range(to + 1))
        self.cursor = to

    # --- entries ----------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 3))
    def publish(self, count: int) -> None:
        new = range(self.length, self.length + count)
        self.length += count
        if self.subscribed_once or self.kind != "latest":
            self.owed |= set(new)
        if self.subscribed:
            self.wire += [(self.state.epoch, (self.ledger, entry)) for entry in new]

    @precondition(lambda self: self.wire)
    @rule(count=st.integers(1, 8))
    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.wire))):
            self._arrive(*self.wire.pop(0))

    @precondition(lambda self: self.late)
    @rule(count=st.integers(1, 8))
    def deliver_late(self, count: int) -> None:
        """Deliver entries that were read for a registration that has ended."""
        for _ in range(min(count, len(self.late))):
            self._arrive(*self.late.pop())

    def _arrive(self, epoch: int, entry: EntryId) -> None:
        if self.state.accepts_epoch(epoch) and self.state.is_new(entry):
            self.queue.append(entry)

    @precondition(lambda self: self.queue)
    @rule(count=st.integers(1, 8))
    def take(self, count: int) -> None:
        for _ in range(min(count, len(self.queue))):
            entry = self.queue.pop(0)
            assert entry[0] == self.ledger, "of another cluster"
            if self.state.generation != self.run:
                self.run, self.last = self.state.generation, ids.EARLIEST
            assert entry > self.last, "twice in a run, or out of order"
            self.last = entry
            self.owed.discard(entry[1])
            self.state.record_delivery(entry)

    @precondition(lambda self: self.wire and self.state.accepts_entries)
    @rule(count=st.integers(1, 8), acknowledges=st.booleans())
    def consume(self, count: int, acknowledges: bool) -> None:
        """Deliver, take and acknowledge in one step, so that examples make progress."""
        self.deliver(count)
        self.take(count)
        if acknowledges and not self.reads and self.state.progress is State.READING:
            self.acknowledge(self.last[1])
            self.flush()

    # --- acknowledgements and positions -----------------------------------------------------------------------------

    @precondition(lambda self: not self.reads)
    @rule(entry=st.integers(0, 2 * LENGTH))
    def acknowledge(self, entry: int) -> None:
        position = self.ledger, entry
        if self.state.record_cumulative_ack(position):
            assert position <= self.last, "not handed out in this run"
            self.unsent = max(position, self.unsent or position)

    @precondition(lambda self: self.subscribed and not self.reads)
    @rule()
    def flush(self) -> None:
        self._send_acks()

    def _send_acks(self) -> None:
        mark = self.state.last_sent_ack if self.state.ack_may_be_lost else None
        if self.unsent is not None:
            mark, self.unsent = message_id(*self.unsent), None
        if mark is None:
            return
        self.state.record_sent_ack(mark)
        ledger, entry = ids.entry_id(mark)
        assert ledger == self.ledger, "of another cluster"
        skipped = self.owed & set(range(entry + 1))
        assert not skipped, f"acknowledged up to {entry} and never handed out: {skipped}"
        self.cursor = max(self.cursor, entry)

    @precondition(lambda self: self.state.link is not State.ENDED)
    @rule(back=st.integers(-3, LENGTH))
    def redeliver(self, back: int) -> None:
        """Leave and set the positions back; an operator moves the cursor before the next SUBSCRIBE, unless `back` is 0."""
        was_subscribed = self.subscribed
        if not self.reads and was_subscribed:
            self._send_acks()
        self._leave(left=was_subscribed)
        self.state.rewind()
        if back and not self.reads and was_subscribed:
            self._set_cursor(max(-1, min(self.cursor - back, self.length - 1)))

    @precondition(lambda self: self.subscribed)
    @rule(to=st.integers(0, LENGTH), closed=st.booleans(), late=st.booleans())
    def seek(self, to: int, closed: bool, late: bool) -> None:
        self.state.begin_seek()
        if late and self.wire:
            self._arrive(*self.wire[0])
            assert not self.queue or self.queue[-1] != self.wire[0][1]
        self.owed = set(range(to, self.length))
        self.cursor, self.unsent = to - 1, None
        if closed:
            self._leave(closed=True)
            assert not self.state.subscribes_after_close, "the response to the SEEK comes first"
        self.state.end_seek((self.ledger, to))
        if not closed:
            self._leave()

    @precondition(lambda self: self.kind == "failover" and self.state.link is not State.ENDED)
    @rule(back=st.integers(-3, 3))
    def lose_activity(self, back: int) -> None:
        """Another consumer becomes active; it acknowledges or seeks."""
        if self.subscribed:
            self._send_acks()
        self.state.on_deactivated()
        self.unsent, self.queue, self.wire = None, [], []
        self._set_cursor(max(-1, min(self.cursor - back, self.length - 1)))
        self.owed = set(range(self.cursor + 1, self.length))

    @precondition(lambda self: self.kind == "failover" and self.state.link is not State.ENDED)
    @rule()
    def become_active(self) -> None:
        if self.state.role is State.STANDBY and self.subscribed:
            self._deliver_from(self.cursor + 1)
        self.state.on_activated()

    # --- the end ----------------------------------------------------------------------------------------------------

    @rule()
    def unsubscribe(self) -> None:
        self.state.begin_unsubscribe()
        self.unsubscribing = not self.closing

    @precondition(lambda self: self.unsubscribing)
    @rule(closes=st.booleans(), deletes=st.integers(0, 9))
    def answer_unsubscribe(self, closes: bool, deletes: int) -> None:
        """Refuse UNSUBSCRIBE, or delete the subscription in one of ten cases; the consumer may be closed in any case."""
        if closes and self.subscribed:
            self._leave(closed=True)
            assert not self.state.subscribes_after_close, "the response to UNSUBSCRIBE comes first"
        if deletes == 9:
            self._end("deleted")
        self.state.end_unsubscribe()
        self.unsubscribing = False

    @rule(really=st.integers(0, 9))
    def fail(self, really: int) -> None:
        if really == 9:
            self._end("failed")

    @precondition(lambda self: not self.closing)
    @rule(really=st.integers(0, 9), ends=st.booleans())
    def close(self, really: int, ends: bool) -> None:
        """Close the consumer, which may have failed before, or may fail before it is closed completely."""
        if really == 9:
            self.state.begin_close()
            self.closing, self.unsubscribing = True, False
            if ends:
                self._end("closed")

    def _end(self, text: str) -> None:
        self._leave()
        self.error = ClusterError(text)
        self.state.on_ended(self.error)
        assert not self.state.accepts_entries
        with pytest.raises(LocalProtocolError):
            self.state.begin_subscribe()

    # --- always, and in the end -------------------------------------------------------------------------------------

    @invariant()
    def acknowledged_is_handed_out(self) -> None:
        told = ids.EARLIEST if self.state.last_sent_ack is None else ids.entry_id(self.state.last_sent_ack)
        assert told <= self.state.acked_up_to <= max(self.state.delivered, ids.EARLIEST)

    @invariant()
    def its_end_is_known(self) -> None:
        ended = self.error is not None
        assert (self.state.link is State.ENDED, self.state.end_error) == (ended, self.error)
        assert (self.state.is_closed, self.state.is_over) == (self.closing, self.closing or ended)
        assert self.state.subscribes_after_close == (not self.unsubscribing and not self.closing and not ended)

    def teardown(self) -> None:
        """Check that a consumer without faults receives all owed entries."""
        if not hasattr(self, "state") or self.state.is_over:
            return
        if self.state.role is State.STANDBY:
            self.become_active()
        if not self.subscribed:
            self.subscribe(False)
        self.deliver(1000) if self.wire else None
        self.take(1000) if self.queue else None
        assert not {entry for entry in self.owed if self.reads or entry > self.cursor}, f"never came: {self.owed}"


TestConsumerLife = ConsumerLife.TestCase
TestConsumerLife.settings = settings(max_examples=examples(600), stateful_step_count=20)


def test_a_consumer_is_closed_once() -> None:
    state = ConsumerState(in_order=True, failover=False, start=None)
    state.begin_close()
    with pytest.raises(LocalProtocolError, match="CLOSE in state CLOSED"):
        state.begin_close()
