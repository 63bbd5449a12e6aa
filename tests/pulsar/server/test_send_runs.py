"""Runs of SEND frames have what the plain code finds in each frame, and their sends are answered in the same way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge import native
from mqbridge.errors import RemoteProtocolError
from mqbridge.pulsar.server.entries import receive_entry
from mqbridge.pulsar.server.send_runs import RUN_BYTES, SendCutter, encode_receipts
from mqbridge.pulsar.wire import client_commands, codes
from mqbridge.pulsar.wire.entry import SendEncoder
from mqbridge.pulsar.wire.frame import FrameMeter, encode_frame_prefix, parse_frame
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from mqbridge.pulsar.wire.server_commands import ReceiptEncoder
from tests.pulsar.server.serving import entry_frame, serving

pytestmark = pytest.mark.skipif(native.compiled is None, reason="the compiled module is not in use")

MAX_ENTRY = 5 << 20
MAX_UINT64 = (1 << 64) - 1
numbers = st.one_of(st.integers(0, 300), st.integers(0, MAX_UINT64))


def metadata(**fields):
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 1, "publish_time": 2} | fields)


def send_frame(producer=1, sequence=0, highest=0, payload=b"x", **fields):
    return SendEncoder(producer).encode(sequence, highest, 1, metadata(**fields), payload) + payload


def with_command(**fields):
    """Return a SEND frame whose command has these fields, too."""
    frame = parse_frame(send_frame())
    for name, value in fields.items():
        setattr(frame.command.send, name, value)
    entry = frame.data[frame.entry_offset :]
    return encode_frame_prefix(frame.command, len(entry)) + entry


def without_checksum():
    """Return a SEND frame whose entry has no checksum."""
    frame = parse_frame(send_frame())
    entry = frame.data[frame.entry_offset + 6 :]
    return encode_frame_prefix(frame.command, len(entry)) + entry


ORDINARY = [
    send_frame(),
    send_frame(producer=MAX_UINT64, sequence=MAX_UINT64, highest=MAX_UINT64, publish_time=MAX_UINT64),
    send_frame(num_messages_in_batch=3, compression=2, uncompressed_size=90, highest_sequence_id=7),
    send_frame(num_messages_in_batch=100_000),
    send_frame(num_messages_in_batch=-1),
    send_frame(num_messages_in_batch=0, properties=[{"key": "a", "value": "b"}], event_time=5, deliver_at_time=-9),
    send_frame(partition_key="k", partition_key_b64_encoded=True, ordering_key=b"o", schema_version=b"12345678"),
    send_frame(null_value=True, null_partition_key=True, replicated_from="r", replicate_to=["a", "b"], payload=b""),
]
SPECIAL = [
    send_frame(num_messages_in_batch=100_001),
    send_frame(marker_type=10),
    send_frame(encryption_keys=[{"key": "a", "value": b"b"}]),
    send_frame(num_chunks_from_msg=2, chunk_id=0, uuid="u", total_chunk_msg_size=9),
    send_frame(txnid_least_bits=1),
    with_command(marker=True),
    with_command(txnid_most_bits=1),
    with_command(is_chunk=True),
    send_frame()[:-1] + b"y",
    without_checksum(),
    client_commands.PING,
    client_commands.lookup(1, "t", False),
    b"\0\0\0\4\0\0\0\0",
]


def cut(data, sizes=(), max_entry=MAX_ENTRY):
    """Feed data in chunks of these sizes, and the rest at once; return frames and runs."""
    cutter, found, at = SendCutter(FrameMeter()), [], 0
    for size in (*sizes, len(data)):
        found += cutter.feed(data[at : at + size], max_entry)
        at += size
    return found


def frames_of(found):
    return [frame for each in found for frame in ([each] if isinstance(each, bytes) else each.frames)]


def check_run(run):
    """Check that a run has what the plain code finds in its frames."""
    units, sequences = [], []
    for data in run.frames:
        frame = parse_frame(data)
        command = frame.command.send
        received = receive_entry(data, frame.entry_offset)
        assert frame.type == BaseCommand.SEND
        assert not received.is_opaque
        assert not command.marker
        assert not received.metadata.HasField("marker_type")
        assert command.producer_id == run.producer
        assert received.count == received.unit.message_count
        units.append(tuple(received.unit))
        sequences.append((command.sequence_id, command.highest_sequence_id))
    assert run.units == units
    assert run.sequences == sequences
    assert run.messages == sum(unit[1] for unit in units)
    assert run.entry_bytes == sum(len(unit[0]) for unit in units)


@pytest.mark.parametrize("frame", ORDINARY)
def test_an_ordinary_entry_is_in_a_run(frame):
    (run,) = cut(frame)
    assert run.frames == [frame]
    check_run(run)


@pytest.mark.parametrize("frame", SPECIAL)
def test_every_other_frame_is_left_to_the_plain_code(frame):
    assert cut(frame) == [frame]
    first, *between, last = cut(send_frame() + frame + send_frame())
    assert between == [frame]
    assert (first.frames, last.frames) == ([send_frame()], [send_frame()])


def test_a_run_ends_with_another_producer_and_at_its_limit():
    frames = [send_frame(1), send_frame(1), send_frame(2), send_frame(1)]
    assert [run.frames for run in cut(b"".join(frames))] == [frames[:2], frames[2:3], frames[3:]]
    large = send_frame(payload=bytes(RUN_BYTES // 2))
    assert [len(run.units) for run in cut(send_frame() + large * 2 + send_frame())] == [2, 2]
    huge = send_frame(payload=bytes(RUN_BYTES))
    assert [len(run.units) for run in cut(huge * 2)] == [1, 1]


def test_an_entry_beyond_the_limit_is_left_to_the_plain_code():
    frame = send_frame()
    size = len(frame) - parse_frame(frame).entry_offset
    assert cut(frame, max_entry=size - 1) == [frame]
    assert cut(frame, max_entry=size)[0].frames == [frame]


def test_frames_are_whole_however_they_arrive():
    frames = [*ORDINARY, *SPECIAL, *ORDINARY[:2]]
    data = b"".join(frames)
    for at in range(len(data)):
        assert frames_of(cut(data, [at])) == frames
    assert frames_of(cut(data, [1] * len(data))) == frames


@given(
    st.lists(st.one_of(st.sampled_from([*ORDINARY, *SPECIAL]), st.builds(send_frame, numbers, numbers, numbers)), max_size=9),
    st.data(),
)
def test_runs_have_what_the_plain_code_finds(frames, choices):
    data = bytearray(b"".join(frames))
    if data and choices.draw(st.booleans()):  # damage that leaves the sizes of frames
        at = choices.draw(st.integers(0, len(frames) - 1))
        begin = sum(map(len, frames[:at]))
        data[choices.draw(st.integers(begin + 4, begin + len(frames[at]) - 1))] ^= choices.draw(st.integers(1, 255))
    sizes = choices.draw(st.lists(st.integers(1, 200), max_size=9))
    found = cut(bytes(data), sizes)
    assert b"".join(frames_of(found)) == data
    for each in found:
        if not isinstance(each, bytes):
            check_run(each)


@pytest.mark.parametrize("size", [0, 3, (5 << 20) + (10 << 10) + 1])
def test_an_invalid_size_is_refused(size):
    with pytest.raises(RemoteProtocolError, match="accepts 4 to"):
        cut(send_frame() + size.to_bytes(4))


@given(numbers, st.lists(st.tuples(numbers, numbers, st.integers(-1, (1 << 63) - 1), st.integers(-1, (1 << 63) - 1)), max_size=5))
def test_receipts_are_those_of_the_plain_code(producer, receipts):
    encoder = ReceiptEncoder(producer)
    sequences, entries = [each[:2] for each in receipts], [each[2:] for each in receipts]
    assert encode_receipts(producer, encoder, sequences, entries) == encoder.encode_all(sequences, entries)


async def answers(client, count):
    """Return kind, sequence ids and message id (or code) of the next answers."""
    found = []
    for _ in range(count):
        command = (await client.next()).command
        if command.type == BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            found.append((receipt.producer_id, receipt.sequence_id, receipt.message_id.ledgerId, receipt.message_id.entryId))
        else:
            error = command.send_error
            found.append((error.producer_id, error.sequence_id, error.error))
    return found


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_bad_frame_among_good_ones_is_refused_alone(is_plain, monkeypatch):
    if is_plain:
        monkeypatch.setattr("mqbridge.native.compiled", None)
    async with serving() as served:
        client = await served.connect()
        await client.produce(1)
        await client.produce(2)
        bad = entry_frame(b"bad", 12)
        client.send(
            entry_frame(b"a", 10)
            + entry_frame(b"bc", 11, num_messages_in_batch=2)
            + bad[:-1]
            + b"!"
            + entry_frame(b"d", 13)
            + entry_frame(b"e", 20, producer=2)
            + entry_frame(b"f", 14)
        )
        found = await answers(client, 6)
        assert (1, 12, codes.CHECKSUM) in found
        assert [each[1] for each in found if each[0] == 1 and len(each) == 4] == [10, 11, 13, 14]
        assert sorted(each[1] for each in found if len(each) == 4) == [10, 11, 13, 14, 20]
        assert len({each[2:] for each in found if len(each) == 4}) == 5


@pytest.mark.parametrize("is_plain", [False, True])
async def test_what_comes_before_a_violation_is_stored(is_plain, monkeypatch):
    if is_plain:
        monkeypatch.setattr("mqbridge.native.compiled", None)
    async with serving() as served:
        client, reader = await served.connect(), await served.connect()
        await client.produce()
        await reader.subscribe(permits=10)
        client.send(entry_frame(b"a", 1) + entry_frame(b"b", 2) + entry_frame(b"c", 3, producer=9) + entry_frame(b"d", 4))
        assert await reader.messages(2) == [b"a", b"b"]
        await client.wait_ended()
