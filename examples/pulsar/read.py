"""Read all partitions of a topic from beginning to end, without creating a subscription.

python examples/pulsar/read.py pulsar://localhost:6650 log
"""

import argparse
import asyncio
from collections import Counter

from mqbridge import PulsarClient


async def main(url: str, topic: str) -> None:
    """Count the messages of each partition."""
    async with PulsarClient(url) as client:
        if await client.partitions(topic) is None:
            print(f"there is no topic {topic}")
            return
        counts: Counter[str] = Counter()
        async with client.reader(topic) as reader:
            while await reader.has_more():
                message = await reader.receive()
                counts[message.partition] += 1
            for partition, position in (await reader.last_positions()).items():
                number = partition.rpartition("-partition-")[2] if "-partition-" in partition else ""
                print(f"{partition}: {counts[number]} messages, the last one at {position}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
