"""Selects the newest or oldest messages of a topic, and prints a message for people: its fields and its payload."""

from collections import deque

from mqbridge.cli.options.start_position import format_timestamp
from mqbridge.cli.output.console import stdout_console
from mqbridge.cli.output.escape import escape_line, payload_kind, payload_lines
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Message, Partition, format_position

MAX_HELD_BYTES = 256 << 20
"""Maximum size of the payloads in memory. The candidates of every partition are kept until all partitions have been read."""
_TIME_FIELDS = frozenset({"event_time", "publish_time", "deliver_at"})
_SHOWN_SEPARATELY = frozenset({"payload", "position", "properties"})
"""Fields that `print_message` shows in the heading or in lines of their own."""

LocatedMessage = tuple[Partition, Message]
"""A message with its partition."""


class MessageSelection:
    """Collects up to `count` messages of each partition, and selects `count` of all: the newest with `newest`, else the oldest.

    With `newest`, any number of messages may be added; the older ones are dropped. Otherwise add at most `count` per partition.
    """

    def __init__(self, count: int, *, newest: bool) -> None:
        self._count, self._newest = count, newest
        self._by_partition: dict[str, deque[LocatedMessage]] = {}
        self._bytes = 0

    def add(self, partition: Partition, messages: list[Message]) -> None:
        """Add the next messages of a partition. Raises ClusterError if the payloads in memory are too large."""
        candidates = self._by_partition.setdefault(partition.name, deque())
        for message in messages:
            message = message.replace()  # noqa: PLW2901 - a copy: a message of the compiled module keeps its whole batch in memory
            candidates.append((partition, message))
            self._bytes += len(message.payload or b"")
            if len(candidates) > self._count:
                self._bytes -= len(candidates.popleft()[1].payload or b"")
        if self._bytes > MAX_HELD_BYTES:
            raise ClusterError(
                f"the messages of {partition.topic!r} have more than {MAX_HELD_BYTES >> 20} MiB: ask for fewer with -n or -c, "
                "or for one partition with -p",
                Failure.FATAL,
            )

    def select(self) -> list[LocatedMessage]:
        """Return the topic's `count` newest or oldest messages, the newest last. Messages of a partition stay in their order."""
        times = {id(message): _time(message) for candidates in self._by_partition.values() for _, message in candidates}
        all_have_times = None not in times.values()
        ranked: list[tuple[int, int, int, LocatedMessage]] = []
        # Walk each partition from its newest or oldest message, and rank that one first. The distance grows with the age if the
        # newest are wanted, otherwise with the time; without times it is `rank`. The sort key is the greatest distance so far. It
        # never falls, so the sort keeps the order of a partition even where its times are out of order.
        for index, candidates in enumerate(self._by_partition.values()):
            max_distance: int | None = None
            for rank, located in enumerate(reversed(candidates) if self._newest else candidates):
                time = times[id(located[1])] if all_have_times else None
                distance = rank if time is None else -time if self._newest else time
                max_distance = distance if max_distance is None else max(max_distance, distance)
                ranked.append((max_distance, rank, index, located))
        ranked.sort(key=lambda entry: entry[:3])
        selected = [located for *_, located in ranked[: self._count]]
        return selected[::-1] if self._newest else selected


def _time(message: Message) -> int | None:
    """Return the publish time, or the event time of a message without one, in ms since the epoch."""
    return message.event_time if message.publish_time is None else message.publish_time


def print_message(partition: Partition, message: Message, limit: int) -> None:
    """Print a message: partition, position, time, its fields, and the beginning of its payload.

    At most `limit` bytes of a binary payload are printed, or `limit` characters of a text.
    """
    from rich.text import Text

    console = stdout_console()
    time = _time(message)
    heading = f"{partition.topic} [{partition.name}] {format_position(message.position)}"
    console.print(Text(heading, style="bold"), Text("" if time is None else format_timestamp(time), style="dim"), soft_wrap=True)
    rows = [*_fields(message), ("payload", _payload_summary(message))]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        console.print(Text.assemble("  ", (f"{name:<{width}}", "cyan"), f"  {value}"), soft_wrap=True)
    for line in payload_lines(message, limit):
        console.print(Text(f"    {line}"), soft_wrap=True)
    console.print()


def _payload_summary(message: Message) -> str:
    kind = payload_kind(message)
    return kind if not message.payload else f"{kind}, {len(message.payload):,} bytes"


def _fields(message: Message) -> list[tuple[str, str]]:
    """Return the name and the text of every field that has a value, and of every property."""
    fields = [
        (name, _format_value(name, value))
        for name, value in message.as_dict().items()
        if name not in _SHOWN_SEPARATELY and value not in (None, (), 0)
    ]
    return fields + [(f"property {escape_line(name)}", escape_line(value)) for name, value in message.properties]


def _format_value(name: str, value: object) -> str:
    if name in _TIME_FIELDS and isinstance(value, int):
        return format_timestamp(value)
    if isinstance(value, tuple):
        return ", ".join(escape_line(str(item)) for item in value)
    return escape_line(value if isinstance(value, bytes) else str(value))
