"""Two members of a group that share the partitions by themselves: each takes every second one, from the start, and reads it.

python examples/tubemq/balanced.py 127.0.0.1:8715 orders my_group
"""

import argparse
import asyncio

from mqbridge.tubemq.client.client import TubeMQClient


async def member(masters: str, topic: str, group: str, number: int, count: int) -> int:
    """Read our share from its start to its end; how many messages that were."""
    async with TubeMQClient(masters, heartbeat_s=1.0) as client:
        consumer = await client.balanced_consumer(group, [topic], node=(number, count))
        total = 0
        for ref in await consumer.share():
            partition = await consumer.take(ref.key, offset=0)
            while not partition.caught_up:
                pack = await partition.poll()
                if pack is not None:
                    total += len(pack.messages)
                    partition.confirm()
            print(f"member {number}: {ref.name} is read")
            await consumer.give_back(ref.key)
        return total


async def main(masters: str, topic: str, group: str) -> None:
    """Run both."""
    totals = await asyncio.gather(*(member(masters, topic, group, number, 2) for number in range(2)))
    print(f"{sum(totals)} messages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("masters", help="host:port, several separated by commas")
    parser.add_argument("topic")
    parser.add_argument("group")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.masters, arguments.topic, arguments.group))
