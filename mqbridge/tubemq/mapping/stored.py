"""TubeMQ message <-> `Message`.

A TubeMQ message is a body and one attribute string of `key=value` pairs joined by commas. Coming in, the string is kept in
`attributes` byte for byte and its pairs become properties of the same names, `$msgType$` and `$msgTime$` among them: fast in
`native`, in the plain way in `reading`. What goes out is in `writing`, what becomes of which field in `fields`.
"""

from collections.abc import Sequence
from datetime import UTC, tzinfo

from mqbridge.message import Message
from mqbridge.tubemq.mapping.fast import read_all
from mqbridge.tubemq.mapping.request import Encoded, encode
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage

__all__ = ["Encoded", "decode", "encode"]


def decode(pack: Sequence[TransferedMessage], offset: int, zone: tzinfo = UTC) -> list[Message]:
    """The messages of one fetch that began at `offset`. One that is damaged becomes a Message with its `defect`."""
    return read_all(pack, offset, zone)
