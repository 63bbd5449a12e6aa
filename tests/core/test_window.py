"""The window that all producers of a connection share."""

from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.net.window import SendWindow


class Sender:
    """Sends what it has, in order, as producers do; the window calls `pump`."""

    def __init__(self, window: SendWindow, *sizes: int) -> None:
        self.window, self.left, self.sent = window, deque(sizes), list[int]()

    def pump(self) -> None:
        """Send as much as there is room for."""
        while self.left and self.window.reserve(self.left[0], self.pump):
            self.sent.append(self.left.popleft())


def test_a_large_request_has_its_turn_among_small_ones() -> None:
    window = SendWindow(max_sends=1000, max_bytes=100)
    small, large = Sender(window, *[10] * 60), Sender(window, 60)
    small.pump()
    large.pump()
    assert (len(small.sent), large.sent) == (10, [])
    for _ in range(10):
        window.release(10)
        small.pump()
    assert large.sent == [60]


def test_who_sent_something_goes_to_the_end_of_the_line() -> None:
    window = SendWindow(max_sends=2, max_bytes=100)
    one, two = Sender(window, *[1] * 8), Sender(window, *[1] * 8)
    one.pump()
    two.pump()
    for _ in range(8):
        window.release(1)
    assert (len(one.sent), len(two.sent)) == (6, 4)


def test_who_wants_nothing_any_more_holds_nobody_up() -> None:
    window = SendWindow(max_sends=10, max_bytes=100)
    first, gone, last = Sender(window, 100), Sender(window, 50), Sender(window, 50)
    for sender in (first, gone, last):
        sender.pump()
    gone.left.clear()
    window.release(100)
    assert last.sent == [50]


def test_a_turn_that_fails_holds_up_nobody_for_ever() -> None:
    window = SendWindow(max_sends=10, max_bytes=100)
    first, last = Sender(window, 100), Sender(window, 50, 50)

    def fails() -> None:
        raise RuntimeError

    first.pump()
    assert not window.reserve(50, fails)
    last.pump()
    with pytest.raises(RuntimeError):
        window.release(100)
    last.pump()  # it has something more
    assert last.sent == [50]
    window.release(50)
    assert last.sent == [50, 50]


@given(st.lists(st.lists(st.integers(1, 150), max_size=12), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_everybody_has_sent_everything_in_the_end(wanted: list[list[int]], random: Random) -> None:
    window = SendWindow(max_sends=3, max_bytes=100)
    senders = [Sender(window, *sizes) for sizes in wanted]
    for sender in senders:
        sender.pump()
    answered = [0] * len(senders)
    while any(sender.left for sender in senders):
        out = [number for number, sender in enumerate(senders) if len(sender.sent) > answered[number]]
        assert out, "nothing is on the way, and somebody waits"
        number = random.choice(out)
        answered[number] += 1
        window.release(senders[number].sent[answered[number] - 1])
    assert [sender.sent for sender in senders] == wanted
