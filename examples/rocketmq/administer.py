"""Create a topic and a group, print the lag of the group, and reset the group to a point in time.

python examples/rocketmq/administer.py rocketmq://localhost:9876 orders my_group
"""

import argparse
import asyncio
import time

from mqbridge import RocketMQClient
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig
from mqbridge.rocketmq.wire.bodies.queue import Queue


async def lag(client: RocketMQClient, group: str, topic: str) -> int:
    """Return the number of messages that the group has not consumed yet."""
    progress = await client.groups.progress(group, topic)
    return sum(offsets.broker_offset - offsets.consumer_offset for offsets in progress.values())


async def main(url: str, topic: str, group: str) -> None:
    """Send ten messages, move the group to the end, then back to the sixth message."""
    async with RocketMQClient(url) as client:
        await client.admin.create_topic(topic, queues=2)
        await client.groups.create(GroupConfig(group))
        masters = await client.admin.masters()
        print(f"masters: {', '.join(masters)}")

        queue = Queue(topic, min(masters), 0)
        async with client.producer(topic) as producer:
            for number in range(10):
                if number == 5:
                    await asyncio.sleep(0.1)
                    middle = time.time_ns() // 1_000_000
                last = await producer.send(b"%d" % number, partition=f"{queue.broker}:{queue.id}")

        # A broker responds when a message is stored, but adds it to the queue a moment later. Wait until the queue contains it.
        while await client.positions.next(queue) <= last.position[0]:  # noqa: ASYNC110 - the broker has no event for this
            await asyncio.sleep(0.01)
        # `write` is only for groups without running members; `reset` also works for groups with running members.
        ends = {queue: stats.max_offset for queue, stats in (await client.admin.topic_stats(topic)).items()}
        await client.groups.write(group, ends)
        print(f"lag at the end: {await lag(client, group, topic)}")
        await client.groups.reset(group, topic, middle)
        offset = await client.positions.committed(queue, group)
        print(f"reset to {queue.broker}:{queue.id} offset {offset}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic", "group"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
