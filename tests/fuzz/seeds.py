"""Seeds for the fuzzers of the compiled module, made from the seeds of the Python fuzzers.

python -m tests.fuzz.seeds --check     exits 1 when a file in native/tests/fuzz/seeds is not current
python -m tests.fuzz.seeds --write
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from mqbridge.message import Message
from mqbridge.pulsar.mapping.request import Limits, encode_plain
from mqbridge.pulsar.wire.entry import SendEncoder, decode_entry, encode_entry_prefix
from mqbridge.pulsar.wire.frame import encode_frame_prefix
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.batch import encode_batch
from mqbridge.rocketmq.wire.record import Record, encode_record
from mqbridge.tubemq.wire.payload import checksum, join_payload
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C, TransferedMessage
from tests.fuzz import pulsar, rocketmq, tubemq

FOLDER = Path(__file__).resolve().parents[2] / "native" / "tests" / "fuzz" / "seeds"

RESERVED = [
    "a\1b\2mqbridge.v\0011\2mqbridge.origin\1c|t|0|1:2\2mqbridge.hops\0012\2mqbridge.keys\1a%20b,c\2mqbridge.key.b64\1/w==\2",
    "mqbridge.null\0011\2mqbridge.event_time\0011700000000000\2mqbridge.deliver_at\1-5\2mqbridge.attributes\1a=1,b=2\2",
    "mqbridge.without\1key,msg_type\2mqbridge.u.mqbridge.x\1\u00e9\2mqbridge.ordering_key\1AAA=\2mqbridge.msg_type\1t\2",
    "mqbridge.key\1k\2mqbridge.origin\1c|t|0|1\2mqbridge.hops\0019223372036854775807\2",  # cannot be counted on
]
PROPERTIES = [("WAIT", "true"), ("UNIQ_KEY", "7F0000010000"), ("TAGS", "t"), ("KEYS", "k1 k2"), ("name", "value"), ("WAIT", "x")]

MESSAGES = [
    Message(b"body", (("a", "1"), ("name", "value")), key="k", keys=("a b", "c,d"), msg_type="t", event_time=5, position=(7, 1)),
    Message(b"body", (("mqbridge.key", "user's"),), key=b"\xff", ordering_key=b"o", attributes=b"a=1", position=(7, 2)),
    Message(None, (("$msgType$", "u"), ("\u00e9", "\u00fc")), key="", msg_type="t", origin="c|t|p|1", hops=3, position=(7, 3)),
]


def rocketmq_pulls() -> Iterator[bytes]:
    """Yield single records, and several in a row like those of a batch of Java's producers."""
    yield from (*rocketmq.RECORDS, *rocketmq.STAMPED)
    records = (Record("T", b"body", properties.encode(PROPERTIES), queue_offset=at, born_timestamp=5) for at in range(8))
    yield b"".join(encode_record(one) for one in records)


def rocketmq_batches() -> Iterator[bytes]:
    """Yield batches that producers send, of messages with and without entries that brokers add."""
    block = properties.encode(PROPERTIES)
    yield encode_batch([(7, b"body", block)] * 3)
    yield encode_batch([(0, b"", b""), (-1, b"body", b"CLUSTER\1c\2a\1b"), (0, b"body", block + b"TRACE_ON\1true\2TAGS\1u")])


def pulsar_entries() -> Iterator[bytes]:
    """Yield the number of messages, the indexes to deliver, and the entry, as `native/tests/fuzz/pulsar.rs` reads them."""
    for data in pulsar.ENTRIES:
        entry = decode_entry(data)
        if entry.defect is not None:
            continue
        if entry.metadata.HasField("num_messages_in_batch"):
            yield bytes([entry.metadata.num_messages_in_batch, 0]) + entry.payload
        else:
            metadata = entry.metadata.SerializeToString()
            yield bytes(2) + len(metadata).to_bytes(2) + metadata + entry.payload
    written, _ = encode_plain(MESSAGES, "c|t|0|", Limits())
    yield from (bytes([entry.count, 0]) + entry.payload for entry in written)


def pulsar_frames() -> Iterator[bytes]:
    """Yield MESSAGE frames of entries with a checksum, with and without a broker's metadata before the entry."""
    command = BaseCommand(type=BaseCommand.MESSAGE)
    message = command.message
    message.consumer_id, message.redelivery_count, message.consumer_epoch = 7, 2, 3
    message.message_id.ledgerId, message.message_id.entryId = 5, 9
    for entry in encode_plain(MESSAGES, "c|t|0|", Limits())[0]:
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=5)
        metadata.MergeFrom(entry.metadata)
        data = encode_entry_prefix(metadata, entry.payload) + entry.payload
        for before in (b"", bytes([14, 2, 0, 0, 0, 2, 8, 1])):
            yield encode_frame_prefix(command, len(before + data)) + before + data
    metadata.ClearField("num_messages_in_batch")
    yield encode_frame_prefix(command, len(data := encode_entry_prefix(metadata, b"body") + b"body")) + data


def pulsar_sends() -> Iterator[bytes]:
    """Yield SEND frames of entries with a checksum."""
    for entry in encode_plain(MESSAGES, "c|t|0|", Limits())[0]:
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=5)
        metadata.MergeFrom(entry.metadata)
        yield SendEncoder(7).encode(3, 5, entry.count, metadata, entry.payload) + entry.payload
    metadata.ClearField("num_messages_in_batch")
    yield SendEncoder(7).encode(3, 3, 1, metadata, b"body") + b"body"


def tubemq_answers() -> Iterator[bytes]:
    """Yield get responses with one message each, and one with all messages."""
    contents = []
    for data in tubemq.CONTENTS:
        size = int.from_bytes(data[1:3])
        contents.append((data[0], data[3 : 3 + size]))
    attributes = b"a=1,name=value,b=2,$msgType$=t,$msgTime$=202311142213"
    contents += [(1, join_payload(attributes, b"body")[0])] * 4
    for each in (*([one] for one in contents), contents):
        messages = [
            TransferedMessage(messageId=2 * at, checkSum=checksum(content), flag=flag, payLoadData=content)
            for at, (flag, content) in enumerate(each)
        ]
        answer = GetMessageResponseB2C(success=True, errCode=200, messages=messages, currOffset=28, maxOffset=99)
        yield answer.SerializeToString()


def files() -> dict[Path, str]:
    """Return the content of each file: a line per input."""
    seeds = {
        "reserved": [text.encode() for text in RESERVED],
        "rocketmq_pulls": [*rocketmq_pulls()],
        "rocketmq_batches": [*rocketmq_batches()],
        "pulsar_entries": [*pulsar_entries()],
        "pulsar_frames": [*pulsar_frames()],
        "pulsar_sends": [*pulsar_sends()],
        "tubemq_answers": [*tubemq_answers()],
    }
    return {FOLDER / f"{name}.hex": "".join(f"{data.hex()}\n" for data in each) for name, each in seeds.items()}


def main() -> int:
    """Write or check the files; return 1 if a file is not current."""
    if "--write" in sys.argv:
        for path, text in files().items():
            path.write_text(text)
        return 0
    expected = files()
    old = [
        str(path) for path in {*expected, *FOLDER.glob("*.hex")} if not path.exists() or path.read_text() != expected.get(path)
    ]
    if old:
        print(f"not current: {', '.join(old)}. Run python -m tests.fuzz.seeds --write", file=sys.stderr)
    return int(bool(old))


if __name__ == "__main__":
    sys.exit(main())
