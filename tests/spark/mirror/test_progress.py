"""The progress of a mirror: rates, remaining time, metrics, the stop file, and the causes of Spark's errors."""

import socket
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mqbridge.config.load import from_dict
from mqbridge.spark.mirror.failures import find_cause
from mqbridge.spark.mirror.metrics import MirrorCollector, serve
from mqbridge.spark.mirror.progress import WINDOW_S, Backlog, RouteProgress, format_seconds
from mqbridge.spark.mirror.route_query import RouteQuery
from mqbridge.spark.mirror.settings import MirrorSettings
from mqbridge.spark.mirror.stop import StopFile


def begin_progress(earlier_totals: dict[str, int] | None = None) -> RouteProgress:
    progress = RouteProgress("orders", 100.0)
    progress.begin(earlier_totals or {})
    return progress


def test_rates_are_computed_from_the_last_batches() -> None:
    progress = begin_progress()
    progress.record_batch(110.0, {"stored": 1000, "bytes": 10_000_000}, 10.0)
    assert progress.rates(110.0) == (100.0, 1_000_000.0)
    for second in range(1, 41):
        progress.record_batch(110.0 + second, {"stored": 1000 + 500 * second, "bytes": 10_000_000}, 1.0)
    messages_per_s, bytes_per_s = progress.rates(150.0)
    assert messages_per_s == pytest.approx(500.0)
    assert bytes_per_s == 0.0
    assert progress.rates(150.0 + 2 * WINDOW_S)[0] < 200, "the rate falls while no batch completes"


def test_totals_include_earlier_runs_and_run_totals_do_not() -> None:
    progress = begin_progress({"stored": 5000, "received": 5000})
    progress.record_batch(101.0, {"stored": 6000, "received": 6000, "dead": 1}, 1.0)
    assert progress.run_totals() == {"stored": 1000, "received": 1000, "dead": 1}
    assert progress.totals["stored"] == 6000
    assert progress.rates(101.0)[0] == 1000.0


def test_the_remaining_time_follows_from_the_shrinking_backlog() -> None:
    progress = begin_progress()
    assert progress.left_s is None
    progress.record_backlog(Backlog(1000, "messages", 100.0))
    assert progress.left_s is None, "one measurement is not enough"
    progress.record_backlog(Backlog(800, "messages", 110.0))
    assert progress.left_s == 40.0
    progress.record_backlog(Backlog(900, "messages", 120.0))
    assert progress.left_s is None, "the backlog grows"
    progress.record_backlog(Backlog(0, "messages", 130.0))
    assert progress.left_s == 0.0
    assert progress.line(130.0) == "route orders: 0 stored, 0/s, 0.0 MB/s, caught up"


def test_the_progress_line_has_totals_rates_backlog_and_remaining_time() -> None:
    progress = begin_progress({"stored": 7})
    progress.record_batch(110.0, {"stored": 10_007, "bytes": 50_000_000, "dead": 2}, 10.0)
    progress.record_backlog(Backlog(90_000, "messages", 100.0))
    progress.record_backlog(Backlog(80_000, "messages", 110.0))
    assert progress.line(110.0) == (
        "route orders: 10,000 stored, 2 dead letters, 1,000/s, 5.0 MB/s, 80,000 messages behind, 80 s left"
    )
    assert [format_seconds(seconds) for seconds in (0.2, 89, 700, 11_100)] == ["1 s", "89 s", "12 min", "3 h 05 min"]


def test_metrics_have_the_same_names_as_in_the_gateway() -> None:
    progress = begin_progress({"stored": 5})
    registry = CollectorRegistry()
    registry.register(MirrorCollector(lambda: [progress]))
    progress.batches = 1
    progress.record_batch(101.0, {"stored": 12, "received": 13, "dead": 1, "bytes": 99}, 1.5)
    progress.record_backlog(Backlog(80, "entries", 101.0))
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


def test_the_metrics_server_frees_its_port_when_it_stops() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for _ in range(2):
        stop = serve("127.0.0.1", port, list)
        stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def query_of(folder: Path) -> RouteQuery:
    route = {"name": "orders", "from": {"cluster": "a", "topic": "orders", "group": "g"}, "to": {"cluster": "b"}}
    config = from_dict({"clusters": {name: {"system": "memory"} for name in "ab"}, "routes": [route]})
    settings = MirrorSettings(folder / "config.yaml", str(folder))
    return RouteQuery(config.routes[0], str(folder), StopFile(folder / "stop"), settings)


def test_a_damaged_progress_file_of_the_sink_leaves_the_totals_empty(tmp_path: Path) -> None:
    """The sink itself reports the error."""
    (tmp_path / "mqbridge").mkdir()
    (tmp_path / "mqbridge" / "progress.1").write_text('{"version": 1, "comm')
    assert query_of(tmp_path)._read_totals() == {}


def test_all_batches_with_rows_are_counted_even_with_rare_updates(tmp_path: Path) -> None:
    class FakeQuery:
        def __init__(self) -> None:
            self.isActive, self.recentProgress = True, list[dict[str, object]]()

        @property
        def lastProgress(self) -> object:  # noqa: N802 - Spark's name
            return self.recentProgress[-1] if self.recentProgress else None

        def report_batch(self, batch: int, rows: int) -> None:
            offsets = '{"topics": {"orders": {"0": "5"}}, "version": 1}'
            report = {"batchId": batch, "numInputRows": rows, "batchDuration": 1000, "sources": [{"endOffset": offsets}]}
            self.recentProgress.append(report)

    query, fake_query = query_of(tmp_path), FakeQuery()
    query._query = fake_query  # type: ignore[assignment]
    query.update()
    counts = []
    for batches in ([(7, 3), (8, 1), (9, 2)], [], [(10, 0)], [(11, 4), (12, 1)]):
        for batch, rows in batches:
            fake_query.report_batch(batch, rows)
        query.update()
        counts.append(query.progress.batches)
    assert counts == [3, 3, 3, 5]


def test_a_stop_is_confirmed_only_after_it_was_requested(tmp_path: Path) -> None:
    driver, source = StopFile(tmp_path / "orders.stop"), StopFile(tmp_path / "orders.stop")
    assert not source.confirm()
    assert not driver.is_confirmed
    driver.request()
    assert not driver.is_confirmed
    assert source.confirm()
    assert driver.is_confirmed


STACK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted: Task 0 in stage 1.0 failed
Traceback (most recent call last):
  File "/x/transfer.py", line 5, in run
{}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            STACK.format("mqbridge.errors.DeliveryError: b/t refuses it. Configure `dead_letter`"),
            "b/t refuses it. Configure `dead_letter`",
        ),
        (STACK.format("ValueError: no good"), "ValueError: no good"),
        ("[STREAM_FAILED] Query [id = 1] terminated with exception: out of memory\nat x", "out of memory"),
        ("", "unknown cause: Spark reported no error text"),
    ],
)
def test_the_cause_of_a_failed_query_is_one_line(text: str, cause: str) -> None:
    assert find_cause(text) == cause
