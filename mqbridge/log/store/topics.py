"""Topics and partitions: the SQL behind describing, creating and bounding them."""

import sqlite3
from collections.abc import Callable
from typing import NamedTuple


class PartitionRow(NamedTuple):
    """A partition as the file knows it; `first` and `next` are offsets."""

    id: int
    topic: str
    number: int
    first: int
    next: int


def names(connection: sqlite3.Connection) -> list[str]:
    """All topics, sorted."""
    return [name for (name,) in connection.execute("SELECT name FROM topic ORDER BY name")]


def partitions(connection: sqlite3.Connection, topic: str) -> list[PartitionRow]:
    """The partitions of a topic by number; none when there is no such topic."""
    rows = connection.execute(
        "SELECT p.id, t.name, p.number, p.first, p.next FROM partition p JOIN topic t ON t.id = p.topic"
        " WHERE t.name = ? ORDER BY p.number",
        (topic,),
    )
    return list(map(PartitionRow._make, rows))


def create(topic: str, count: int) -> Callable[[sqlite3.Connection], None]:
    """Make the topic or grow it to `count` partitions."""

    def run(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT OR IGNORE INTO topic (name) VALUES (?)", (topic,))
        (topic_id,) = connection.execute("SELECT id FROM topic WHERE name = ?", (topic,)).fetchone()
        connection.executemany(
            "INSERT OR IGNORE INTO partition (topic, number) VALUES (?, ?)", [(topic_id, number) for number in range(count)]
        )

    return run


def tails(connection: sqlite3.Connection) -> dict[int, int]:
    """The next offset by partition id, of all topics."""
    return dict(connection.execute("SELECT id, next FROM partition"))


def groups(connection: sqlite3.Connection, topic: str) -> list[str]:
    """The groups that have a position in the topic, sorted."""
    rows = connection.execute(
        "SELECT DISTINCT o.grp FROM position o JOIN partition p ON p.id = o.partition JOIN topic t ON t.id = p.topic"
        " WHERE t.name = ? ORDER BY o.grp",
        (topic,),
    )
    return [group for (group,) in rows]


def committed(connection: sqlite3.Connection, topic: str, group: str) -> dict[int, int]:
    """The group's position by partition number."""
    rows = connection.execute(
        "SELECT p.number, o.next FROM position o JOIN partition p ON p.id = o.partition JOIN topic t ON t.id = p.topic"
        " WHERE t.name = ? AND o.grp = ?",
        (topic, group),
    )
    return dict(rows)
