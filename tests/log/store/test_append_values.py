"""The values of new rows are the same with and without the compiled module."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge import native
from mqbridge.log.store.append import COPIED_BYTES, row_values, row_values_plain
from mqbridge.log.store.new_row import NewRow
from mqbridge.log.store.schema import BatchStamp

MAX_INT = (1 << 62) - 1
rows = st.builds(
    NewRow,
    st.integers(1, 100_000),
    st.one_of(st.binary(max_size=50), st.integers(COPIED_BYTES - 1, COPIED_BYTES + 1).map(bytes)),
    st.none(),
)
stamps = st.builds(
    BatchStamp,
    st.integers(-MAX_INT, MAX_INT),
    st.integers(-MAX_INT, MAX_INT),
    st.one_of(st.none(), st.text(max_size=10)),
    st.one_of(st.none(), st.text(max_size=10)),
    st.one_of(st.none(), st.integers(0, MAX_INT)),
)


@pytest.mark.skipif(native.compiled is None, reason="the compiled module is not in use")
@given(st.integers(0, MAX_INT), st.integers(0, MAX_INT), st.lists(rows, max_size=5), stamps)
def test_the_values_are_those_of_the_plain_code(partition, base, new, stamp):
    found, plain = row_values(partition, base, new, stamp), row_values_plain(partition, base, new, stamp)
    assert found == plain
    assert [type(value) for value in found[0]] == [type(value) for value in plain[0]]
