"""Mirrors between embedded logs: the same result as with the gateway, and every message once if a mirror is killed or stopped."""

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

from mqbridge.adapter import reading
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share, split_origin

pytest.importorskip("pyspark")

from mqbridge.spark.mirror.job import Mirror
from mqbridge.spark.mirror.settings import MirrorSettings, Through
from tests.kit.spark import REPOSITORY, SparkError, SparkProgram

PATIENCE_S = 300.0
TOPICS = {"eu_orders": 3, "eu_bills": 1}


def configuration(folder: Path, target: str) -> Path:
    """Write a configuration whose route has a pattern, a template, a filter, an edit, a partition rule and dead letters."""
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
    """Write a configuration whose route copies each topic unchanged."""
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
    """Store messages in all partitions: the route filters some of them, and some are too large for its target."""

    def message(n: int) -> Message:
        payload = b"%d " % n + bytes(3000 if size == 10 and n % 97 == 5 else size)
        return Message(payload, key=f"k{n % 7}", msg_type="noise" if n % 10 == 3 else "order", properties=(("n", str(n)),))

    async def send() -> None:
        cluster = LogCluster("source", LogSettings(path=str(path)))
        await cluster.connect()
        try:
            await cluster.create(topic, partitions)
            outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
            messages = [message(n) for n in numbers]
            for partition in range(partitions):
                for begin in range(0, len(messages), 200):
                    assert not (await outbound.send(partition, Share(Batch.of(messages[begin : begin + 200])))).failures
            await outbound.close()
        finally:
            await cluster.close()

    asyncio.run(send())


def read_log(path: Path) -> dict[str, list[list[Message]]]:
    """Return all messages of a log, by topic and partition."""

    async def read() -> dict[str, list[list[Message]]]:
        cluster = LogCluster("any", LogSettings(path=str(path)))
        await cluster.connect()
        try:
            by_topic: dict[str, list[list[Message]]] = {}
            for topic in await cluster.topics():
                for name, bounds in sorted((await cluster.bounds(topic)).items()):
                    messages: list[Message] = []
                    async with aclosing(reading.read(cluster, topic, name, bounds.first, bounds.next)) as batches:
                        async for batch in batches:
                            messages += batch.messages
                    by_topic.setdefault(topic, []).append(messages)
            return by_topic
        finally:
            await cluster.close()

    return asyncio.run(read())


def read_result(folder: Path, target: str) -> dict[Any, list[Any]]:
    """Return the stored messages by target and source partition. Only the order within a source partition is defined."""
    log = read_log(folder / f"{target}.db") | read_log(folder / f"{target}-dead.db")
    contents: dict[Any, list[Any]] = {}
    for topic, partitions in log.items():
        for index, messages in enumerate(partitions):
            for message in messages:
                cluster, source, name, position = split_origin(message.origin or "")
                content = (
                    position, message.payload, message.key, message.msg_type, message.property("n"), message.property("by"),
                )  # fmt: skip
                contents.setdefault((topic, index, cluster, source, name), []).append(content)
    for (topic, *_), messages_of_source in contents.items():
        if topic == "dead":  # dead letters have no order
            messages_of_source.sort()
    return contents


def assert_mirrored(folder: Path, count: int) -> None:
    """Assert that the target has every message of all topics once, in order, in its own partition."""
    source, target = read_log(folder / "source.db"), read_log(folder / "target.db")
    assert source.keys() == target.keys()
    for topic, partitions in source.items():
        source_payloads = [[message.payload for message in messages] for messages in partitions]
        assert [[message.payload for message in messages] for messages in target[topic]] == source_payloads
        assert all(len(messages) == count for messages in partitions)


def run_mirror(folder: Path, config: Path, **settings: Any) -> dict[str, Any]:
    """Run a mirror with one route until it ends, and return the route's counts and number of batches."""
    (progress,) = Mirror(MirrorSettings(config, str(folder / "checkpoint"), **settings)).run()
    assert progress.error is None
    return progress.run_totals() | {"batches": progress.batches}


@pytest.mark.parametrize("through", ["pump", "rows"])
def test_a_mirror_stores_the_same_as_the_gateway(spark: Any, tmp_path: Path, through: Through) -> None:
    for topic, partitions in TOPICS.items():
        produce(tmp_path / "source.db", topic, partitions, range(400))
    gateway = [sys.executable, "-m", "mqbridge", "run", str(configuration(tmp_path, "gateway")), "--until-idle", "0.5"]
    subprocess.run(gateway, check=True, cwd=REPOSITORY, timeout=PATIENCE_S)
    config = configuration(tmp_path, "target")
    counts = run_mirror(tmp_path, config, through=through, follow=False, batch_bytes=60_000)
    assert counts["batches"] > 1
    assert read_result(tmp_path, "target") == read_result(tmp_path, "gateway")
    unfiltered = 1600 - counts["filtered"]
    assert (counts["received"], counts["stored"] + counts["dead"], counts["skipped"]) == (1600, unfiltered, 0)
    assert counts["dead"] > 0

    # The second run reads more messages of one topic, and a new topic that the pattern matches.
    produce(tmp_path / "source.db", "eu_orders", 3, range(400, 500))
    produce(tmp_path / "source.db", "eu_more", 2, range(100))
    subprocess.run(gateway, check=True, cwd=REPOSITORY, timeout=PATIENCE_S)
    counts = run_mirror(tmp_path, config, through=through, follow=False)
    assert read_result(tmp_path, "target") == read_result(tmp_path, "gateway")
    assert counts["received"] == 500


