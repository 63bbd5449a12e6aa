"""Frames that the compiled module parses: it returns the same as `parse_frame` and `decode_entry`, or leaves them alone."""

from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge import native
from mqbridge.errors import RemoteProtocolError
from mqbridge.pulsar.adapter.batches import (
    deliverable_count,
    deliverable_mask,
    first_deliverable_position,
    keep_messages,
    masks_by_entry,
)
from mqbridge.pulsar.client.connection.entry_runs import EntryRun, group_runs
from mqbridge.pulsar.mapping.stored import decode_entries, decode_plain
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.entry import MAX_BATCH_MESSAGES, Entry, decode_entry, encode_entry_prefix
from mqbridge.pulsar.wire.frame import encode_frame_prefix, parse_frame
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata, SingleMessageMetadata
from tests.example_counts import examples
from tests.strategies import Changes, changes, pulsar_natives

compiled = native.compiled
if compiled is None:
    pytest.skip("mqbridge_native is not installed, or switched off", allow_module_level=True)


def message_frame(entry: Entry, at: int = 0, consumer: int = 7, **fields: Any) -> bytes:
    """The frame of an entry; `at` is its number in its ledger."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=5)
    metadata.MergeFrom(entry.metadata)
    command = BaseCommand(type=BaseCommand.MESSAGE)
    command.message.consumer_id = consumer
    command.message.message_id.ledgerId, command.message.message_id.entryId = 3, at
    for name, value in fields.items():
        command.message.ack_set.extend(value) if name == "ack_set" else setattr(command.message, name, value)
    data = encode_entry_prefix(metadata, entry.payload) + entry.payload
    return encode_frame_prefix(command, len(data)) + data


def parse_plainly(data: bytes) -> Entry:
    """Return the entry of a frame as the plain code parses it."""
    frame = parse_frame(data)
    message, entry = frame.command.message, decode_entry(frame.data, frame.entry_offset)
    entry.ledger, entry.entry = ids.entry_id(message.message_id)
    entry.redelivery_count, entry.ack_set = message.redelivery_count, tuple(message.ack_set)
    return entry


NAMES = ("ledger", "entry", "id", "count", "is_batch", "redelivery_count", "ack_set", "defect", "payload", "metadata", "size")
MORE = ("publish_time", "is_chunk", "first_chunk", "chunks_before", "partition")


def values_of(entry: Entry) -> dict[str, Any]:
    found = {name: getattr(entry, name) for name in (*NAMES, *MORE)}
    return found | {
        "mask": deliverable_mask(entry),
        "deliverable": deliverable_count(entry),
        "position": first_deliverable_position(entry),
    }


def check_frame(data: bytes) -> EntryRun | None:
    """Check that the compiled module parses the frame like the plain code; None if it leaves the frame to the plain code."""
    [found] = group_runs([data])
    if isinstance(found, bytes):
        assert found is data
        return None
    [entry], expected = found.entries, parse_plainly(data)
    assert isinstance(entry, compiled.PulsarEntry)
    message = parse_frame(data).command.message
    assert (found.consumer, found.messages, found.first, found.last) == (
        message.consumer_id,
        expected.count,
        *[expected.id] * 2,
    )
    assert found.epoch == (message.consumer_epoch if message.HasField("consumer_epoch") else None)
    assert values_of(entry) == values_of(expected)
    expected.unpack()
    assert expected.defect is None
    assert expected.payload == entry.payload
    assert 0 < entry.held_bytes == found.charges[0]
    messages = decode_entries([entry])
    assert [message.as_dict() for message in messages] == [
        message.as_dict() for message in decode_plain(expected, include_compacted_out=True)
    ]
    assert entry.defect == expected.defect
    return found


NUMBERS = st.sampled_from([0, 1, 127, 128, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])


@settings(max_examples=examples(200))
@given(entry=pulsar_natives(), at=NUMBERS, consumer=NUMBERS, again=st.integers(0, (1 << 32) - 1), epoch=st.none() | NUMBERS)
def test_frames_of_entries_are_parsed_alike(entry: Entry, at: int, consumer: int, again: int, epoch: int | None) -> None:
    fields = {} if epoch is None else {"consumer_epoch": epoch}
    check_frame(message_frame(entry, at, consumer, redelivery_count=again, **fields))


@settings(max_examples=examples(400))
@given(
    entry=pulsar_natives(),
    changed=changes(b"\x00\x01\x02\x04\x08\x09\x0a\x0b\x0c\x0e\x10\x12\x18\x20\x22\x28\x48\x58\x60\x7f\x80\xa1\xc3\xff"),
    repaired=st.booleans(),
)
def test_frames_with_changed_bytes_are_parsed_alike(entry: Entry, changed: Changes, repaired: bool) -> None:
    """Some frames get a correct size and checksum, because otherwise the decoders would stop there."""
    whole = message_frame(entry)
    data = bytearray(changed(whole))
    if repaired and len(data) >= 8:
        data[:4] = (len(data) - 4).to_bytes(4, "big")
        at = 8 + int.from_bytes(data[4:8], "big")
        if len(data) >= at + 6:
            data[at + 2 : at + 6] = crc32c(bytes(data[at + 6 :])).to_bytes(4, "big")
    try:
        check_frame(bytes(data))
    except RemoteProtocolError:  # the plain code would end the connection
        assert isinstance(group_runs([bytes(data)])[0], bytes)


@pytest.mark.parametrize(
    "fields",
    [
        {"compression": 1, "uncompressed_size": 4},
        {"uncompressed_size": 5},
        {"num_chunks_from_msg": 2, "chunk_id": 0, "uuid": "u", "total_chunk_msg_size": 8},
        {"num_messages_in_batch": 2},
        {"num_messages_in_batch": -1},
        {"encryption_algo": "AES"},
        {"publish_time": 1 << 63},
    ],
)
def test_frames_with_unusual_metadata_are_left_to_the_plain_code(fields: dict[str, Any]) -> None:
    assert check_frame(message_frame(Entry(MessageMetadata(**fields), b"body"))) is None


def test_a_part_of_an_entry_is_left_to_the_plain_code() -> None:
    assert check_frame(message_frame(Entry(MessageMetadata(), b"body"), ack_set=[1])) is None


def test_an_ordinary_entry_is_parsed_by_the_compiled_module() -> None:
    run = check_frame(message_frame(Entry(MessageMetadata(), b"body"), consumer_epoch=2))
    assert run is not None
    assert run.epoch == 2


def test_a_run_contains_ascending_entries_of_one_consumer_and_epoch() -> None:
    entry = Entry(MessageMetadata(), b"body")
    ping = b"\x00\x00\x00\x09\x00\x00\x00\x05\x08\x12\x92\x01\x00"
    identities = [(1, 7, 0), (2, 7, 0), (3, 8, 0), (4, 8, 0), (5, 8, 1), (5, 8, 1), (6, 8, 1)]
    frames = [message_frame(entry, at, consumer, consumer_epoch=epoch) for at, consumer, epoch in identities]
    found = group_runs([*frames[:1], ping, *frames[1:], ping])
    shown = [None if isinstance(one, bytes) else (one.consumer, one.epoch, one.first[1], one.last[1]) for one in found]
    assert shown == [(7, 0, 1, 1), None, (7, 0, 2, 2), (8, 0, 3, 4), (8, 1, 5, 5), (8, 1, 5, 6), None]
    assert [len(one.entries) for one in found if not isinstance(one, bytes)] == [1, 1, 2, 1, 2]
    assert group_runs([]) == []


def test_alternating_consumers_have_one_run_each() -> None:
    entry = Entry(MessageMetadata(), b"body")
    frames = [message_frame(entry, at, consumer) for at in range(3) for consumer in (1, 2)]
    shown = [(one.consumer, one.first[1], one.last[1]) for one in group_runs(frames) if not isinstance(one, bytes)]
    assert shown == [(1, 0, 2), (2, 0, 2)]


def test_an_entry_keeps_its_acknowledged_messages_and_its_defect() -> None:
    metadata = MessageMetadata(num_messages_in_batch=3)
    run = check_frame(message_frame(Entry(metadata, b"\x00\x00\x00\x02\x18\x01x" * 3)))
    assert run is not None
    [entry] = run.entries
    assert keep_messages(entry, 1)
    assert (entry.ack_set, deliverable_mask(entry), first_deliverable_position(entry)) == ((0b110,), 0b110, (3, 0, 1))
    assert masks_by_entry([entry], [1]) == {(3, 0): 0b100}
    assert [message.position for message in decode_entries([entry])] == [(3, 0, 1), (3, 0, 2)]
    damaged = check_frame(message_frame(Entry(metadata, b"no framing, but long enough")))
    assert damaged is not None
    [entry] = damaged.entries
    assert entry.defect is not None
    assert entry.count == 1
    assert [message.defect for message in decode_entries([entry])] == [entry.defect]


def test_entries_that_the_compiled_decoder_refuses_are_decoded_by_the_plain_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled entry has every attribute that `decode_plain` reads, also if only some messages are to be delivered."""
    monkeypatch.setattr(native.compiled, "pulsar_decode", lambda _: None)
    late = SingleMessageMetadata()
    late.properties.add(key="mqbridge.v", value="1")
    late.properties.add(key="mqbridge.event_time", value=str(1 << 60))
    for singles in ([SingleMessageMetadata(), late], [late]):
        metadata = MessageMetadata(num_messages_in_batch=len(singles))
        run = check_frame(message_frame(Entry(metadata, join_batch([(single, b"x") for single in singles]))))
        assert run is not None
        [entry] = run.entries
        for begin in range(len(singles)):
            keep_messages(entry, begin)
            messages = decode_entries([entry])
            assert not native.is_native(messages)
            assert [message.event_time for message in messages] == [None, 1 << 60][2 - len(singles) + begin :]


@pytest.mark.parametrize("count", [2, 1000, 100_000, 100_001])
def test_many_small_messages_are_charged_like_by_the_plain_code_and_limited(count: int) -> None:
    metadata = MessageMetadata(num_messages_in_batch=count)
    run = check_frame(message_frame(Entry(metadata, b"\0\0\0\2\x18\0" * count)))
    if count > MAX_BATCH_MESSAGES:
        assert run is None, "the plain code reports it"
    else:
        assert run is not None
        [charge] = run.charges
        assert charge >= 64 * count
