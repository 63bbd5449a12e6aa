"""Consume in order: each queue is locked at its broker while it is ours, so that no two members ever read it at the same time.

python examples/rocketmq/orderly.py localhost:9876 orders my_group 100
"""

import argparse
import asyncio
from collections import defaultdict

from mqbridge.rocketmq.client.client import RocketmqClient
from mqbridge.rocketmq.client.consumer import join
from mqbridge.rocketmq.client.nameservers import parse_name_servers
from mqbridge.rocketmq.client.spec import GroupSpec
from mqbridge.rocketmq.client.stream import QueueStream
from mqbridge.rocketmq.client.subscription import tagged
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.properties import Name


async def main(name_servers: str, topic: str, group: str, count: str) -> None:
    """Print what each customer ordered, in order, after so many messages with the tag `order`."""
    orders: defaultdict[str | None, list[str]] = defaultdict(list)
    async with RocketmqClient(parse_name_servers(name_servers)) as client:
        consumer = await join(client, GroupSpec(group, (tagged(topic, ["order"]),), orderly=True, retries=False))

        async def read(stream: QueueStream) -> None:
            while not stream.revoked:
                pulled = stream.take()
                if pulled is None:
                    await stream.changed(timeout=1.0)
                    continue
                for record in pulled.records:
                    orders[properties.find(record.properties, Name.SHARDING_KEY)].append(record.body.decode())
                stream.commit(pulled.next)
                if sum(map(len, orders.values())) >= int(count):
                    await consumer.close()  # commits, and unlocks the queues

        async with asyncio.TaskGroup() as tasks:
            async for stream in consumer.streams():
                tasks.create_task(read(stream))
    for customer, bodies in sorted(orders.items(), key=str):
        print(f"{customer}: {', '.join(bodies)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("name_servers", "topic", "group", "count"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
