"""Tickets compared with a model: acknowledgement in order ends at the oldest open batch, else it covers all stored messages."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.delivery.tickets import WAITING_TICKET_BYTES, Ticket, Tickets
from mqbridge.errors import Failure
from mqbridge.message import Batch, Partition, Share

PARTITION = Partition("c", "t", "0", 0)
REFUSED = [MessageFailure(0, Failure.RETRY, "no")]


def batch(number: int, count: int = 1) -> Batch:
    return Batch(PARTITION, [], count=count, size=1, first=(number,), next=(number + 1,))


class RecordedCallbacks:
    """Records the callbacks of tickets."""

    def __init__(self, *, in_order: bool) -> None:
        self.acknowledged: list[int] = []
        self.parts: list[tuple[int, list[int]]] = []
        self.receipts: list[Receipt | None] = []
        self.passed: list[int] = []
        self.ended: list[int] = []
        self.shrunk: list[int] = []
        self.tickets = Tickets(
            self._acknowledge,
            lambda b: self.passed.append(b.first[0]),
            lambda ticket: self.ended.append(ticket.batch.first[0]),
            self.shrunk.append,
            in_order=in_order,
        )

    def _acknowledge(self, batch: Batch, indexes: Sequence[int] | None, receipt: Receipt | None) -> None:
        self.receipts.append(receipt)
        if indexes is None:
            self.acknowledged.append(batch.first[0])
        else:
            self.parts.append((batch.first[0], list(indexes)))


@given(legs=st.lists(st.integers(0, 3), min_size=1, max_size=8), in_order=st.booleans(), data=st.data())
def test_only_stored_batches_are_acknowledged(legs: list[int], in_order: bool, data: st.DataObject) -> None:
    callbacks = RecordedCallbacks(in_order=in_order)
    opened: list[Ticket] = []
    settlements: list[int] = []
    for number, count in enumerate(legs):
        ticket = callbacks.tickets.open(batch(number), 0.0)
        ticket.legs += count
        opened.append(ticket)
        settlements += [number] * (count + 1)
    left = dict(enumerate(count + 1 for count in legs))
    for number in data.draw(st.permutations(settlements)):
        callbacks.tickets.settle(opened[number])
        left[number] -= 1
        complete = {n for n, count in left.items() if not count}
        prefix = next((n for n in range(len(legs)) if n not in complete), len(legs))
        assert callbacks.passed == list(range(prefix))
        if in_order:
            assert callbacks.acknowledged == list(range(prefix))
        else:
            assert set(callbacks.acknowledged) == complete
    assert sorted(callbacks.acknowledged) == sorted(callbacks.ended) == list(range(len(legs)))
    assert len(callbacks.tickets) == 0


@given(st.lists(st.lists(st.integers(0, 5), max_size=6, unique=True), min_size=2, max_size=5), st.data())
def test_a_message_is_acknowledged_once_when_every_share_of_it_is_stored(shares: list[list[int]], data: st.DataObject) -> None:
    callbacks = RecordedCallbacks(in_order=False)
    ticket = callbacks.tickets.open(source := batch(0, 6), 0.0)
    parts = [Share(source, indexes) for indexes in shares]
    callbacks.tickets.track_messages(ticket, parts)
    ticket.legs += len(parts)
    callbacks.tickets.settle(ticket)
    stored: list[Share] = []
    for part in data.draw(st.permutations(parts)):
        callbacks.tickets.settle(ticket, part, Receipt())
        stored.append(part)
        waited_for = [other for other in parts if other not in stored]
        done = {index for index in range(6) if not any(index in other.batch_indexes for other in waited_for)}
        acknowledged = [index for _, indexes in callbacks.parts for index in indexes]
        assert len(acknowledged) == len(set(acknowledged))
        assert set(acknowledged) == done
    assert callbacks.acknowledged == []
    assert (callbacks.passed, callbacks.ended) == ([0], [0])


def test_the_receipt_has_the_position_of_each_message() -> None:
    callbacks = RecordedCallbacks(in_order=True)
    ticket = callbacks.tickets.open(source := batch(0, 3), 0.0)
    ticket.legs += 2
    callbacks.tickets.settle(ticket)
    callbacks.tickets.settle(ticket, Share(source, [2]), Receipt([(70,)]))
    callbacks.tickets.settle(ticket, Share(source, [0, 1]), Receipt(lambda: [(8,), (9,)]))
    [receipt] = callbacks.receipts
    assert receipt is not None
    assert receipt.positions == [(8,), (9,), (70,)]


def test_bytes_are_freed_only_when_the_last_leg_has_ended() -> None:
    for in_order in (True, False):
        callbacks = RecordedCallbacks(in_order=in_order)
        ticket = callbacks.tickets.open(source := batch(0), 0.0)
        ticket.legs += 2
        callbacks.tickets.settle(ticket)
        callbacks.tickets.fail(ticket, Share(source), REFUSED)
        [left] = callbacks.tickets.abandon()
        assert left is ticket
        assert [failure.reason for failure in left.failures] == ["no"]
        assert callbacks.ended == []
        callbacks.tickets.settle(ticket, Share(source), Receipt())
        assert callbacks.ended == [0]
        assert callbacks.acknowledged == callbacks.passed == []


def test_a_failed_batch_blocks_later_ones_if_acknowledgement_is_in_order() -> None:
    callbacks = RecordedCallbacks(in_order=True)
    first, second = callbacks.tickets.open(batch(0), 0.0), callbacks.tickets.open(batch(1), 0.0)
    callbacks.tickets.fail(first, Share(first.batch), REFUSED)
    callbacks.tickets.settle(second)
    assert callbacks.acknowledged == callbacks.passed == []
    assert [ticket.batch.first for ticket in callbacks.tickets.abandon()] == [(0,), (1,)]
    assert sorted(callbacks.ended) == [0, 1]


def test_a_stored_batch_that_waits_for_an_earlier_one_keeps_no_contents() -> None:
    callbacks = RecordedCallbacks(in_order=False)
    tickets = [
        callbacks.tickets.open(Batch(PARTITION, list, count=1, size=1, first=(n,), next=(n + 1,), data=b"x"), 0.0, 9000)
        for n in range(3)
    ]
    callbacks.tickets.settle(tickets[1])
    assert (callbacks.acknowledged, callbacks.ended, callbacks.passed) == ([1], [], [])
    assert tickets[1].batch.data is None
    assert (tickets[1].cost, callbacks.shrunk) == (WAITING_TICKET_BYTES, [9000 - WAITING_TICKET_BYTES])
    callbacks.tickets.settle(tickets[0])
    assert tickets[0].batch.data == b"x", "it never waited"
    assert (callbacks.ended, callbacks.passed) == ([0, 1], [0, 1])
    callbacks.tickets.settle(tickets[2])
    assert callbacks.ended == [0, 1, 2]


def test_stored_batches_that_waited_for_an_abandoned_one_free_their_bytes() -> None:
    callbacks = RecordedCallbacks(in_order=False)
    failing, stored = (callbacks.tickets.open(batch(n), 0.0, 9000) for n in range(2))
    callbacks.tickets.settle(stored)
    callbacks.tickets.fail(failing, Share(failing.batch), REFUSED)
    assert callbacks.tickets.abandon() == [failing]
    assert sorted(callbacks.ended) == [0, 1]
    assert sum(callbacks.shrunk) + failing.cost + stored.cost == 18000
