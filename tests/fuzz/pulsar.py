"""Pulsar: frames with their commands, entries and their mapping, chunks that are joined, names."""

from google.protobuf.descriptor import FieldDescriptor

from mqbridge.pulsar.mapping.request import EncodedEntry, Limits, encode, encode_plain
from mqbridge.pulsar.mapping.stored import decode_entries, decode_plain
from mqbridge.pulsar.wire import topic_lists
from mqbridge.pulsar.wire.chunk_joiner import ChunkJoiner, ChunkLimits
from mqbridge.pulsar.wire.chunks import describes_chunk, split_payload
from mqbridge.pulsar.wire.compression import compress
from mqbridge.pulsar.wire.entry import decode_entry, encode_entry_prefix, has_valid_checksum
from mqbridge.pulsar.wire.frame import FrameMeter, encode_command, parse_frame
from mqbridge.pulsar.wire.names import parse_topic
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from mqbridge.pulsar.wire.schemas import Schema
from mqbridge.wire.cutter import FrameCutter
from tests.fuzz.target import Choice, Target, check_message, check_texts, filled, halves, must_equal, text_reader
from tests.pulsar.wire import vectors

WITHOUT_TEXT = {pb.BaseCommand.Type.Value(name) for name in ("MESSAGE", "SEND", "SEND_RECEIPT", "FLOW", "PING", "PONG")}
"""Commands whose own submessage has no text; nothing reads other submessages."""


def read_frames(data: bytes) -> None:
    """Cut anywhere; the rest of SEND and MESSAGE is an entry."""
    cutter = FrameCutter(FrameMeter().measure)
    frames = [one for piece in halves(data) for one in cutter.feed(piece)]
    must_equal(b"".join(frames), data[: len(data) - cutter.buffered])
    for one in frames:
        frame = parse_frame(one)
        if frame.type not in WITHOUT_TEXT:
            check_texts(frame.command)
        for _, answer in frame.command.ListFields():
            if isinstance(answer, pb.CommandGetSchemaResponse) and answer.HasField("schema"):
                must_equal(Schema.from_wire(Schema.from_wire(answer.schema).to_wire()), Schema.from_wire(answer.schema))
        has_valid_checksum(one, frame.entry_offset)
        read_entry(one[frame.entry_offset :])


def read_entry(data: bytes) -> None:
    """Decode the messages with every field and encode them again, with both decoders and encoders."""
    entry = decode_entry(data)
    entry.ledger, entry.entry = 3, 4
    messages = decode_plain(entry, include_compacted_out=True)
    for message in messages:
        check_message(message)
    found = decode_entries([entry])
    must_equal([message.as_dict() for message in found], [message.as_dict() for message in messages])
    compiled, plain = encode(found, "c|t|0|", Limits()), encode_plain(messages, "c|t|0|", Limits())
    must_equal(_fields(compiled[0]), _fields(plain[0]))
    must_equal([failure.index for failure in compiled[1]], [failure.index for failure in plain[1]])


def _fields(entries: list[EncodedEntry]) -> list[object]:
    return [(each.metadata, each.payload, each.indexes) for each in entries]


def read_chunks(data: bytes) -> None:
    """Entries back to back, each behind two bytes of size, as the chunks of one consumer."""
    joiner = ChunkJoiner(ChunkLimits(messages=3, max_bytes=1 << 16))
    at = number = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2])
        entry = decode_entry(data[at + 2 : at + 2 + size])
        entry.ledger, entry.entry = 1, number
        if entry.defect is None and describes_chunk(entry.metadata):
            for joined in joiner.add(entry, float(number)):
                for message in decode_plain(joined.entry) if joined.entry is not None else ():
                    check_message(message)
        assert joiner.payload_bytes <= 1 << 16
        assert len(joiner) <= 3
        at, number = at + 2 + size, number + 1
    joiner.expire(1e9)
    assert not len(joiner)


def command(field: FieldDescriptor) -> bytes:
    """A frame of the command that has this part; the part's number is the type of the command."""
    command = pb.BaseCommand(type=field.number)  # type: ignore[arg-type]
    getattr(command, field.name).MergeFrom(filled(field.message_type._concrete_class, 1))
    return encode_command(command)


TYPES = set(pb.BaseCommand.Type.values())
COMMANDS = [command(field) for field in pb.BaseCommand.DESCRIPTOR.fields if field.message_type and field.number in TYPES]


def _sized(entry: bytes) -> bytes:
    return len(entry).to_bytes(2) + entry


def _entry(metadata: MessageMetadata, payload: bytes, *, checked: bool = False) -> bytes:
    whole = encode_entry_prefix(metadata, payload) + payload
    return whole if checked else whole[6:]  # without magic and checksum, which a fuzzer cannot compute


def _metadata(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)  # type: ignore[arg-type]


SEEDS = [
    frame[parse_frame(frame).entry_offset :] for frame in (vectors.SEND_PLAIN, vectors.SEND_BATCH, vectors.SEND_BATCH_OF_ONE)
]
CODECS = (pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY)
ENTRIES = [
    *SEEDS,
    *(seed[6:] for seed in SEEDS),
    *(_entry(_metadata(compression=codec, uncompressed_size=600), compress(codec, b"abc" * 200)) for codec in CODECS),
    _entry(_metadata(partition_key="/w==", partition_key_b64_encoded=True, ordering_key=b"o", event_time=5), b"x"),
    _entry(_metadata(null_value=True, deliver_at_time=9, encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]), b""),
    _entry(
        _metadata(properties=[pb.KeyValue(key="mqbridge." + name, value=value) for name, value in (
            ("origin", "c|t|p|1"), ("hops", "2"), ("keys", "a b"), ("msg_type", "t"), ("attributes.b64", "YQ=="), ("null", "1"),
            ("u.mqbridge.x", "1"), ("event_time", "0"), ("deliver_at", "5"),
        )]),
        b"x",
    ),
]  # fmt: skip
PIECES = list(split_payload(_metadata(uuid="u"), b"0123456789", 4))
CHUNKS = [_sized(_entry(metadata, payload)) for metadata, payload in PIECES]


def make_names(text: str) -> None:
    """Names of topics are a person's, or come in lists of a broker."""
    try:
        name = parse_topic(text)
        must_equal(parse_topic(str(name)), name)
        topic_lists.parent_topics([text])
    except ValueError:
        pass


name_choice = Choice([text_reader(make_names)])

TARGETS = {
    "pulsar-frames": Target(read_frames, [*vectors.FRAMES, *COMMANDS]),
    "pulsar-entries": Target(read_entry, ENTRIES, ()),
    "pulsar-chunks": Target(read_chunks, [b"".join(CHUNKS), CHUNKS[0] + CHUNKS[2], CHUNKS[1] * 3], ()),
    "pulsar-names": Target(name_choice, [b"\0persistent://a/b/c-partition-3", b"\0a/b/c", b"\0non-persistent://a/c/b/d", b"\0t"]),
}
