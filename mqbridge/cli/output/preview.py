"""Messages for people: selects the newest or oldest ones, and prints a message with its fields and its payload."""

from collections import deque

from mqbridge.cli.options.start_position import format_timestamp
from mqbridge.cli.output.console import stdout_console
from mqbridge.cli.output.escape import escape_line, payload_kind, preview
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Message, Partition, format_position

MAX_HELD_BYTES = 256 << 20
"""Bound on the payloads held: the topic's newest messages are known only when the newest of every partition are read."""
_TIMES = frozenset({"event_time", "publish_time", "deliver_at"})
_SHOWN_SEPARATELY = frozenset({"payload", "position", "properties"})

LocatedMessage = tuple[Partition, Message]


class MessageSelection:
    """Up to `count` messages of each partition: the first, or with `newest` the last ones."""

    def __init__(self, count: int, *, newest: bool) -> None:
        self._count, self._newest = count, newest
        self._by_partition: dict[str, deque[LocatedMessage]] = {}
        self._bytes = 0

    def add(self, partition: Partition, messages: list[Message]) -> None:
        """Add the next messages of a partition. Raises ClusterError if the held payloads are too large."""
        held = self._by_partition.setdefault(partition.name, deque())
        for message in messages:
            message = message.replace()  # noqa: PLW2901 - a copy: a message of the compiled module keeps its whole batch in memory
            held.append((partition, message))
            self._bytes += len(message.payload or b"")
            if len(held) > self._count:
                self._bytes -= len(held.popleft()[1].payload or b"")
        if self._bytes > MAX_HELD_BYTES:
            raise ClusterError(f"the messages have more than {MAX_HELD_BYTES >> 20} MiB; ask for fewer, or use -p", Failure.FATAL)

    def chosen(self) -> list[LocatedMessage]:
        """Return the topic's newest or oldest messages, the newest last. Each partition keeps its own order."""
        times = {id(message): _time(message) for held in self._by_partition.values() for _, message in held}
        timed = None not in times.values()
        ranked: list[tuple[int, int, int, LocatedMessage]] = []
        for index, held in enumerate(self._by_partition.values()):
            latest: int | None = None
            for rank, located in enumerate(reversed(held) if self._newest else held):
                time = times[id(located[1])] if timed else None
                age = rank if time is None else -time if self._newest else time
                latest = age if latest is None else max(latest, age)
                ranked.append((latest, rank, index, located))
        ranked.sort(key=lambda entry: entry[:3])
        found = [located for *_, located in ranked[: self._count]]
        return found[::-1] if self._newest else found


def _time(message: Message) -> int | None:
    return message.event_time if message.publish_time is None else message.publish_time


def show(partition: Partition, message: Message, limit: int) -> None:
    """Print a message: partition, position, time, its fields, and about `limit` bytes of its payload."""
    from rich.text import Text

    console = stdout_console()
    time = _time(message)
    heading = f"{partition.topic} [{partition.name}] {format_position(message.position)}"
    console.print(Text(heading, style="bold"), Text("" if time is None else format_timestamp(time), style="dim"), soft_wrap=True)
    rows = [*_fields(message), ("payload", _payload(message))]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        console.print(Text.assemble("  ", (f"{name:<{width}}", "cyan"), f"  {value}"), soft_wrap=True)
    for line in preview(message, limit):
        console.print(Text(f"    {line}"), soft_wrap=True)
    console.print()


def _payload(message: Message) -> str:
    kind = payload_kind(message)
    return kind if not message.payload else f"{kind}, {len(message.payload):,} bytes"


def _fields(message: Message) -> list[tuple[str, str]]:
    fields = [
        (name, _value(name, value))
        for name, value in message.as_dict().items()
        if name not in _SHOWN_SEPARATELY and value not in (None, (), 0)
    ]
    return fields + [(f"property {escape_line(name)}", escape_line(value)) for name, value in message.properties]


def _value(name: str, value: object) -> str:
    if name in _TIMES and isinstance(value, int):
        return format_timestamp(value)
    if isinstance(value, tuple):
        return ", ".join(escape_line(str(item)) for item in value)
    return escape_line(value if isinstance(value, bytes) else str(value))
