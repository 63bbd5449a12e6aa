"""Send messages that are seen only if the local transaction they belong to commits; here that is a row in SQLite.

If it is killed between the two, a half message is left: the broker asks a producer of the group, and the row is the answer.

python examples/rocketmq/transactions.py rocketmq://localhost:9876 orders orders.db
"""

import argparse
import asyncio
import sqlite3

from mqbridge import RocketMQClient
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.transactions import Half, State


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
                self.database.execute("INSERT INTO orders VALUES (?, ?)", (transaction_id, int(message.payload or b"")))
        except sqlite3.IntegrityError:
            return State.ROLLBACK
        return State.COMMIT

    def check(self, half: Half) -> State:
        """The broker asks for the outcome; the answer is in the database, not in this process."""
        query = "SELECT 1 FROM orders WHERE transaction_id = ?"
        found = self.database.execute(query, (half.transaction_id,)).fetchone()
        return State.COMMIT if found else State.ROLLBACK


async def main(url: str, topic: str, path: str) -> None:
    """Send three orders, the second of which is not valid."""
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
