"""Messages above the broker's limit: what is split into chunks, what is sent again, and what an error advises."""

import asyncio
import inspect
import re
from collections.abc import Iterable

import pytest

from mqbridge import PulsarClient
from mqbridge.errors import ClusterError, Failure, RemoteProtocolError
from mqbridge.pulsar.adapter.config import PulsarOutboundOptions
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.connection import handshake
from mqbridge.pulsar.client.producer import pending_entry
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.mapping.stored import decode_plain
from mqbridge.pulsar.wire.batch import unframe
from mqbridge.pulsar.wire.chunk_joiner import ChunkJoiner, ChunkLimits
from mqbridge.pulsar.wire.chunks import describes_chunk
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS
from mqbridge.pulsar.wire.entry import Entry, decode_entry
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from mqbridge.pulsar.wire.single_metadata import encode_prefix
from tests.pulsar.client.broker import in_turn, scripted_client, silent, until
from tests.pulsar.client.store import Store

TOPIC = "persistent://public/default/t"
LIMIT = 10_000
LARGE = bytes(range(256)) * 100
NAME = "\udcb0\udcb1"  # bytes that are not UTF-8


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a broker without deduplication, which refuses no entry by its size but tells its limit."""
    store = Store(deduplicate=False, max_message_size=LIMIT)
    monkeypatch.setattr(handshake, "dial", store.dial)
    return store


@pytest.fixture
async def client():
    client = scripted_client()
    yield client
    await client.close()


def stored_entries(store: Store) -> list[Entry]:
    return [decode_entry(data) for data in store.logs[TOPIC]]


def joined(entries: Iterable[Entry]) -> list[Entry]:
    """Return the complete messages, in order."""
    joiner, complete = ChunkJoiner(ChunkLimits()), []
    for entry in entries:
        results = [result.entry for result in joiner.add(entry, 0.0)] if describes_chunk(entry.metadata) else [entry]
        complete += [each for each in results if each is not None and each.defect is None]
    return complete


def framed(payload: bytes, key: str | None = None, count: int = 1) -> tuple[MessageMetadata, bytes]:
    """Return metadata and payload of a batch of `count` messages."""
    metadata = MessageMetadata(num_messages_in_batch=count, partition_key=key)
    prefix = encode_prefix(len(payload), [("a", "b"), (NAME, "c")], key, ordering_key=None, event_time=1_700_000_000_000)
    return metadata, (prefix + payload) * count


@pytest.mark.parametrize("codec", ["none", "zstd", "zlib"])
async def test_a_batch_of_one_message_above_the_limit_is_sent_in_chunks(store: Store, client: ClusterClient, codec: str):
    settings = ProducerSettings("me", codec=CODEC_NUMBERS[codec], chunking=True, chunk_bytes=100)
    producer = client.producer(TOPIC, settings)
    metadata, payload = framed(LARGE, "k")
    first, large, last = [producer.send(*framed(b"0")), producer.send(metadata, payload), producer.send(*framed(b"1"))]
    assert (await large).first_chunk is not None
    await asyncio.gather(first, last)
    assert max(len(entry.payload) for entry in stored_entries(store)) <= 100
    messages = [message for entry in joined(stored_entries(store)) for message in decode_plain(entry)]
    assert [message.payload for message in messages] == [b"0", LARGE, b"1"]
    assert (messages[1].key, messages[1].event_time) == ("k", 1_700_000_000_000)
    assert messages[1].properties == (("a", "b"), (NAME, "c")) == messages[0].properties
    await producer.close()


async def test_a_batch_that_fits_keeps_its_framing(store: Store, client: ClusterClient):
    producer = client.producer(TOPIC, ProducerSettings("me", chunking=True))
    await producer.send(*framed(LARGE[:9000]))
    [entry] = stored_entries(store)
    assert entry.metadata.num_messages_in_batch == 1
    await producer.close()


def test_removing_the_framing_of_anything_but_one_message_changes_nothing():
    for payload in (b"", b"x", framed(b"a")[1] + b"more", framed(b"a", count=2)[1]):
        metadata = MessageMetadata(num_messages_in_batch=1)
        with pytest.raises(RemoteProtocolError, match="batch of 1"):
            unframe(metadata, payload)
        assert metadata == MessageMetadata(num_messages_in_batch=1)


# --- new connections --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_late", [False, True], ids=["soon", "late"])
async def test_after_a_long_outage_the_whole_message_is_sent_again(
    store: Store, client: ClusterClient, monkeypatch, is_late: bool
):
    """Consumers may have dropped its first chunks meanwhile; after a short outage they have not, and get the rest."""
    if is_late:
        monkeypatch.setattr(pending_entry, "CHUNKS_TOGETHER_S", -1.0)
    store_entry = store.on[BaseCommand.SEND]
    store.on[BaseCommand.SEND] = in_turn(store_entry, silent)
    producer = client.producer(TOPIC, ProducerSettings("me", chunking=True))
    sent = [producer.send(*framed(payload)) for payload in (LARGE, b"behind")]
    await until(lambda: len(store.asked[BaseCommand.SEND]) == 4)
    store.on[BaseCommand.SEND] = store_entry
    store.link.drop()
    await asyncio.gather(*sent)
    assert not (await producer.send(*framed(b"later"))).duplicate, "a sequence id was assigned twice"
    chunks = [(entry.metadata.uuid, entry.metadata.chunk_id) for entry in stored_entries(store)]
    rest = [("me-0-1", 0), ("me-0-1", 1), ("me-0-1", 2)] if is_late else [("me-0", 1), ("me-0", 2)]
    assert chunks == [("me-0", 0), *rest, ("", 0), ("", 0)]
    assert [decode_plain(entry)[0].payload for entry in joined(stored_entries(store))] == [LARGE, b"behind", b"later"]
    await producer.close()


async def test_a_message_whose_last_receipt_is_lost_is_not_sent_again_as_a_whole(
    store: Store, client: ClusterClient, monkeypatch
):
    """A deduplicating broker would drop its last chunk, so that the others would never be joined."""
    monkeypatch.setattr(pending_entry, "CHUNKS_TOGETHER_S", -1.0)
    store.deduplicate = store.drop_answers = True
    producer = client.producer(TOPIC, ProducerSettings("me", chunking=True))
    store.drop_answers = False
    await producer.opened()
    store.drop_answers = True
    sent = producer.send(*framed(LARGE))
    await until(lambda: len(store.asked[BaseCommand.SEND]) == 3)
    store.drop_answers = False
    store.link.drop()
    assert (await sent).duplicate
    assert {entry.metadata.uuid for entry in stored_entries(store)} == {"me-0"}
    await producer.close()


@pytest.mark.parametrize("codec", ["none", "zlib"])
async def test_what_was_encoded_for_a_larger_limit_is_split_for_a_smaller_one(store: Store, client: ClusterClient, codec: str):
    """A broker closes the connection at an entry above its limit, so the same bytes would be sent for ever."""
    store.max_message_size = 2 * len(LARGE)
    store_entry, store.on[BaseCommand.SEND] = store.on[BaseCommand.SEND], silent
    producer = client.producer(TOPIC, ProducerSettings("me", chunking=True, codec=CODEC_NUMBERS[codec]))
    payloads = [LARGE, LARGE * 4, b"small"]
    sent = [producer.send(*framed(payload)) for payload in payloads]
    await until(lambda: len(store.asked[BaseCommand.SEND]) >= 3)
    store.on[BaseCommand.SEND], store.max_message_size = store_entry, 300
    store.link.drop()
    await asyncio.gather(*sent)
    assert max(len(entry.payload) for entry in stored_entries(store)) <= 300
    assert [decode_plain(entry)[0].payload for entry in joined(stored_entries(store))] == payloads
    await producer.close()


async def test_a_message_with_a_refused_chunk_is_not_split_again(store: Store, client: ClusterClient, monkeypatch):
    monkeypatch.setattr(pending_entry, "CHUNKS_TOGETHER_S", -1.0)
    store_entry = store.on[BaseCommand.SEND]

    def refuse(link, frame):
        asked = frame.command.send
        error = pb.CommandSendError(producer_id=0, sequence_id=asked.sequence_id, error=pb.NotAllowedError, message="no")
        link.send(send_error=error)

    store.on[BaseCommand.SEND] = in_turn(store_entry, refuse, silent)
    producer = client.producer(TOPIC, ProducerSettings("me", chunking=True))
    large, behind = producer.send(*framed(LARGE)), producer.send(*framed(b"behind"))
    with pytest.raises(ClusterError) as caught:
        await large
    assert caught.value.failure is Failure.REFUSED
    store.on[BaseCommand.SEND] = store_entry
    store.link.drop()
    await behind
    assert [entry.metadata.uuid for entry in stored_entries(store)] == ["me-0", ""]
    await producer.close()


# --- errors -----------------------------------------------------------------------------------------------------------


async def refusal(client: ClusterClient, metadata: MessageMetadata, payload: bytes, *, chunking: bool, **more) -> str:
    producer = client.producer(TOPIC, ProducerSettings(chunking=chunking))
    with pytest.raises(ClusterError) as caught:
        await producer.send(metadata, payload, max(metadata.num_messages_in_batch, 1), **more)
    await producer.close()
    assert caught.value.failure is Failure.REFUSED
    return str(caught.value)


@pytest.mark.parametrize("make", [lambda: framed(LARGE), lambda: (MessageMetadata(), LARGE)], ids=["batch", "single"])
async def test_an_error_without_chunking_advises_options_that_exist(store: Store, client: ClusterClient, make):
    text = await refusal(client, *make(), chunking=False)
    advised = set(re.findall(r"`(\w+)`", text))
    assert advised == {"chunking", "compression"}
    assert advised <= set(PulsarOutboundOptions.model_fields)
    assert advised <= set(inspect.signature(PulsarClient.producer).parameters)


@pytest.mark.parametrize("chunking", [True, False])
async def test_errors_about_entries_that_cannot_be_split_do_not_advise_chunks(
    store: Store, client: ClusterClient, chunking: bool
):
    encrypted = MessageMetadata(num_messages_in_batch=3)
    encrypted.encryption_keys.add(key="app", value=b"data key")
    chunk = MessageMetadata(uuid="u", chunk_id=1, num_chunks_from_msg=3, total_chunk_msg_size=1 << 20)
    damaged = MessageMetadata(num_messages_in_batch=3)
    for metadata, reason in ((encrypted, "encrypted"), (chunk, "it is a chunk"), (damaged, "batch of 3")):
        text = await refusal(client, metadata, LARGE, chunking=chunking, divisible=False)
        assert reason in text
        assert text.endswith("raise maxMessageSize at the broker (and its bookies)")


async def test_an_error_about_a_topic_that_must_not_have_chunks_does_not_advise_them(store: Store, client: ClusterClient):
    producer = client.producer(TOPIC, ProducerSettings(unchunked_reason="it is compacted"))
    with pytest.raises(ClusterError, match="not sent in chunks, because it is compacted") as caught:
        await producer.send(*framed(LARGE))
    assert re.findall(r"`(\w+)`", str(caught.value)) == ["compression"]
    await producer.close()


async def test_an_error_about_metadata_that_no_chunk_can_hold_says_so(store: Store, client: ClusterClient):
    metadata = MessageMetadata()
    metadata.properties.add(key="a", value="b" * LIMIT)
    text = await refusal(client, metadata, LARGE, chunking=True)
    assert "key and properties, which each chunk repeats" in text
    assert "`" not in text
