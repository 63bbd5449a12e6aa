"""Encoder of send requests (`SendMessageRequestP2B`). A producer sends one per message, so speed matters.

The fields that all requests of a partition have in common are encoded once, by protobuf; the others are encoded by hand.
One protobuf object is not reused for all messages: until it is freed, it keeps every payload ever assigned to it in memory.
"""

from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageRequestP2B
from mqbridge.wire.varint import encode_varint

_DATA = b"\x22"
_FLAG = b"\x28"
_MSG_TYPE = b"\x42"
_MSG_TIME = b"\x4a"
_AUTH = b"\x52"
"""The protobuf tags of fields 4, 5, 8, 9 and 10."""
_UINT64_MASK = (1 << 64) - 1
"""Protobuf encodes a negative int32 as an unsigned 64-bit number."""


class SendRequestEncoder:
    """Encodes the requests of one partition.

    `check_sum` is the checkSum of every request: -1, because the producer computes no checksums. `sent_address` is the producer's
    IPv4 address as a signed 32-bit number.
    """

    __slots__ = ("_after_flag", "_auth", "_before_data", "_last_time", "_last_type")

    def __init__(self, client_id: str, topic: str, partition: int, check_sum: int, sent_address: int) -> None:
        first_fields = SendMessageRequestP2B(clientId=client_id, topicName=topic, partitionId=partition)
        next_fields = SendMessageRequestP2B(checkSum=check_sum, sentAddr=sent_address)
        self._before_data = first_fields.SerializePartialToString() + _DATA
        self._after_flag = next_fields.SerializePartialToString()
        self._auth = b""
        self._last_type: tuple[str | None, bytes] = (None, b"")
        self._last_time: tuple[str | None, bytes] = (None, b"")
        """The previous message's type and time, each with its encoded field: the next message usually has the same."""

    def authorize(self, info: AuthorizedInfo) -> None:
        """Include this authorization in all further requests."""
        data = info.SerializeToString()
        self._auth = _AUTH + encode_varint(len(data)) + data

    def encode(self, data: bytes, flag: int, msg_type: str | None, msg_time: str | None) -> bytes:
        """Return the serialized request for one message.

        Bit 0 of `flag` says whether `data` contains attributes. `msg_time` is YYYYMMDDHHMM. A field that is None is not written.
        """
        if msg_type != self._last_type[0]:
            self._last_type = msg_type, _encode_text_field(_MSG_TYPE, msg_type)
        if msg_time != self._last_time[0]:
            self._last_time = msg_time, _encode_text_field(_MSG_TIME, msg_time)
        flag_field = _FLAG + encode_varint(flag & _UINT64_MASK)
        size = encode_varint(len(data))
        type_field = self._last_type[1]
        time_field = self._last_time[1]
        return b"".join((self._before_data, size, data, flag_field, self._after_flag, type_field, time_field, self._auth))


def _encode_text_field(tag: bytes, value: str | None) -> bytes:
    """Return a text field; no bytes if the value is None."""
    if value is None:
        return b""
    data = value.encode()
    return tag + encode_varint(len(data)) + data
