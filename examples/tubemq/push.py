"""Consume with a callback for each pack of messages that a Broker sends: the fastest way.

python examples/tubemq/push.py tubemq://localhost:8715 orders my_group --count 1000
"""

import argparse
import asyncio

from mqbridge import TubeMQClient
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.library.pack_puller import push


async def main(url: str, topic: str, group: str, count: int) -> None:
    """Count messages and bytes until at least `count` messages were received."""
    messages = size = 0
    enough = asyncio.Event()

    async def handle(_: HeldPartition, pack: Pack) -> None:
        nonlocal messages, size
        messages += len(pack.messages)
        size += pack.size
        if messages >= count:
            enough.set()

    async with TubeMQClient(url) as client, client.pack_consumer(topic, group) as consumer:
        push_task = asyncio.create_task(push(consumer, handle))
        await asyncio.wait([push_task, asyncio.create_task(enough.wait())], return_when=asyncio.FIRST_COMPLETED)
        await consumer.close()  # confirms the handled packs and ends `push`
        await push_task
    print(f"{messages} messages in {size} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="tubemq://HOST:PORT, or several Masters: tubemq://HOST:PORT,HOST:PORT")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("--count", type=int, default=1000)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.topic, arguments.group, arguments.count))
