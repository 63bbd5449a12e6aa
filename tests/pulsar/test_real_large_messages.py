"""Messages of routes above the limit of a real broker: stored in chunks, in their place, and found again."""

import asyncio
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mqbridge import PulsarClient
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import Failure
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.e2e.support import opened, pulsar_settings
from tests.kit.pulsar import Pulsar
from tests.pulsar.test_real_dead_letters import Routes

pytestmark = pytest.mark.cluster

SOURCE = Partition("here", "t", "0", 0)
LARGE = os.urandom(6 << 20)
"""Above the broker's limit of 5 MiB, also when compressed."""
PAYLOADS = [b"first", LARGE, b"second", LARGE[: 1 << 20] * 12, b"third"]


@pytest.fixture
def routes(pulsar: Pulsar, tmp_path: Path) -> Routes:
    return Routes(pulsar, tmp_path)


async def fill(pulsar: Pulsar, topic: str) -> None:
    async with PulsarClient(pulsar.service_url) as client, client.producer(topic, chunking=True) as producer:
        for payload in PAYLOADS:
            await producer.send(payload, key="k", properties=[("a", "b")], event_time=5)


async def received(pulsar: Pulsar, topic: str) -> list[Any]:
    async with PulsarClient(pulsar.service_url) as client, client.consumer(topic, "s", start="earliest") as consumer:
        return [await consumer.receive(30) for _ in PAYLOADS]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"compression": "zstd"}, id="zstd", marks=pytest.mark.thorough),
        pytest.param({"batch_bytes": "16MiB"}, id="large batch", marks=pytest.mark.thorough),
    ],
)
async def test_a_route_copies_messages_above_the_limit_in_their_place(pulsar: Pulsar, routes: Routes, options: dict[str, Any]):
    source, target = pulsar.keep(pulsar.take_topic()), pulsar.keep(pulsar.take_topic())
    await fill(pulsar, source)
    counters, error = await routes.run(f"pulsar/{source}", {"cluster": "pulsar", "topic": target, "options": options}, "log/dead")
    assert (error, counters.dead) == (None, 0)
    messages = await received(pulsar, target)
    assert [message.payload for message in messages] == PAYLOADS
    assert {(message.key, message.properties, message.event_time, message.defect) for message in messages} == {
        ("k", (("a", "b"),), 5, None)
    }


@pytest.mark.thorough  # the resumed sender waits a minute for the rest of the last message
async def test_incomplete_messages_at_the_ends_of_a_target_do_not_stop_a_sender_that_resumes(pulsar: Pulsar, client):
    """They are what a process leaves that is killed between chunks."""
    topic = pulsar.keep(pulsar.take_topic())
    interrupted = client.producer(topic)

    async def leave_chunk(uuid: str) -> None:
        await interrupted.send(MessageMetadata(uuid=uuid, chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=9), b"part")

    async with opened("pulsar", pulsar_settings(pulsar)) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic))
        await leave_chunk("a")
        receipt = await outbound.send(0, Share(Batch.of([Message(LARGE, position=(7,))], SOURCE)))
        await leave_chunk("b")
        bounds = (await cluster.bounds(topic))["-1"]
        assert (bounds.first[1], bounds.next[1]) == (0, receipt.positions[0][1] + 2)
        assert await outbound.resume(SOURCE) == {0: (7,)}
        await outbound.close()


async def test_a_topic_that_is_compacted_gets_no_chunks(pulsar: Pulsar):
    """Compaction would keep the last chunk, and neither the message nor the one before it."""
    namespace = await asyncio.to_thread(pulsar.create_namespace, "acme", f"compacted-{uuid4().hex[:6]}")
    topic = pulsar.keep(await asyncio.to_thread(pulsar.create_topic, "t", namespace=namespace))
    async with opened("pulsar", pulsar_settings(pulsar)) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic))
        receipt = await outbound.send(0, Share(Batch.of([Message(LARGE, key="k")])))
        assert receipt.failures == []
        await outbound.close()
        await asyncio.to_thread(pulsar.admin, "PUT", f"namespaces/{namespace}/compactionThreshold", 1 << 20)
        outbound = await cluster.outbound(OutboundSpec(topic))
        receipt = await outbound.send(0, Share(Batch.of([Message(b"small", key="k"), Message(LARGE, key="k")])))
        [failure] = receipt.failures
        assert (failure.index, failure.failure_kind) == (1, Failure.REFUSED)
        assert "compaction of topic" in failure.reason
        await outbound.close()


@pytest.mark.thorough
async def test_without_chunking_they_become_dead_letters_that_can_be_sent_again(pulsar: Pulsar, routes: Routes):
    source, target = pulsar.keep(pulsar.take_topic()), pulsar.keep(pulsar.take_topic())
    await fill(pulsar, source)
    options = {"chunking": False, "compression": "zstd"}
    to = {"cluster": "pulsar", "topic": target, "options": options}
    counters, error = await routes.run(f"pulsar/{source}", to, "log/dead")
    assert (error, counters.dead) == (None, 1), "the other one is small enough when compressed"
    counters, error = await routes.run("log/dead", {"cluster": "pulsar", "topic": target})
    assert (error, counters.dead) == (None, 0)
    messages = await received(pulsar, target)
    assert [message.payload for message in messages] == [b"first", b"second", PAYLOADS[3], b"third", LARGE]
