"""Tickets against a reference model: in order means a prefix, and never beyond an open one."""

from hypothesis import given
from hypothesis import strategies as st

from mqbridge.delivery.tickets import Tickets
from mqbridge.message import Batch, Partition

PARTITION = Partition("c", "t", "0", 0)


def batch(number: int) -> Batch:
    return Batch(PARTITION, [], count=1, size=1, first=(number,), next=(number + 1,))


@given(legs=st.lists(st.integers(0, 3), min_size=1, max_size=8), in_order=st.booleans(), data=st.data())
def test_only_what_is_stored_is_done(legs: list[int], in_order: bool, data: st.DataObject) -> None:
    done: list[int] = []
    tickets = Tickets(lambda b: done.append(b.first[0]), in_order=in_order)
    opened = []
    due: list[int] = []
    for number, count in enumerate(legs):
        ticket = tickets.open(batch(number), 0.0)
        ticket.legs += count
        opened.append(ticket)
        due += [number] * (count + 1)
    left = dict(enumerate(count + 1 for count in legs))
    for number in data.draw(st.permutations(due)):
        tickets.settle(opened[number])
        left[number] -= 1
        complete = {n for n, count in left.items() if not count}
        if in_order:
            prefix = next((n for n in range(len(legs)) if n not in complete), len(legs))
            assert done == list(range(prefix))
        else:
            assert set(done) == complete
    assert sorted(done) == list(range(len(legs)))
    assert len(tickets) == 0


def test_a_receipt_after_abandoning_does_nothing() -> None:
    done: list[Batch] = []
    for in_order in (True, False):
        tickets = Tickets(done.append, in_order=in_order)
        ticket = tickets.open(batch(0), 0.0)
        assert tickets.abandon() == [ticket.batch]
        tickets.settle(ticket)
    assert done == []
