"""Mirrors between embedded logs: the same result as the gateway's, and every message once whatever ends them in the middle."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share, split_origin

pytest.importorskip("pyspark")

from mqbridge.spark.mirror.job import Mirror
from mqbridge.spark.mirror.settings import MirrorSettings, Through
from tests.kit.spark import REPOSITORY, SparkError, SparkProgram

PATIENCE_S = 120.0
TOPICS = {"eu_orders": 3, "eu_bills": 1}


def configuration(folder: Path, target: str) -> Path:
    """A route with everything: a pattern, a template, a filter, an edit, a partition rule, dead letters."""
    file = folder / f"{target}.yaml"
    file.write_text(f"""\
clusters:
  source: {{system: log, path: '{folder}/source.db'}}
  target: {{system: log, path: '{folder}/{target}.db', max_message_bytes: 2000}}
  letters: {{system: log, path: '{folder}/{target}-dead.db'}}
http: {{enabled: false}}
routes:
  - name: europe
    from: {{cluster: source, topic: '~eu_(?P<name>.+)', group: g, refresh: 1s}}
    to:
      cluster: target
      topic: copy_{{name}}
      partitions: {{by: key}}
      edit: {{set: {{by: mirror}}}}
    filter: {{exclude: {{msg_type: {{equals: noise}}}}}}
    delivery: {{dead_letter: {{cluster: letters, topic: dead}}}}
""")
    return file


def plain_configuration(folder: Path) -> Path:
    file = folder / "plain.yaml"
    file.write_text(f"""\
clusters:
  source: {{system: log, path: '{folder}/source.db'}}
  target: {{system: log, path: '{folder}/target.db'}}
routes:
  - name: plain
    from: {{cluster: source, topic: '~eu_.+', group: g, refresh: 1s}}
    to: {{cluster: target}}
