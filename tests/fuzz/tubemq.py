"""TubeMQ: frames with their envelope, every protobuf message, the texts inside, packed bodies, the mapping of packs."""

import contextlib

from google.protobuf.message import Message as Protobuf

from mqbridge.errors import ProtocolError
from mqbridge.tubemq.client.consumer.flow_control import parse_rules
from mqbridge.tubemq.mapping.sdk_units import message_of_unit, unit_of_message
from mqbridge.tubemq.mapping.stored import decode
from mqbridge.tubemq.mapping.unit_format import unit_of_data
from mqbridge.tubemq.wire import rpc, string_formats, tdmsg
from mqbridge.tubemq.wire.frame import FrameMeter, encode_frame, split_frame
from mqbridge.tubemq.wire.payload import checksum, join_payload, split_payload
from mqbridge.tubemq.wire.pb import broker_pb2, master_pb2, rpc_pb2
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from mqbridge.wire.cutter import FrameCutter
from tests.fuzz.target import Choice, Target, check_message, check_texts, filled, halves, must_equal, text_reader
from tests.tubemq.wire import vectors


def read_frames(data: bytes) -> None:
    """Cut anywhere; the payload as a request and as an answer."""
    cutter = FrameCutter(FrameMeter().measure)
    frames = [one for piece in halves(data) for one in cutter.feed(piece)]
    must_equal(b"".join(frames), data[: len(data) - cutter.buffered])
    for one in frames:
        _, payload = split_frame(one)
        for read in (rpc.decode_request, rpc.decode_response):
            with contextlib.suppress(ProtocolError, rpc.RemoteError):
                read(payload)


ANSWER = rpc.encode_response(rpc.GET, b"abc")
FRAMES = [
    vectors.REGISTER_FRAME,
    *(encode_frame(5, payload) for payload in (
        ANSWER, rpc.encode_error("StandbyException", "not me"), rpc.encode_error("X", "no", 2, fatal=True),
        bytes.fromhex("020801" + "020800" + "07" + "080d" + "1203") + b"abc",
    )),
    b"\xff\x7f\xf4\xfe" + bytes.fromhex("00000001 00000002 00000010") + ANSWER[:16] + bytes.fromhex("00000001") + ANSWER[16:17],
]  # fmt: skip


def protobuf_reader(kind: type[Protobuf]):
    """A message that was read has text where it should, and can be written."""

    def read(data: bytes) -> None:
        message = rpc.parse(kind, data)
        check_texts(message)
        message.SerializeToString()

    return read


KINDS = [
    value
    for module in (broker_pb2, master_pb2, rpc_pb2)
    for _, value in sorted(vars(module).items())
    if isinstance(value, type) and issubclass(value, Protobuf)
]
protobuf_choice = Choice([protobuf_reader(kind) for kind in KINDS])


REGISTER_AT = KINDS.index(master_pb2.RegisterRequestP2M)

text_choice = Choice(
    [
        *map(
            text_reader,
            (
                string_formats.parse_broker,
                string_formats.parse_partition,
                string_formats.parse_subscription,
                string_formats.parse_failure,
            ),
        ),
        *map(
            text_reader,
            (
                string_formats.parse_topic_info,
                string_formats.parse_topic_meta,
                string_formats.parse_key,
                string_formats.parse_start_offsets,
            ),
        ),
        *map(text_reader, (string_formats.parse_held_partitions, parse_rules)),
        *map(text_reader, (string_formats.parse_member_partition, string_formats.parse_condition)),
    ]
)
TEXTS = [
    b"1:127.0.0.1:8123",
    b"1:127.0.0.1:8123#t:0", b"c@g#1:127.0.0.1:8123#t:0", b"500:1:127.0.0.1:8123#t:0",
    b"t#1:3:1,2:3:1#1048576",
    b"t#1:1:3:1", b"1:t:0", b"1:t:0=5,1:t:1=7", b"t#1:0,1:1",
    b'[{"type":0,"rule":[{"start":"08:00","end":"17:30","dltInM":1024,"limitInM":20,"freqInMs":1000}]}]',
    b"c@g#1:127.0.0.1:8123#t:0", b"t#t1,t2",
]  # fmt: skip

PACKED = [
    tdmsg.pack([tdmsg.Item(b"one", b"m=1"), tdmsg.Item(b"two", b"m=2")], 1_700_000_000_000),
    bytes.fromhex("0f00 00000001 0003 6d3d31 0000000a 00 00000001 61 00000000 0f00"),
    bytes.fromhex("0f03 0000018bcfe56800 00000001 00000001 0003 6d3d31 0000000f 00 0000000e 00000001 61 00000001 62 0f03"),
]


def read_packed(data: bytes) -> None:
    """Decoded values can be encoded."""
    if tdmsg.is_packed(data):
        for item in tdmsg.unpack(data).items:
            must_equal(type(item.data), bytes)


def read_pack(data: bytes) -> None:
    """Flag, two bytes of size, content: each with the right checksum, as the broker has made sure; every field.

    An SDK that reads a message from a listener gets what another one sent.
    """
    pack, at = [], 0
    while at + 3 <= len(data):
        size = int.from_bytes(data[at + 1 : at + 3])
        content = data[at + 3 : at + 3 + size]
        pack.append(TransferedMessage(messageId=at, checkSum=checksum(content), flag=data[at], payLoadData=content))
        split_payload(content, data[at])
        unit = unit_of_data(content, data[at])
        must_equal(unit_of_message(message_of_unit(unit)), unit)
        at += 3 + size
    for message in decode(pack, 28):
        assert message.defect is None
        check_message(message)


def _content(attributes: bytes | None, body: bytes) -> bytes:
    content, flag = join_payload(attributes, body)
    return bytes([flag]) + len(content).to_bytes(2) + content


CONTENTS = [
    _content(None, b"x"),
    _content(b"a=1,b=2,$msgType$=t,$msgTime$=202311142213", b"x") + _content(b"", b""),
    _content(b"a=1,mqbridge.v=1,mqbridge.origin=c%7Ct%7Cp%7C1,mqbridge.hops=2,mqbridge.key=k,mqbridge.keys=a%20b", b"x"),
    _content(b"mqbridge.null=1,mqbridge.event_time=5,mqbridge.deliver_at=9,mqbridge.key.b64=/w==", b""),
    _content(b"free text,mqbridge.origin=c|t|p|1,mqbridge.u.mqbridge.x=1,mqbridge.order=0", b"y"),
]

TARGETS = {
    "tubemq-frames": Target(read_frames, FRAMES),
    "tubemq-answers": Target(
        protobuf_choice,
        [bytes([REGISTER_AT]) + vectors.REGISTER_BODY]
        + [bytes([at]) + filled(kind).SerializeToString() for at, kind in enumerate(KINDS)],
    ),
    "tubemq-texts": Target(text_choice, [bytes([at]) + data for at, data in enumerate(TEXTS)]),
    "tubemq-packed": Target(read_packed, PACKED),
    "tubemq-mapping": Target(read_pack, CONTENTS, ()),
}
