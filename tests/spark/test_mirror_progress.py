"""Rates, time left, the stop file, and what Spark's errors go back to."""

import socket
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mqbridge.config.load import from_dict
from mqbridge.spark.mirror.failures import reason_of
from mqbridge.spark.mirror.metrics import MirrorCollector, serve
from mqbridge.spark.mirror.progress import WINDOW_S, Backlog, RouteProgress, format_left
from mqbridge.spark.mirror.route_query import RouteQuery
from mqbridge.spark.mirror.settings import MirrorSettings
from mqbridge.spark.mirror.stop import StopFile


def begun(before: dict[str, int] | None = None) -> RouteProgress:
    progress = RouteProgress("orders", 100.0)
    progress.begin(before or {})
    return progress


def test_rates_are_those_of_the_last_batches() -> None:
    progress = begun()
    progress.batch_done(110.0, {"stored": 1000, "bytes": 10_000_000}, 10.0)
    assert progress.rates(110.0) == (100.0, 1_000_000.0)
    for second in range(1, 41):
        progress.batch_done(110.0 + second, {"stored": 1000 + 500 * second, "bytes": 10_000_000}, 1.0)
    messages, size = progress.rates(150.0)
    assert messages == pytest.approx(500.0)
    assert size == 0.0
    assert progress.rates(150.0 + 2 * WINDOW_S)[0] < 200, "it falls while nothing comes"


def test_earlier_runs_count_in_the_totals_and_not_in_the_run() -> None:
    progress = begun({"stored": 5000, "received": 5000})
    progress.batch_done(101.0, {"stored": 6000, "received": 6000, "dead": 1}, 1.0)
    assert progress.run_totals() == {"stored": 1000, "received": 1000, "dead": 1}
    assert progress.totals["stored"] == 6000
    assert progress.rates(101.0)[0] == 1000.0


def test_the_time_left_goes_by_how_the_backlog_shrinks() -> None:
    progress = begun()
    assert progress.left_s is None
    progress.measured(Backlog(1000, "messages", 100.0))
    assert progress.left_s is None, "one measurement says nothing"
    progress.measured(Backlog(800, "messages", 110.0))
    assert progress.left_s == 40.0
    progress.measured(Backlog(900, "messages", 120.0))
    assert progress.left_s is None, "it grows"
    progress.measured(Backlog(0, "messages", 130.0))
    assert progress.left_s == 0.0
    assert progress.line(130.0) == "route orders: 0 stored, 0/s, 0.0 MB/s, caught up"


def test_the_line_says_what_is_done_and_left() -> None:
    progress = begun({"stored": 7})
    progress.batch_done(110.0, {"stored": 10_007, "bytes": 50_000_000, "dead": 2}, 10.0)
    progress.measured(Backlog(90_000, "messages", 100.0))
    progress.measured(Backlog(80_000, "messages", 110.0))
    assert progress.line(110.0) == (
        "route orders: 10,000 stored, 2 dead letters, 1,000/s, 5.0 MB/s, 80,000 messages behind, 80 s left"
    )
    assert [format_left(seconds) for seconds in (0.2, 89, 700, 11_100)] == ["1 s", "89 s", "12 min", "3 h 05 min"]


def test_metrics_have_the_names_of_the_gateway() -> None:
    progress = begun({"stored": 5})
    registry = CollectorRegistry()
    registry.register(MirrorCollector(lambda: [progress]))
    progress.batches = 1
    progress.batch_done(101.0, {"stored": 12, "received": 13, "dead": 1, "bytes": 99}, 1.5)
    progress.measured(Backlog(80, "entries", 101.0))
    page = generate_latest(registry).decode()
    for line in (
        'mqbridge_stored_messages_total{route="orders"} 12.0',
        'mqbridge_received_messages_total{route="orders"} 13.0',
        'mqbridge_dead_letters_total{route="orders"} 1.0',
        'mqbridge_received_bytes_total{route="orders"} 99.0',
        'mqbridge_mirror_batches_total{route="orders"} 1.0',
        'mqbridge_lag{route="orders",unit="entries"} 80.0',
        'mqbridge_mirror_batch_seconds{route="orders"} 1.5',
        'mqbridge_route_up{route="orders"} 1.0',
    ):
        assert line in page
    progress.error = "no such topic"
    assert 'mqbridge_route_up{route="orders"} 0.0' in generate_latest(registry).decode()


def test_an_address_of_metrics_is_free_when_the_mirror_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(2):
        serve("127.0.0.1", port, list)()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def query_of(folder: Path) -> RouteQuery:
    route = {"name": "orders", "from": {"cluster": "a", "topic": "orders", "group": "g"}, "to": {"cluster": "b"}}
    config = from_dict({"clusters": {name: {"system": "memory"} for name in "ab"}, "routes": [route]})
    settings = MirrorSettings(folder / "config.yaml", str(folder))
    return RouteQuery(config.routes[0], str(folder), StopFile(folder / "stop"), settings)


def test_a_damaged_progress_of_the_sink_is_for_the_sink_to_complain_about(tmp_path: Path) -> None:
    (tmp_path / "mqbridge").mkdir()
    (tmp_path / "mqbridge" / "progress.1").write_text('{"version": 1, "comm')
    assert query_of(tmp_path)._totals() == {}


def test_batches_are_counted_however_rarely_one_looks(tmp_path: Path) -> None:
    """Batches without anything do not count."""

    class Query:
        def __init__(self) -> None:
            self.isActive, self.recentProgress = True, list[dict[str, object]]()

        @property
        def lastProgress(self) -> object:  # noqa: N802 - Spark's name
            return self.recentProgress[-1] if self.recentProgress else None

        def done(self, batch: int, rows: int) -> None:
            offsets = '{"topics": {"orders": {"0": "5"}}, "version": 1}'
            report = {"batchId": batch, "numInputRows": rows, "batchDuration": 1000, "sources": [{"endOffset": offsets}]}
            self.recentProgress.append(report)

    query, spark = query_of(tmp_path), Query()
    query._query = spark  # type: ignore[assignment]
    query.look()
    counts = []
    for batches in ([(7, 3), (8, 1), (9, 2)], [], [(10, 0)], [(11, 4), (12, 1)]):
        for batch, rows in batches:
            spark.done(batch, rows)
        query.look()
        counts.append(query.progress.batches)
    assert counts == [3, 3, 3, 5]


def test_a_stop_is_over_when_the_source_has_heard_of_it(tmp_path: Path) -> None:
    driver, source = StopFile(tmp_path / "orders.stop"), StopFile(tmp_path / "orders.stop")
    assert not source.obey()
    assert not driver.is_obeyed, "what was not asked is not obeyed"
    driver.ask()
    assert not driver.is_obeyed
    assert source.obey()
    assert driver.is_obeyed


STACK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted: Task 0 in stage 1.0 failed
Traceback (most recent call last):
  File "/x/transfer.py", line 5, in run
{}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            STACK.format("mqbridge.errors.DeliveryError: b/t refuses it. Configure `dead_letter`"),
            "b/t refuses it. Configure `dead_letter`",
        ),
        (STACK.format("ValueError: no good"), "ValueError: no good"),
        ("[STREAM_FAILED] Query [id = 1] terminated with exception: nobody knows\nat x", "nobody knows"),
        ("", "no reason is known"),
    ],
)
def test_the_reason_of_a_failure_is_one_sentence(text: str, reason: str) -> None:
    assert reason_of(text) == reason
