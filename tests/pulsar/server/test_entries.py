"""Entries that are received become units, and units and messages become entries."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.listener.delivered import Delivered, HeldBatch
from mqbridge.message import Batch, Message, Partition, Unit
from mqbridge.pulsar.server import entries
from mqbridge.pulsar.wire.entry import decode_entry, read_metadata, stored_entry
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

HELD = HeldBatch(Batch.of([Message(b"")]), 0)


def metadata(**fields: object) -> MessageMetadata:
    values: dict[str, object] = {"producer_name": "p", "sequence_id": 1, "publish_time": 2}
    return MessageMetadata(**(values | fields))  # type: ignore[arg-type]


def unit_of(payload: bytes = b"x", count: int = 1, **fields: object) -> Delivered:
    return Delivered(5, Unit(stored_entry(metadata(**fields), payload), count, 2, (5,)), HELD, 0, (5 + count,), 0)


def message_of(message: Message) -> Delivered:
    return Delivered(5, message, HELD, 0, (6,), 0)


def test_a_received_entry_is_stored_as_it_is():
    data = stored_entry(metadata(num_messages_in_batch=3), b"payload")
    received = entries.receive_entry(b"before" + data, 6)
    assert (received.unit.data, received.unit.message_count, received.count, received.is_opaque) == (data, 3, 3, False)
    batch = entries.make_batch(received, None, 0)
    assert (batch.count, list(batch.units or ())) == (3, [received.unit])


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"encryption_keys": [pb.EncryptionKeys(key="k", value=b"v")], "num_messages_in_batch": 4}, 4),
        ({"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 2, "total_chunk_msg_size": 9}, 1),
        ({"num_messages_in_batch": 100_001}, 100_001),
        ({"num_messages_in_batch": (1 << 31) - 1}, (1 << 31) - 1),
    ],
    ids=["encrypted", "chunk", "too many", "far too many"],
)
def test_an_entry_that_cannot_be_read_here_counts_as_one_message(fields, count):
    received = entries.receive_entry(stored_entry(metadata(**fields), b"x"), 0)
    assert (received.is_opaque, received.unit.message_count, received.count) == (True, 1, count)
    (message,) = entries.make_batch(received, None, 0).messages
    assert message.defect is None
    assert entries.entry_of(message_of(message)) == received.unit.data


def test_a_numbered_batch_ends_with_its_last_sequence_id():
    received = entries.receive_entry(stored_entry(metadata(num_messages_in_batch=3), b"payload"), 0)
    batch = entries.make_batch(received, Partition("c", "t", "p", 0), 9)
    assert (batch.first, batch.next) == ((7,), (9,))


@given(st.binary(max_size=60))
def test_any_bytes_are_an_entry_or_a_protocol_error(data):
    try:
        received = entries.receive_entry(data, 0)
    except RemoteProtocolError:
        return
    delivered = Delivered(5, received.unit._replace(position=(5,)), HELD, 0, (6,), 0)
    assert entries.entry_of(delivered) == data
    assert entries.permits_of(delivered) >= 1
    assert entries.delay_of(delivered) >= 0
    entries.sticky_key_of(delivered)


def test_a_message_without_a_unit_becomes_an_entry_of_its_own():
    message = Message(b"hello", (("a", "1"),), key="k", publish_time=7, position=(5,))
    entry = decode_entry(entries.entry_of(message_of(message)))
    assert (entry.defect, entry.payload, entry.is_batch) == (None, b"hello", False)
    assert (entry.metadata.partition_key, entry.metadata.producer_name, entry.metadata.sequence_id) == ("k", "mqbridge", 5)
    assert entry.metadata.publish_time == 7
    assert not entry.metadata.HasField("deliver_at_time")


def test_keys_of_key_shared_subscriptions():
    assert entries.sticky_key_of(unit_of(partition_key="k")) == b"k"
    assert entries.sticky_key_of(unit_of(partition_key="/w==", partition_key_b64_encoded=True)) == b"\xff"
    assert entries.sticky_key_of(unit_of(partition_key="k", ordering_key=b"o")) == b"o"
    assert entries.sticky_key_of(unit_of()) == b"p-1"
    assert entries.sticky_key_of(message_of(Message(b"", key="k"))) == b"k"
    assert entries.sticky_key_of(message_of(Message(b"", key=b"\xff"))) == b"\xff"
    assert entries.sticky_key_of(message_of(Message(b"", key="k", ordering_key=b"o"))) == b"o"
    assert entries.sticky_key_of(message_of(Message(b""))) == b"mqbridge-5"


def test_delays():
    due = int((time.time() + 1000) * 1000)
    for delivered in (unit_of(deliver_at_time=due), message_of(Message(b"", deliver_at=due))):
        assert 900 < entries.delay_of(delivered) < 1001
    assert entries.delay_of(unit_of(deliver_at_time=5)) == 0
    assert entries.delay_of(unit_of(partition_key="\x18\x01")) == 0
    assert entries.delay_of(message_of(Message(b""))) == 0


def test_an_entry_without_a_checksum_has_a_delay_too():
    due = int((time.time() + 1000) * 1000)
    whole = stored_entry(metadata(deliver_at_time=due), b"x")
    delivered = Delivered(5, Unit(whole[6:], 1, 2, (5,)), HELD, 0, (6,), 0)
    assert entries.delay_of(delivered) > 900
    keys = [pb.EncryptionKeys(key="k", value=b"v")]
    whole = stored_entry(metadata(encryption_keys=keys, num_messages_in_batch=7), b"x")
    assert entries.permits_of(Delivered(5, Unit(whole[6:], 1, 2, (5,)), HELD, 0, (6,), 0)) == 7


def test_permits_are_the_messages_that_the_client_counts():
    assert entries.permits_of(unit_of(count=3, num_messages_in_batch=3)) == 3
    encrypted = unit_of(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")], num_messages_in_batch=7)
    assert entries.permits_of(encrypted) == 7
    partly = unit_of(count=3, num_messages_in_batch=3)
    partly.remaining = 0b101
    assert entries.permits_of(partly) == 2


def test_a_damaged_unit_stops_nothing():
    whole = bytearray(unit_of(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]).unit.data)  # type: ignore[union-attr]
    whole[-1] ^= 1
    damaged = Delivered(5, Unit(bytes(whole), 1, 2, (5,)), HELD, 0, (6,), 0)
    with pytest.raises(RemoteProtocolError):
        read_metadata(bytes(whole))
    assert entries.permits_of(damaged) == 1
    assert entries.entry_of(damaged) == bytes(whole)


def test_a_defect_is_told():
    assert entries.defect_of(message_of(Message(b"", defect="damaged"))) == "damaged"
    assert entries.defect_of(message_of(Message(b""))) is None
    assert entries.defect_of(unit_of()) is None
