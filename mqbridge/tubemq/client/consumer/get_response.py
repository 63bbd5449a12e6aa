"""Parses responses to get requests; the compiled module extracts the messages without creating protobuf objects."""

import contextlib
from collections.abc import Sequence

from mqbridge.errors import RemoteProtocolError
from mqbridge.native import compiled
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C
from mqbridge.tubemq.wire.rpc import parse
from mqbridge.tubemq.wire.stored_message import StoredMessage


def parse_get_response(data: bytes) -> tuple[GetMessageResponseB2C, Sequence[StoredMessage]]:
    """Parse a response; return it with its messages. Raises RemoteProtocolError.

    Take the messages from the second value only: if the compiled module has extracted them, the response has none.
    """
    # The compiled module returns None if only protobuf can tell whether the response is valid.
    if compiled is not None and (split := compiled.tubemq_split_answer(data)) is not None:
        messages, other_fields = split
        with contextlib.suppress(RemoteProtocolError):  # the full parse below raises the error again
            return parse(GetMessageResponseB2C, other_fields), messages
    response = parse(GetMessageResponseB2C, data)
    return response, response.messages
