"""Answers to gets: the compiled module cuts the messages out of the bytes, so that none becomes an object of protobuf's."""

import contextlib
from collections.abc import Sequence

from mqbridge.errors import RemoteProtocolError
from mqbridge.native import compiled
from mqbridge.tubemq.wire.pack import Transfered
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C
from mqbridge.tubemq.wire.rpc import parse


def parse_answer(data: bytes) -> tuple[GetMessageResponseB2C, Sequence[Transfered]]:
    """An answer, and the messages in it; the answer itself may be without them. Raises RemoteProtocolError."""
    if compiled is not None and (split := compiled.tubemq_split_answer(data)) is not None:
        messages, rest = split
        with contextlib.suppress(RemoteProtocolError):  # raised again below, about the whole answer
            return parse(GetMessageResponseB2C, rest), messages
    answer = parse(GetMessageResponseB2C, data)
    return answer, answer.messages
