"""What a mirror asks of the source: a route's topics, ranges for so many tasks, targets for what is new, and a stop."""

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
from mqbridge.spark.mirror.targets import prepare
from mqbridge.spark.ranges.rows import RangeRow, parse_ranges
from mqbridge.spark.source.stream_reader import MessageStreamReader
from tests.spark.test_mirror import configuration, produce, stored

ALL = ReadAllAvailable()


def reader_of(config: Path, **options: str) -> MessageStreamReader:
    given = {"config": str(config), "route": "europe", "mode": "ranges", "startingOffsets": "earliest", "metadataInterval": "1ms"}
    source = MqbridgeDataSource({name.lower(): value for name, value in (given | options).items()})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, MessageStreamReader)
    return reader


def ranges_of(reader: MessageStreamReader, start: Any, end: Any) -> list[list[RangeRow]]:
    """Those of each task, as Spark takes them there and back."""
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
    assert len(ranges_of(reader_of(config), start, end)) == 4, "without the option each has a task"


def test_a_new_topic_is_read_once_its_target_is_made(tmp_path: Path) -> None:
    produce(tmp_path / "source.db", "eu_orders", 3, range(10))
    reader = reader_of(configuration(tmp_path, "target"), makeTargets="true", newTopicsInterval="1ms")
    start = reader.initialOffset()
    assert stored(tmp_path / "target.db").keys() == {"copy_orders"}
    produce(tmp_path / "source.db", "eu_more", 2, range(10))
    end = reader.latestOffset(start, ALL)
    assert len(stored(tmp_path / "target.db")["copy_more"]) == 2
    assert end["topics"]["eu_more"] == {"0": "0", "1": "0"}, "it begins with its first message"
    following = reader.latestOffset(end, ALL)
    assert following["topics"]["eu_more"] == {"0": "10", "1": "10"}


def test_no_batch_begins_behind_a_stop(tmp_path: Path) -> None:
    produce(tmp_path / "source.db", "eu_orders", 1, range(10))
    stop = StopFile(tmp_path / "stop")
    reader = reader_of(configuration(tmp_path, "target"), stopFile=str(stop.path))
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) != start
    assert not stop.is_obeyed
    stop.ask()
    assert reader.latestOffset(start, ALL) == start
    assert stop.is_obeyed


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"route": "asia"}, "has no route 'asia'"),
        ({"cluster": "source"}, "the option route goes with config"),
        ({"subscribe": "eu_orders"}, "several options select topics: subscribe and route"),
    ],
)
def test_a_route_says_cluster_and_topics(tmp_path: Path, options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        reader_of(configuration(tmp_path, "target"), **options)


async def test_a_source_that_waits_for_no_mirror_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its group keeps nothing for a mirror, which does not join it."""
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
            await prepare(list(config.routes), {"source": source, "target": target})
    finally:
        for cluster in (source, target):
            await cluster.close()
    assert "cluster source: orders keeps messages for 1 hours only" in caplog.text


def test_a_mirror_that_is_interrupted_leaves_no_query_and_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook the session is somebody else's, and the process lives on."""
    produce(tmp_path / "source.db", "eu_orders", 1, range(10))
    settings = MirrorSettings(configuration(tmp_path, "target"), str(tmp_path / "checkpoint"))
    stopped: list[bool] = []

    class Query:
        isActive = True  # noqa: N815 - Spark's name

        def stop(self) -> None:
            with pytest.raises(ConfigError, match="in use by another mirror"):
                Mirror(settings).run()
            stopped.append(True)

    def start(self: RouteQuery, *_: object) -> None:
        self._query = Query()  # type: ignore[assignment]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "_session", lambda _: nullcontext(MagicMock()))
    monkeypatch.setattr(RouteQuery, "start", start)
    monkeypatch.setattr(Mirror, "_watch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Mirror(settings).run()
    assert stopped == [True]
    assert not background_loop()._shared
