"""Dead letters of messages that cannot be read, from a real broker: nothing of them is lost, and they can be put back."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqbridge.config.load import from_dict
from mqbridge.delivery.counters import Counters
from mqbridge.gateway.run import Gateway
from mqbridge.pulsar.adapter import inbound
from mqbridge.pulsar.client.consumer.subscription import Subscription
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.wire.chunk_joiner import ChunkLimits
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.frame import DEFAULT_MAX_MESSAGE_SIZE
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.entries import drain

pytestmark = pytest.mark.cluster

EMPTY_MESSAGE = b"\0\0\0\2\x18\0"
"""A message without payload in a batch."""


class Routes:
    """Runs routes between topics of a Pulsar cluster and embedded logs, each until it is idle."""

    def __init__(self, pulsar: Pulsar, folder: Path) -> None:
        self._clusters = {
            "pulsar": {"system": "pulsar", "service_url": pulsar.service_url, "admin_url": pulsar.admin_url},
            "log": {"system": "log", "path": str(folder / "log.db")},
            "small": {"system": "log", "path": str(folder / "small.db"), "max_message_bytes": "1KiB"},
        }

    async def run(self, source: str, target: dict[str, Any], dead: str | None = None) -> tuple[Counters, str | None]:
        """Run a route from a topic (`CLUSTER/TOPIC`); return its counters and its error. Dead letters go to the topic `dead`."""
        cluster, _, topic = source.partition("/")
        letters = None if dead is None else dict(zip(("cluster", "topic"), dead.split("/", 1), strict=True))
        route = {
            "name": "r",
            "from": {"cluster": cluster, "topic": topic, "group": "g"},
            "to": target,
            "delivery": {"dead_letter": letters},
        }
        config = {"clusters": self._clusters, "http": {"enabled": False}, "routes": [route]}
        outcome = await asyncio.wait_for(Gateway(from_dict(config)).run(1.0), SERVER_PATIENCE_S)
        return outcome.routes[0].counters, outcome.routes[0].error


@pytest.fixture
def routes(pulsar: Pulsar, tmp_path: Path) -> Routes:
    return Routes(pulsar, tmp_path)


def encrypted() -> MessageMetadata:
    metadata = MessageMetadata(encryption_param=b"initial vect", encryption_algo="x", partition_key="k", event_time=5)
    metadata.encryption_keys.add(key="app", value=b"data key")
    metadata.properties.add(key="a", value="1")
    return metadata


def content(entry: Entry) -> tuple[bytes, bytes]:
    """Return payload and metadata of an entry, without what each producer sets itself."""
    metadata = MessageMetadata()
    metadata.CopyFrom(entry.metadata)
    metadata.producer_name, metadata.sequence_id = "p", 0
    if not metadata.uuid:
        metadata.publish_time = 0
    return entry.payload, metadata.SerializeToString()


async def test_unreadable_entries_are_put_back_as_they_were(pulsar: Pulsar, client, subscribe, routes: Routes):
    topic, restored = pulsar.keep(pulsar.take_topic()), pulsar.keep(pulsar.take_topic())
    producer = client.producer(topic, ProducerSettings(codec=CODEC_NUMBERS["zstd"]))
    bomb = EMPTY_MESSAGE * 200_000
    await producer.send(encrypted(), b"secret")
    await producer.send(MessageMetadata(num_messages_in_batch=200_000), bomb, 200_000)
    for number in (0, 2):
        chunk = {"uuid": "u", "chunk_id": number, "num_chunks_from_msg": 3, "total_chunk_msg_size": 9}
        await producer.send(MessageMetadata(publish_time=7, **chunk), b"%d--" % number)
    await producer.send(MessageMetadata(compression=CODEC_NUMBERS["lz4"], uncompressed_size=99), b"not compressed at all")
    await producer.send(MessageMetadata(), b"readable")
    await producer.close()
    originals = await drain(await subscribe(topic))

    counters, error = await routes.run(f"pulsar/{topic}", {"cluster": "log", "topic": "copy"}, "log/dead")
    assert (counters.dead, error) == (5, None)
    counters, error = await routes.run("log/dead", {"cluster": "pulsar", "topic": restored, "options": {"restore_entries": True}})
    assert (counters.stored, error) == (5, None)
    entries = await drain(await subscribe(restored))
    assert [entry.defect for entry in entries] == [entry.defect for entry in originals[:-1]]
    assert [content(entry) for entry in entries] == [content(entry) for entry in originals[:-1]]


async def test_a_run_ends_only_when_incomplete_messages_are_dead_letters(
    pulsar: Pulsar, client, routes: Routes, monkeypatch: pytest.MonkeyPatch
):
    """Else its chunk would stay in the topic for ever, and every run would repeat what is behind it."""
    limits = ChunkLimits(expiry_s=3.0)
    monkeypatch.setattr(inbound, "Subscription", partial(Subscription, chunk_limits=limits))
    topic = pulsar.keep(pulsar.take_topic())
    producer = client.producer(topic)
    chunk = MessageMetadata(publish_time=7, uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=9)
    await producer.send(chunk, b"first")
    await producer.send(MessageMetadata(), b"behind")
    await producer.close()
    for stored, dead in ((1, 1), (0, 0)):
        counters, error = await routes.run(f"pulsar/{topic}", {"cluster": "log", "topic": "copy"}, "log/dead")
        assert (counters.stored, counters.dead, error) == (stored, dead, None)


async def test_an_entry_of_the_largest_size_has_its_dead_letter_in_the_same_cluster(
    pulsar: Pulsar, client, subscribe, routes: Routes
):
    topic, dead, restored = (pulsar.keep(pulsar.take_topic()) for _ in range(3))
    producer = client.producer(topic)
    await producer.send(encrypted(), bytes(DEFAULT_MAX_MESSAGE_SIZE))
    await producer.close()
    [original] = await drain(await subscribe(topic))
    counters, error = await routes.run(f"pulsar/{topic}", {"cluster": "log", "topic": "copy"}, f"pulsar/{dead}")
    assert (counters.dead, error) == (1, None)
    target = {"cluster": "pulsar", "topic": restored, "options": {"restore_entries": True}}
    counters, error = await routes.run(f"pulsar/{dead}", target)
    assert (counters.stored, error) == (1, None)
    [entry] = await drain(await subscribe(restored))
    assert content(entry) == content(original)


async def test_a_source_is_not_acknowledged_if_its_dead_letter_is_too_large(pulsar: Pulsar, client, routes: Routes):
    topic = pulsar.keep(pulsar.take_topic())
    producer = client.producer(topic)
    await producer.send(encrypted(), bytes(2000))
    await producer.close()
    for _ in range(2):
        counters, error = await routes.run(f"pulsar/{topic}", {"cluster": "log", "topic": "copy"}, "small/dead")
        assert (counters.acknowledged, counters.dead) == (0, 0)
        assert "the entry is encrypted, and the gateway has no keys" in (error or "")
        assert "the dead-letter topic small/dead refused it" in (error or "")
        assert "accepts at most 1024 (max_message_bytes)" in (error or "")
    counters, error = await routes.run(f"pulsar/{topic}", {"cluster": "log", "topic": "copy"}, "log/dead")
    assert (counters.acknowledged, counters.dead, error) == (1, 1, None)
