"""Consume in order: each member locks its queues at the broker, so two members never read the same queue at the same time.

python examples/rocketmq/orderly.py rocketmq://localhost:9876 orders my_group 100
"""

import argparse
import asyncio
from collections import defaultdict

from mqbridge import RocketMQClient


async def main(url: str, topic: str, group: str, count: str) -> None:
    """Receive `count` messages of the type `order`, then print the orders of each customer."""
    orders: defaultdict[str, list[str]] = defaultdict(list)
    async with (
        RocketMQClient(url) as client,
        client.consumer(topic, group, msg_types=["order"], orderly=True, retries=False) as consumer,
    ):
        for _ in range(int(count)):
            message = await consumer.receive()
            orders[str(message.key)].append((message.payload or b"").decode())
            consumer.acknowledge(message)
    for customer, payloads in sorted(orders.items()):
        print(f"{customer}: {', '.join(payloads)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic", "group", "count"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
