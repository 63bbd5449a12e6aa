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
    """A batch of up to `max_bytes` and `max_messages`; one larger message may be in a batch of its own.

    `elements` are its messages so far, `free` the bytes that it still takes. The fast encoder fills it without a call for each
    message: it appends to `elements` what fits, and brings `free` up to date when it is done.
    """

    __slots__ = ("_begin", "_born", "_closed", "elements", "free", "max_bytes", "max_messages")

    def __init__(self, max_bytes: int, max_messages: int, closed: Closed) -> None:
        self.max_bytes, self.max_messages, self._closed = max_bytes, max_messages, closed
        self.elements: list[Element] = []
        self.free = max_bytes
        self._begin = self._born = 0

    def begin(self, index: int, born: int) -> list[Element]:
        """The elements of a new batch, whose first message this is; the one before is closed."""
        self.close()
        self._begin, self._born = index, born
        return self.elements

    def add(self, index: int, born: int, element: Element) -> None:
        """One message, into a new batch if it does not fit."""
        size = OVERHEAD_BYTES + len(element[1]) + len(element[2])
        if not self.elements or size > self.free or len(self.elements) >= self.max_messages:
            self.begin(index, born)
        self.elements.append(element)
        self.free -= size

    def close(self) -> None:
        """Hand over what is in it, if anything."""
        if self.elements:
            self._closed(self.elements, self._begin, self._born)
            self.elements = []
        self.free = self.max_bytes
