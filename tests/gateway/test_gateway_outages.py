"""An outage and its end are visible: one warning, metrics, readiness with reasons, the lag, and the summary line."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mqbridge.cli.running.gateway import report as closing_line
from mqbridge.gateway import health, lag
from mqbridge.gateway.metrics import source_and_targets
from mqbridge.gateway.metrics.collector import families
from mqbridge.gateway.report import size_text, status_line
from mqbridge.gateway.run import Gateway
from mqbridge.gateway.run_result import RunResult
from mqbridge.message import Message
from tests.gateway.world import World, everything, fill, put, route, running, until
from tests.patience import PATIENCE_S

COUNT = 60


class Page:
    """A client of a gateway's HTTP endpoints."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def get(self, path: str) -> Any:
        return (await self._client.get(path)).json()

    async def ready(self) -> tuple[int, Any]:
        answer = await self._client.get("/health/ready")
        return answer.status_code, answer.json()

    async def metric(self, sample: str) -> float | None:
        """Return the value of one sample, such as `name{label="value"}`; None if it is missing."""
        for text in (await self._client.get("/metrics")).text.splitlines():
            if text.startswith(f"{sample} "):
                return float(text.rpartition(" ")[2])
        return None

    async def until(self, sample: str, at_least: float) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (value := await self.metric(sample)) is None or value < at_least:
                await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(lag, "MEASURE_INTERVAL_S", 0.01)
    monkeypatch.setattr(lag, "TOPIC_PAUSE_S", 0.0)


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        yield Page(client)


def config(world: World, page: Page, *routes: dict[str, Any], **more: Any) -> dict[str, Any]:
    url = page._client.base_url
    return world.config(*routes, http={"listen": f"{url.host}:{url.port}"}, **more)


