"""Reading ranges of partitions without a group: both ends are exact, even while messages are written."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.cli.reading.range_reader import Range, read
from mqbridge.errors import ClusterError, GapError
from mqbridge.message import Batch, Message, Position, Share
from mqbridge.testing.memory.adapter.registration import ADAPTER
from mqbridge.testing.memory.broker import delete_broker, get_broker

TOPIC = "orders"


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """A cluster with a topic of three partitions; it delivers batches of two messages. Fails if a task is still running."""
    cluster = ADAPTER.make_cluster("reader-test", ADAPTER.cluster_model(batch_messages=2))
    await cluster.create(TOPIC, 3)
    before = asyncio.all_tasks()
    yield cluster
    delete_broker("reader-test")
    remaining = [task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()]
    assert remaining == [], "a task is still running after the test"


async def store(cluster: Cluster, partition: int, *payloads: bytes, msg_type: str | None = None) -> None:
    outbound = await cluster.outbound(OutboundSpec(TOPIC))
    await outbound.send(partition, Share(Batch.of([Message(payload, msg_type=msg_type) for payload in payloads])))
    await outbound.close()


async def payloads(cluster: Cluster, ranges: dict[str, Range], **options: Any) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    async with aclosing(read(cluster, TOPIC, ranges, **options)) as chunks:
        async for partition, messages in chunks:
            found.setdefault(partition.name, []).extend(message.payload or b"" for message in messages)
    return found


async def test_ranges_are_exact_also_inside_of_batches(cluster: Cluster) -> None:
    await store(cluster, 0, b"a", b"b", b"c", b"d", b"e")
    await store(cluster, 1, b"x", b"y", b"z")
    found = await payloads(cluster, {"0": Range((1,), (4,)), "1": Range((2,), (3,)), "2": Range((0,), (0,))})
    assert found == {"0": [b"b", b"c", b"d"], "1": [b"z"]}


async def test_a_range_keeps_its_end_while_more_is_written(cluster: Cluster) -> None:
    await store(cluster, 0, b"a", b"b", b"c")
    found: list[bytes] = []
    async with aclosing(read(cluster, TOPIC, {"0": Range((0,), (3,))})) as chunks:
        async for _, messages in chunks:
            await store(cluster, 0, b"later", b"still later")
            found += [message.payload or b"" for message in messages]
    assert found == [b"a", b"b", b"c"]


async def test_without_an_end_new_messages_are_read(cluster: Cluster) -> None:
    await store(cluster, 0, b"a")
    async with aclosing(read(cluster, TOPIC, {"0": Range((0,)), "1": Range((0,))})) as chunks:
        assert [message.payload for message in (await anext(chunks))[1]] == [b"a"]
        await store(cluster, 1, b"b")
        partition, messages = await anext(chunks)
        assert (partition.name, [message.payload for message in messages]) == ("1", [b"b"])
        await store(cluster, 0, b"c")
        assert [message.payload for message in (await anext(chunks))[1]] == [b"c"]


async def test_messages_are_limited_per_partition_and_by_type(cluster: Cluster) -> None:
    await store(cluster, 0, b"a", b"b", b"c")
    await store(cluster, 0, b"paid 1", b"paid 2", b"paid 3", msg_type="paid")
    await store(cluster, 1, b"paid 4", msg_type="paid")
    ranges = {"0": Range((0,), (6,)), "1": Range((0,), (1,))}
    assert await payloads(cluster, ranges, limit_per_partition=2) == {"0": [b"a", b"b"], "1": [b"paid 4"]}
    paid = await payloads(cluster, ranges, limit_per_partition=2, msg_types=frozenset({"paid"}))
    assert paid == {"0": [b"paid 1", b"paid 2"], "1": [b"paid 4"]}


async def test_a_gap_ends_the_reading(cluster: Cluster) -> None:
    await store(cluster, 0, b"a", b"b", b"c")
    get_broker("reader-test").delete_below(TOPIC, 0, 2)
    with pytest.raises(GapError):
        await payloads(cluster, {"0": Range((0,), (3,)), "1": Range((0,))})


async def test_an_error_in_one_partition_closes_the_others(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    class Failing:
        async def read(self, topic: str, name: str, begin: Position, end: Position | None) -> AsyncGenerator[Batch, None]:
            try:
                if name == "0":
                    raise ClusterError("gone")
                await asyncio.Event().wait()
                yield Batch.of([])
            finally:
                closed.append(name)

    failing: Any = Failing()
    with pytest.raises(ClusterError, match="gone"):
        await payloads(failing, {"1": Range((0,)), "0": Range((0,))})
    assert sorted(closed) == ["0", "1"]
    assert not caplog.records  # the command prints the error: it is not logged as a bug
