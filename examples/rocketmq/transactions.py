"""Send messages that are seen only if the local transaction they belong to commits; here that is a row in SQLite.

Whoever is killed between the two leaves a half message: the broker asks a producer of the group, and the row says what to answer.

python examples/rocketmq/transactions.py localhost:9876 orders orders.db
"""

import argparse
import asyncio
import sqlite3

from mqbridge.rocketmq.client.client import RocketmqClient
from mqbridge.rocketmq.client.nameservers import parse_name_servers
from mqbridge.rocketmq.client.outgoing import OutgoingMessage
from mqbridge.rocketmq.client.transactions import Half, State


class Orders:
    """The local side. The transaction id is stored with the order, in one transaction."""

    def __init__(self, path: str) -> None:
        self.database = sqlite3.connect(path)
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS orders (transaction_id TEXT PRIMARY KEY, amount INTEGER CHECK (amount > 0))"
        )

    def place(self, message: OutgoingMessage, transaction_id: str) -> State:
        """Runs when the half message is stored: COMMIT shows it, ROLLBACK drops it."""
        try:
            with self.database:
                self.database.execute("INSERT INTO orders VALUES (?, ?)", (transaction_id, int(message.body)))
        except sqlite3.IntegrityError:
            return State.ROLLBACK
        return State.COMMIT

    def check(self, half: Half) -> State:
        """The broker asks what became of one; the answer is in the database, not in this process."""
        query = "SELECT 1 FROM orders WHERE transaction_id = ?"
        found = self.database.execute(query, (half.transaction_id,)).fetchone()
        return State.COMMIT if found else State.ROLLBACK


async def main(name_servers: str, topic: str, path: str) -> None:
    """Three orders, the second of which cannot be."""
    orders = Orders(path)
    async with RocketmqClient(parse_name_servers(name_servers)) as client:
        producer = client.transaction_producer("example_orders", topic, orders.check)
        for amount in (5, -1, 7):
            result = await producer.send(OutgoingMessage(b"%d" % amount, tags="order"), orders.place)
            print(f"{amount}: {result.state.name}")
        await producer.close()
    orders.database.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("name_servers", "topic", "path"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
