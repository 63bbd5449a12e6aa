"""Create a topic and a group, see how far the group is, and set it back to a point in time.

python examples/rocketmq/administer.py localhost:9876 orders my_group
"""

import argparse
import asyncio
import time

from mqbridge.rocketmq.client.client import RocketmqClient
from mqbridge.rocketmq.client.nameservers import parse_name_servers
from mqbridge.rocketmq.client.outgoing import OutgoingMessage
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig


async def lag(client: RocketmqClient, group: str, topic: str) -> int:
    """How many messages the group has before it."""
    progress = await client.groups.progress(group, topic)
    return sum(offsets.broker_offset - offsets.consumer_offset for offsets in progress.values())


async def main(name_servers: str, topic: str, group: str) -> None:
    """Ten messages, the group moved behind them, then to the fifth."""
    async with RocketmqClient(parse_name_servers(name_servers)) as client:
        await client.admin.create_topic(topic, queues=2)
        await client.groups.create(GroupConfig(group))
        print(f"masters: {', '.join(await client.admin.masters())}")

        producer = client.producer("example_administrators", topic)
        queue = (await producer.queues())[0]
        for number in range(10):
            if number == 5:
                await asyncio.sleep(0.1)
                middle = time.time_ns() // 1_000_000
            last = await producer.send(OutgoingMessage(b"%d" % number), queue)
        await producer.close()

        # A broker answers when a message is stored, and puts it into its queue a moment later. Only then the end counts it.
        while await client.positions.next(queue) <= last.offset:  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.01)
        # Offsets of a group that does not run can be written; `reset` is for one that runs as well.
        ends = {queue: stats.max_offset for queue, stats in (await client.admin.topic_stats(topic)).items()}
        await client.groups.write(group, ends)
        print(f"at the end: {await lag(client, group, topic)} to read")
        await client.groups.reset(group, topic, middle)
        at = await client.positions.committed(queue, group)
        print(f"reset to {queue.broker}:{queue.id} offset {at}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("name_servers", "topic", "group"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
