"""Some messages for a person to look at: collecting the right ones, and showing one with its fields and its payload."""

from collections import deque

from rich.text import Text

from mqbridge.cli.console import out
from mqbridge.cli.places import format_moment
from mqbridge.cli.visible import kind_of, one_line, preview
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Message, Partition, format_position

MAX_HELD_BYTES = 256 << 20
"""Of payloads: which of the partitions' newest messages are the topic's newest is known when all are read."""
_TIMES = frozenset({"event_time", "publish_time", "deliver_at"})
_ELSEWHERE = frozenset({"payload", "position", "properties"})

Seen = tuple[Partition, Message]


class Collected:
    """Up to `count` messages of each partition: its first ones, or with `newest` its last."""

    def __init__(self, count: int, *, newest: bool) -> None:
        self._count, self._newest = count, newest
        self._of: dict[str, deque[Seen]] = {}
        self._bytes = 0

    def add(self, partition: Partition, messages: list[Message]) -> None:
        """The next ones of a partition. Raises ClusterError when too much would be held."""
        held = self._of.setdefault(partition.name, deque())
        for message in messages:
            message = message.replace()  # noqa: PLW2901 - of its own: one of the compiled module holds its whole batch
            held.append((partition, message))
            self._bytes += len(message.payload or b"")
            if len(held) > self._count:
                self._bytes -= len(held.popleft()[1].payload or b"")
        if self._bytes > MAX_HELD_BYTES:
            raise ClusterError(f"the messages have more than {MAX_HELD_BYTES >> 20} MiB; ask for fewer, or use -p", Failure.FATAL)

    def chosen(self) -> list[Seen]:
        """The topic's newest or oldest, the newest last. Each partition stays in its order, whatever its clocks say."""
        times = {id(message): _time(message) for held in self._of.values() for _, message in held}
        timed = None not in times.values()
        ranked: list[tuple[int, int, int, Seen]] = []
        for place, held in enumerate(self._of.values()):
            latest: int | None = None
            for rank, seen in enumerate(reversed(held) if self._newest else held):
                time = times[id(seen[1])] if timed else None
                age = rank if time is None else -time if self._newest else time
                latest = age if latest is None else max(latest, age)
                ranked.append((latest, rank, place, seen))
        ranked.sort(key=lambda one: one[:3])
        found = [seen for *_, seen in ranked[: self._count]]
        return found[::-1] if self._newest else found


def _time(message: Message) -> int | None:
    return message.event_time if message.publish_time is None else message.publish_time


def show(partition: Partition, message: Message, limit: int) -> None:
    """One message: where and when, its fields, and about `limit` bytes of its payload."""
    console = out()
    time = _time(message)
    head = f"{partition.topic} [{partition.name}] {format_position(message.position)}"
    console.print(Text(head, style="bold"), Text("" if time is None else format_moment(time), style="dim"), soft_wrap=True)
    rows = [*_fields(message), ("payload", _payload(message))]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        console.print(Text.assemble("  ", (f"{name:<{width}}", "cyan"), f"  {value}"), soft_wrap=True)
    for line in preview(message, limit):
        console.print(Text(f"    {line}"), soft_wrap=True)
    console.print()


def _payload(message: Message) -> str:
    kind = kind_of(message)
    return kind if not message.payload else f"{kind}, {len(message.payload):,} bytes"


def _fields(message: Message) -> list[tuple[str, str]]:
    said = [
        (name, _value(name, value))
        for name, value in message.as_dict().items()
        if name not in _ELSEWHERE and value not in (None, (), 0)
    ]
    return said + [(f"property {one_line(name)}", one_line(value)) for name, value in message.properties]


def _value(name: str, value: object) -> str:
    if name in _TIMES and isinstance(value, int):
        return format_moment(value)
    if isinstance(value, tuple):
        return ", ".join(one_line(str(one)) for one in value)
    return one_line(value if isinstance(value, bytes) else str(value))
