"""Limits that the feeds of a listener share."""

from contextlib import ExitStack

import pytest

from mqbridge.listener.limits import ALONE_SHARE, LARGE_READ_BYTES, READ_BYTES, UnacknowledgedBytes


class TestReading:
    def test_feeds_read_large_batches_while_all_that_read_so_have_room_for_them(self) -> None:
        unacknowledged = UnacknowledgedBytes(ALONE_SHARE * 3 * LARGE_READ_BYTES)
        with ExitStack() as reading:
            found = [reading.enter_context(unacknowledged.reading()) for _ in range(5)]
        assert found == [LARGE_READ_BYTES] * 3 + [READ_BYTES] * 2
        with unacknowledged.reading() as max_bytes:
            assert max_bytes == LARGE_READ_BYTES  # the others have ended

    def test_what_is_held_leaves_room_for_fewer(self) -> None:
        unacknowledged = UnacknowledgedBytes(ALONE_SHARE * 2 * LARGE_READ_BYTES)
        unacknowledged.add(LARGE_READ_BYTES + 1)
        with unacknowledged.reading() as max_bytes:
            assert max_bytes == READ_BYTES
        unacknowledged.release(1)
        with unacknowledged.reading() as max_bytes:
            assert max_bytes == LARGE_READ_BYTES

    def test_few_bytes_are_read_while_single_units_hold_whole_batches(self) -> None:
        unacknowledged = UnacknowledgedBytes(ALONE_SHARE * 20 * LARGE_READ_BYTES)
        unacknowledged.add(5 * LARGE_READ_BYTES)
        unacknowledged.open = LARGE_READ_BYTES
        with unacknowledged.reading() as max_bytes:
            assert max_bytes == READ_BYTES
        unacknowledged.open = 2 * LARGE_READ_BYTES
        with unacknowledged.reading() as max_bytes:
            assert max_bytes == LARGE_READ_BYTES

    def test_a_read_that_fails_does_not_count_any_more(self) -> None:
        unacknowledged = UnacknowledgedBytes(ALONE_SHARE * LARGE_READ_BYTES)
        for _ in range(2):
            with pytest.raises(InterruptedError), unacknowledged.reading() as max_bytes:
                raise InterruptedError
            assert max_bytes == LARGE_READ_BYTES
