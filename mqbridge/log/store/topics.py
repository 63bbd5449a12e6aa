"""SQL for topics: list and describe them, create them, read offsets and groups."""

import sqlite3
from collections.abc import Callable
from typing import NamedTuple


class PartitionRow(NamedTuple):
    """A partition of a topic, as stored in the file.

    id       row id, by which other tables refer to the partition
    topic    name of the topic
    number   number of the partition in its topic, from 0
    first    offset of the oldest message that the log still has
    next     offset of the next message: the tail
    """

    id: int
    topic: str
    number: int
    first: int
    next: int


def names(connection: sqlite3.Connection) -> list[str]:
    """Return all topic names, sorted."""
    return [name for (name,) in connection.execute("SELECT name FROM topic ORDER BY name")]


def partitions(connection: sqlite3.Connection, topic: str) -> list[PartitionRow]:
    """Return the partitions of a topic in the order of their numbers; none if the topic does not exist."""
    rows = connection.execute(
        "SELECT p.id, t.name, p.number, p.first, p.next FROM partition p JOIN topic t ON t.id = p.topic"
        " WHERE t.name = ? ORDER BY p.number",
        (topic,),
    )
    return list(map(PartitionRow._make, rows))


def create(topic: str, count: int) -> Callable[[sqlite3.Connection], None]:
    """Return a job for `Store.write` that creates the topic, or adds partitions until it has `count`."""

    def run(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT OR IGNORE INTO topic (name) VALUES (?)", (topic,))
        (topic_id,) = connection.execute("SELECT id FROM topic WHERE name = ?", (topic,)).fetchone()
        connection.executemany(
            "INSERT OR IGNORE INTO partition (topic, number) VALUES (?, ?)", [(topic_id, number) for number in range(count)]
        )

    return run


def tails(connection: sqlite3.Connection) -> dict[int, int]:
    """Return the tails of the partitions of all topics, by partition id."""
    return dict(connection.execute("SELECT id, next FROM partition"))


def groups(connection: sqlite3.Connection, topic: str) -> list[str]:
    """Return the groups that have a committed offset in the topic, sorted."""
    rows = connection.execute(
        "SELECT DISTINCT o.grp FROM position o JOIN partition p ON p.id = o.partition JOIN topic t ON t.id = p.topic"
        " WHERE t.name = ? ORDER BY o.grp",
        (topic,),
    )
    return [group for (group,) in rows]


def committed(connection: sqlite3.Connection, topic: str, group: str) -> dict[int, int]:
    """Return the group's committed offset by partition number."""
    rows = connection.execute(
        "SELECT p.number, o.next FROM position o JOIN partition p ON p.id = o.partition JOIN topic t ON t.id = p.topic"
        " WHERE t.name = ? AND o.grp = ?",
        (topic, group),
    )
    return dict(rows)
