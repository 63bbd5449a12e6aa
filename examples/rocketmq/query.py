"""Find messages by a key, by the id that Java shows, and by the position where they are stored.

python examples/rocketmq/query.py rocketmq://localhost:9876 orders order-1
"""

import argparse
import asyncio

from mqbridge import RocketMQClient
from mqbridge.rocketmq.wire import ids, properties
from mqbridge.rocketmq.wire.properties import Name


async def main(url: str, topic: str, key: str) -> None:
    """Look up every message with the key in all three ways."""
    async with RocketMQClient(url) as client:
        for record in await client.query.by_key(topic, key):
            unique = properties.find(record.properties, Name.UNIQ_KEY)
            print(f"{record.queue_id}:{record.queue_offset} {record.body!r} {unique}")
            offset_id = ids.offset_id(record.store_host, record.physical_offset)
            same = await client.query.by_offset_id(offset_id, topic)
            copies = await client.query.by_unique_key(topic, unique) if unique else []
            print(f"  {offset_id}: {'the same' if same and same.body == record.body else 'gone'}; {len(copies)} with its id")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic", "key"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