def start_mirror(folder: Path, config: Path, *options: str) -> SparkProgram:
    """Start the command `mqbridge spark mirror` in another process."""
    conf = ["--set", "spark.ui.enabled=false", "--set", "spark.driver.memory=1g", "--set", "spark.driver.host=127.0.0.1"]
    arguments = ["-m", "mqbridge", "spark", "mirror", str(config), "--checkpoint", str(folder / "checkpoint")]
    return SparkProgram(folder / "program", *arguments, "--master", "local[2]", *conf, *options)


def wait_for(condition: Callable[[], bool], program: SparkProgram) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert program.running, program.log[-4000:]
        assert time.monotonic() < deadline, program.log[-4000:]
        time.sleep(0.1)


def count_target(folder: Path) -> int:
    """Return how many messages the target has stored."""

    async def count() -> int:
        cluster = LogCluster("any", LogSettings(path=str(folder / "target.db")))
        await cluster.connect()
        try:
            all_bounds = [bounds for topic in await cluster.topics() for bounds in (await cluster.bounds(topic)).values()]
            return sum(bounds.next[0] - bounds.first[0] for bounds in all_bounds)
        finally:
            await cluster.close()

    return asyncio.run(count()) if (folder / "target.db").exists() else 0


@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("through", ["pump", "rows"])
def test_every_message_is_stored_once_after_a_kill_and_a_stop(tmp_path: Path, through: Through) -> None:
    config = plain_configuration(tmp_path)
    for topic, partitions in TOPICS.items():
        produce(tmp_path / "source.db", topic, partitions, range(10_000), size=500)
    total = 10_000 * sum(TOPICS.values())

    small_batches = ("--through", through, "--max-bytes-per-batch", "2MB")
    with start_mirror(tmp_path, config, *small_batches) as killed:
        wait_for(lambda: count_target(tmp_path) > 3000, killed)
        os.kill(killed.pid, signal.SIGKILL)
        killed.kill()
    assert 3000 < count_target(tmp_path) < total, "the mirror must be killed before its end"

    with start_mirror(tmp_path, config, *small_batches) as stopped:
        stored_at_start = count_target(tmp_path)
        wait_for(lambda: count_target(tmp_path) > stored_at_start + 2000, stopped)
        with start_mirror(tmp_path, config) as second, pytest.raises(SparkError, match="in use by another mirror"):
            second.wait(PATIENCE_S)
        stopped.terminate()
        assert "stopping after the running batches" in stopped.wait(PATIENCE_S)
    stored_at_stop = count_target(tmp_path)

    with start_mirror(tmp_path, config, "--through", through, "--metrics", "127.0.0.1:0") as following:
        wait_for(lambda: count_target(tmp_path) == total, following)
        produce(tmp_path / "source.db", "eu_orders", 3, range(10_000, 10_100), size=500)
        wait_for(lambda: count_target(tmp_path) == total + 300, following)
        produce(tmp_path / "source.db", "eu_bills", 1, range(10_000, 10_100), size=500)
        wait_for(lambda: count_target(tmp_path) == total + 400, following)
        following.terminate()
        log = following.wait(PATIENCE_S)
    assert f"{total + 400 - stored_at_stop:,} stored" in log, "the stop left only complete batches"
    assert_mirrored(tmp_path, 10_100)


def test_a_failed_route_has_the_cause_in_its_progress(spark: Any, tmp_path: Path) -> None:
    """Without dead letters, the first message that a target refuses stops the route."""
    produce(tmp_path / "source.db", "eu_orders", 1, range(20))
    config = configuration(tmp_path, "target")
    config.write_text(config.read_text().replace("delivery: {dead_letter: {cluster: letters, topic: dead}}", ""))
    (progress,) = Mirror(MirrorSettings(config, str(tmp_path / "checkpoint"), follow=False)).run()
    assert progress.error is not None
    assert "refuses" in progress.error
    assert "dead_letter" in progress.error
    assert json.loads((tmp_path / "checkpoint" / "mirror.json").read_text())["routes"].keys() == {"europe"}
