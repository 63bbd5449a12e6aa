"""Count words in SQLite so that each message counts exactly once, even if this program is killed and started again.

Each transaction stores the counts together with the offset of the next message to read. Every partition starts at this offset,
not at the one that the Broker stores. If another process takes over a partition, the stored offset advances, and the `WHERE`
clause stops the process that has lost the partition.

    python examples/tubemq/exactly_once.py tubemq://localhost:8715 orders my_group counts.db
"""

import argparse
import asyncio
import sqlite3

from mqbridge import TubeMQClient
from mqbridge.errors import ClusterError, LaneRevoked
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.wire.string_formats import PartitionRef

TABLES = """
CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, count INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS offsets (partition TEXT PRIMARY KEY, next INTEGER NOT NULL);
"""


class Results:
    """Database of the counts and the next offsets."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path)
        self._database.executescript(TABLES)

    async def next_offset(self, ref: PartitionRef) -> int | None:
        """Return the offset at which to start a partition; None if it was never read."""
        row = self._database.execute("SELECT next FROM offsets WHERE partition = ?", [str(ref.key)]).fetchone()
        return None if row is None else int(row[0])

    def store(self, ref: PartitionRef, words: list[str], start: int, end: int) -> None:
        """Count the words of a pack with the offsets from `start` to `end` (exclusive), in one transaction."""
        with self._database:
            self._database.execute("INSERT OR IGNORE INTO offsets VALUES (?, ?)", [str(ref.key), start])
            changed = self._database.execute(
                "UPDATE offsets SET next = ? WHERE partition = ? AND next <= ?", [end, str(ref.key), start]
            )
            if changed.rowcount != 1:
                raise SystemExit(f"another process has taken over partition {ref.name}")
            self._database.executemany(
                "INSERT INTO words VALUES (?, 1) ON CONFLICT (word) DO UPDATE SET count = count + 1", [(word,) for word in words]
            )


async def read(partition: HeldPartition, results: Results) -> None:
    """Count the words of a partition until it is assigned to another member."""
    try:
        while True:
            pack = await partition.fetch()
            words = [word for message in pack.messages for word in message.payLoadData.decode().split()]
            try:
                end = await partition.commit(consumed=True)  # only the Broker knows where a pack ends
            except ClusterError:
                continue  # the next `fetch` returns this pack again
            results.store(partition.ref, words, pack.offset, end)
            print(f"{partition.ref.name} {pack.offset} {end}", flush=True)
    except LaneRevoked:
        return


async def main(url: str, topic: str, group: str, path: str) -> None:
    """Read all partitions that are assigned to this member, until the program is stopped."""
    results = Results(path)
    async with (
        TubeMQClient(url, heartbeat_s=0.5) as client,
        client.pack_consumer(topic, group, offsets=results.next_offset) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        async for partition in consumer.assignments():
            tasks.create_task(read(partition, results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="tubemq://HOST:PORT, or several Masters: tubemq://HOST:PORT,HOST:PORT")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("database", help="SQLite file")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.topic, arguments.group, arguments.database))
