"""Every message with a receipt survives kill -9 of the writing process, in order and complete."""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.adapter.registration import ADAPTER
from tests.log.conftest import lane_of
from tests.patience import SERVER_PATIENCE_S

ROUNDS = 6
SEED = 20260

# A process that sends numbered messages, up to nine sends at a time, and prints the receipt of each send.
WRITER = """
import asyncio, os, sys
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.log.adapter.registration import ADAPTER
from mqbridge.message import Batch, Message, Share

async def main(path, number):
    cluster = ADAPTER.make_cluster("log", ADAPTER.cluster_model(path=path, synchronous="normal"))
    await cluster.connect()
    await cluster.create("t", 1)
    outbound = await cluster.outbound(OutboundSpec("t"))
    sizes = [1, 7, 100, 1500]

    async def send(first, count):
        messages = [Message(b"%012d" % (first + index) + bytes(300), (("of", str(count)),)) for index in range(count)]
        receipt = await outbound.send(0, Share(Batch.of(messages)))
        assert not receipt.failures
        # One write per send: the pipe takes it whole or not at all.
        os.write(1, b"%d %d %d\\n" % (first, count, receipt.highest_position[0]))

    running = set()
    while True:
        count = sizes[number % 4]
        task = asyncio.ensure_future(send(number, count))
        running.add(task)
        task.add_done_callback(running.discard)
        number += count
        await asyncio.sleep(0)
        if len(running) > 8:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def run_and_kill(path: Path, first: int, after_receipts: int, delay_s: float) -> list[tuple[int, int, int]]:
    """Run a writer and kill it; return the receipts that it printed: first message number, count, last offset."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), str(first), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    lines = [await child.stdout.readline() for _ in range(after_receipts)]
    await asyncio.sleep(delay_s)
    os.kill(child.pid, signal.SIGKILL)
    rest, _ = await child.communicate()
    output = b"".join(lines) + rest
    return [(int(first), int(count), int(last)) for first, count, last in map(bytes.split, output.splitlines())]


def ends_of_sends(begin: int, limit: int) -> set[int]:
    """Return the numbers at which sends of a round can end, up to `limit`; the size of a send depends on its first number."""
    ends = {begin}
    while begin < limit:
        begin += [1, 7, 100, 1500][begin % 4]
        ends.add(begin)
    return ends


async def read_all(path: Path) -> list[int]:
    """Return the numbers of all stored messages."""
    cluster = LogCluster("log", ADAPTER.cluster_model(path=path))
    await cluster.connect()
    inbound, lane = await lane_of(cluster, "check")
    await lane.seek((0,))
    stored: list[int] = []
    end = (await cluster.bounds("t"))["0"].next[0]
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while len(stored) < end:
            stored += [int(message.payload[:12]) for message in (await lane.receive()).messages if message.payload]
    await inbound.close()
    await cluster.close()
    return stored


async def test_every_acknowledged_message_survives(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    chance = random.Random(SEED)
    all_receipts: list[tuple[int, int, int]] = []
    begin = 0
    for _ in range(ROUNDS):
        receipts = await run_and_kill(path, begin, chance.randrange(1, 40), chance.random() * 0.2)
        all_receipts += receipts
        stored = await read_all(path)
        assert len(stored) == len(set(stored))
        for first, count, last in all_receipts:
            assert stored[last - count + 1 : last + 1] == list(range(first, first + count))
        # Of the sends in flight at the kill, the first ones are stored and the others are not: no hole, no part of a send.
        assert [number for number in stored if number >= begin] == list(range(begin, stored[-1] + 1))
        assert stored[-1] + 1 in ends_of_sends(begin, stored[-1] + 1)
        begin = stored[-1] + 1
    assert len(all_receipts) >= ROUNDS