def outage_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return the log lines about clusters, with their level; no other line is above INFO."""
    loud = [record for record in caplog.records if record.levelno >= logging.WARNING and "cluster" not in record.getMessage()]
    assert loud == []
    return [(r.levelname, r.getMessage()) for r in caplog.records if r.getMessage().startswith("cluster ")]


async def test_an_outage_of_the_target_is_seen_everywhere_and_so_is_its_end(
    world: World, page: Page, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fill(world.a, "t", 2, COUNT)
    async with running(config(world, page, route("r", "a/t", "b/copy")), alone=False) as gateway:
        await until(lambda: len(everything(world.b, "copy")) == COUNT)
        assert await page.metric('mqbridge_cluster_up{cluster="b"}') == 1.0
        assert (await page.ready())[0] == 200
        world.b.disconnect()
        for number in range(COUNT, 2 * COUNT):
            put(world.a, "t", number % 2, b"%d" % number)

        await page.until('mqbridge_lag{route="r",unit="messages"}', COUNT)
        await page.until('mqbridge_in_flight_messages{route="r"}', COUNT)
        assert await page.metric('mqbridge_cluster_up{cluster="b"}') == 0.0
        assert await page.metric('mqbridge_cluster_up{cluster="a"}') == 1.0
        await page.until('mqbridge_cluster_away_seconds{cluster="b"}', 0.001)
        await page.until('mqbridge_target_waiting_seconds{route="r",target="b/copy"}', 0.001)
        await page.until('mqbridge_retries_total{cluster="b"}', 1)
        assert await page.metric('mqbridge_target_sends{route="r",target="b/copy"}') == gateway.routes[0].state.in_flight_batches
        assert await page.metric('mqbridge_partition_lag{partition="1",route="r",topic="t"}') == COUNT / 2
        status, body = await page.ready()
        assert (status, body["ready"]) == (503, False)
        assert body["away"]["b"].endswith("the memory broker is disconnected")
        assert body["clusters"]["b"]["up"] is False
        assert body["clusters"]["a"]["up"] is True
        [row] = await page.get("/routes")
        assert "the memory broker is disconnected" in row["retrying"]
        assert (row["in_flight_messages"], row["lag"]["total"]) == (COUNT, COUNT)
        assert row["waiting_s"].keys() <= {"b/copy"}
        line = status_line(gateway, gateway.routes[0], 0.0)
        assert f"{COUNT} messages (" in line
        assert f"lag {COUNT} messages" in line
        assert "cluster b has been unreachable for" in line

        world.b.reconnect()
        await until(lambda: len(everything(world.b, "copy")) == 2 * COUNT)
        await page.until('mqbridge_cluster_up{cluster="b"}', 1)
        await until(lambda: gateway.lag.of(gateway.routes[0]).total == 0)
        assert (await page.ready())[0] == 200
        assert await page.metric('mqbridge_reconnects_total{cluster="b"}') == 1.0
        assert await page.metric('mqbridge_in_flight_messages{route="r"}') == 0.0
    [away, back] = outage_lines(caplog)
    assert away[0] == "WARNING"
    assert "cluster b cannot be reached" in away[1]
    assert back[0] == "INFO"
    assert "cluster b can be reached again after" in back[1]


async def test_an_outage_of_the_source_keeps_the_lag_that_was_known(
    world: World, page: Page, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fill(world.a, "t", 1, COUNT)
    world.b.create("copy", 1)
    world.b.faults.hold_receipts = True
    async with running(config(world, page, route("r", "a/t", "b/copy")), alone=False):
        await page.until('mqbridge_lag{route="r",unit="messages"}', COUNT)
        world.a.disconnect()
        await page.until('mqbridge_lag_age_seconds{route="r"}', 0.1)
        [row] = await page.get("/routes")
        assert row["lag"]["total"] == COUNT
        assert "disconnected" in row["lag"]["problem"]
        assert await page.metric('mqbridge_cluster_up{cluster="a"}') == 0.0
        assert (await page.ready())[1]["away"].keys() == {"a"}
        world.a.reconnect()
        world.b.release_receipts()
        await until(lambda: everything(world.b, "copy")[-1:] == [COUNT - 1])
    assert [level for level, _ in outage_lines(caplog)] == ["WARNING", "INFO"]


async def test_a_cluster_that_no_route_needs_does_not_make_it_unready(world: World, page: Page) -> None:
    fill(world.a, "t", 1, 1)
    async with running(config(world, page, route("r", "a/t", "b/copy")), alone=False):
        world.c.disconnect()
        status, body = await page.ready()
        assert (status, body["clusters"]["c"]["up"]) == (200, False)
        world.c.reconnect()


async def test_a_target_without_receipts_for_long_is_not_ready(world: World, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cluster is reachable, but stores nothing."""
    monkeypatch.setattr(health, "STUCK_S", 0.05)
    fill(world.a, "t", 1, COUNT)
    world.b.create("copy", 1)
    world.b.faults.hold_receipts = True
    async with running(config(world, page, route("r", "a/t", "b/copy", "c/copy")), alone=False) as gateway:
        await page.until('mqbridge_target_waiting_seconds{route="r",target="b/copy"}', 0.05)
        status, body = await page.ready()
        assert (status, body["stuck"].keys()) == (503, {"r b/copy"})
        assert await page.metric('mqbridge_target_waiting_seconds{route="r",target="c/copy"}') == 0.0
        assert "target b/copy: no receipt for" in status_line(gateway, gateway.routes[0], 0.0)
        world.b.release_receipts()
        await until(lambda: gateway.routes[0].state.in_flight_batches == 0)
        assert (await page.ready())[0] == 200


