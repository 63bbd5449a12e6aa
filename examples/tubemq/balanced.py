"""Two members of a group that balance it themselves: each takes every second partition, and reads it from start to end.

python examples/tubemq/balanced.py tubemq://localhost:8715 orders my_group
"""

import argparse
import asyncio

from mqbridge import TubeMQClient


async def read_share(url: str, topic: str, group: str, number: int, count: int) -> int:
    """Read the partitions of member `number` of `count`; return how many messages they hold."""
    async with TubeMQClient(url) as client, client.balanced_consumer(topic, group, node=(number, count)) as consumer:
        total = 0
        for ref in await consumer.share():
            partition = await consumer.take(ref.key, offset=0)
            while not partition.caught_up:
                pack = await partition.poll()
                if pack is not None:
                    total += len(pack.messages)
                    partition.confirm()
            print(f"member {number} has read {ref.name}")
            await consumer.give_back(ref.key)
        return total


async def main(url: str, topic: str, group: str) -> None:
    """Run both members."""
    totals = await asyncio.gather(*(read_share(url, topic, group, number, 2) for number in range(2)))
    print(f"{sum(totals)} messages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="tubemq://host:8715, several Masters separated by commas")
    parser.add_argument("topic")
    parser.add_argument("group")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.topic, arguments.group))
