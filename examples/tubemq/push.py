"""Have a function called for each pack, only with messages of some types, until enough have come.

python examples/tubemq/push.py 127.0.0.1:8715 orders my_group --types paid,refunded --count 10
"""

import argparse
import asyncio

from mqbridge.tubemq.client.client import TubeMQClient
from mqbridge.tubemq.client.messages import decode_all
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.partition_reader import Pack
from mqbridge.tubemq.client.reading import push


async def main(masters: str, topic: str, group: str, types: set[str], count: int) -> None:
    """Print what has one of `types`, until there were `count`."""
    enough = asyncio.Event()
    seen = 0

    async def handle(_: HeldPartition, pack: Pack) -> None:
        nonlocal seen
        # Brokers compare hashes of types, so what comes is looked at once more.
        for message in decode_all(pack.messages, types):
            seen += 1
            print(message.msg_type, message.body.decode(errors="replace"))
        if seen >= count:
            enough.set()

    async with TubeMQClient(masters, heartbeat_s=1.0) as client:
        # 303: also what the Broker has only in memory; mostly filtered readers see only files, up to 20 s late.
        consumer = await client.consumer(group, [topic], filters={topic: types}, priority=303)
        pushing = asyncio.create_task(push(consumer, handle))
        await asyncio.wait([pushing, asyncio.create_task(enough.wait())], return_when=asyncio.FIRST_COMPLETED)
        await consumer.close()
        await pushing
    print(f"{seen} messages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("masters", help="host:port, several separated by commas")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("--types", required=True, help="separated by commas")
    parser.add_argument("--count", type=int, default=10)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.masters, arguments.topic, arguments.group, set(arguments.types.split(",")), arguments.count))
