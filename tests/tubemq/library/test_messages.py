"""Encoding and decoding the data of messages."""

import pytest

from mqbridge.errors import LocalProtocolError
from mqbridge.tubemq.library.messages import TubeMessage, decode, decode_all, encode
from mqbridge.tubemq.wire.payload import checksum, join_payload
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage


def stored(message: TubeMessage) -> TransferedMessage:
    data, flag = encode(message)
    return TransferedMessage(messageId=7, checkSum=checksum(data), payLoadData=data, flag=flag)


@pytest.mark.parametrize(
    "message",
    [
        TubeMessage(b"plain"),
        TubeMessage(b"", {"k": "v"}),
        TubeMessage(b"x", {"k": "v", "ключ": "значение"}, "t1", "202611202350"),
        TubeMessage(b"x", msg_type="t1"),
    ],
)
def test_encoded_messages_are_decoded_unchanged(message: TubeMessage) -> None:
    found = decode(stored(message))
    assert found.id == 7
    found.id = 0
    assert found == message


def test_the_system_pairs_come_first() -> None:
    data, flag = encode(TubeMessage(b"x", {"k": "v"}, "t1", "202611202350"))
    assert (data[4:-1], flag) == (b"$msgType$=t1,$msgTime$=202611202350,k=v", 1)


@pytest.mark.parametrize(
    "message",
    [
        TubeMessage(b"x", {"a,b": "v"}),
        TubeMessage(b"x", {"k": "a=b"}),
        TubeMessage(b"x", {"k": " "}),
        TubeMessage(b"x", {"$msgType$": "t"}),
        TubeMessage(b"x", msg_time="2026-11-20"),
    ],
)
def test_texts_that_attributes_cannot_carry_are_refused(message: TubeMessage) -> None:
    with pytest.raises(LocalProtocolError):
        encode(message)


def test_messages_of_other_types_are_left_out_and_damaged_ones_raise() -> None:
    pack = [stored(TubeMessage(b"%d" % n, msg_type=kind)) for n, kind in enumerate(("t1", "t2", None, "t1"))]
    assert [message.body for message in decode_all(pack, {"t1"})] == [b"0", b"3"]
    assert len(decode_all(pack)) == 4
    pack[0].checkSum ^= 1
    with pytest.raises(LocalProtocolError, match="damaged"):
        decode_all(pack)
    impossible = TransferedMessage(messageId=1, payLoadData=b"body", flag=1, checkSum=checksum(b"body"))
    assert decode(impossible).body == b"body"
    assert join_payload(None, b"x") == (b"x", 0)
