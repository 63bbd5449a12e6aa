"""Every example runs against a real cluster; the exactly-once example is killed twice while it runs."""

import asyncio
import os
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqbridge.tubemq.wire.payload import join_payload
from tests.kit.tubemq import TubeMQ
from tests.patience import SERVER_PATIENCE_S
from tests.tubemq.real import Client, fresh_group

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "tubemq"


def url_of(tubemq: TubeMQ) -> str:
    return f"tubemq://{tubemq.masters}"


async def started(name: str, *arguments: str) -> Process:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    return await asyncio.create_subprocess_exec(sys.executable, EXAMPLES / name, *arguments, stdout=PIPE, env=environment)


async def output(name: str, *arguments: str) -> list[str]:
    process = await started(name, *arguments)
    try:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return printed.decode().splitlines()


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text()
    assert [path.name for path in sorted(EXAMPLES.glob("*.py")) if f'"{path.name}"' not in text] == []


async def test_hello(tubemq: TubeMQ) -> None:
    lines = await output("hello.py", url_of(tubemq), tubemq.take_topic(1), fresh_group())
    assert lines == ["stored in partition 1:0", "received b'hello' with key 'customer-7'"]


async def test_produce_consume_and_push(tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(3)
    lines = await output("produce.py", url_of(tubemq), topic)
    assert lines[-1] == "200 more in 3 partitions"
    partition = lines[0].split()[3]
    lines = await output("consume.py", url_of(tubemq), topic, fresh_group(), "--patience", "6")
    assert lines[-1] == "201 messages"
    assert f"{partition} greeting first" in lines
    lines = await output("push.py", url_of(tubemq), topic, fresh_group(), "--count", "201")
    assert lines[-1].startswith("201 messages in ")


async def test_messages_of_some_types(client: Client, tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(1)
    sender = await client.sender(topic)
    for number in range(30):
        kind = ("paid", "sent", "refunded")[number % 3]
        data, flag = join_payload(f"$msgType$={kind}".encode(), b"%02d" % number)
        await sender.send("1:0", data, flag, kind)
    lines = await output("filtered.py", url_of(tubemq), topic, fresh_group(), "--types", "paid,refunded", "--count", "20")
    assert lines[:3] == ["paid b'00'", "refunded b'02'", "paid b'03'"]
    assert len(lines) == 20


async def test_balanced_and_packed(client: Client, tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(3)
    sender = await client.sender(topic)
    await asyncio.gather(*(sender.send(f"1:{number % 3}", b"%d" % number) for number in range(90)))
    balanced, packed = await asyncio.gather(
        output("balanced.py", url_of(tubemq), topic, fresh_group()),
        output("packed.py", url_of(tubemq), tubemq.take_topic(1), fresh_group()),
    )
    assert balanced[-1] == "90 messages"
    assert packed[-1].endswith("the last: line 999")


async def test_exactly_once_although_programs_are_killed(client: Client, tubemq: TubeMQ, tmp_path: Path) -> None:
    """Each run has a new group, so it need not wait until Master and Broker notice that the run before was killed."""
    topic, database = tubemq.take_topic(3), tmp_path / "counts.db"
    sender = await client.sender(topic)

    async def send(first: int, count: int) -> None:
        # Ten in a pack would be enough to see a pack twice; a word is a message's own.
        await asyncio.gather(*(sender.send(f"1:{n % 3}", b"w%05d" % n) for n in range(first, first + count)))

    await send(0, 600)
    for life, lines in enumerate((2, 3, 0)):
        process = await started("exactly_once.py", url_of(tubemq), topic, fresh_group(), str(database))
        assert process.stdout is not None
        feeding = asyncio.ensure_future(send(600 + 900 * life, 900))
        try:
            async with asyncio.timeout(SERVER_PATIENCE_S):
                for _ in range(lines):
                    assert await process.stdout.readline()
                while not lines and counted(database) < 3300:
                    await process.stdout.readline()  # each line is printed after the step that it reports
        finally:
            await feeding
            os.kill(process.pid, signal.SIGKILL)
            await process.communicate()
    assert sorted(rows(database)) == [(f"w{n:05}", 1) for n in range(3300)]


def rows(database: Path) -> Iterator[tuple[str, int]]:
    with sqlite3.connect(database) as connection:
        yield from connection.execute("SELECT word, count FROM words")


def counted(database: Path) -> int:
    return sum(1 for _ in rows(database))
