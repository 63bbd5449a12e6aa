"""Collects messages into batches within the limits."""

from collections.abc import Callable

from mqbridge.rocketmq.wire.batch import OVERHEAD_BYTES, Element

OnFull = Callable[[list[Element], int, int], None]
"""Callback that receives a full batch: its elements, the index of its first message, its header's timestamp (ms)."""

_INT64 = (1 << 63) - 1


def born_at(time: int | None, now: int) -> int:
    """Return the born timestamp (ms) for an event time; `now` for None, and for a time that brokers refuse."""
    return time if time is not None and 0 < time <= _INT64 else now


class BatchBuilder:
    """Builds batches of up to `max_bytes` and `max_messages`; a larger message gets a batch of its own."""

    __slots__ = ("_begin", "_born", "_elements", "_free", "_max_bytes", "_max_messages", "_on_full")

    def __init__(self, max_bytes: int, max_messages: int, on_full: OnFull) -> None:
        self._max_bytes, self._max_messages, self._on_full = max_bytes, max_messages, on_full
        self._elements: list[Element] = []
        self._free = max_bytes
        self._begin = self._born = 0

    def add(self, index: int, born: int, element: Element) -> None:
        """Add a message, to a new batch if it does not fit. The header's timestamp is `born` of the first message."""
        size = OVERHEAD_BYTES + len(element[1]) + len(element[2])
        if not self._elements or size > self._free or len(self._elements) >= self._max_messages:
            self.close()
            self._begin, self._born = index, born
        self._elements.append(element)
        self._free -= size

    def close(self) -> None:
        """Pass the open batch to `on_full`, unless it is empty."""
        if self._elements:
            self._on_full(self._elements, self._begin, self._born)
            self._elements = []
        self._free = self._max_bytes
