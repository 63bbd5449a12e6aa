"""Message ids: ordered as positions are, the same both ways, and ids that no unit can have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.numbering import OffsetNumbering, PackedNumbering
from mqbridge.listener.parked import FIRST_NUMBER, DueNumbering
from mqbridge.pulsar.server.message_ids import DUE_LEDGER, LAST_NUMBER, LEDGER, MAX_NUMBER, MessageIds
from mqbridge.pulsar.wire.ids import EARLIEST, LATEST

DENSE, PACKED, PAIRS = MessageIds(OffsetNumbering()), MessageIds(PackedNumbering(3)), MessageIds(PackedNumbering(2))
SIGNED = st.integers(-(1 << 63), (1 << 63) - 1)
POSITIONS = st.tuples(st.integers(0, (1 << 28) - 1), st.integers(0, (1 << 21) - 1))


@given(st.integers(0, LAST_NUMBER - 1))
def test_offsets_survive_both_ways(offset):
    entry = DENSE.id_of((offset,))
    assert entry == (LEDGER, offset)
    assert DENSE.is_possible(entry)
    assert (DENSE.number_of(entry), DENSE.position_of(entry)) == (offset, (offset,))


@given(st.integers(0, LAST_NUMBER - 1))
def test_messages_that_were_parked_have_a_ledger_of_their_own(offset):
    number = DueNumbering(OffsetNumbering()).number((offset,))
    entry = DENSE.entry_id(number)
    assert entry == (DUE_LEDGER, offset)
    assert DENSE.is_possible(entry)
    assert DENSE.number_of(entry) == number
    assert DENSE.position_of(entry) is None, "it is nowhere in the partition"


@given(POSITIONS)
def test_entries_of_pulsar_survive_both_ways(entry):
    assert PACKED.id_of((*entry, 0)) == entry
    assert PACKED.position_of(entry) == (*entry, 0)
    assert PACKED.position_of(entry, 3) == (*entry, 3)
    assert PACKED.is_possible(entry)


@given(st.integers(0, (1 << 46) - 1), st.integers(0, (1 << 15) - 2))
def test_messages_that_were_parked_have_ids_behind_all_others_where_numbers_are_packed(offset, index):
    number = DueNumbering(PackedNumbering(2)).number((offset, index))
    entry = PAIRS.entry_id(number)
    assert entry == (FIRST_NUMBER + offset, index)
    assert PAIRS.is_possible(entry)
    assert PAIRS.number_of(entry) == number
    assert PAIRS.position_of(entry) is None, "it is nowhere in the partition"
    assert PAIRS.entry_id(PackedNumbering(2).number((offset, index))) == (offset, index)


@pytest.mark.parametrize("message_ids", [DENSE, PACKED, PAIRS], ids=["dense", "packed", "pairs"])
@given(one=st.tuples(SIGNED, SIGNED), other=st.tuples(SIGNED, SIGNED))
def test_numbers_are_ordered_as_clients_order_ids(message_ids, one, other):
    if message_ids.is_possible(one) and message_ids.is_possible(other):
        numbers = message_ids.number_of(one), message_ids.number_of(other)
        assert (one < other) == (numbers[0] < numbers[1])
    assert 0 <= message_ids.number_of(one) <= MAX_NUMBER
    if one[0] >= 0:
        message_ids.position_of(one)


@pytest.mark.parametrize("entry", [EARLIEST, LATEST, (0, 0), (3, 0), (LEDGER, -1), (-1, 5), (LEDGER, MAX_NUMBER)])
def test_ids_that_no_unit_has(entry):
    assert not DENSE.is_possible(entry)


def test_what_is_after_the_last_number_has_no_position():
    assert DENSE.position_of(LATEST) is None
    assert DENSE.position_of((LEDGER, LAST_NUMBER - 1), 5) is None
    assert PACKED.position_of(LATEST) is None
    assert DENSE.number_of(EARLIEST) == PACKED.number_of(EARLIEST) == 0
