"""Send transactional messages: consumers see a message only if its local transaction commits, here an insert into SQLite.

The broker first stores a half message, which is invisible. If the producer is killed before it reports the outcome, the broker
asks a producer of the same group, which looks up the row in the database.

python examples/rocketmq/transactions.py rocketmq://localhost:9876 orders orders.db
"""

import argparse
import asyncio
import sqlite3

from mqbridge import RocketMQClient
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.transactions import Half, State


class Orders:
    """The local database. It stores each order with the id of its RocketMQ transaction."""

    def __init__(self, path: str) -> None:
        self.database = sqlite3.connect(path)
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS orders (transaction_id TEXT PRIMARY KEY, amount INTEGER CHECK (amount > 0))"
        )

    def place(self, message: OutgoingMessage, transaction_id: str) -> State:
        """Insert the order of a stored half message. COMMIT makes the message visible, ROLLBACK drops it."""
        try:
            with self.database:
                self.database.execute("INSERT INTO orders VALUES (?, ?)", (transaction_id, int(message.payload or b"")))
        except sqlite3.IntegrityError:
            return State.ROLLBACK
        return State.COMMIT

    def check(self, half: Half) -> State:
        """Return the outcome of a transaction for which the broker asks."""
        query = "SELECT 1 FROM orders WHERE transaction_id = ?"
        row = self.database.execute(query, (half.transaction_id,)).fetchone()
        return State.COMMIT if row else State.ROLLBACK


async def main(url: str, topic: str, path: str) -> None:
    """Send three orders. The second one violates the constraint of the table, so it is rolled back."""
    orders = Orders(path)
    async with (
        RocketMQClient(url) as client,
        client.transaction_producer(topic, orders.check, producer_group="example_orders") as producer,
    ):
        for amount in (5, -1, 7):
            result = await producer.send(OutgoingMessage(b"%d" % amount, msg_type="order"), orders.place)
            print(f"{amount}: {result.state.name}")
    orders.database.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic", "path"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
