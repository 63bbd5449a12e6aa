"""Find messages by key, by unique id (the message id of the Java client), and by offset id (their position in the store).

python examples/rocketmq/query.py rocketmq://localhost:9876 orders order-1
"""

import argparse
import asyncio

from mqbridge import RocketMQClient
from mqbridge.rocketmq.wire import ids, properties
from mqbridge.rocketmq.wire.properties import Name


async def main(url: str, topic: str, key: str) -> None:
    """Find the messages with a key, then look up each of them by its two ids."""
    async with RocketMQClient(url) as client:
        for record in await client.query.by_key(topic, key):
            unique_id = properties.find(record.properties, Name.UNIQ_KEY)
            print(f"{record.queue_id}:{record.queue_offset} {record.body!r} {unique_id}")
            offset_id = ids.offset_id(record.store_host, record.physical_offset)
            same = await client.query.by_offset_id(offset_id, topic)
            copies = await client.query.by_unique_key(topic, unique_id) if unique_id else []
            print(
                f"  {offset_id}: {'found' if same and same.body == record.body else 'missing'}; {len(copies)} with its unique id"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic", "key"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
