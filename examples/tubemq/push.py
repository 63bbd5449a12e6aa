"""The fast way: have a function called for each pack of messages as the Brokers send them, until enough have come.

python examples/tubemq/push.py tubemq://localhost:8715 orders my_group --count 1000
"""

import argparse
import asyncio

from mqbridge import TubeMQClient
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.partition_reader import Pack
from mqbridge.tubemq.library.pack_puller import push


async def main(url: str, topic: str, group: str, count: int) -> None:
    """Count messages and bytes."""
    messages = size = 0
    enough = asyncio.Event()

    async def handle(_: HeldPartition, pack: Pack) -> None:
        nonlocal messages, size
        messages += len(pack.messages)
        size += pack.size
        if messages >= count:
            enough.set()

    async with TubeMQClient(url) as client, client.pack_consumer(topic, group) as consumer:
        pushing = asyncio.create_task(push(consumer, handle))
        await asyncio.wait([pushing, asyncio.create_task(enough.wait())], return_when=asyncio.FIRST_COMPLETED)
        await consumer.close()  # confirms the packs that were handled, and ends `push`
        await pushing
    print(f"{messages} messages in {size} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="tubemq://host:8715, several Masters separated by commas")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("--count", type=int, default=1000)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.topic, arguments.group, arguments.count))
