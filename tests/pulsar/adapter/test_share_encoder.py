"""Shares of units, and the units of batches: what a lane or a reader received is stored elsewhere as it is."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from mqbridge import native
from mqbridge.adapter.formats import MAX_UNIT_MESSAGES, batch_of_units, message_positions
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.errors import Failure, LocalProtocolError
from mqbridge.message import NO_SOURCE, Batch, Message, Partition, Position, Share, Unit
from mqbridge.pulsar.adapter.batches import make_batch
from mqbridge.pulsar.adapter.config import PulsarOutboundOptions
from mqbridge.pulsar.adapter.outbound import PulsarOutbound
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.connection import handshake
from mqbridge.pulsar.mapping.stored import decode_plain
from mqbridge.pulsar.mapping.unit_format import EntryFormat
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS, compress
from mqbridge.pulsar.wire.entry import Entry, decode_entry, stored_entry
from mqbridge.pulsar.wire.ids import to_words
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata, SingleMessageMetadata
from mqbridge.pulsar.wire.schemas import STRING
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import scripted_client
from tests.pulsar.client.store import LEDGER, Store

PARTITION = Partition("c", "t", "0", 0)
SENDER = Partition("sdk", "producer", "0", 0)
TOPIC = "persistent://public/default/target"


def metadata_of(sequence: int = 3, **fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="sdk-7", sequence_id=sequence, publish_time=7, **fields)  # type: ignore[arg-type]


def batch_entry(payloads: list[bytes], codec: str = "none", **fields: object) -> bytes:
    """Return a batch as it is stored."""
    framed, number = join_batch((SingleMessageMetadata(), each) for each in payloads), CODEC_NUMBERS[codec]
    metadata = metadata_of(num_messages_in_batch=len(payloads), **fields)
    if number:
        metadata.compression, metadata.uncompressed_size = number, len(framed)
    return stored_entry(metadata, compress(number, framed) if number else framed)


def received(data: bytes, number: int = 0, mask: int = 0) -> Entry:
    """Return an entry as a lane receives it."""
    entry = decode_entry(data)
    entry.ledger, entry.entry, entry.keeps_packed = LEDGER, number, True
    entry.ack_set = tuple(to_words(mask))
    entry.unpack()
    return entry


def secret() -> bytes:
    metadata = metadata_of(num_messages_in_batch=5)
    metadata.encryption_keys.add(key="app", value=b"data key")
    return stored_entry(metadata, b"secret")


CHUNK = stored_entry(metadata_of(uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=6), b"one")

# --- units of batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODEC_NUMBERS)
def test_the_units_of_a_batch_are_its_entries_as_they_were_stored(codec: str) -> None:
    data = [batch_entry([b"a" * 50, b"b"], codec), batch_entry([b"c"], codec), secret()]
    batch = make_batch(PARTITION, [received(each, number) for number, each in enumerate(data)])
    payloads = [message.payload for message in batch.messages]
    assert batch.has_units
    assert batch.format == "pulsar.entry"
    units = list(batch.units or ())
    assert [unit.data for unit in units] == data
    assert [unit.message_count for unit in units] == [2, 1, 1], "an encrypted entry counts as one message"
    assert [(unit.position, unit.published_ms, unit.left_out) for unit in units] == [((LEDGER, n, 0), 7, 0) for n in range(3)]
    decoded = [message for unit in units for message in EntryFormat().decode(unit, message_positions(unit))]
    assert [message.payload for message in decoded] == payloads
    assert [message.position for message in decoded] == [message.position for message in batch.messages]


def test_messages_that_are_not_in_the_batch_are_left_out() -> None:
    (unit,) = make_batch(PARTITION, [received(batch_entry([b"a", b"b", b"c"]), mask=0b110)]).units or ()
    assert (unit.message_count, unit.left_out, unit.position) == (3, 0b001, (LEDGER, 0, 0))


def test_an_entry_that_cannot_be_parsed_is_a_unit_as_it_was_stored() -> None:
    damaged = batch_entry([b"a"])[:-1] + b"?"
    (unit,) = make_batch(PARTITION, [received(damaged)]).units or ()
    assert (unit.data, unit.message_count, unit.published_ms) == (damaged, 1, None)


def test_the_compressed_payload_is_kept_only_for_units_and_counted() -> None:
    data = batch_entry([bytes(range(200))] * 5, "lz4")
    kept, dropped = received(data), decode_entry(data)
    dropped.unpack()
    size = len(decode_entry(data).payload)
    assert kept.held_bytes == dropped.held_bytes + size
    (unit,) = make_batch(PARTITION, [dropped]).units or ()
    assert [message.payload for message in decode_plain(decode_entry(unit.data))] == [bytes(range(200))] * 5


# --- units that are stored --------------------------------------------------------------------------------------------


class Target:
    """Outbounds into one topic of the scripted broker, which accepts entries of `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.store = Store(max_message_size=limit)
        self.store.checks_producers = False
        self.client = scripted_client()
        self._open: list[PulsarOutbound] = []

    async def outbound(self, spec: OutboundSpec | None = None, **more: object) -> PulsarOutbound:
        topics, target = Topics(self.client, "c", "public/default"), Partition("c", "target", "-1", 0)
        spec = spec or OutboundSpec("target", stamp_origin=False, keep_units=True)
        limit = self.store.max_message_size
        outbound = PulsarOutbound(None, self.client, topics, spec, [target], limit, **more)  # type: ignore[arg-type]
        self._open.append(outbound)
        return outbound

    @property
    def stored(self) -> list[bytes]:
        return self.store.logs[TOPIC]

    @property
    def sends(self) -> list[tuple[int, int, int, bool]]:
        """First and highest sequence id, number of messages, and whether it is a chunk, of each SEND."""
        asked = self.store.asked[BaseCommand.SEND]
        return [(s.sequence_id, max(s.sequence_id, s.highest_sequence_id), s.num_messages, s.is_chunk) for s in asked]

    async def close(self) -> None:
        for outbound in self._open:
            await outbound.close()
        await self.client.close()


@pytest_asyncio.fixture
async def target(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Target]:
    target = Target(1000)
    monkeypatch.setattr(handshake, "dial", target.store.dial)
    yield target
    await target.close()


def units_of(*data: bytes, first: int | None = None) -> list[Unit]:
    """Return units with these bytes; with `first`, their positions count from there."""
    units: list[Unit] = []
    for each in data:
        entry = decode_entry(each)
        count = 1 if entry.defect is not None else entry.count
        units.append(Unit(each, count, 7, () if first is None else (first,)))
        first = None if first is None else first + count
    return units


def batch_of(*data: bytes, source: Partition = NO_SOURCE, first: int | None = None) -> Batch:
    return batch_of_units(EntryFormat(), units_of(*data, first=first), source)


async def send(outbound: PulsarOutbound, share: Share | Batch) -> Receipt:
    async with asyncio.timeout(PATIENCE_S):
        return await outbound.send(0, share if isinstance(share, Share) else Share(share))


def payloads(target: Target) -> list[bytes | None]:
    return [message.payload for data in target.stored for message in decode_plain(decode_entry(data))]


async def test_units_are_stored_as_they_are_with_numbers_of_our_producer(target: Target) -> None:
    outbound = await target.outbound()
    assert set(outbound.formats) == {"pulsar.entry"}
    data = [batch_entry([b"a", b"b", b"c"], "zstd"), secret(), CHUNK, batch_entry([b"d"])]
    receipt = await send(outbound, batch_of(*data))
    assert not receipt.failures
    assert target.stored == data
    assert target.sends == [(0, 2, 3, False), (3, 7, 5, False), (8, 8, 1, True), (9, 9, 1, False)]
    positions: list[Position] = [(LEDGER, 0, index) for index in range(3)]
    positions += [(LEDGER, 1, index) for index in range(5)]
    assert list(receipt.positions) == [*positions, (LEDGER, 2, 0), (LEDGER, 3, 0)]
    await send(outbound, Batch.of([Message(b"message")]))
    assert target.sends[-1][0] == 10


async def test_the_batch_of_a_lane_is_stored_as_it_is(target: Target) -> None:
    data = [batch_entry([b"a" * 90, b"b"], "lz4"), secret()]
    receipt = await send(
        await target.outbound(), make_batch(PARTITION, [received(each, number) for number, each in enumerate(data)])
    )
    assert not receipt.failures
    assert target.stored == data
    assert list(receipt.positions) == [(LEDGER, 0, 0), (LEDGER, 0, 1), (LEDGER, 1, 0)]
    assert [send[2] for send in target.sends] == [2, 5]


async def test_a_part_of_an_entry_and_what_another_cluster_set_are_encoded_anew(target: Target) -> None:
    outbound = await target.outbound()
    await send(outbound, make_batch(PARTITION, [received(batch_entry([b"a", b"b"]), mask=0b10)]))
    await send(outbound, batch_of(batch_entry([b"c"], txnid_most_bits=1, txnid_least_bits=2)))
    await send(outbound, batch_of(batch_entry([b"d"], replicated_from="elsewhere")))
    await send(outbound, batch_of(batch_entry([b"e"], marker_type=20)))
    assert payloads(target) == [b"b", b"c", b"d", b"e"]
    found = [decode_entry(data).metadata for data in target.stored]
    assert not any(metadata.HasField("txnid_most_bits") or metadata.replicated_from for metadata in found)
    assert {metadata.producer_name for metadata in found} == {"made-up"}


async def test_a_damaged_unit_is_refused_and_the_others_are_stored(target: Target) -> None:
    good = batch_entry([b"a", b"b"])
    damaged = Unit(good[:-1] + b"?", 2, 7)
    wrong = Unit(good, 3, 7)
    batch = batch_of_units(EntryFormat(), [*units_of(good), damaged, wrong, *units_of(good)])
    receipt = await send(await target.outbound(), batch)
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [(n, Failure.REFUSED) for n in range(2, 7)]
    assert "CRC32C mismatch" in receipt.failures[0].reason
    assert "the entry has 2 messages, and its unit says 3" in receipt.failures[2].reason
    assert target.stored == [good, good]
    assert list(receipt.positions) == [(LEDGER, 0, 0), (LEDGER, 0, 1), *[()] * 5, (LEDGER, 1, 0), (LEDGER, 1, 1)]


@pytest.mark.parametrize("data", [b"junk", batch_entry([b"a", b"b"])])
@pytest.mark.parametrize("keep_units", [False, True])
async def test_failures_of_a_unit_that_claims_many_messages_are_small(target: Target, data: bytes, keep_units: bool) -> None:
    outbound = await target.outbound(OutboundSpec("target", stamp_origin=False, keep_units=keep_units))
    batch = batch_of_units(EntryFormat(), [Unit(data, MAX_UNIT_MESSAGES, None)])
    tracemalloc.start()
    try:
        receipt = await send(outbound, batch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(receipt.failures) == MAX_UNIT_MESSAGES
    assert len({id(failure.reason) for failure in receipt.failures}) == 1
    assert peak < (25 if keep_units else 60) << 20, "each message takes a failure, its index, and perhaps a Message"


async def test_a_share_with_a_unit_above_the_limit_is_sent_as_messages(target: Target) -> None:
    outbound = await target.outbound()
    receipt = await send(outbound, batch_of(batch_entry([b"a"]), batch_entry([bytes(400)] * 3), batch_entry([b"b"])))
    assert not receipt.failures
    assert payloads(target) == [b"a", *[bytes(400)] * 3, b"b"]
    assert {decode_entry(data).metadata.producer_name for data in target.stored} == {"made-up"}


@pytest.mark.parametrize("chunking", [False, True])
async def test_a_message_above_the_limit_is_sent_in_chunks_or_refused(target: Target, chunking: bool) -> None:
    options = PulsarOutboundOptions(chunking=chunking)
    outbound = await target.outbound(OutboundSpec("target", stamp_origin=False, keep_units=True, options=options))
    receipt = await send(outbound, batch_of(batch_entry([b"a"]), batch_entry([bytes(2500)])))
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == ([] if chunking else [(1, Failure.REFUSED)])
    assert len(target.stored) == (4 if chunking else 1)


@pytest.mark.parametrize("size", range(860, 1060, 20))
async def test_a_unit_is_kept_up_to_the_limit_of_the_broker(target: Target, size: int) -> None:
    """The limit is that of the payload, as long as the metadata are short."""
    data = stored_entry(metadata_of(), bytes(size))
    assert not (await send(await target.outbound(), batch_of(data))).failures
    assert (target.stored == [data]) is (size <= 1000)


@pytest.mark.parametrize("bad", ["large", "damaged"])
async def test_units_are_stored_whole_or_not_at_all(target: Target, bad: str) -> None:
    options = PulsarOutboundOptions(chunking=False)
    spec = OutboundSpec("target", stamp_origin=False, whole_shares=True, keep_units=True, options=options)
    outbound = await target.outbound(spec)
    good = batch_entry([b"a"])
    data = batch_entry([bytes(1000)] * 2) if bad == "large" else good[:-1] + b"?"
    receipt = await send(outbound, batch_of(good, data, good))
    count = 4 if bad == "large" else 3
    assert [failure.index for failure in receipt.failures] == list(range(count))
    assert {failure.failure_kind for failure in receipt.failures} == {Failure.REFUSED}
    assert target.stored == []
    assert not (await send(outbound, batch_of(good, good))).failures
    assert target.stored == [good, good]


@pytest.mark.parametrize(("size", "chunking", "is_stored"), [(900, False, True), (1500, False, False), (1500, True, True)])
@pytest.mark.parametrize("sender", [None, "one"])
async def test_messages_are_stored_whole_or_not_at_all(
    target: Target, sender: str | None, size: int, chunking: bool, is_stored: bool
) -> None:
    options = PulsarOutboundOptions(chunking=chunking)
    outbound = await target.outbound(OutboundSpec("target", whole_shares=True, options=options, sender=sender))
    if sender is not None:
        outbound._sender_sequence.set_stored(PARTITION, {})  # type: ignore[union-attr]
    messages = [Message(payload, position=(index,)) for index, payload in enumerate([b"a", bytes(size), b"b"])]
    receipt = await send(outbound, Batch.of(messages, PARTITION))
    assert [failure.index for failure in receipt.failures] == ([] if is_stored else [0, 1, 2])
    later = await send(outbound, Batch.of([Message(b"later", position=(9,))], PARTITION))
    assert not later.failures
    assert payloads(target)[-1] == b"later"
    assert (payloads(target)[0] == b"a") is is_stored


async def test_compression_may_make_a_whole_share_small_enough(target: Target) -> None:
    options = PulsarOutboundOptions(chunking=False, compression="zstd")
    outbound = await target.outbound(OutboundSpec("target", whole_shares=True, options=options))
    assert not (await send(outbound, Batch.of([Message(bytes(5000))]))).failures


@pytest.mark.parametrize("options", [{"batch_by_key": True}, {"restore_entries": True}])
async def test_options_that_change_entries_decode_units(target: Target, options: dict[str, bool]) -> None:
    options_model = PulsarOutboundOptions.model_validate(options)
    spec = OutboundSpec("target", stamp_origin=False, keep_units=True, options=options_model)
    outbound = await target.outbound(spec)
    assert not outbound.formats
    await send(outbound, batch_of(batch_entry([b"a", b"b"])))
    assert payloads(target) == [b"a", b"b"]
    assert decode_entry(target.stored[0]).metadata.producer_name == "made-up"


async def test_a_target_with_a_schema_decodes_units(target: Target) -> None:
    assert not (await target.outbound(schema=STRING)).formats


# --- without `keep_units` -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("sender", [None, "one"])
async def test_units_are_not_kept_unless_that_is_asked_for(
    target: Target, sender: str | None, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages of entries are joined into one and compressed, as a route's options say."""
    if not is_compiled:
        monkeypatch.setattr(native, "compiled", None)
    elif native.compiled is None:
        pytest.skip("mqbridge_native is not installed, or switched off")
    options = PulsarOutboundOptions(compression="zstd")
    outbound = await target.outbound(OutboundSpec("target", stamp_origin=False, sender=sender, options=options))
    assert bool(outbound.formats) is not is_compiled, "the plain code copies entries without decoding them"
    if sender is not None:
        outbound._sender_sequence.set_stored(PARTITION, {})  # type: ignore[union-attr]
    received_data = [own_entry(1, [b"a" * 300, b"b" * 300]), batch_entry([b"c"], "lz4")]
    batch = make_batch(PARTITION, [received(each, number) for number, each in enumerate(received_data)])
    assert not (await send(outbound, batch)).failures
    assert payloads(target) == [b"a" * 300, b"b" * 300, b"c"]
    (metadata,) = (decode_entry(data).metadata for data in target.stored)
    assert (metadata.producer_name, metadata.compression) == (sender or "made-up", CODEC_NUMBERS["zstd"])
    assert metadata.publish_time != 7


async def test_units_of_another_systems_batch_are_decoded(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `data` are not entries, though its units are."""
    monkeypatch.setattr(native, "compiled", None)
    batch = batch_of(batch_entry([b"a", b"b"]))
    batch.data = [("row", 1)]
    assert not (await send(await target.outbound(OutboundSpec("target", stamp_origin=False)), batch)).failures
    assert payloads(target) == [b"a", b"b"]


# --- units of a sender ------------------------------------------------------------------------------------------------


def own_entry(first: int, payloads: list[bytes], **fields: object) -> bytes:
    """Return an entry as the sender "one" makes it from messages with the sequence ids from `first` on."""
    metadata = MessageMetadata(producer_name="one", sequence_id=first, publish_time=7, num_messages_in_batch=len(payloads))
    if len(payloads) > 1:
        metadata.highest_sequence_id = first + len(payloads) - 1
    metadata.MergeFrom(MessageMetadata(**fields))  # type: ignore[arg-type]
    return stored_entry(metadata, join_batch((SingleMessageMetadata(), each) for each in payloads))


async def sender_of(target: Target, stored: dict[int, Position]) -> PulsarOutbound:
    outbound = await target.outbound(OutboundSpec("target", sender="one", stamp_origin=False, keep_units=True))
    outbound._sender_sequence.set_stored(SENDER, stored)  # type: ignore[union-attr]
    return outbound


async def test_the_sequence_ids_of_a_sender_lie_beside_its_units(target: Target) -> None:
    outbound = await sender_of(target, {})
    data = [own_entry(100, [b"a", b"b"]), own_entry(102, [b"c"])]
    await send(outbound, batch_of(*data, source=SENDER, first=100))
    assert target.stored == data
    assert target.sends == [(100, 101, 2, False), (102, 102, 1, False)]
    with pytest.raises(LocalProtocolError):
        await send(outbound, batch_of(*data, source=PARTITION, first=200))


@pytest.mark.parametrize("fields", [{"producer_name": "sdk-7"}, {"sequence_id": 99}, {"highest_sequence_id": 102}, {}])
async def test_units_whose_metadata_differ_from_the_senders_are_sent_as_messages(target: Target, fields: dict[str, Any]) -> None:
    """A broker that loads the topic again finds the sender's name and ids only in the metadata."""
    outbound = await sender_of(target, {})
    own, other = own_entry(98, [b"x", b"y"]), own_entry(100, [b"a", b"b"], **fields)
    assert not (await send(outbound, batch_of(own, other, source=SENDER, first=98))).failures
    assert payloads(target) == [b"x", b"y", b"a", b"b"]
    assert (target.stored == [own, other]) is (not fields)
    found = [decode_entry(data).metadata for data in target.stored]
    assert {metadata.producer_name for metadata in found} == {"one"}
    assert max(max(metadata.sequence_id, metadata.highest_sequence_id) for metadata in found) == 101


async def test_units_that_are_stored_already_are_left_out(target: Target) -> None:
    outbound = await sender_of(target, {0: (101,)})
    data = [batch_entry([b"a", b"b"]), own_entry(102, [b"c"])]
    receipt = await send(outbound, batch_of(*data, source=SENDER, first=100))
    assert not receipt.failures
    assert target.stored == data[1:]


async def test_a_unit_that_is_stored_in_part_is_sent_as_messages(target: Target) -> None:
    outbound = await sender_of(target, {0: (100,)})
    await send(outbound, batch_of(own_entry(100, [b"a", b"b"]), own_entry(102, [b"c"]), source=SENDER, first=100))
    assert payloads(target) == [b"b", b"c"]
    assert decode_entry(target.stored[0]).metadata.producer_name == "one"


async def test_only_resumed_partitions_accept_sends_of_a_sender(target: Target) -> None:
    outbound = await sender_of(target, {})
    outbound._sender_sequence.set_stored(SENDER, {}, [1])  # type: ignore[union-attr]
    with pytest.raises(LocalProtocolError, match="partition 0"):
        await send(outbound, batch_of(batch_entry([b"a"]), source=SENDER, first=1))


async def test_units_are_sent_again_after_a_lost_connection(target: Target) -> None:
    """With the same bytes and the same numbers, so that the broker stores them once."""
    data = [batch_entry([b"%d" % number]) for number in range(20)]
    target.store.cut_at, target.store.answer_first = 14, True
    outbound = await target.outbound()
    async with asyncio.timeout(PATIENCE_S):
        receipts = await asyncio.gather(*(outbound.send(0, Share(batch_of(each))) for each in data))
    assert not any(receipt.failures for receipt in receipts)
    assert target.stored == data


@given(
    st.lists(st.lists(st.binary(max_size=9), min_size=1, max_size=4), min_size=1, max_size=5), st.integers(0, 30), st.booleans()
)
def test_a_share_of_a_sender_is_completed_from_any_message_on(groups: list[list[bytes]], stored: int, is_own: bool) -> None:
    begins = [sum(map(len, groups[:index])) for index in range(len(groups))]
    data = [own_entry(begin, group) if is_own else batch_entry(group) for begin, group in zip(begins, groups, strict=True)]

    async def run() -> None:
        target = Target(1000)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(handshake, "dial", target.store.dial)
            outbound = await sender_of(target, {0: (stored,)})
            receipt = await send(outbound, batch_of(*data, source=SENDER, first=0))
            assert not receipt.failures
            assert payloads(target) == [payload for group in groups for payload in group][stored + 1 :]
            await target.close()

    asyncio.run(run())
