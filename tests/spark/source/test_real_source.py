"""Batches and split ranges on real clusters, planned and read without Spark in the way that Spark does it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from mqbridge.adapter.registry import load_adapters
from mqbridge.message import Message
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.options import Usage, parse_options
from mqbridge.spark.source.planner import StreamPlanner
from mqbridge.spark.source.read import Connect, RangeReader
from mqbridge.spark.source.settings import SourceSettings, source_settings
from mqbridge.spark.source.tasks import RangeTask, plan_tasks
from tests.e2e.support import opened
from tests.spark.fake_cluster import use_fake_cluster
from tests.spark.load import ReceivedMessages, TopicRef, assert_equal, fill, uneven_counts
from tests.spark.mirror_runs import PARTITIONS, new_target_topic, settle, source_topic

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MESSAGES = 6000
LIMIT = 1500


@pytest.fixture(params=["rocketmq", "tubemq", "pulsar"])
def topic(request: pytest.FixtureRequest) -> TopicRef:
    if request.param == "pulsar":
        return new_target_topic(request.getfixturevalue("pulsar"), f"source-{time.time_ns()}")
    return source_topic(request.getfixturevalue(request.param))


async def test_batches_and_split_ranges_have_every_message_once(
    topic: TopicRef, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = await fill(topic, uneven_counts(MESSAGES, PARTITIONS), 300)
    if topic.system != "pulsar":
        settle(request.getfixturevalue(topic.system))
    async with opened(topic.system, topic.settings) as cluster:
        connect = use_fake_cluster(monkeypatch, cluster)
        settings = settings_of(topic, maxOffsetsPerTrigger=str(LIMIT), startingOffsets="earliest")
        planner = StreamPlanner(settings)
        await planner.freeze()
        ends = [await planner.initial_offsets()]
        while (end := await planner.end_offsets(ends[-1], ReadMaxRows(LIMIT))) != ends[-1]:
            ends.append(end)
        received, sizes = [ReceivedMessages() for _ in sent], []
        for begin, end in pairwise(ends):
            ranges = {key: (begin[key], end[key]) for key in end if begin[key] < end[key]}
            sizes.append(
                sum(
                    [
                        await read(received, settings, task, connect)
                        for task in await plan_tasks(planner.queries, settings, ranges)
                    ]
                )
            )
        assert_equal(received, sent)
        assert len(sizes) >= MESSAGES // LIMIT
        assert max(sizes) <= 2 * LIMIT, "a limit is an estimate if messages are stored in packs"

        split_settings = settings_of(topic, minPartitions=str(3 * PARTITIONS), startingOffsets="earliest")
        received = [ReceivedMessages() for _ in sent]
        complete_ranges = {key: (ends[0][key], ends[-1][key]) for key in ends[-1]}
        tasks = await plan_tasks(planner.queries, split_settings, complete_ranges)
        for task in tasks:
            await read(received, split_settings, task, connect)
        assert_equal(received, sent)
        assert len(tasks) == 3 * PARTITIONS


def settings_of(topic: TopicRef, **options: str) -> SourceSettings:
    ref = ClusterRef("source", topic.system, load_adapters()[topic.system].cluster_model(**topic.settings))
    return source_settings(parse_options({"subscribe": topic.name} | options, Usage.STREAM), ref, Usage.STREAM)


async def read(received: Sequence[ReceivedMessages], settings: SourceSettings, task: RangeTask, connect: Connect) -> int:
    count = 0
    async for batch in RangeReader(settings, task, connect).batches():
        messages: Sequence[Message] = batch.messages
        for message in messages:
            received[batch.partition.index].receive(batch.partition.index, message)
        count += batch.count
    return count
