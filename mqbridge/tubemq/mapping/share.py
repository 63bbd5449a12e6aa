"""Messages of a share -> fields of TubeMQ send requests, with the compiled module or in plain Python.

A share is the part of a batch that is sent to one target partition.
"""

from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import Protocol

from mqbridge.errors import MappingError
from mqbridge.message import Message, format_position
from mqbridge.native import compiled
from mqbridge.tubemq.mapping.request import RequestFields, encode
from mqbridge.tubemq.mapping.times import msg_time_texts_of, msg_times_of


class Requests(Protocol):
    """The fields of the send requests of a share, by message index."""

    @property
    def failures(self) -> Sequence[tuple[int, str]]:
        """(index, reason) of each message that could not be encoded, sorted by index."""

    def __getitem__(self, index: int, /) -> RequestFields:
        """Return the request of a message. Raises IndexError for a message that could not be encoded."""


class PlainRequests:
    """Requests encoded in plain Python."""

    def __init__(self, messages: Sequence[Message], origin_prefix: str | None, zone: tzinfo) -> None:
        self._requests: dict[int, RequestFields] = {}
        self.failures: list[tuple[int, str]] = []
        for index, message in enumerate(messages):
            origin = message.origin if origin_prefix is None else origin_prefix + format_position(message.position)
            try:
                self._requests[index] = encode(message, origin, zone)
            except MappingError as error:
                self.failures.append((index, str(error)))

    def __getitem__(self, index: int, /) -> RequestFields:
        if index not in self._requests:
            raise IndexError(f"there is no request with index {index}")
        return self._requests[index]


def encode_share(messages: Sequence[Message], origin_prefix: str | None, zone: tzinfo = UTC) -> Requests:
    """Encode messages as requests. `zone` is the time zone of `$msgTime$`, the event time in a request.

    The origin in a request says where its message was first read: `origin_prefix`, which names the source partition, and the
    message's position. If the prefix is None, messages keep their own origins.
    """
    if compiled is not None:
        requests: Requests | None = compiled.tubemq_encode(messages, origin_prefix, msg_times_of(zone), msg_time_texts_of(zone))
        if requests is not None:  # None if the compiled module does not support one of the messages
            return requests
    return PlainRequests(messages, origin_prefix, zone)
