"""The send window that all producers of a connection share: nobody waits forever, and waiters take turns."""

from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.net.window import RequestWindow


class Sender:
    """A producer with requests of these sizes, which it sends in order; the window calls `pump` when there may be room."""

    def __init__(self, window: RequestWindow, *sizes: int) -> None:
        self.window, self.left, self.sent = window, deque(sizes), list[int]()

    def pump(self) -> None:
        """Send as much as there is room for."""
        while self.left and self.window.reserve(self.left[0], self.pump):
            self.sent.append(self.left.popleft())


def test_small_requests_do_not_block_a_large_one() -> None:
    window = RequestWindow(max_sends=1000, max_bytes=100)
    small, large = Sender(window, *[10] * 60), Sender(window, 60)
    small.pump()
    large.pump()
    assert (len(small.sent), large.sent) == (10, [])
    for _ in range(10):
        window.release(10)
        small.pump()
    assert large.sent == [60]


def test_a_sender_that_got_room_waits_behind_the_others() -> None:
    window = RequestWindow(max_sends=2, max_bytes=100)
    one, two = Sender(window, *[1] * 8), Sender(window, *[1] * 8)
    one.pump()
    two.pump()
    for _ in range(8):
        window.release(1)
    assert (len(one.sent), len(two.sent)) == (6, 4)


def test_a_waiter_with_nothing_left_to_send_does_not_block_the_next() -> None:
    window = RequestWindow(max_sends=10, max_bytes=100)
    first, cancelled, last = Sender(window, 100), Sender(window, 50), Sender(window, 50)
    for sender in (first, cancelled, last):
        sender.pump()
    cancelled.left.clear()
    window.release(100)
    assert last.sent == [50]


def test_a_waiter_that_fails_does_not_block_the_others() -> None:
    window = RequestWindow(max_sends=10, max_bytes=100)
    first, last = Sender(window, 100), Sender(window, 50, 50)

    def fail() -> None:
        raise RuntimeError

    first.pump()
    assert not window.reserve(50, fail)
    last.pump()
    with pytest.raises(RuntimeError):
        window.release(100)
    last.pump()  # its next request
    assert last.sent == [50]
    window.release(50)
    assert last.sent == [50, 50]


@given(st.lists(st.lists(st.integers(1, 150), max_size=12), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_every_sender_sends_everything(sizes_by_sender: list[list[int]], random: Random) -> None:
    window = RequestWindow(max_sends=3, max_bytes=100)
    senders = [Sender(window, *sizes) for sizes in sizes_by_sender]
    for sender in senders:
        sender.pump()
    answered = [0] * len(senders)
    while any(sender.left for sender in senders):
        in_flight = [number for number, sender in enumerate(senders) if len(sender.sent) > answered[number]]
        assert in_flight, "a sender waits although nothing is in flight"
        number = random.choice(in_flight)
        answered[number] += 1
        window.release(senders[number].sent[answered[number] - 1])
    assert [sender.sent for sender in senders] == sizes_by_sender
