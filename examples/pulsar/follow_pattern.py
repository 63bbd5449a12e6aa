"""Consume every topic of a namespace whose name matches, also those that are created later.

python examples/pulsar/follow_pattern.py pulsar://localhost:6650 public/default 'public/default/logs-.*' 2
"""

import argparse
import asyncio

from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.pool import parse_service_url
from mqbridge.pulsar.client.subscription import Subscription
from mqbridge.pulsar.client.topic_consumer import open_pattern_consumer


async def main(url: str, namespace: str, pattern: str, count: str) -> None:
    """Until so many entries have come."""
    client = PulsarClient(parse_service_url(url, tls=False))
    consumer = await open_pattern_consumer(client, namespace, pattern, Subscription("follower"))
    for _ in range(int(count)):
        owner, entry = await consumer.receive()
        print(f"{owner.topic}: {entry.count} messages")
        owner.acknowledge_up_to(entry.place)
    await consumer.close()
    await client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "namespace", "pattern", "count"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
