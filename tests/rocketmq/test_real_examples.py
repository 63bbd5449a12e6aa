"""Every example runs against a real server; the member of a group runs beside one in Java."""

import asyncio
import re
import sys
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from uuid import uuid4

import pytest

from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.library.query import Query
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S
from tests.rocketmq.client.real_topics import Place, until
from tests.rocketmq.client.test_java_members import JavaMember

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "rocketmq"


async def started(name: str, *arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", str(FOLDER / name), *arguments, cwd=FOLDER.parents[1], stdout=PIPE, stderr=PIPE
    )


async def said(process: Process) -> list[str]:
    """What an example printed; it has succeeded and complained about nothing."""
    try:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, err.decode()) == (0, "")
    return out.decode().splitlines()


async def run(name: str, *arguments: str) -> list[str]:
    return await said(await started(name, *arguments))


def url(rocketmq: RocketMQ) -> str:
    return f"rocketmq://{rocketmq.name_server}"


def new_group() -> str:
    return f"g-{uuid4().hex[:8]}"


async def test_hello(rocketmq: RocketMQ) -> None:
    out = await run("hello.py", url(rocketmq), rocketmq.take_topic(2), new_group())
    assert re.fullmatch(r"stored in partition broker-a:\d", out[0])
    assert out[1] == "received b'hello' with key 'customer-7'"


async def test_produce_then_consume_in_order(rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(3)
    out = await run("produce.py", url(rocketmq), topic)
    assert re.fullmatch(r"stored in broker-a:\d at offset \d", out[0])
    assert out[1].startswith("100 orders of 3 customers in ")
    assert out[2] == "a batch of 9"
    assert await run("orderly.py", url(rocketmq), topic, new_group(), "100") == [
        f"customer-{one}: {', '.join(f'order {n}' for n in range(one, 100, 3))}" for one in range(3)
    ]


@pytest.mark.sdk
async def test_consume_beside_java(rocketmq: RocketMQ) -> None:
    """Java has the queues, ours gets half of them and what it sends back itself; then it goes and Java has all again."""
    place = Place(rocketmq, 4)
    theirs = JavaMember(place, "averagely", "concurrent")
    try:
        await place.send(b"first")
        await until(lambda: theirs.got)
        ours = await started("consume.py", url(rocketmq), place.topic, place.group, "40")
        assert ours.stdout is not None
        assert await asyncio.wait_for(ours.stdout.readline(), SERVER_PATIENCE_S) == b"joined\n"
        sending = asyncio.ensure_future(send_until(place, ours))
        lines = await said(ours)
        sent = await sending
        mine = {line.partition(" ")[2].encode() for line in lines}
        assert len(mine) >= 40
        assert len({line.split()[0] for line in lines}) < 4
        await until(lambda: sent <= mine | {body for _, body in theirs.got})
    finally:
        await asyncio.to_thread(theirs.leave)


async def send_until(place: Place, reader: Process) -> set[bytes]:
    """Four messages at a time, one for each queue, until the reader has had enough; now and then a bad one."""
    sent: set[bytes] = set()
    while reader.returncode is None:
        for queue in range(4):
            body = b"%s %d" % (b"bad" if len(sent) % 16 == queue else b"good", len(sent))
            await place.send(body, queue=queue)
            sent.add(body)
        await asyncio.sleep(0.02)
    return sent


async def test_what_a_member_sends_back_comes_again(rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(1)
    for body in (b"bad 1", b"good 2"):
        rocketmq.send(topic, body)
    out = await run("consume.py", url(rocketmq), topic, new_group(), "2")
    assert out == ["joined", "broker-a:0 good 2", "broker-a:0 bad 1"]


async def test_transactions(rocketmq: RocketMQ, tmp_path: Path) -> None:
    topic = rocketmq.take_topic(1)
    out = await run("transactions.py", url(rocketmq), topic, str(tmp_path / "orders.db"))
    assert out == ["5: COMMIT", "-1: ROLLBACK", "7: COMMIT"]
    assert sorted(await run("pop.py", url(rocketmq), topic, new_group(), "2")) == ["5", "7"]


async def test_pop(rocketmq: RocketMQ) -> None:
    topic, group = rocketmq.take_topic(2), new_group()
    bodies = [b"slow", *(b"fast %d" % n for n in range(9))]
    for number, body in enumerate(bodies):
        rocketmq.send(topic, body, queue=number % 2)
    assert sorted(await run("pop.py", url(rocketmq), topic, group, "10")) == sorted(body.decode() for body in bodies)


async def test_administer(rocketmq: RocketMQ) -> None:
    topic = f"made-{uuid4().hex[:8]}"
    assert await run("administer.py", url(rocketmq), topic, new_group()) == [
        "masters: broker-a", "lag at the end: 0", "reset to broker-a:0 offset 5",
    ]  # fmt: skip


async def test_query(rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(1)
    await run("produce.py", url(rocketmq), topic)
    async with ClusterClient([rocketmq.name_server]) as client:
        end = time.monotonic() + SERVER_PATIENCE_S
        while not await Query(client).by_key(topic, "order-1") and time.monotonic() < end:
            await asyncio.sleep(0.05)
    found, place = await run("query.py", url(rocketmq), topic, "order-1")
    assert re.fullmatch(r"0:0 b'hello' [0-9A-F]{32}", found)
    assert re.fullmatch(r"  [0-9A-F]{32}: found; 1 with its unique id", place)


def test_no_example_is_left_out() -> None:
    text = Path(__file__).read_text()
    assert [path.name for path in sorted(FOLDER.glob("*.py")) if f'"{path.name}"' not in text] == []
