"""Queues of what clients send: those that wait for one are called in order, and later sends do not pass them."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from mqbridge.errors import ClusterError
from mqbridge.listener.publish_queues import PublishQueue, PublishQueues, QueueWaiter
from mqbridge.listener.publisher import State
from mqbridge.listener.topics import ListenedTopic
from tests.patience import PATIENCE_S

TOPIC = ListenedTopic("t", "t", {0: "0"}, is_partitioned=True)


class WaitingBench:
    """Queues of publishers that open at once, and those that wait."""

    def __init__(self) -> None:
        publisher = Mock(state=State.OPEN)
        self.publishers: Any = Mock(open=AsyncMock(return_value=publisher), close=AsyncMock())
        self.queues = PublishQueues(self.publishers, Mock())
        self.found = asyncio.Event()
        self.called: list[tuple[int, object]] = []
        self.done = asyncio.Event()

    async def find_topic(self) -> ListenedTopic:
        await self.found.wait()
        return TOPIC

    def wait(self, *numbers: int) -> None:
        """Let these wait; the last one sets `done`."""
        for number in numbers:
            self.queues.when_open("t", 0, self.find_topic, QueueWaiter(self._note(number), self._note(number)))

    def _note(self, number: int) -> Any:
        def note(outcome: object) -> None:
            self.called.append((number, outcome))
            if number == 9:
                self.done.set()

        return note

    async def finish(self) -> None:
        self.found.set()
        async with asyncio.timeout(PATIENCE_S):
            await self.done.wait()


async def test_those_that_wait_are_called_in_order_and_the_topic_is_looked_up_once() -> None:
    bench = WaitingBench()
    bench.wait(1, 2)
    await asyncio.sleep(0)
    bench.wait(9)
    await bench.finish()
    assert [number for number, _ in bench.called] == [1, 2, 9]
    assert all(isinstance(outcome, PublishQueue) for _, outcome in bench.called)
    assert bench.publishers.open.await_count == 1


async def test_nobody_passes_those_that_wait_for_a_queue_that_is_open() -> None:
    bench = WaitingBench()
    opened = await bench.queues.open(TOPIC, 0)
    assert bench.queues.find("t", 0) is opened
    bench.wait(9)
    assert bench.queues.find("t", 0) is None
    await bench.finish()
    assert bench.queues.find("t", 0) is opened


async def test_those_that_wait_learn_why_there_is_no_queue() -> None:
    bench = WaitingBench()
    bench.publishers.open.side_effect = error = ClusterError("down")
    bench.wait(1, 9)
    await bench.finish()
    assert bench.called == [(1, error), (9, error)]
    bench.publishers.open.side_effect = None
    bench.done.clear()
    bench.wait(9)
    await bench.finish()
    assert isinstance(bench.called[-1][1], PublishQueue)


async def test_those_that_wait_are_told_of_a_stop() -> None:
    bench = WaitingBench()
    bench.wait(1, 9)
    (task,) = bench.queues._tasks
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(number, str(outcome)) for number, outcome in bench.called] == [
        (number, "the listener is being stopped") for number in (1, 9)
    ]
