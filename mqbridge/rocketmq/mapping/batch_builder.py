"""Divides a sequence of encoded messages into batches within the limits of a send request."""

from collections.abc import Callable

from mqbridge.rocketmq.wire.batch import OVERHEAD_BYTES, Element

OnFull = Callable[[list[Element], int, int], None]
"""Callback for a finished batch: its elements, the index of its first message, and the born timestamp (ms) of its request."""

_MAX_INT64 = (1 << 63) - 1


def born_at(time: int | None, now: int) -> int:
    """Return the born timestamp for the event time `time`: `now` if there is no event time, or if brokers would refuse it.

    All are in ms since the epoch; brokers refuse times below 1, and numbers beyond 64 bits.
    """
    return time if time is not None and 0 < time <= _MAX_INT64 else now


class BatchBuilder:
    """Builds batches of at most `max_bytes` and `max_messages`, and passes each to `on_full` when it is finished.

    A message of more than `max_bytes` gets a batch of its own.
    """

    __slots__ = ("_born", "_elements", "_first_index", "_free_bytes", "_max_bytes", "_max_messages", "_on_full")

    def __init__(self, max_bytes: int, max_messages: int, on_full: OnFull) -> None:
        self._max_bytes, self._max_messages, self._on_full = max_bytes, max_messages, on_full
        self._elements: list[Element] = []
        self._free_bytes = max_bytes
        self._first_index = self._born = 0

    def add(self, index: int, born: int, element: Element) -> None:
        """Add the message at this index, to a new batch if it does not fit.

        The born timestamp of a batch is `born` of its first message.
        """
        _, body, properties = element
        size = OVERHEAD_BYTES + len(body) + len(properties)
        if not self._elements or size > self._free_bytes or len(self._elements) >= self._max_messages:
            self.close()
            self._first_index, self._born = index, born
        self._elements.append(element)
        self._free_bytes -= size

    def close(self) -> None:
        """Finish the current batch: pass it to `on_full`, unless it is empty. The next message begins a new batch."""
        if self._elements:
            self._on_full(self._elements, self._first_index, self._born)
            self._elements = []
        self._free_bytes = self._max_bytes
