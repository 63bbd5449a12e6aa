"""Encoder of send requests (`SendMessageRequestP2B`). A producer sends one per message, so they are built without protobuf.

The fields that all requests of a partition have in common are encoded once. Reusing one protobuf object for all messages would
not work: it keeps every payload ever assigned to it in memory until the object itself is freed.
"""

from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageRequestP2B
from mqbridge.wire.varint import encode_varint

_DATA, _FLAG, _MSG_TYPE, _MSG_TIME, _AUTH = b"\x22", b"\x28", b"\x42", b"\x4a", b"\x52"
"""The protobuf tags of fields 4, 5, 8, 9 and 10."""
_UINT64 = (1 << 64) - 1


class SendRequestEncoder:
    """Encodes the requests of one partition."""

    __slots__ = ("_after", "_auth", "_before", "_times", "_types")

    def __init__(self, client_id: str, topic: str, partition: int, check_sum: int, sent_address: int) -> None:
        before = SendMessageRequestP2B(clientId=client_id, topicName=topic, partitionId=partition)
        after = SendMessageRequestP2B(checkSum=check_sum, sentAddr=sent_address)
        self._before = before.SerializePartialToString() + _DATA
        self._after = after.SerializePartialToString()
        self._auth = b""
        self._types: tuple[str | None, bytes] = (None, b"")
        self._times: tuple[str | None, bytes] = (None, b"")
        """`_types` and `_times` have the previous message's type and time, encoded: the next message usually has the same."""

    def authorize(self, info: AuthorizedInfo) -> None:
        """Include this authorization in all further requests."""
        data = info.SerializeToString()
        self._auth = _AUTH + encode_varint(len(data)) + data

    def encode(self, data: bytes, flag: int, msg_type: str | None, msg_time: str | None) -> bytes:
        """Return the serialized request for one message."""
        if msg_type != self._types[0]:
            self._types = msg_type, _text(_MSG_TYPE, msg_type)
        if msg_time != self._times[0]:
            self._times = msg_time, _text(_MSG_TIME, msg_time)
        flags = _FLAG + encode_varint(flag & _UINT64)
        return b"".join(
            (self._before, encode_varint(len(data)), data, flags, self._after, self._types[1], self._times[1], self._auth)
        )


def _text(tag: bytes, value: str | None) -> bytes:
    if value is None:
        return b""
    data = value.encode()
    return tag + encode_varint(len(data)) + data