async def test_a_slow_target_is_not_stuck(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Receipts keep coming, though each batch waits longer than STUCK_S."""
    fill(world.a, "t", 1, 1)
    async with running(world.config(route("r", "a/t", "b/copy"))) as gateway:
        [[progress]] = gateway.routes[0].state.progress.values()
        await until(lambda: not progress.sends_in_flight)
        clock = asyncio.get_running_loop().time
        begin = clock()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: begin)
        for number in range(10):
            progress.count_send()
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda number=number: begin + 50 * number)
            if number:
                progress.count_receipt()
        assert progress.waiting_s(begin + 450) == 0.0
        assert progress.waiting_s(begin + 451) == 1.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)
        progress.count_receipt()


async def test_lag_of_partitions_that_were_never_committed_counts_from_their_beginning(world: World, page: Page) -> None:
    fill(world.a, "t", 2, COUNT)
    world.c.create("copy", 2)
    world.c.faults.hold_receipts = True
    async with running(config(world, page, route("r", "a/t", "c/copy")), alone=False) as gateway:
        await until(lambda: gateway.routes[0].state.in_flight_messages == COUNT)
        world.a.progress.clear()  # as in a system that does not know a group before its first commit
        known = gateway.lag.of(gateway.routes[0])
        known.measured_at, known.partitions = None, {}
        await page.until('mqbridge_lag_age_seconds{route="r"}', 0.0)
        assert (known.total, len(known.partitions)) == (COUNT, 2)
        world.c.release_receipts()
        await until(lambda: gateway.routes[0].state.counters.stored == COUNT)


async def test_series_by_partition_are_bounded_and_totals_are_not(
    world: World, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_and_targets, "MAX_PARTITION_SERIES", 2)
    monkeypatch.setattr(source_and_targets, "MAX_TARGET_SERIES", 1)
    world.a.create("t", 4)
    world.a.create("u", 1)
    for number, partition in enumerate([0, 1, 1, 2, 2, 2, 3, 3, 3, 3]):
        put(world.a, "t", partition, b"%d" % number)
    for name in ("t", "u"):
        world.b.create(name, 4)
    world.b.faults.hold_receipts = True
    async with running(config(world, page, route("r", "a/~.*", "b/{topic}")), alone=False):
        await page.until('mqbridge_lag{route="r",unit="messages"}', 10)
        text = (await page._client.get("/metrics")).text
        shown = [one for one in text.splitlines() if one.startswith("mqbridge_partition_lag{")]
        assert [one.rpartition(" ")[2] for one in shown] == ["4.0", "3.0"]
        assert sum(one.startswith("mqbridge_target_sends{") for one in text.splitlines()) == 1
        [row] = await page.get("/routes")
        assert len(row["lag"]["partitions"]) == 5
        world.b.release_receipts()


async def test_latency_and_times_are_counted_once_per_batch(world: World, page: Page) -> None:
    world.a.create("t", 1)
    put(world.a, "t", 0, *[Message(b"%d" % number, publish_time=1) for number in range(50)])  # in 1970: beyond all buckets
    world.a.create("u", 1)
    put(world.a, "u", 0, b"no time")
    routes = route("r", "a/t", "b/t"), route("timeless", "a/u", "b/u")
    async with running(config(world, page, *routes), alone=False) as gateway:
        await until(lambda: all(one.state.counters.last_stored_at for one in gateway.routes))
        await until(lambda: gateway.routes[0].state.counters.acknowledged == 50)
        batches = gateway.routes[0].state.counters.batches
        assert batches == 3
        assert await page.metric('mqbridge_delivery_seconds_count{route="r"}') == batches
        assert await page.metric('mqbridge_end_to_end_seconds_count{route="r"}') == batches
        assert await page.metric('mqbridge_end_to_end_seconds_bucket{le="7200.0",route="r"}') == 0
        assert await page.metric('mqbridge_delivery_seconds_count{route="timeless"}') == 1
        assert await page.metric('mqbridge_end_to_end_seconds_count{route="timeless"}') == 0
        received = await page.metric('mqbridge_last_received_timestamp_seconds{route="r"}')
        stored = await page.metric('mqbridge_last_stored_timestamp_seconds{route="r"}')
        assert received is not None
        assert stored is not None
        assert 1_600_000_000 < received <= stored + 0.01
        assert await page.metric("mqbridge_reload_ok") == 1.0
        text = (await page._client.get("/metrics")).text
        assert "mqbridge_build_info{compiled=" in text
        shown = {family.name for family in text_string_to_metric_families(text)}
        assert {family.name for family in families()} <= shown


async def test_the_closing_line_names_returned_messages_and_missing_clusters(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(world.a, "t", 1, COUNT)
    outcomes: list[RunResult] = []
    run = Gateway.run

    async def kept(self: Gateway, until_idle_s: float | None = None) -> RunResult:
        outcomes.append(await run(self, until_idle_s))
        return outcomes[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gateway, "run", kept)
        async with running(world.config(route("r", "a/t", "b/copy"), shutdown_timeout="200ms")) as gateway:
            await until(lambda: len(everything(world.b, "copy")) == COUNT)
            world.b.disconnect()
            put(world.a, "t", 0, *[b"%d" % number for number in range(COUNT)])
            await until(lambda: gateway.routes[0].state.in_flight_messages == COUNT)
    capsys.readouterr()  # threads of other tests may have written something
    closing_line(outcomes[0])
    first, second = capsys.readouterr().err.splitlines()
    assert f"{COUNT} given back, to be delivered again" in first
    assert second.startswith("cluster b has been unreachable for ")
    assert outcomes[0].as_json()["away"].keys() == {"b"}


def test_a_size_above_zero_never_shows_as_zero() -> None:
    assert [size_text(size) for size in (0, 199, 20_000, 3_400_000, 2 * 10**9)] == ["0 B", "199 B", "20.0 kB", "3.4 MB", "2.0 GB"]
