"""Send messages to all partitions of a topic, compressed and in batches, and print where they are stored.

python examples/pulsar/produce.py pulsar://localhost:6650 orders
"""

import argparse
import asyncio

from mqbridge import PulsarClient


async def main(url: str, topic: str) -> None:
    """Send ten orders of three customers; the orders of a customer stay in one partition, in order."""
    async with PulsarClient(url) as client, client.producer(topic, compression="zstd") as producer:
        sends = [producer.send(b"order %d" % number, key=f"customer-{number % 3}") for number in range(10)]
        for receipt in await asyncio.gather(*sends):
            print(f"stored at {receipt.message_id}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
