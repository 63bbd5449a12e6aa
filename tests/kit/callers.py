"""Callers of a producer that need the order of their messages, and go back to a message that was not stored."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.waiting_sends import Caller, WaitingSends
from tests.kit.chained_futures import chained

ITERATIONS = 8
"""Iterations of the event loop after which every caller knows of a failure."""
FAILURES = 3
"""Number of failures after which callers send that do not know of it."""
Submit = Callable[[bytes, Caller], "asyncio.Future[Any]"]


class OrderedCaller:
    """Sends the numbers 0, 1, 2, ... as b"name:number". Once it is told that a number was not stored, it goes on from there.

    It does not wait until it knows whether a number is stored before it sends the next one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.next = 0
        self.refused: set[int] = set()
        """Numbers that are never accepted: it does not send them again."""
        self.stored: set[int] = set()
        """Numbers of which it knows that they are stored."""
        self.pending: dict[asyncio.Future[Any], int] = {}
        """The number of each send of which it does not know the result, by the future that will tell it."""
        self.withdrawn = False
        """True from a withdrawal of all pending sends until it knows the result of each: it sends nothing meanwhile."""

    def send(self, submit: Submit, layers: int) -> None:
        """Send the next number; its result passes through this number of futures before the caller knows it."""
        while self.next in self.refused:
            self.next += 1
        number, told = self.next, asyncio.get_running_loop().create_future()
        self.next += 1
        self.pending[told] = number
        told.add_done_callback(self._on_told)
        result = submit(b"%s:%d" % (self.name.encode(), number), Caller(told, self.name, (told,)))
        chained(result, layers).add_done_callback(partial(_tell, told))

    def _on_told(self, told: "asyncio.Future[Any]") -> None:
        number, error = self.pending.pop(told), told.result()
        self.withdrawn = self.withdrawn and bool(self.pending)
        if error is None:
            self.stored.add(number)
        elif isinstance(error, ClusterError) and error.failure is Failure.REFUSED:
            self.refused.add(number)
        else:
            self.next = min(self.next, number)

    def numbers(self, bodies: Iterable[bytes]) -> list[int]:
        """Return the numbers of the bodies that are of this caller."""
        return [int(body.rpartition(b":")[2]) for body in bodies if body.startswith(self.name.encode() + b":")]

    def owners(self) -> list[Any]:
        """Withdraw all pending sends: return their owners, and send nothing before their results are known."""
        self.withdrawn = bool(self.pending)
        return list(self.pending)


def _tell(told: "asyncio.Future[Any]", result: "asyncio.Future[Any]") -> None:
    told.set_result(result.exception())


@contextmanager
def sending_after_failures(sends: "WaitingSends[Any]", send: Callable[[], None]) -> Iterator[None]:
    """Call `send` in each of the next iterations of the event loop after sends have failed: nobody knows of it yet.

    At most FAILURES times, because the sends may fail again at once.
    """
    fail, left, is_sending = sends.fail, FAILURES, False

    def fail_and_send(*arguments: Any) -> None:
        nonlocal left, is_sending
        fail(*arguments)
        if left and not is_sending:
            left, is_sending = left - 1, True
            asyncio.get_running_loop().call_soon(send_again, ITERATIONS)

    def send_again(iterations: int) -> None:
        nonlocal is_sending
        is_sending = iterations > 0
        send()
        if is_sending:
            asyncio.get_running_loop().call_soon(send_again, iterations - 1)

    with patch.object(sends, "fail", fail_and_send):
        yield


def check_order(stored: list[bytes], refused: Collection[bytes], callers: list[OrderedCaller]) -> None:
    """Check the bodies that a broker has stored, in this order, and those that it has refused.

    No number is stored before a smaller one, except if that was refused; and nothing is falsely reported as stored.
    """
    for caller in callers:
        numbers, rejected = caller.numbers(stored), set(caller.numbers(refused))
        seen: set[int] = set()
        for number in numbers:
            missing = set(range(number)) - seen - rejected
            assert not missing, f"{number} of caller {caller.name} was stored before {sorted(missing)}: {numbers}"
            seen.add(number)
        assert caller.stored <= seen, f"reported as stored, but not stored: {sorted(caller.stored - seen)}"
