"""The source in a mirror: topics of a route, ranges divided among tasks, targets of new topics, and stop requests."""

import logging
import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from mqbridge.config.load import from_dict
from mqbridge.errors import ConfigError
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.data_source import MqbridgeDataSource
from mqbridge.spark.mirror import job
from mqbridge.spark.mirror.job import Mirror
from mqbridge.spark.mirror.route_query import RouteQuery
from mqbridge.spark.mirror.settings import MirrorSettings
from mqbridge.spark.mirror.stop import StopFile
from mqbridge.spark.mirror.targets import prepare_targets
from mqbridge.spark.ranges.rows import RangeRow, parse_ranges
from mqbridge.spark.source.stream_reader import MessageStreamReader
from tests.spark.test_mirror import configuration, produce, read_log

ALL = ReadAllAvailable()


def reader_of(config: Path, **options: str) -> MessageStreamReader:
    """Return the source of the route `europe` in the mode `ranges`, with these options in addition."""
    defaults = {
        "config": str(config),
        "route": "europe",
        "mode": "ranges",
        "startingOffsets": "earliest",
        "metadataInterval": "1ms",
    }
    source = MqbridgeDataSource({name.lower(): value for name, value in (defaults | options).items()})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, MessageStreamReader)
    return reader


def ranges_of(reader: MessageStreamReader, start: Any, end: Any) -> list[list[RangeRow]]:
    """Return the ranges of each task. Pickles tasks and reader as Spark does."""
    tasks = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    worker: MessageStreamReader = pickle.loads(pickle.dumps(reader))
    return [[row for rows in worker.read(task) for row in parse_ranges(rows)] for task in tasks]


def test_the_ranges_of_a_batch_are_divided_among_the_tasks(tmp_path: Path) -> None:
    produce(tmp_path / "source.db", "eu_orders", 3, range(200))
    produce(tmp_path / "source.db", "eu_bills", 1, range(50))
    produce(tmp_path / "source.db", "us_orders", 1, range(50))
    config = configuration(tmp_path, "target")
    reader = reader_of(config, rangeTasks="2")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    tasks = ranges_of(reader, start, end)
    assert len(tasks) == 2
    rows = sorted((row.partition.topic, row.partition.index, row.begin, row.end) for task in tasks for row in task)
    assert rows == [("eu_bills", 0, (0,), (50,)), *(("eu_orders", index, (0,), (200,)) for index in range(3))]
    assert all(row.partition.cluster == "source" and row.estimated_messages for task in tasks for row in task)
    assert len(ranges_of(reader_of(config), start, end)) == 4, "without the option, each range has its own task"


def test_a_new_topic_is_read_after_its_target_is_created(tmp_path: Path) -> None:
    produce(tmp_path / "source.db", "eu_orders", 3, range(10))
    reader = reader_of(configuration(tmp_path, "target"), makeTargets="true", newTopicsInterval="1ms")
    start = reader.initialOffset()
    assert read_log(tmp_path / "target.db").keys() == {"copy_orders"}
    produce(tmp_path / "source.db", "eu_more", 2, range(10))
    end = reader.latestOffset(start, ALL)
    assert len(read_log(tmp_path / "target.db")["copy_more"]) == 2
    assert end["topics"]["eu_more"] == {"0": "0", "1": "0"}, "the new topic begins at its first message"
    next_end = reader.latestOffset(end, ALL)
    assert next_end["topics"]["eu_more"] == {"0": "10", "1": "10"}


def test_a_mirror_does_not_read_what_it_writes(tmp_path: Path) -> None:
    """Neither copies nor dead letters, although the pattern matches them."""
    path = tmp_path / "one.db"
    produce(path, "orders", 1, range(10))
    produce(path, "dead", 1, range(1))
    config = tmp_path / "mirror.yaml"
    config.write_text(
        f"""
        clusters: {{one: {{system: log, path: {path}}}}}
        routes:
          - name: europe
            from: {{cluster: one, topic: "~.*", group: g}}
            to: {{cluster: one, topic: "{{topic}}-copy"}}
            delivery: {{dead_letter: {{cluster: one, topic: dead}}}}
        """
    )
    reader = reader_of(config, makeTargets="true", newTopicsInterval="1ms")
    offsets = reader.initialOffset()
    for _ in range(3):
        offsets = reader.latestOffset(offsets, ALL)
    assert offsets["topics"].keys() == {"orders"}
    assert read_log(path).keys() == {"orders", "dead", "orders-copy"}


def test_no_batch_begins_after_a_stop_request(tmp_path: Path) -> None:
    produce(tmp_path / "source.db", "eu_orders", 1, range(10))
    stop_file = StopFile(tmp_path / "stop")
    reader = reader_of(configuration(tmp_path, "target"), stopFile=str(stop_file.path))
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) != start
    assert not stop_file.is_confirmed
    stop_file.request()
    assert reader.latestOffset(start, ALL) == start
    assert stop_file.is_confirmed


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"route": "asia"}, "has no route 'asia'"),
        ({"cluster": "source"}, "the option route needs config"),
        ({"subscribe": "eu_orders"}, "several options select topics: subscribe and route"),
    ],
)
def test_the_option_route_excludes_options_for_cluster_and_topics(tmp_path: Path, options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        reader_of(configuration(tmp_path, "target"), **options)


async def test_a_source_with_short_retention_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A mirror does not join the route's group, so the group retains no messages for it."""
    source = LogCluster("source", LogSettings(path=str(tmp_path / "source.db"), retention="1h"))
    target = LogCluster("target", LogSettings(path=str(tmp_path / "target.db")))
    config = from_dict(
        {
            "clusters": {name: {"system": "log", "path": str(tmp_path / f"{name}.db")} for name in ("source", "target")},
            "routes": [
                {"name": "r", "from": {"cluster": "source", "topic": "orders", "group": "g"}, "to": {"cluster": "target"}}
            ],
        }
    )
    for cluster in (source, target):
        await cluster.connect()
    try:
        await source.create("orders", 1)
        with caplog.at_level(logging.WARNING):
            await prepare_targets(list(config.routes), {"source": source, "target": target})
    finally:
        for cluster in (source, target):
            await cluster.close()
    assert "cluster source: orders keeps messages for only 1 hours" in caplog.text


def test_an_interrupted_mirror_leaves_no_query_and_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook, the Spark session and the process live on after the mirror."""
    produce(tmp_path / "source.db", "eu_orders", 1, range(10))
    settings = MirrorSettings(configuration(tmp_path, "target"), str(tmp_path / "checkpoint"))
    stopped: list[bool] = []

    class FakeQuery:
        isActive = True  # noqa: N815 - Spark's name

        def stop(self) -> None:
            with pytest.raises(ConfigError, match="in use by another mirror"):
                Mirror(settings).run()
            stopped.append(True)

    def start(self: RouteQuery, *_: object) -> None:
        self._query = FakeQuery()  # type: ignore[assignment]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "_session", lambda _: nullcontext(MagicMock()))
    monkeypatch.setattr(RouteQuery, "start", start)
    monkeypatch.setattr(Mirror, "_watch_queries", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Mirror(settings).run()
    assert stopped == [True]
    assert not background_loop()._shared_clusters
