"""Entries that an outbound sends, as the scripted broker receives them."""

import asyncio
import gc
import tracemalloc

import pytest
from pydantic import ValidationError

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.pulsar.adapter.batches import make_batch
from mqbridge.pulsar.adapter.config import PulsarOutboundOptions
from mqbridge.pulsar.adapter.outbound import PulsarOutbound
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.connection import handshake
from mqbridge.pulsar.mapping.stored import decode_plain
from mqbridge.pulsar.wire.chunk_joiner import ChunkJoiner, ChunkLimits
from mqbridge.pulsar.wire.chunks import describes_chunk
from mqbridge.pulsar.wire.entry import Entry, decode_entry
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from mqbridge.pulsar.wire.schemas import avro
from tests.kit.conversation import silent, until
from tests.pulsar.client.broker import Broker, Link, scripted_client
from tests.pulsar.client.store import LEDGER, Store
from tests.pulsar.entries import batch

SOURCE = Partition("here", "t", "0", 0)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a broker that accepts entries of 1000 bytes."""
    store = Store(max_message_size=1000)
    monkeypatch.setattr(handshake, "dial", store.dial)
    return store


@pytest.fixture
def entries(broker: Broker) -> list[Entry]:
    """Return the list to which every received entry is added."""
    stored: list[Entry] = []
    receive = broker.receive

    def note(link, frame):
        if frame.type == BaseCommand.SEND:
            stored.append(decode_entry(frame.data, frame.entry_offset))
        receive(link, frame)

    broker.receive = note  # type: ignore[method-assign]
    return stored


async def test_an_outbound_sends_the_selected_messages_of_a_batch(client, entries: list[Entry]):
    target = Partition("c", "target", "-1", 0)
    topics = Topics(client, "c", "public/default")
    outbound = PulsarOutbound(None, client, topics, OutboundSpec("target"), [target], 1 << 20)  # type: ignore[arg-type]
    received = []
    for number in range(2):
        metadata, payload, _ = batch([b"%d-a" % number, b"%d-b" % number])
        received.append(Entry(metadata, payload, ledger=7, entry=number))
    source = make_batch(SOURCE, received)
    receipt = await outbound.send(0, Share(source))
    assert (len(receipt.positions), receipt.failures) == (4, [])
    await outbound.send(0, Share(source, [1, 2]))
    await outbound.send(0, Share(source, edited=[Message(b"edited", position=(7, 0, 0))]))
    await outbound.send(0, Share(Batch.of([Message(b"made")])))
    found = [message for entry in entries for message in decode_plain(entry)]
    assert [message.payload for message in found] == [b"0-a", b"0-b", b"1-a", b"1-b", b"0-b", b"1-a", b"edited", b"made"]
    assert [message.origin for message in found[:3]] == ["here|t|0|7:0:0", "here|t|0|7:0:1", "here|t|0|7:1:0"]
    assert (found[5].origin, found[7].origin) == ("here|t|0|7:1:0", None)
    await outbound.close()


async def test_the_producers_of_a_target_have_its_options(broker: Broker, client):
    options = PulsarOutboundOptions(batch_by_key=True, access="exclusive", producer_properties={"team": "sales"})
    sends: list[int] = []
    receive = broker.receive

    def note(link, frame):
        if frame.type == BaseCommand.SEND:
            sends.append(frame.command.send.num_messages)
        receive(link, frame)

    broker.receive = note  # type: ignore[method-assign]
    target = Partition("c", "target", "-1", 0)
    outbound = PulsarOutbound(
        None,  # type: ignore[arg-type]
        client,
        Topics(client, "c", "public/default"),
        OutboundSpec("target", options=options),
        [target],
        1 << 20,
        schema=avro('{"type": "string"}'),
    )
    messages = [Message(b"%d" % number, key=f"k{number % 3}", position=(number,)) for number in range(9)]
    receipt = await outbound.send(0, Share(Batch.of(messages)))
    assert (sorted(sends), receipt.failures) == ([3, 3, 3], [])
    assert len(set(receipt.positions)) == 9
    [opened] = broker.asked[BaseCommand.PRODUCER]
    assert (opened.producer_access_mode, opened.schema.schema_data) == (pb.Exclusive, b'{"type": "string"}')
    assert [(pair.key, pair.value) for pair in opened.metadata] == [("team", "sales")]
    with pytest.raises(ClusterError, match="batch_by_key"):  # positions out of order say nothing about what is missing
        await outbound.resume(SOURCE)
    await outbound.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"schema_type": "avro"}, "needs a schema_definition"),
        ({"schema_type": "topic", "schema_definition": "{}"}, "is not used"),
        ({"schema_type": "json", "schema_definition": "{x"}, "is not JSON"),
        ({"schema_type": "json", "schema_definition": "[" * 100_000}, "is not JSON"),
    ],
)
def test_schemas_that_no_broker_takes_are_refused_at_once(options, problem):
    with pytest.raises(ValidationError, match=problem):
        PulsarOutboundOptions(**options)


async def test_a_topic_that_opens_late_loses_nothing(broker: Broker):
    opening = broker.on[BaseCommand.PRODUCER]

    def recovering(link: Link, frame: Frame) -> None:
        if len(broker.asked[BaseCommand.PRODUCER]) < 3:
            link.error(frame.command.producer.request_id, pb.PersistenceError, "recovering a ledger")
        else:
            opening(link, frame)

    broker.on[BaseCommand.PRODUCER] = recovering
    client = scripted_client(operation=0.0)
    target = Partition("c", "target", "-1", 0)
    topics = Topics(client, "c", "public/default")
    outbound = PulsarOutbound(None, client, topics, OutboundSpec("target"), [target], 1 << 20)  # type: ignore[arg-type]
    receipt = await outbound.send(0, Share(Batch.of([Message(b"made")])))
    assert (len(receipt.positions), receipt.failures) == (1, [])
    await outbound.close()
    await client.close()


async def test_raw_messages_are_put_back_as_the_entries_that_they_were(broker: Broker, client, entries: list[Entry]):
    metadata = MessageMetadata(encryption_param=b"x", num_messages_in_batch=3)
    metadata.encryption_keys.add(key="app", value=b"data key")
    [raw] = decode_plain(Entry(metadata, b"secret"))
    letters = [Message(b"a"), raw.replace(defect=None), Message(b"b")]
    target = Partition("c", "target", "-1", 0)
    topics = Topics(client, "c", "public/default")
    spec = OutboundSpec("target", options=PulsarOutboundOptions(restore_entries=True, compression="zstd"))
    outbound = PulsarOutbound(None, client, topics, spec, [target], 1 << 20)  # type: ignore[arg-type]
    receipt = await outbound.send(0, Share(Batch.of(letters, SOURCE)))
    assert (len(receipt.positions), receipt.failures) == (3, [])
    first, restored, last = entries
    assert (restored.payload, restored.metadata.encryption_param, restored.metadata.compression) == (b"secret", b"x", 0)
    assert (restored.metadata.sequence_id, restored.metadata.highest_sequence_id, last.metadata.sequence_id) == (1, 3, 4)
    assert [message.payload for entry in (first, last) for message in decode_plain(entry)] == [b"a", b"b"]
    await outbound.close()


@pytest.mark.parametrize("sender", [None, "one"])
async def test_a_raw_message_above_the_limit_is_sent_in_chunks(broker: Broker, client, entries: list[Entry], sender: str | None):
    """The entry that it contains may have the size of the limit."""
    limit = 1 << 20
    metadata = MessageMetadata(uuid="u", chunk_id=1, num_chunks_from_msg=9, total_chunk_msg_size=9 << 20)
    [raw] = decode_plain(Entry(metadata, bytes(limit), ledger=3))
    letters = [Message(b"a", position=(1,)), raw.replace(defect=None, position=(2,)), Message(b"b", position=(3,))]
    target = Partition("c", "target", "-1", 0)
    topics = Topics(client, "c", "public/default")
    outbound = PulsarOutbound(None, client, topics, OutboundSpec("target", sender=sender), [target], limit)  # type: ignore[arg-type]
    if sender is not None:
        outbound._sender_sequence.set_stored(SOURCE, {})  # type: ignore[union-attr]
    receipt = await outbound.send(0, Share(Batch.of(letters, SOURCE)))
    assert (len(receipt.positions), receipt.failures) == (3, [])
    first, *chunks, last = entries
    joiner = ChunkJoiner(ChunkLimits())
    [joined] = [message.entry for chunk in chunks for message in joiner.add(chunk, 0.0)]
    assert joined is not None
    found = [message for entry in (first, joined, last) for message in decode_plain(entry)]
    assert [message.payload for message in found] == [b"a", raw.payload, b"b"]
    assert found[1].property("mqbridge.raw") == "pulsar.entry.v1"
    assert found[1].origin == "here|t|0|2"
    await outbound.close()


@pytest.mark.parametrize("origin", ["messages", "entries"])
@pytest.mark.parametrize("sender", [None, "one"])
async def test_an_ordinary_message_above_the_limit_is_sent_in_chunks_in_its_place(
    store: Store, sender: str | None, origin: str
) -> None:
    """From any system: the broker's limit is below those of RocketMQ and TubeMQ."""
    client = scripted_client()
    payloads = [b"a", bytes(3000), b"b", bytes(900), bytes(5000), b"c"]
    if origin == "messages":
        source = Batch.of([Message(each, [("n", "v")], "k", position=(i,)) for i, each in enumerate(payloads)], SOURCE)
    else:
        received = [Entry(*batch([each])[:2], ledger=7, entry=number) for number, each in enumerate(payloads)]
        source = make_batch(SOURCE, received)
    target = Partition("c", "target", "-1", 0)
    spec = OutboundSpec("target", sender=sender)
    outbound = PulsarOutbound(None, client, Topics(client, "c", "public/default"), spec, [target], 5 << 20)  # type: ignore[arg-type]
    if sender is not None:
        outbound._sender_sequence.set_stored(SOURCE, {})  # type: ignore[union-attr]
    await outbound._open_all([0])  # the limit of the broker that serves the topic is known then
    receipt = await outbound.send(0, Share(source))
    assert receipt.failures == []
    joiner, found = ChunkJoiner(ChunkLimits()), []
    for number, data in enumerate(store.logs["persistent://public/default/target"]):
        entry = decode_entry(data)
        entry.ledger, entry.entry = LEDGER, number
        assert len(entry.payload) <= 1000
        results = [each.entry for each in joiner.add(entry, 0.0)] if describes_chunk(entry.metadata) else [entry]
        found += [message for each in results if each is not None for message in decode_plain(each)]
    assert [message.payload for message in found] == payloads
    assert [message.position[:2] for message in found] == [position[:2] for position in receipt.positions]
    assert all((message.origin or "").startswith("here|t|0|") for message in found)
    await outbound.close()
    await client.close()


