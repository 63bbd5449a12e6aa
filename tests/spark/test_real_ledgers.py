"""A stream over a real Pulsar topic whose ledgers are deleted: only messages that it had not read are a data loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio
from pyspark.sql.streaming.datasource import ReadAllAvailable

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import GapError
from mqbridge.message import Batch, Message, Share
from mqbridge.spark.source.offsets import Offsets
from mqbridge.spark.source.planner import StreamPlanner
from mqbridge.spark.source.read import RangeReader
from mqbridge.spark.source.tasks import plan_tasks
from tests.e2e.support import opened, pulsar_settings
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S
from tests.spark.fake_cluster import use_fake_cluster
from tests.spark.load import TopicRef
from tests.spark.source.test_real_source import settings_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ALL = ReadAllAvailable()


class Stream:
    """A query that reads a topic of one partition, planned without Spark; each `restart` has a new cluster object."""

    def __init__(self, server: Pulsar, topic: TopicRef, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.topic, self._patch = server, topic, monkeypatch
        self.path = f"persistent/public/default/{topic.name}"
        self.offsets: Offsets = {}
        self._sent = 0

    def restart(self, cluster: Cluster) -> None:
        self.cluster, self._connect = cluster, use_fake_cluster(self._patch, cluster)
        self.settings = settings_of(self.topic, startingOffsets="earliest", metadataInterval="0ms")
        self.planner = StreamPlanner(self.settings)

    async def send(self, count: int) -> None:
        outbound = await self.cluster.outbound(OutboundSpec(self.topic.name))
        for number in range(self._sent, self._sent + count):
            receipt = await outbound.send(0, Share(Batch.of([Message(b"%d" % number)])))
            assert not receipt.failures
        self._sent += count
        await outbound.close()

    async def read(self) -> list[int]:
        """Plan the next batch and read it; return the numbers of its messages."""
        begin = self.offsets or await self.planner.initial_offsets()
        end = await self.planner.end_offsets(begin, ALL)
        ranges = {key: (begin[key], end[key]) for key in end if begin[key] < end[key]}
        found: list[int] = []
        for task in await plan_tasks(self.planner.queries, self.settings, ranges):
            async for batch in RangeReader(self.settings, task, self._connect).batches():
                found += [int(message.payload or b"") for message in batch.messages]
        self.offsets = end
        return found

    async def delete_ledgers(self) -> None:
        """Close the open ledger and wait until the broker has deleted it."""

        def ledgers() -> set[int]:
            return {each["ledgerId"] for each in self.server.admin("GET", f"{self.path}/internalStats")["ledgers"]}

        old = ledgers()
        self.server.admin("PUT", f"{self.path}/unload")
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while old & ledgers():
                self.server.admin("GET", f"{self.path}/stats")
                self.server.admin("POST", f"{self.path}/trim")
                await asyncio.sleep(0.1)


@pytest_asyncio.fixture
async def stream(pulsar: Pulsar, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stream]:
    name = f"ledgers-{uuid4().hex[:8]}"
    pulsar.create_topic(name)
    stream = Stream(pulsar, TopicRef("pulsar", pulsar_settings(pulsar), name), monkeypatch)
    async with opened("pulsar", stream.topic.settings) as cluster:
        stream.restart(cluster)
        yield stream


async def test_a_deleted_ledger_that_was_read_is_no_data_loss(stream: Stream) -> None:
    await stream.send(10)
    assert await stream.read() == list(range(10))
    await stream.delete_ledgers()
    assert await stream.read() == []
    await stream.send(5)
    async with opened("pulsar", stream.topic.settings) as cluster:
        stream.restart(cluster)
        assert await stream.read() == list(range(10, 15))


async def test_deleted_messages_that_the_stream_has_seen_but_not_read_are_a_data_loss(stream: Stream) -> None:
    await stream.send(10)
    assert await stream.read() == list(range(10))
    await stream.send(5)
    assert await stream.planner.end_offsets(stream.offsets, ALL) != stream.offsets
    await stream.delete_ledgers()
    await stream.send(5)
    with pytest.raises(GapError, match="retention deleted messages"):
        await stream.read()


async def test_a_batch_whose_messages_were_deleted_is_a_data_loss(stream: Stream) -> None:
    """A repeated batch after a restart: its end tells that there were messages."""
    await stream.send(10)
    begin = await stream.planner.initial_offsets()
    end = await stream.planner.end_offsets(begin, ALL)
    await stream.delete_ledgers()
    await stream.send(5)
    async with opened("pulsar", stream.topic.settings) as cluster:
        stream.restart(cluster)
        ((key, position),) = begin.items()
        (task,) = await plan_tasks(stream.planner.queries, stream.settings, {key: (position, end[key])})
        with pytest.raises(GapError, match="deleted before they were read"):
            async for _ in RangeReader(stream.settings, task, stream._connect).batches():
                pass
