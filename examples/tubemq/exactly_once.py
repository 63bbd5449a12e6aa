"""Count words into SQLite so that each message counts once, even if this program is killed at any moment and started again.

The offset at which reading continues is stored in the same transaction as the counts. The position that the Broker remembers does
not matter: at each start every partition is taken at the stored offset. A second process that still believes it holds a partition
fails at the `WHERE`, because the stored offset has moved on.

    python examples/tubemq/exactly_once.py tubemq://localhost:8715 orders my_group counts.db
"""

import argparse
import asyncio
import sqlite3

from mqbridge import TubeMQClient
from mqbridge.errors import ClusterError, LaneRevoked
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.wire.string_formats import PartitionRef

TABLES = """
CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS offsets (partition TEXT PRIMARY KEY, next INTEGER NOT NULL);
"""


class Results:
    """The counts and the offsets, changed together."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path)
        self._database.executescript(TABLES)

    async def offset(self, ref: PartitionRef) -> int | None:
        """Return the offset at which to read a partition; None if it was never read."""
        row = self._database.execute("SELECT next FROM offsets WHERE partition = ?", [str(ref.key)]).fetchone()
        return None if row is None else int(row[0])

    def store(self, ref: PartitionRef, words: list[str], start: int, end: int) -> None:
        """Count the words of a pack that went from offset `start` to `end`."""
        with self._database:
            self._database.execute("INSERT OR IGNORE INTO offsets VALUES (?, ?)", [str(ref.key), start])
            changed = self._database.execute(
                "UPDATE offsets SET next = ? WHERE partition = ? AND next <= ?", [end, str(ref.key), start]
            )
            if changed.rowcount != 1:
                raise SystemExit(f"another process has read on in {ref}")
            self._database.executemany(
                "INSERT INTO words VALUES (?, 1) ON CONFLICT (word) DO UPDATE SET count = count + 1", [(word,) for word in words]
            )


async def read(partition: HeldPartition, results: Results) -> None:
    """Read a partition while this member holds it."""
    try:
        while True:
            pack = await partition.fetch()
            words = [word for message in pack.messages for word in message.payLoadData.decode().split()]
            try:
                end = await partition.commit(consumed=True)  # only the Broker knows where a pack ends
            except ClusterError:
                continue  # the next fetch returns this pack again
            results.store(partition.ref, words, pack.offset, end)
            print(f"{partition.ref.name} {pack.offset} {end}", flush=True)
    except LaneRevoked:
        return


async def main(url: str, topic: str, group: str, path: str) -> None:
    """Read until killed."""
    results = Results(path)
    async with (
        TubeMQClient(url, heartbeat_s=0.5) as client,
        client.pack_consumer(topic, group, offsets=results.offset) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        async for partition in consumer.assignments():
            tasks.create_task(read(partition, results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="tubemq://host:8715, several Masters separated by commas")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("database")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.topic, arguments.group, arguments.database))
