"""What a state file has about the brokers of topics; see `mqbridge.adapter.known_brokers`.

Rows are read beside a running gateway, too. A broker is forgotten only while no gateway has the file.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mqbridge.adapter.known_brokers import KnownBrokers, Series
from mqbridge.delivery.state_lock import StateLock
from mqbridge.errors import ConfigError

BrokerRow = tuple[str, str, str]
"""Cluster, topic, and a broker that has had partitions of the topic."""
Layouts = dict[tuple[str, str], Collection[Series]]
"""The series over which indexes are counted, in their order, by cluster and topic."""


class TopicBrokers(NamedTuple):
    """The brokers that a topic has had, and the series over which its indexes are counted; none if no route uses indexes."""

    cluster: str
    topic: str
    brokers: tuple[str, ...]
    layout: tuple[Series, ...]

    def has(self, broker: str) -> bool:
        """Return True if the file has something about this broker."""
        return broker in self.brokers or any(series.broker == broker for series in self.layout)

    def without(self, broker: str) -> "TopicBrokers":
        """Return what is left when the broker is forgotten."""
        return self._replace(
            brokers=tuple(each for each in self.brokers if each != broker),
            layout=tuple(series for series in self.layout if series.broker != broker),
        )


def topic_brokers(path: Path) -> list[TopicBrokers]:
    """Return what the file has about each topic, sorted. Raises ConfigError if it is missing or cannot be read."""
    with _errors_of(path), _reader(path) as db:
        seen, layouts = read_brokers(db)
    brokers: dict[tuple[str, str], list[str]] = {}
    for cluster, topic, broker in sorted(seen):
        brokers.setdefault((cluster, topic), []).append(broker)
    topics = sorted(brokers.keys() | layouts.keys())
    return [TopicBrokers(*key, tuple(brokers.get(key, ())), tuple(layouts.get(key, ()))) for key in topics]


def forget_broker(path: Path, cluster: str, broker: str, topics: Collection[str]) -> None:
    """Delete the rows about a broker of these topics. Raises ConfigError if a gateway has the file, or it cannot be written."""
    with _errors_of(path):
        lock = StateLock(path)
        try:
            with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as db, db:
                for table in ("seen_broker", "layout"):
                    db.executemany(
                        f"DELETE FROM {table} WHERE (cluster, topic, broker) = (?, ?, ?)",  # noqa: S608 - two constants
                        [(cluster, topic, broker) for topic in topics],
                    )
        finally:
            lock.release()


def look_up_brokers(path: Path, cluster: str, known: KnownBrokers) -> None:
    """Load what a state file has about the brokers of a cluster, also while a gateway has the file open; change nothing.

    A file that is missing, or that cannot be read, counts as empty.
    """
    seen: set[BrokerRow] = set()
    layouts: Layouts = {}
    with contextlib.suppress(sqlite3.Error), _reader(path) as db:
        seen, layouts = read_brokers(db)
    load_brokers(known, cluster, seen, layouts, lambda *_: None, lambda *_: None)


def read_brokers(db: sqlite3.Connection) -> tuple[set[BrokerRow], Layouts]:
    """Return the brokers that topics have had, and the series over which indexes are counted, in their order."""
    seen = set(db.execute("SELECT cluster, topic, broker FROM seen_broker"))
    layouts: Layouts = {}
    rows = [(cluster, topic, Series(*series)) for cluster, topic, *series in db.execute("SELECT * FROM layout")]
    for cluster, topic, series in sorted(rows, key=lambda row: row[2].order):
        layouts[cluster, topic] = (*layouts.get((cluster, topic), ()), series)
    return seen, layouts


def load_brokers(
    known: KnownBrokers,
    cluster: str,
    seen: Collection[BrokerRow],
    layouts: Mapping[tuple[str, str], Collection[Series]],
    on_seen: Callable[[str, str], None],
    on_layout: Callable[[str, Collection[Series]], None],
) -> None:
    """Load the rows of one cluster, and report changes to the callbacks; see `KnownBrokers.keep`."""
    known.keep(
        [(topic, broker) for name, topic, broker in seen if name == cluster],
        [(topic, each) for (name, topic), series in layouts.items() if name == cluster for each in series],
        on_seen,
        on_layout,
    )


@contextlib.contextmanager
def _reader(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        yield db


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Raise errors of the file as ConfigError."""
    if not path.is_file():
        problem = f"there is no state file {path}"
        raise ConfigError(
            problem, path="state", hint="Run this in the gateway's working directory; its first start makes the file"
        )
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        hint = "It may be locked by another process, or made by an earlier version: the gateway adds the tables when it starts"
        raise ConfigError(f"the state file {path} cannot be used: {error}", path="state", hint=hint) from error
