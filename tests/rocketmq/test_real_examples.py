"""Every example runs against a real server, and the consumer also beside a Java member of its group."""

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
from tests.rocketmq.client.real_topics import Environment, until
from tests.sdk.test_rocketmq_java_members import JavaMember

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "rocketmq"


async def start_example(name: str, *arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", str(FOLDER / name), *arguments, cwd=FOLDER.parents[1], stdout=PIPE, stderr=PIPE
    )


async def output_of(process: Process) -> list[str]:
    """Wait for an example to succeed without warnings, and return the lines that it printed."""
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
    return await output_of(await start_example(name, *arguments))


def url(rocketmq: RocketMQ) -> str:
    return f"rocketmq://{rocketmq.name_server}"


def new_group() -> str:
    return f"g-{uuid4().hex[:8]}"


async def test_hello_py_sends_and_receives_a_message(rocketmq: RocketMQ) -> None:
    out = await run("hello.py", url(rocketmq), rocketmq.take_topic(2), new_group())
    assert re.fullmatch(r"stored in partition broker-a:\d", out[0])
    assert out[1] == "received b'hello' with key 'customer-7'"


async def test_orderly_py_consumes_messages_of_produce_py_in_order(rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(3)
    out = await run("produce.py", url(rocketmq), topic)
    assert re.fullmatch(r"stored in broker-a:\d at offset \d", out[0])
    assert out[1].startswith("100 orders of 3 customers in ")
    assert out[2] == "a batch of 9"
    assert await run("orderly.py", url(rocketmq), topic, new_group(), "100") == [
        f"customer-{one}: {', '.join(f'order {n}' for n in range(one, 100, 3))}" for one in range(3)
    ]


@pytest.mark.sdk
async def test_consume_py_shares_a_group_with_a_java_member(rocketmq: RocketMQ) -> None:
    """Ours takes over half of the queues of a Java member; when ours leaves, the Java member receives everything again."""
    env = Environment(rocketmq, 4)
    theirs = JavaMember(env, "averagely", "concurrent")
    try:
        await env.send(b"first")
        await until(lambda: theirs.received)
        ours = await start_example("consume.py", url(rocketmq), env.topic, env.group, "40")
        assert ours.stdout is not None
        assert await asyncio.wait_for(ours.stdout.readline(), SERVER_PATIENCE_S) == b"joined\n"
        sending = asyncio.ensure_future(send_until(env, ours))
        lines = await output_of(ours)
        sent = await sending
        mine = {line.partition(" ")[2].encode() for line in lines}
        assert len(mine) >= 40
        assert len({line.split()[0] for line in lines}) < 4
        await until(lambda: sent <= mine | {body for _, body in theirs.received})
    finally:
        await asyncio.to_thread(theirs.leave)


async def send_until(env: Environment, reader: Process) -> set[bytes]:
    """Send one message to each of four queues until the reader exits, now and then a bad one; return all bodies."""
    sent: set[bytes] = set()
    while reader.returncode is None:
        for queue in range(4):
            body = b"%s %d" % (b"bad" if len(sent) % 16 == queue else b"good", len(sent))
            await env.send(body, queue=queue)
            sent.add(body)
        await asyncio.sleep(0.02)
    return sent


async def test_a_message_that_consume_py_sends_back_is_redelivered(rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(1)
    for body in (b"bad 1", b"good 2"):
        rocketmq.send(topic, body)
    out = await run("consume.py", url(rocketmq), topic, new_group(), "2")
    assert out == ["joined", "broker-a:0 good 2", "broker-a:0 bad 1"]


async def test_transactions_py_commits_and_rolls_back(rocketmq: RocketMQ, tmp_path: Path) -> None:
    topic = rocketmq.take_topic(1)
    out = await run("transactions.py", url(rocketmq), topic, str(tmp_path / "orders.db"))
    assert out == ["5: COMMIT", "-1: ROLLBACK", "7: COMMIT"]
    assert sorted(await run("pop.py", url(rocketmq), topic, new_group(), "2")) == ["5", "7"]


async def test_pop_py_receives_every_message(rocketmq: RocketMQ) -> None:
    topic, group = rocketmq.take_topic(2), new_group()
    bodies = [b"slow", *(b"fast %d" % n for n in range(9))]
    for number, body in enumerate(bodies):
        rocketmq.send(topic, body, queue=number % 2)
    assert sorted(await run("pop.py", url(rocketmq), topic, group, "10")) == sorted(body.decode() for body in bodies)


async def test_administer_py_creates_and_resets(rocketmq: RocketMQ) -> None:
    topic = f"made-{uuid4().hex[:8]}"
    assert await run("administer.py", url(rocketmq), topic, new_group()) == [
        "masters: broker-a", "lag at the end: 0", "reset to broker-a:0 offset 5",
    ]  # fmt: skip


async def test_query_py_finds_a_message_by_its_key(rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(1)
    await run("produce.py", url(rocketmq), topic)
    async with ClusterClient([rocketmq.name_server]) as client:
        end = time.monotonic() + SERVER_PATIENCE_S
        while not await Query(client).by_key(topic, "order-1") and time.monotonic() < end:
            await asyncio.sleep(0.05)
    found, line = await run("query.py", url(rocketmq), topic, "order-1")
    assert re.fullmatch(r"0:0 b'hello' [0-9A-F]{32}", found)
    assert re.fullmatch(r"  [0-9A-F]{32}: found; 1 with its unique id", line)


def test_every_example_has_a_test() -> None:
    text = Path(__file__).read_text()
    assert [path.name for path in sorted(FOLDER.glob("*.py")) if f'"{path.name}"' not in text] == []
