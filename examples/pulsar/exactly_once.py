"""Store each numbered message exactly once, even after a restart: the broker deduplicates by producer name and sequence id.

The topic's namespace needs deduplication (`pulsar-admin namespaces set-deduplication -e tenant/namespace`).

python examples/pulsar/exactly_once.py pulsar://localhost:6650 tenant/namespace/numbers
"""

import argparse
import asyncio

from mqbridge import PulsarClient

NUMBERS = range(100)


async def main(url: str, topic: str) -> None:
    """Send the numbers that are not stored yet. A second instance waits until this one has ended."""
    async with (
        PulsarClient(url) as client,
        client.producer(topic, name="numbers", access="wait_for_exclusive") as producer,
    ):
        remaining = NUMBERS[await producer.last_sequence_id() + 1 :]
        await asyncio.gather(*[producer.send(b"%d" % number, sequence_id=number) for number in remaining])
        print(f"{len(remaining)} sent, {producer.duplicates} of them stored before")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
