"""The batch that messages are put into, until it is full and the next one begins."""

from collections.abc import Callable

from mqbridge.rocketmq.wire.batch import OVERHEAD_BYTES, Element

Closed = Callable[[list[Element], int, int], None]
"""Takes the elements of a batch, the index of its first message and its header's timestamp (ms)."""

_INT64 = (1 << 63) - 1


def born_at(time: int | None, now: int) -> int:
    """The timestamp (ms) of a header whose message has this time, if that is one which brokers take."""
    return time if time is not None and 0 < time <= _INT64 else now


class OpenBatch:
    """A batch of up to `max_bytes` and `max_messages`; one larger message may be in a batch of its own."""

    __slots__ = ("_begin", "_born", "_closed", "_elements", "_free", "_max_bytes", "_max_messages")

    def __init__(self, max_bytes: int, max_messages: int, closed: Closed) -> None:
        self._max_bytes, self._max_messages, self._closed = max_bytes, max_messages, closed
        self._elements: list[Element] = []
        self._free = max_bytes
        self._begin = self._born = 0

    def add(self, index: int, born: int, element: Element) -> None:
        """One message, into a new batch if it does not fit; `born` is the timestamp of a header whose first message this is."""
        size = OVERHEAD_BYTES + len(element[1]) + len(element[2])
        if not self._elements or size > self._free or len(self._elements) >= self._max_messages:
            self.close()
            self._begin, self._born = index, born
        self._elements.append(element)
        self._free -= size

    def close(self) -> None:
        """Hand over what is in it, if anything."""
        if self._elements:
            self._closed(self._elements, self._begin, self._born)
            self._elements = []
        self._free = self._max_bytes
