"""Send messages in all ways: single, concurrent, as a batch, delayed, and one-way.

python examples/rocketmq/produce.py rocketmq://localhost:9876 orders
"""

import argparse
import asyncio

from mqbridge import RocketMQClient
from mqbridge.rocketmq.library.outgoing import OutgoingMessage


async def main(url: str, topic: str) -> None:
    """Send 112 messages."""
    async with RocketMQClient(url) as client, client.producer(topic) as producer:
        receipt = await producer.send(b"hello", msg_type="greeting", keys=["order-1"], properties={"a": "b"})
        print(f"stored in {receipt.partition} at offset {receipt.position[0]}")

        # Messages with the same key go to one queue, in order. Java clients choose the same queue for the key.
        orders = [producer.send(b"order %d" % n, key=f"customer-{n % 3}", msg_type="order") for n in range(100)]
        receipts = await asyncio.gather(*orders)
        print(f"100 orders of 3 customers in {len({receipt.partition for receipt in receipts})} queues")

        receipts = await producer.send_batch([OutgoingMessage(b"line %d" % n, msg_type="line") for n in range(9)])
        print(f"a batch of {len(receipts)}")

        await producer.send(b"later", msg_type="delayed", delay_level=1)  # level 1: after one second, by default
        # One-way: no receipt, so the message may be lost.
        await producer.send_oneway(OutgoingMessage(b"perhaps", msg_type="one-way"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