async def test_without_chunking_a_message_above_the_limit_is_refused(store: Store) -> None:
    client = scripted_client()
    target = Partition("c", "target", "-1", 0)
    spec = OutboundSpec("target", options=PulsarOutboundOptions(chunking=False))
    outbound = PulsarOutbound(None, client, Topics(client, "c", "public/default"), spec, [target], 1000)  # type: ignore[arg-type]
    receipt = await outbound.send(0, Share(Batch.of([Message(b"a"), Message(bytes(3000)), Message(b"b")], SOURCE)))
    [failure] = receipt.failures
    assert (failure.index, failure.failure_kind) == (1, Failure.REFUSED)
    assert "`chunking`" in failure.reason
    await outbound.close()
    await client.close()


async def test_a_message_in_chunks_is_held_once(store: Store) -> None:
    """The delivery charges the encoded message to its memory budget, so no copy of it may stay beside the chunks."""
    client, size = scripted_client(), 8 << 20
    store.on[BaseCommand.SEND] = silent
    target = Partition("c", "target", "-1", 0)
    outbound = PulsarOutbound(
        None,  # type: ignore[arg-type]
        client,
        Topics(client, "c", "public/default"),
        OutboundSpec("target"),
        [target],
        1000,
    )
    store.max_message_size = 1 << 20
    tracemalloc.start()
    try:
        share = Share(Batch.of([Message(bytes(size))], SOURCE))
        sent = outbound.send(0, share)
        assert size <= share.held_bytes <= size + 1000
        del share
        await until(lambda: len(store.asked[BaseCommand.SEND]) == 9)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1.5 * size
    finally:
        tracemalloc.stop()
    await outbound.close(0.0)
    await asyncio.gather(sent, return_exceptions=True)
    await client.close()


