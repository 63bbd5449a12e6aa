"""The window bounds a producer's messages in flight, and admits waiting calls in order."""

import asyncio
import time

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.library.send_window import SendWindow


async def started(*calls: "asyncio.Future[int]") -> list[bool]:
    """Let the event loop run, and return for each call if it was admitted."""
    for _ in range(5):
        await asyncio.sleep(0)
    return [call.done() and not call.cancelled() for call in calls]


async def test_a_call_waits_until_the_window_has_room() -> None:
    window = SendWindow(10)
    first = await window.enter(8)
    second = asyncio.ensure_future(window.enter(8))
    assert await started(second) == [False]
    window.leave(first, 8)
    assert await started(second) == [True]
    assert window.bytes_in_flight == 8


async def test_a_message_larger_than_the_window_is_admitted_alone() -> None:
    window = SendWindow(10)
    number = await window.enter(100)
    second = asyncio.ensure_future(window.enter(1))
    assert await started(second) == [False]
    window.leave(number, 100)
    assert await started(second) == [True]


async def test_no_call_overtakes_one_that_is_admitted_but_has_not_resumed() -> None:
    window = SendWindow(10)
    order: list[str] = []

    async def call(name: str, size: int) -> None:
        await window.enter(size)
        order.append(name)

    number = await window.enter(10)
    waiting = [asyncio.ensure_future(call(name, 1)) for name in "ab"]
    await asyncio.sleep(0)
    window.leave(number, 10)
    waiting.append(asyncio.ensure_future(call("c", 1)))
    await asyncio.gather(*waiting)
    assert order == ["a", "b", "c"]


async def test_a_cancelled_call_releases_its_bytes_to_the_next() -> None:
    window = SendWindow(10)
    number = await window.enter(10)
    first, second = asyncio.ensure_future(window.enter(10)), asyncio.ensure_future(window.enter(10))
    await asyncio.sleep(0)
    window.leave(number, 10)  # admits the first call, which is cancelled before it resumes
    first.cancel()
    assert await started(first, second) == [False, True]
    third = asyncio.ensure_future(window.enter(10))
    await asyncio.sleep(0)
    third.cancel()
    await started()
    window.leave(second.result(), 10)
    assert window.bytes_in_flight == 0
    await window.drain()


async def test_drain_waits_for_the_calls_before_it_only() -> None:
    window = SendWindow(10)
    first, second = await window.enter(4), await window.enter(4)
    waiting = asyncio.ensure_future(window.enter(4))
    drained = asyncio.ensure_future(window.drain())
    await asyncio.sleep(0)
    later = asyncio.ensure_future(window.enter(1))
    window.leave(second, 4)
    window.leave(first, 4)
    await started(waiting, later)
    assert not drained.done()
    window.leave(waiting.result(), 4)
    await drained
    assert window.bytes_in_flight == 1


async def test_after_an_abort_waiting_and_new_calls_fail() -> None:
    window = SendWindow(10)
    await window.enter(10)
    waiting = asyncio.ensure_future(window.enter(1))
    await asyncio.sleep(0)
    window.abort(ClusterError("closed", Failure.FATAL))
    for call in (waiting, window.enter(1)):
        with pytest.raises(ClusterError, match="closed"):
            await call


async def test_only_the_waiting_calls_of_a_stream_fail() -> None:
    window = SendWindow(10)
    number = await window.enter(10, "a")
    waiting = [asyncio.ensure_future(window.enter(1, stream)) for stream in ("a", "b", None, "a")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    window.fail_waiting(ClusterError("failed"), "a")
    assert await started(*waiting[1:3]) == [False, False]
    with pytest.raises(ClusterError, match="failed"):
        await waiting[3]
    window.leave(number, 10)
    assert await started(*waiting[1:3]) == [True, True]
    assert (window.bytes_in_flight, window._waiters_of, len(window._waiters)) == (2, {}, 0)


async def test_a_drain_of_many_messages_takes_little_time() -> None:
    window = SendWindow(1 << 30)
    numbers = [await window.enter(1) for _ in range(80_000)]
    drained = asyncio.ensure_future(window.drain())
    await asyncio.sleep(0)
    begun = time.process_time()
    for number in numbers:
        window.leave(number, 1)
    assert time.process_time() - begun < 2.0, "it grows with the number of messages, not with its square"
    await drained
