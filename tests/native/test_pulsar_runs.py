"""Frames that the compiled module takes apart: it finds what `parse_frame` and `decode_entry` find, or leaves them alone."""

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
from mqbridge.pulsar.client.entry_runs import EntryRun, group_runs
from mqbridge.pulsar.mapping.stored import decode, decode_entries
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.entry import Entry, decode_entry, encode_entry_prefix
from mqbridge.pulsar.wire.frame import encode_frame_prefix, parse_frame
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata, SingleMessageMetadata
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


def plainly(data: bytes) -> Entry:
    """The entry of a frame as the plain code reads it."""
    frame = parse_frame(data)
    message, entry = frame.command.message, decode_entry(frame.data, frame.entry_offset)
    entry.ledger, entry.entry = ids.entry_id(message.message_id)
    entry.redelivery_count, entry.ack_set = message.redelivery_count, tuple(message.ack_set)
    return entry


NAMES = ("ledger", "entry", "id", "count", "is_batch", "redelivery_count", "ack_set", "defect", "payload", "metadata", "size")
MORE = ("publish_time", "is_chunk", "first_chunk", "chunks_before", "partition")


def facts(entry: Entry) -> dict[str, Any]:
    found = {name: getattr(entry, name) for name in (*NAMES, *MORE)}
    return found | {
        "mask": deliverable_mask(entry),
        "due": deliverable_count(entry),
        "position": first_deliverable_position(entry),
    }


def check_frame(data: bytes) -> EntryRun | None:
    """Found alike, if it is found at all."""
    [found] = group_runs([data])
    if isinstance(found, bytes):
        assert found is data
        return None
    [entry], expected = found.entries, plainly(data)
    assert isinstance(entry, compiled.PulsarEntry)
    message = parse_frame(data).command.message
    assert (found.consumer, found.messages, found.first, found.last) == (
        message.consumer_id,
        expected.count,
        *[expected.id] * 2,
    )
    assert found.epoch == (message.consumer_epoch if message.HasField("consumer_epoch") else None)
    assert facts(entry) == facts(expected)
    expected.unpack()
    assert expected.defect is None
    assert expected.payload == entry.payload
    assert 0 < entry.held_bytes == found.charges[0]
    messages = decode_entries([entry])
    assert [message.as_dict() for message in messages] == [
        message.as_dict() for message in decode(expected, include_compacted_out=True)
    ]
    assert entry.defect == expected.defect
    return found


NUMBERS = st.sampled_from([0, 1, 127, 128, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])


@settings(max_examples=200)
@given(entry=pulsar_natives(), at=NUMBERS, consumer=NUMBERS, again=st.integers(0, (1 << 32) - 1), epoch=st.none() | NUMBERS)
def test_any_entry(entry: Entry, at: int, consumer: int, again: int, epoch: int | None) -> None:
    fields = {} if epoch is None else {"consumer_epoch": epoch}
    check_frame(message_frame(entry, at, consumer, redelivery_count=again, **fields))


@settings(max_examples=400)
@given(
    entry=pulsar_natives(),
    changed=changes(b"\x00\x01\x02\x04\x08\x09\x0a\x0b\x0c\x0e\x10\x12\x18\x20\x22\x28\x48\x58\x60\x7f\x80\xa1\xc3\xff"),
    repaired=st.booleans(),
)
def test_frames_with_other_bytes(entry: Entry, changed: Changes, repaired: bool) -> None:
    """With the right checksum, too, behind which nothing would be tried otherwise."""
    whole = message_frame(entry)
    data = bytearray(changed(whole))
    if repaired and len(data) >= 8:
        data[:4] = (len(data) - 4).to_bytes(4, "big")
        at = 8 + int.from_bytes(data[4:8], "big")
        if len(data) >= at + 6:
            data[at + 2 : at + 6] = crc32c(bytes(data[at + 6 :])).to_bytes(4, "big")
    try:
        check_frame(bytes(data))
    except RemoteProtocolError:  # then the connection ends
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
def test_what_is_not_everyday_is_left_to_the_plain_code(fields: dict[str, Any]) -> None:
    assert check_frame(message_frame(Entry(MessageMetadata(**fields), b"body"))) is None


def test_a_part_of_an_entry_is_left_to_the_plain_code() -> None:
    assert check_frame(message_frame(Entry(MessageMetadata(), b"body"), ack_set=[1])) is None


def test_an_everyday_entry_is_not() -> None:
    run = check_frame(message_frame(Entry(MessageMetadata(), b"body"), consumer_epoch=2))
    assert run is not None
    assert run.epoch == 2


def test_runs_go_on_within_a_consumer_an_epoch_and_an_order() -> None:
    entry = Entry(MessageMetadata(), b"body")
    ping = b"\x00\x00\x00\x09\x00\x00\x00\x05\x08\x12\x92\x01\x00"
    places = [(1, 7, 0), (2, 7, 0), (3, 8, 0), (4, 8, 0), (5, 8, 1), (5, 8, 1), (6, 8, 1)]
    frames = [message_frame(entry, at, consumer, consumer_epoch=epoch) for at, consumer, epoch in places]
    found = group_runs([*frames[:1], ping, *frames[1:], ping])
    shown = [None if isinstance(one, bytes) else (one.consumer, one.epoch, one.first[1], one.last[1]) for one in found]
    assert shown == [(7, 0, 1, 1), None, (7, 0, 2, 2), (8, 0, 3, 4), (8, 1, 5, 5), (8, 1, 5, 6), None]
    assert [len(one.entries) for one in found if not isinstance(one, bytes)] == [1, 1, 2, 1, 2]
    assert group_runs([]) == []


def test_consumers_that_take_turns_have_a_run_each() -> None:
    entry = Entry(MessageMetadata(), b"body")
    frames = [message_frame(entry, at, consumer) for at in range(3) for consumer in (1, 2)]
    shown = [(one.consumer, one.first[1], one.last[1]) for one in group_runs(frames) if not isinstance(one, bytes)]
    assert shown == [(1, 0, 2), (2, 0, 2)]


def test_what_is_acknowledged_and_what_is_damaged_is_noted_on_it() -> None:
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


def test_what_the_compiled_decoder_refuses_is_read_by_the_plain_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that `decode` asks of an entry is there, also of one that is due in part."""
    monkeypatch.setattr(native.compiled, "pulsar_decode", lambda _: None)
    late = SingleMessageMetadata()
    late.properties.add(key="mqbridge.v", value="1")
    late.properties.add(key="mqbridge.event_time", value=str(1 << 60))
    for singles in ([SingleMessageMetadata(), late], [late]):
        head = MessageMetadata(num_messages_in_batch=len(singles))
        run = check_frame(message_frame(Entry(head, join_batch([(single, b"x") for single in singles]))))
        assert run is not None
        [entry] = run.entries
        for begin in range(len(singles)):
            keep_messages(entry, begin)
            messages = decode_entries([entry])
            assert not native.is_native(messages)
            assert [message.event_time for message in messages] == [None, 1 << 60][2 - len(singles) + begin :]