""")
    return file


def produce(path: Path, topic: str, partitions: int, numbers: Iterable[int], size: int = 10) -> None:
    """Messages of every kind into all partitions: some are filtered, some are too large for the target of the route."""

    def message(n: int) -> Message:
        payload = b"%d " % n + bytes(3000 if size == 10 and n % 97 == 5 else size)
        return Message(payload, key=f"k{n % 7}", msg_type="noise" if n % 10 == 3 else "order", properties=(("n", str(n)),))

    async def send() -> None:
        cluster = LogCluster("source", LogSettings(path=str(path)))
        await cluster.connect()
        try:
            await cluster.create(topic, partitions)
            outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
            made = [message(n) for n in numbers]
            for partition in range(partitions):
                for begin in range(0, len(made), 200):
                    assert not (await outbound.send(partition, Share(Batch.of(made[begin : begin + 200])))).failures
            await outbound.close()
        finally:
            await cluster.close()

    asyncio.run(send())


def stored(path: Path) -> dict[str, list[list[Message]]]:
    """All messages of a log by topic and partition."""

    async def read() -> dict[str, list[list[Message]]]:
        cluster = LogCluster("any", LogSettings(path=str(path)))
        await cluster.connect()
        try:
            found: dict[str, list[list[Message]]] = {}
            for topic in await cluster.topics():
                for name, held in sorted((await cluster.bounds(topic)).items()):
                    messages: list[Message] = []
                    async with aclosing(cluster.read(topic, name, held.first, held.next)) as batches:
                        async for batch in batches:
                            messages += batch.messages
                    found.setdefault(topic, []).append(messages)
            return found
        finally:
            await cluster.close()

    return asyncio.run(read())


def result(folder: Path, target: str) -> dict[Any, list[Any]]:
    """What lies where, in the order of each source partition: that of several is left to chance."""
    log = stored(folder / f"{target}.db") | stored(folder / f"{target}-dead.db")
    found: dict[Any, list[Any]] = {}
    for topic, partitions in log.items():
        for index, messages in enumerate(partitions):
            for one in messages:
                cluster, source, name, position = split_origin(one.origin or "")
                content = (position, one.payload, one.key, one.msg_type, one.property("n"), one.property("by"))
                found.setdefault((topic, index, cluster, source, name), []).append(content)
    if dead := [key for key in found if key[0] == "dead"]:  # answered in any order
        for key in dead:
            found[key].sort()
    return found


def assert_mirrored(folder: Path, count: int) -> None:
    """Every message of both topics once, in order, in its own partition."""
    source, target = stored(folder / "source.db"), stored(folder / "target.db")
    assert source.keys() == target.keys()
    for topic, partitions in source.items():
        assert [[one.payload for one in part] for part in target[topic]] == [[one.payload for one in part] for part in partitions]
        assert all(len(part) == count for part in partitions)


def mirror(folder: Path, config: Path, **settings: Any) -> dict[str, Any]:
    (progress,) = Mirror(MirrorSettings(config, str(folder / "checkpoint"), **settings)).run()
    assert progress.error is None
    return progress.run_totals() | {"batches": progress.batches}


@pytest.mark.parametrize("through", ["pump", "rows"])
def test_a_mirror_does_what_the_gateway_does(spark: Any, tmp_path: Path, through: Through) -> None:
    for topic, partitions in TOPICS.items():
        produce(tmp_path / "source.db", topic, partitions, range(400))
    gateway = [sys.executable, "-m", "mqbridge", "run", str(configuration(tmp_path, "gateway")), "--until-idle", "0.5"]
    subprocess.run(gateway, check=True, cwd=REPOSITORY, timeout=PATIENCE_S)
    config = configuration(tmp_path, "target")
    done = mirror(tmp_path, config, through=through, follow=False, batch_bytes=60_000)
    assert done["batches"] > 1
    assert result(tmp_path, "target") == result(tmp_path, "gateway")
    kept = 1600 - done["filtered"]
    assert (done["received"], done["stored"] + done["dead"], done["skipped"]) == (1600, kept, 0)
    assert done["dead"] > 0

    # What is there by then: more of one topic, and a new one that the pattern matches.
    produce(tmp_path / "source.db", "eu_orders", 3, range(400, 500))
    produce(tmp_path / "source.db", "eu_more", 2, range(100))
    subprocess.run(gateway, check=True, cwd=REPOSITORY, timeout=PATIENCE_S)
    done = mirror(tmp_path, config, through=through, follow=False)
    assert result(tmp_path, "target") == result(tmp_path, "gateway")
    assert done["received"] == 500


def command(folder: Path, config: Path, *more: str) -> SparkProgram:
    conf = ["--set", "spark.ui.enabled=false", "--set", "spark.driver.memory=1g", "--set", "spark.driver.host=127.0.0.1"]
    arguments = ["-m", "mqbridge", "spark", "mirror", str(config), "--checkpoint", str(folder / "checkpoint")]
    return SparkProgram(folder / "program", *arguments, "--master", "local[2]", *conf, *more)


def wait_for(condition: Callable[[], bool], program: SparkProgram) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        assert program.running, program.log[-4000:]
        assert time.monotonic() < limit, program.log[-4000:]
        time.sleep(0.1)


def copied(folder: Path) -> int:
    """How many messages the target holds."""

    async def count() -> int:
        cluster = LogCluster("any", LogSettings(path=str(folder / "target.db")))
        await cluster.connect()
        try:
            found = [bounds for topic in await cluster.topics() for bounds in (await cluster.bounds(topic)).values()]
            return sum(one.next[0] - one.first[0] for one in found)
        finally:
            await cluster.close()

    return asyncio.run(count()) if (folder / "target.db").exists() else 0


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.parametrize("through", ["pump", "rows"])
def test_every_message_is_stored_once_whatever_ends_a_mirror(tmp_path: Path, through: Through) -> None:
    config = plain_configuration(tmp_path)
    for topic, partitions in TOPICS.items():
        produce(tmp_path / "source.db", topic, partitions, range(10_000), size=500)
    total = 10_000 * sum(TOPICS.values())

    small = ("--through", through, "--max-bytes-per-batch", "2MB")
    with command(tmp_path, config, *small) as killed:
        wait_for(lambda: copied(tmp_path) > 3000, killed)
        os.kill(killed.pid, signal.SIGKILL)
        killed.kill()
    assert 3000 < copied(tmp_path) < total, "it was to be killed in the middle"

    with command(tmp_path, config, *small) as stopped:
        begun = copied(tmp_path)
        wait_for(lambda: copied(tmp_path) > begun + 2000, stopped)
        with command(tmp_path, config) as second, pytest.raises(SparkError, match="in use by another mirror"):
            second.wait(PATIENCE_S)
        stopped.terminate()
        assert "stopping after the running batches" in stopped.wait(PATIENCE_S)
    at_stop = copied(tmp_path)

    with command(tmp_path, config, "--through", through, "--metrics", "127.0.0.1:0") as following:
        wait_for(lambda: copied(tmp_path) == total, following)
        produce(tmp_path / "source.db", "eu_orders", 3, range(10_000, 10_100), size=500)
        wait_for(lambda: copied(tmp_path) == total + 300, following)
        produce(tmp_path / "source.db", "eu_bills", 1, range(10_000, 10_100), size=500)
        wait_for(lambda: copied(tmp_path) == total + 400, following)
        following.terminate()
        log = following.wait(PATIENCE_S)
    assert f"{total + 400 - at_stop:,} stored" in log, "what a stop leaves behind is whole batches"
    assert_mirrored(tmp_path, 10_100)


def test_a_route_that_fails_says_why(spark: Any, tmp_path: Path) -> None:
    """Without dead letters the first message that a target refuses stops it."""
    produce(tmp_path / "source.db", "eu_orders", 1, range(20))
    config = configuration(tmp_path, "target")
    config.write_text(config.read_text().replace("delivery: {dead_letter: {cluster: letters, topic: dead}}", ""))
    (progress,) = Mirror(MirrorSettings(config, str(tmp_path / "checkpoint"), follow=False)).run()
    assert progress.error is not None
    assert "refuses" in progress.error
    assert "dead_letter" in progress.error
    assert json.loads((tmp_path / "checkpoint" / "mirror.json").read_text())["routes"].keys() == {"europe"}