async def test_a_broker_with_a_smaller_limit_refuses_no_message_that_it_accepts_alone(broker: Broker, client) -> None:
    """The limit is that of the broker that serves the topic now; entries that were made for a larger one are sent again."""
    target = Partition("c", "target", "-1", 0)
    topics = Topics(client, "c", "public/default")
    spec = OutboundSpec("target", options=PulsarOutboundOptions(batch_bytes=4 << 20))
    outbound = PulsarOutbound(None, client, topics, spec, [target], 5 << 20)  # type: ignore[arg-type]
    messages = [Message(b"%d" % number + b"x" * 400_000) for number in range(5)]
    receipt = await outbound.send(0, Share(Batch.of(messages)))  # the scripted broker accepts 1 MiB
    assert {failure.failure_kind for failure in receipt.failures} == {Failure.RETRY}
    (producer,) = outbound._producers.values()
    await until(lambda: not producer.is_rejecting)
    receipt = await outbound.send(0, Share(Batch.of([*messages, Message(b"y" * (1 << 21))])))
    assert (len(receipt.positions), receipt.failures) == (6, [])
    await outbound.close()


@pytest.mark.parametrize("sender", [None, "one"])
async def test_a_restored_batch_above_the_limit_is_refused(broker: Broker, client, sender: str | None) -> None:
    """Nobody can send its messages in smaller entries, so with RETRY it would be sent for ever."""
    metadata = MessageMetadata(encryption_param=b"x", num_messages_in_batch=3)
    metadata.encryption_keys.add(key="app", value=b"data key")
    [raw] = decode_plain(Entry(metadata, bytes(1 << 21), ledger=3))  # the scripted broker accepts 1 MiB
    letters = [Message(b"a", position=(1,)), raw.replace(defect=None, position=(2,)), Message(b"b", position=(3,))]
    target = Partition("c", "target", "-1", 0)
    spec = OutboundSpec("target", sender=sender, options=PulsarOutboundOptions(restore_entries=True))
    outbound = PulsarOutbound(None, client, Topics(client, "c", "public/default"), spec, [target], 1 << 20)  # type: ignore[arg-type]
    if sender is not None:
        outbound._sender_sequence.set_stored(SOURCE, {})  # type: ignore[union-attr]
    receipt = await outbound.send(0, Share(Batch.of(letters, SOURCE)))
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [(1, Failure.REFUSED)]
    assert receipt.failures[0].reason.endswith("raise maxMessageSize at the broker (and its bookies)"), "nothing else helps"
    assert [bool(position) for position in receipt.positions] == [True, False, True]
    await outbound.close()


async def test_a_raw_message_above_the_limit_of_an_unknown_broker_is_sent_in_chunks(broker: Broker, client, entries: list[Entry]):
    """The first send comes before the producer is connected; the limit is that of the broker that it will be connected to."""
    metadata = MessageMetadata()
    metadata.encryption_keys.add(key="app", value=b"data key")
    [raw] = decode_plain(Entry(metadata, bytes(2 << 20), ledger=3))
    target = Partition("c", "target", "-1", 0)
    topics = Topics(client, "c", "public/default")
    outbound = PulsarOutbound(None, client, topics, OutboundSpec("target"), [target], 5 << 20)  # type: ignore[arg-type]
    receipt = await outbound.send(0, Share(Batch.of([raw.replace(defect=None)], SOURCE)))
    assert [failure.reason for failure in receipt.failures] == []
    assert len(entries) == 3, "of 1 MiB at most, the limit of the scripted broker"
    await outbound.close()
