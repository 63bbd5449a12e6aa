"""Consume all topics of a namespace whose names match a pattern, including topics that are created later.

python examples/pulsar/follow_pattern.py pulsar://localhost:6650 public/default 'logs-.*' 2
"""

import argparse
import asyncio
import re

from mqbridge import PulsarClient


async def main(url: str, namespace: str, pattern: str, count: str) -> None:
    """Print `count` messages."""
    async with PulsarClient(url) as client, client.consumer(re.compile(pattern), "follower", namespace=namespace) as consumer:
        for _ in range(int(count)):
            message = await consumer.receive()
            print(f"{message.topic}: {message.payload!r}")
            consumer.acknowledge(message)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "namespace", "pattern", "count"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
