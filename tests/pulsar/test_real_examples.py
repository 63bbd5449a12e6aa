"""Runs every example against a real broker."""

import asyncio
import re
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "pulsar"


async def run(name: str, *arguments: str) -> str:
    """Run an example and return its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(FOLDER / name), *arguments, cwd=FOLDER.parents[1],
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(), SERVER_PATIENCE_S)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, err.decode()
    assert err == b""
    return out.decode()


async def test_hello(pulsar: Pulsar):
    out = await run("hello.py", pulsar.service_url, pulsar.take_topic(), "greeters")
    assert out.splitlines() == ["stored in partition ", "received b'hello' with key 'customer-7'"]


async def test_produce_then_consume(pulsar: Pulsar):
    topic = pulsar.take_topic(2)
    consuming = asyncio.ensure_future(run("consume.py", pulsar.service_url, topic, "10"))
    path = topic.replace("://", "/")
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while "workers" not in pulsar.admin("GET", f"{path}/subscriptions"):
            await asyncio.sleep(0.1)
    out = await run("produce.py", pulsar.service_url, topic)
    assert len(re.findall(r"stored at \d+:\d+", out)) == 10
    lines = (await consuming).splitlines()
    assert sorted(lines) == sorted(f"customer-{number % 3}: b'order {number}'" for number in range(10))
    stats = pulsar.admin("GET", f"{path}/partitioned-stats?perPartition=false")
    assert stats["subscriptions"]["workers"]["msgBacklog"] == 0


async def test_read(pulsar: Pulsar):
    topic = pulsar.take_topic()
    await run("produce.py", pulsar.service_url, topic)
    assert (await run("read.py", pulsar.service_url, topic)).startswith(f"{topic}: 10 messages, the last one at (")


async def test_the_read_example_creates_no_topic(pulsar: Pulsar):
    """Reading a partitioned topic creates no unpartitioned topic of its name, and reading a missing topic does not create it."""
    topic = pulsar.take_topic(3)
    await run("produce.py", pulsar.service_url, topic)
    lines = (await run("read.py", pulsar.service_url, topic)).splitlines()
    counted = [re.fullmatch(rf"{topic}-partition-{number}: (\d+) messages, .*", line) for number, line in enumerate(lines)]
    assert sum(int(found[1]) for found in counted if found is not None) == 10
    assert await run("read.py", pulsar.service_url, f"{topic}-none") == f"there is no topic {topic}-none\n"
    namespace = topic.removeprefix("persistent://").rpartition("/")[0]
    created = [name for name in pulsar.admin("GET", f"persistent/{namespace}") if name.startswith(topic)]
    assert sorted(created) == [f"{topic}-partition-{number}" for number in range(3)]


async def test_large_message(pulsar: Pulsar):
    out = await run("large_message.py", pulsar.service_url, pulsar.take_topic())
    assert f"received {16 << 20} bytes, unchanged" in out


async def test_exactly_once(pulsar: Pulsar):
    namespace = pulsar.create_namespace("acme", f"once-{uuid4().hex[:6]}")
    pulsar.admin("POST", f"namespaces/{namespace}/deduplication", True)
    topic = pulsar.create_topic("numbers", namespace=namespace)
    assert await run("exactly_once.py", pulsar.service_url, topic) == "100 sent, 0 of them stored before\n"
    assert await run("exactly_once.py", pulsar.service_url, topic) == "0 sent, 0 of them stored before\n"


async def test_follow_pattern(pulsar: Pulsar):
    namespace = pulsar.create_namespace("acme", f"follow-{uuid4().hex[:6]}")
    topics = [pulsar.create_topic(name, namespace=namespace) for name in ("logs-a", "logs-b", "other")]
    for topic in topics:
        pulsar.send(topic, "hello")
    out = await run("follow_pattern.py", pulsar.service_url, namespace, f"{namespace}/logs-.*", "2")
    assert sorted(out.splitlines()) == [f"{topic}: b'hello'" for topic in topics[:2]]


async def test_schema(pulsar: Pulsar):
    out = await run("schema.py", pulsar.service_url, pulsar.take_topic())
    assert out.startswith("version 0 of public/default/topic_")
    assert '"name": "Order"' in out


def test_no_example_is_left_out():
    source = Path(__file__).read_text()
    assert {path.name for path in FOLDER.glob("*.py")} == set(re.findall(r'run\("(\w+\.py)"', source))
