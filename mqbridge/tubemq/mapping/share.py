"""The messages of a share -> TubeMQ send requests, with the compiled module or in plain Python.

A share is the messages of a batch for one target partition.
"""

from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import Protocol

from mqbridge.errors import MappingError
from mqbridge.message import Message, format_position
from mqbridge.native import compiled
from mqbridge.tubemq.mapping.request import Request, encode
from mqbridge.tubemq.mapping.times import minute_texts_of, minutes_of


class Requests(Protocol):
    """The send requests of a share, by message index."""

    @property
    def failures(self) -> Sequence[tuple[int, str]]:
        """(index, reason) of each message that could not be encoded, sorted by index."""

    def __getitem__(self, index: int, /) -> Request:
        """Return the request of a message; raises IndexError for one that failed."""


class PlainRequests:
    """Requests encoded in plain Python."""

    def __init__(self, messages: Sequence[Message], prefix: str | None, zone: tzinfo) -> None:
        self._requests: dict[int, Request] = {}
        self.failures: list[tuple[int, str]] = []
        for index, message in enumerate(messages):
            stamp = message.origin if prefix is None else prefix + format_position(message.position)
            try:
                self._requests[index] = encode(message, stamp, zone)
            except MappingError as error:
                self.failures.append((index, str(error)))

    def __getitem__(self, index: int, /) -> Request:
        if index not in self._requests:
            raise IndexError(f"there is no request with index {index}")
        return self._requests[index]


def encode_share(messages: Sequence[Message], prefix: str | None, zone: tzinfo = UTC) -> Requests:
    """Encode messages as requests; `prefix` is the prefix of the origins to write, None to keep the messages' own origins."""
    if compiled is not None:
        requests: Requests | None = compiled.tubemq_encode(messages, prefix, minutes_of(zone), minute_texts_of(zone))
        if requests is not None:
            return requests
    return PlainRequests(messages, prefix, zone)
