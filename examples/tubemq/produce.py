"""Send messages: one and wait for its receipt, then many concurrently.

python examples/tubemq/produce.py tubemq://localhost:8715 orders
"""

import argparse
import asyncio

from mqbridge import TubeMQClient


async def main(url: str, topic: str) -> None:
    """Send 201 messages."""
    async with TubeMQClient(url) as client, client.producer(topic) as producer:
        receipt = await producer.send(b"first", msg_type="greeting", properties={"source": "example"})
        print(f"stored in partition {receipt.partition} as message {receipt.message_id}")

        # Messages with the same key are stored in the order of the calls.
        by_customer = [producer.send(b"order %d" % number, key=f"customer-{number % 10}") for number in range(100)]
        # Messages without a key go to any partition whose Broker accepts them.
        anywhere = [producer.send(b"event %d" % number) for number in range(100)]
        receipts = await asyncio.gather(*by_customer, *anywhere)
        print(f"{len(receipts)} more in {len({each.partition for each in receipts})} partitions")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="tubemq://HOST:PORT, or several Masters: tubemq://HOST:PORT,HOST:PORT")
    parser.add_argument("topic")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.topic))
