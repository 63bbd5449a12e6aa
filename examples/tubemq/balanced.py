"""Run two group members that divide the partitions themselves: each reads every second partition from start to end.

python examples/tubemq/balanced.py tubemq://localhost:8715 orders my_group
"""

import argparse
import asyncio

from mqbridge import TubeMQClient


async def read_share(url: str, topic: str, group: str, member: int, members: int) -> int:
    """Read the partitions of one of several members, which are numbered from 0; return the number of messages."""
    async with TubeMQClient(url) as client, client.balanced_consumer(topic, group, node=(member, members)) as consumer:
        total = 0
        for ref in await consumer.share():
            partition = await consumer.take(ref.key, offset=0)
            while not partition.caught_up:
                pack = await partition.poll()
                if pack is not None:
                    total += len(pack.messages)
                    partition.confirm()
            print(f"member {member} has read {ref.name}")
            await consumer.give_back(ref.key)
        return total


async def main(url: str, topic: str, group: str) -> None:
    """Run both members concurrently."""
    totals = await asyncio.gather(*(read_share(url, topic, group, member, 2) for member in range(2)))
    print(f"{sum(totals)} messages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="tubemq://HOST:PORT, or several Masters: tubemq://HOST:PORT,HOST:PORT")
    parser.add_argument("topic")
    parser.add_argument("group")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.topic, arguments.group))
