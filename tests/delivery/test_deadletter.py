"""The dead-letter topic of a route."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import NO_INDEX, NO_SOURCE, Batch, Partition, Share


def test_the_dead_letters_of_a_source_partition_stay_in_one_partition_while_its_index_changes() -> None:
    outbound: Any = SimpleNamespace(partitions=4)
    letters = DeadLetters("r", outbound, "c/dead")
    # A broker that is down, or new, changes the index of the other brokers' partitions where no layout is fixed.
    chosen = {letters.partition_of(Partition("rocket", "orders", "broker-b:0", index)) for index in (0, 1, 3, NO_INDEX)}
    assert len(chosen) == 1


def test_the_dead_letters_of_consecutive_source_partitions_are_spread() -> None:
    outbound: Any = SimpleNamespace(partitions=4)
    letters = DeadLetters("r", outbound, "c/dead")
    queues = [Partition("rocket", "orders", f"broker-b:{number}", number) for number in range(4)]
    assert sorted(map(letters.partition_of, queues)) == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [OSError("gone"), ClusterError("gone", Failure.FATAL), asyncio.CancelledError()], ids=repr)
async def test_an_outbound_that_fails_or_is_given_up_is_marked_as_broken(error: BaseException) -> None:
    """Otherwise the next dead letters would wait for it, too."""

    async def send(_: int, __: Share) -> None:
        raise error

    outbound: Any = SimpleNamespace(partitions=1, send=send)
    letters = DeadLetters("r", outbound, "c/dead")
    with pytest.raises(asyncio.CancelledError if isinstance(error, asyncio.CancelledError) else ClusterError):
        await letters.send(0, Share(Batch.of([], NO_SOURCE)))
    assert letters.is_broken
