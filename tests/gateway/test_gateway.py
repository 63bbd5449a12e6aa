"""The gateway with memory clusters: acknowledged messages are stored, whatever goes wrong in between."""

import asyncio
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.config.load import from_dict
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.gateway.run import Gateway
from mqbridge.gateway.run_result import RunResult
from mqbridge.message import Message, split_origin
from mqbridge.testing.memory.adapter.registration import ADAPTER
from mqbridge.testing.memory.broker import Broker, delete_broker, get_broker
from tests.patience import PATIENCE_S

ADAPTERS = {"memory": ADAPTER}
COUNT = 3000


@pytest.fixture
def name() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    for suffix in ("-source", "-target"):
        delete_broker(name + suffix)


def put(made: Broker, topic: str, number: int, message: Message) -> None:
    """Store a message as a producer does."""
    partition = made.topics[topic][number]
    partition.append([message.replace(position=(partition.next,))])


@pytest.fixture(params=["in order", "individually"])
async def source(request: pytest.FixtureRequest, name: str) -> Broker:
    """Make a broker with COUNT messages; `individual` tells whether they are acknowledged individually."""
    made = get_broker(name + "-source")
    made.create("orders", 3)
    for number in range(COUNT):
        key = f"k{number % 7}"
        put(made, "orders", number % 3, Message(b"%d" % number, (("n", str(number)),), key=key, msg_type=f"t{number % 2}"))
    made.individual = request.param == "individually"  # type: ignore[attr-defined]
    return made


@pytest.fixture
def target(name: str) -> Broker:
    return get_broker(name + "-target")


def settings(made: Broker, name: str, **route: Any) -> dict[str, Any]:
    """Make a configuration of one route; keyword arguments replace or extend its parts."""
    individual = made.individual  # type: ignore[attr-defined]
    delivery = {"retry": {"max_elapsed": "5s"}} | route.pop("delivery", {})
    return {
        "clusters": {
            "a": {"system": "memory", "broker": name + "-source", "individual_ack": individual, "batch_messages": 50},
            "b": {"system": "memory", "broker": name + "-target"},
        },
        "http": {"enabled": False},
        "shutdown_timeout": "5s",
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "a", "topic": "orders", "group": "g"} | route.pop("source", {}),
                "to": {"cluster": "b", "topic": "{topic}-copy"} | route.pop("to", {}),
                "delivery": delivery,
            }
        ],
    } | route


async def run(config: dict[str, Any], until_idle_s: float = 0.3) -> RunResult:
    return await Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS).run(until_idle_s)


def stored(target: Broker, topic: str = "orders-copy") -> list[list[bytes]]:
    return [[message.payload or b"" for message in partition.messages] for partition in target.topics[topic]]


def committed(source: Broker) -> int:
    return sum(progress.committed for (group, _, _), progress in source.progress.items() if group == "g")


EXPECTED = [[b"%d" % number for number in range(partition, COUNT, 3)] for partition in range(3)]


async def test_all_arrive_in_order_and_are_acknowledged(source: Broker, target: Broker, name: str) -> None:
    outcome = await run(settings(source, name))
    assert outcome.clean
    assert stored(target) == EXPECTED
    assert committed(source) == COUNT
    message = target.topics["orders-copy"][1].messages[2]
    assert split_origin(message.origin or "") == ("a", "orders", "1", (2,))


async def test_nothing_is_acknowledged_before_it_is_stored(source: Broker, target: Broker, name: str) -> None:
    target.create("orders-copy", 3)
    target.faults.hold_receipts = True
    gateway = Gateway(from_dict(settings(source, name), adapters=ADAPTERS), ADAPTERS)
    task = asyncio.ensure_future(gateway.run())
    while not target.withheld_receipts:
        await asyncio.sleep(0.01)
    assert committed(source) == 0
    target.release_receipts()
    while committed(source) < COUNT:
        await asyncio.sleep(0.01)
    gateway.stop()
    assert (await task).clean
    assert stored(target) == EXPECTED


async def test_the_budget_bounds_the_bytes_in_flight(source: Broker, target: Broker, name: str) -> None:
    for partition in source.topics["orders"]:
        partition.messages[:] = [message.replace(payload=b"x" * 1000) for message in partition.messages]
    target.create("orders-copy", 3)
    target.faults.hold_receipts = True
    gateway = Gateway(from_dict(settings(source, name, delivery={"in_flight_bytes": "512KiB"}), adapters=ADAPTERS), ADAPTERS)
    task = asyncio.ensure_future(gateway.run())
    while len(target.withheld_receipts) < 3:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    [route] = gateway.routes
    assert 0 < route.state.budget.used <= 256 << 10, "half of the limit is for sends"
    lanes = route.state.deliveries.values()
    read_ahead_bytes = sum(delivery.lane.held_bytes for delivery in lanes)  # type: ignore[attr-defined]
    assert read_ahead_bytes <= 256 << 10, "the other half is for batches read ahead, of all partitions together"
    target.release_receipts()
    gateway.stop()
    assert (await task).clean
    assert route.state.budget.used == 0


async def test_messages_keep_their_order_during_transient_faults(source: Broker, target: Broker, name: str) -> None:
    target.create("orders-copy", 3)
    target.faults.transient = 20
    outcome = await run(settings(source, name))
    assert outcome.clean
    assert stored(target) == EXPECTED


async def test_a_stop_in_the_middle_and_a_restart_repeat_nothing(source: Broker, target: Broker, name: str) -> None:
    target.create("orders-copy", 3)
    target.faults.receipt_delay_s = 0.01
    gateway = Gateway(from_dict(settings(source, name, delivery={"in_flight_bytes": "64KiB"}), adapters=ADAPTERS), ADAPTERS)
    task = asyncio.ensure_future(gateway.run())
    while committed(source) < 200:
        await asyncio.sleep(0)
    gateway.stop()
    assert (await task).clean
    assert committed(source) >= 200
    target.faults.receipt_delay_s = 0
    await run(settings(source, name))
    assert stored(target) == EXPECTED


async def test_no_message_of_a_revoked_partition_is_lost(source: Broker, target: Broker, name: str) -> None:
    target.create("orders-copy", 3)
    target.faults.receipt_delay_s = 0.02
    gateway = Gateway(from_dict(settings(source, name), adapters=ADAPTERS), ADAPTERS)
    task = asyncio.ensure_future(gateway.run(0.5))
    for number in (0, 1, 2, 1):
        await asyncio.sleep(0.02)
        source.revoke("orders", number)
    assert (await task).clean
    assert [set(partition) for partition in stored(target)] == [set(partition) for partition in EXPECTED]
    assert committed(source) == COUNT


async def test_refused_messages_become_dead_letters(source: Broker, target: Broker, name: str) -> None:
    target.faults.refuse = lambda m: "too odd" if m.payload == b"77" and m.property("mqbridge.dead.route") is None else None
    outcome = await run(settings(source, name, delivery={"dead_letter": {"cluster": "b", "topic": "dead"}}))
    assert outcome.clean
    counters = outcome.routes[0].counters
    assert (counters.stored, counters.dead) == (COUNT - 1, 1)
    assert [[p for p in partition if p != b"77"] for partition in EXPECTED] == stored(target)
    [letter] = target.topics["dead"][0].messages
    assert letter.payload == b"77"
    assert dict(letter.properties) == {
        "n": "77",
        "mqbridge.dead.reason": "too odd",
        "mqbridge.dead.route": "r",
        "mqbridge.dead.target": "b/orders-copy",
    }
    assert split_origin(letter.origin or "") == ("a", "orders", "2", (25,))
    assert committed(source) == COUNT


async def test_a_refusal_without_dead_letters_stops_the_route_alone(source: Broker, target: Broker, name: str) -> None:
    target.faults.refuse = lambda m: "too odd" if m.payload == b"77" else None
    config = settings(source, name)
    source.create("other", 1)
    put(source, "other", 0, Message(b"fine"))
    config["routes"].append(
        {"name": "second", "from": {"cluster": "a", "topic": "other", "group": "g2"}, "to": {"cluster": "b", "topic": "other"}}
    )
    outcome = await run(config)
    first, second = outcome.routes
    assert first.error is not None
    assert "the message of a/orders/2 at position 25: too odd" in first.error
    assert "dead_letter" in first.error
    assert second.error is None
    assert stored(target, "other") == [[b"fine"]]
    progress = source.progress["g", "orders", 2]
    assert progress.committed <= 25


async def test_dead_letters_that_are_refused_too_stop_the_route(source: Broker, target: Broker, name: str) -> None:
    target.faults.refuse = lambda m: "never" if m.payload == b"77" else None
    outcome = await run(settings(source, name, delivery={"dead_letter": {"cluster": "b", "topic": "dead"}}))
    assert "(never), and the dead-letter topic b/dead refused it (never)" in (outcome.routes[0].error or "")


async def test_a_send_that_times_out_is_no_dead_letter(source: Broker, target: Broker, name: str) -> None:
    target.create("orders-copy", 3)
    source.create("dead", 1)
    target.faults.transient = 1_000_000
    letters = {"cluster": "a", "topic": "dead"}
    outcome = await run(settings(source, name, delivery={"retry": {"max_elapsed": "50ms"}, "dead_letter": letters}))
    assert "before the deadline" in (outcome.routes[0].error or "")
    assert "deliver them again" in (outcome.routes[0].error or "")
    assert stored(source, "dead") == [[]]
    assert committed(source) == 0


async def test_a_target_that_refuses_everything_stops_the_route(source: Broker, target: Broker, name: str) -> None:
    target.create("orders-copy", 3)
    target.faults.fatal = "no rights"
    outcome = await run(settings(source, name))
    assert outcome.routes[0].error == "no rights"
    assert committed(source) == 0


async def test_filter_by_type(source: Broker, target: Broker, name: str) -> None:
    outcome = await run(settings(source, name, source={"msg_types": ["t1"]}))
    assert outcome.clean
    assert stored(target) == [[p for p in partition if int(p) % 2] for partition in EXPECTED]
    assert committed(source) == COUNT


async def test_by_key_each_key_keeps_its_order_and_partition(source: Broker, target: Broker, name: str) -> None:
    target.create("orders-copy", 2)
    outcome = await run(settings(source, name, to={"partitions": {"by": "key"}, "create": False}))
    assert outcome.clean
    sources_by_key: dict[str, set[int]] = {}
    for number, partition in enumerate(target.topics["orders-copy"]):
        for message in partition.messages:
            sources_by_key.setdefault(str(message.key), set()).add(number)
    assert all(len(found) == 1 for found in sources_by_key.values())
    assert sum(map(len, stored(target))) == COUNT


async def test_round_robin_uses_every_partition(source: Broker, target: Broker, name: str) -> None:
    target.create("orders-copy", 5)
    outcome = await run(settings(source, name, to={"partitions": {"by": "round_robin"}}, delivery={"order": "none"}))
    assert outcome.clean
    assert all(stored(target))
    assert sorted(p for partition in stored(target) for p in partition) == sorted(p for partition in EXPECTED for p in partition)


async def test_a_rate_is_kept(source: Broker, target: Broker, name: str) -> None:
    gateway = Gateway(from_dict(settings(source, name, delivery={"rate": 1000}), adapters=ADAPTERS), ADAPTERS)
    loop = asyncio.get_running_loop()
    task, started = asyncio.ensure_future(gateway.run()), loop.time()
    await asyncio.sleep(0.5)
    gateway.stop()
    outcome = await task
    # One second's burst, the rate for the elapsed time, and one batch of 50 per lane in flight: not all 3000.
    assert 0 < outcome.routes[0].counters.received <= 1000 + 1000 * (loop.time() - started) + 3 * 50


async def test_patterns_and_templates(source: Broker, target: Broker, name: str) -> None:
    source.create("orders_eu", 1)
    put(source, "orders_eu", 0, Message(b"eu"))
    outcome = await run(
        settings(source, name, source={"topic": "~orders_(?P<region>.+)"}, to={"topic": "{region}.orders"}),
    )
    assert outcome.clean
    assert stored(target, "eu.orders") == [[b"eu"]]
    assert "orders-copy" not in target.topics


async def test_a_gap_stops_its_partition_alone(source: Broker, target: Broker, name: str, tmp_path: Path) -> None:
    config = settings(source, name, state=str(tmp_path / "checkpoint.db"))
    await run(config)
    for number in range(COUNT, COUNT + 300):
        put(source, "orders", number % 3, Message(b"%d" % number))
    source.delete_below("orders", 1, 1050)
    outcome = await run(config)
    assert not outcome.clean
    assert outcome.routes[0].error is None
    assert list(outcome.routes[0].stopped) == ["a/orders/1"]
    assert "begins at 1050, but this route had delivered only up to 1000" in outcome.routes[0].stopped["a/orders/1"]
    assert [len(partition) for partition in stored(target)] == [1100, 1000, 1100]
    again = await run(config | {"routes": [config["routes"][0] | {"delivery": {"on_gap": "continue"}}]})
    assert again.clean
    assert [len(partition) for partition in stored(target)] == [1100, 1050, 1100]


async def test_a_gap_reported_by_the_source_stops_or_is_skipped(
    source: Broker, target: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await run(settings(source, name))
    for number in range(COUNT, COUNT + 300):
        put(source, "orders", number % 3, Message(b"%d" % number))
    source.delete_below("orders", 1, 1050)
    outcome = await run(settings(source, name))
    assert outcome.routes[0].error is None
    assert "offsets 1000 to 1049 were deleted" in outcome.routes[0].stopped["a/orders/1"]
    assert "Set `on_gap: continue`" in outcome.routes[0].stopped["a/orders/1"]
    assert [len(partition) for partition in stored(target)] == [1100, 1000, 1100]
    again = await run(settings(source, name, delivery={"on_gap": "continue"}))
    assert again.clean
    assert again.routes[0].counters.gaps == 1
    assert "partition a/orders/1 continues at position 1050 without the lost messages" in caplog.text
    assert [len(partition) for partition in stored(target)] == [1100, 1050, 1100]


async def test_a_gap_that_the_checkpoint_shows_and_the_source_reports_counts_once(
    source: Broker, target: Broker, name: str, tmp_path: Path
) -> None:
    config = settings(source, name, delivery={"on_gap": "continue"}, state=str(tmp_path / "checkpoint.db"))
    await run(config)
    for number in range(COUNT, COUNT + 300):
        put(source, "orders", number % 3, Message(b"%d" % number))
    source.delete_below("orders", 1, 1050)
    outcome = await run(config)
    assert outcome.clean
    assert outcome.routes[0].counters.gaps == 1
    assert [len(partition) for partition in stored(target)] == [1100, 1050, 1100]


async def test_sends_in_flight_are_acknowledged_before_a_gap_is_skipped(source: Broker, target: Broker, name: str) -> None:
    source.create("few", 1)
    for number in range(100):
        put(source, "few", 0, Message(b"%d" % number))
    target.create("few-copy", 1)
    target.faults.hold_receipts = True
    config = settings(source, name, source={"topic": "few"}, delivery={"on_gap": "continue"})
    gateway = Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS)
    task = asyncio.ensure_future(gateway.run())
    async with asyncio.timeout(PATIENCE_S):
        while len(target.withheld_receipts) < 2:
            await asyncio.sleep(0.01)
        # Lost before it was read; a lane sees the gap only after all messages before it.
        source.topics["few"][0].append([Message(b"%d" % number, position=(number,)) for number in range(100, 400)])
        source.delete_below("few", 0, 300)
        while not gateway.routes[0].state.counters.gaps:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert committed(source) == 0
        target.release_receipts()
        while committed(source) < 400:
            await asyncio.sleep(0.01)
    gateway.stop()
    assert (await task).clean
    assert stored(target, "few-copy") == [[b"%d" % number for number in [*range(100), *range(300, 400)]]]


async def test_a_configuration_that_cannot_start_is_refused(source: Broker, target: Broker, name: str) -> None:
    with pytest.raises(ClusterError, match="the topic 'missing' does not exist in cluster 'a'") as missing:
        await run(settings(source, name, source={"topic": "missing"}))
    assert missing.value.failure is Failure.FATAL
    with pytest.raises(ConfigError, match=r"no topic of cluster 'a' matches ~x\.\*"):
        await run(settings(source, name, source={"topic": "~x.*"}))
    target.disconnect()
    with pytest.raises(ClusterError, match="disconnected"):
        await run(settings(source, name))
    assert not source.progress


async def test_a_port_in_use(source: Broker, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            await run(settings(source, name, http={"listen": f"127.0.0.1:{port}"}))


async def test_metrics_and_health(source: Broker, target: Broker, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = settings(source, name, http={"listen": f"127.0.0.1:{port}"})
    source.create("quiet", 1)
    quiet = {"name": "q", "from": {"cluster": "a", "topic": "quiet", "group": "q"}, "to": {"cluster": "b", "topic": "quiet-copy"}}
    config["routes"].append(quiet)  # keeps the gateway, and its page, alive when the other one has failed
    gateway = Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS)
    task = asyncio.ensure_future(gateway.run())
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        while committed(source) < COUNT:
            await asyncio.sleep(0.01)
        assert (await client.get("/health/live")).status_code == 200
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["ready"]) == (200, True)
        page = (await client.get("/metrics")).text
        assert f'mqbridge_stored_messages_total{{route="r"}} {COUNT}.0' in page
        assert 'mqbridge_route_up{route="r"} 1.0' in page
        row, _ = (await client.get("/routes")).json()
        assert row["acknowledged"] == COUNT
        assert row["lanes"] == {f"a/orders/{n}": "1000" for n in range(3)}
        target.faults.fatal = "no rights any more"
        put(source, "orders", 0, Message(b"one more"))
        while (ready := await client.get("/health/ready")).status_code == 200:
            await asyncio.sleep(0.01)
        assert ready.json()["stopped"] == {"r": "no rights any more"}
    gateway.stop()
    outcome = await task
    assert outcome.routes[0].error is None, "it waits until the target accepts messages again"


async def test_a_bug_stops_only_its_route(source: Broker, target: Broker, name: str, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Message) -> str:
        raise ZeroDivisionError("a bug")

    gateway = Gateway(from_dict(settings(source, name), adapters=ADAPTERS), ADAPTERS)
    task = asyncio.ensure_future(gateway.run())
    while not gateway.ready:
        await asyncio.sleep(0.01)
    for target_of in gateway.routes[0].state.endpoints.targets["orders"]:
        target_of.partitioner.divide = broken  # type: ignore[assignment, method-assign]
    put(source, "orders", 0, Message(b"one more"))
    outcome = await task
    assert outcome.routes[0].error is not None
    assert any(record.exc_info for record in caplog.records)


async def test_a_bug_when_a_lane_is_assigned_stops_the_route(source: Broker, target: Broker, name: str) -> None:
    gateway = Gateway(from_dict(settings(source, name), adapters=ADAPTERS), ADAPTERS)
    task = asyncio.ensure_future(gateway.run())
    while committed(source) < COUNT:
        await asyncio.sleep(0.01)
    gateway.routes[0].state.endpoints.targets.clear()
    source.revoke("orders", 0)
    outcome = await asyncio.wait_for(task, PATIENCE_S)
    assert outcome.routes[0].error == "'orders'"


async def test_a_cluster_that_cannot_be_reached_leaves_nothing_behind(source: Broker, target: Broker, name: str) -> None:
    before = asyncio.all_tasks()
    target.disconnect()
    with pytest.raises(ClusterError):
        await run(settings(source, name))
    assert asyncio.all_tasks() == before


async def test_a_route_that_gets_no_partition_ends_when_idle(
    source: Broker, target: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqbridge.routes.route_state.ASSIGNMENT_PATIENCE_S", 0.2)
    source.create("other", 1)
    cluster = ADAPTER.make_cluster("a", ADAPTER.cluster_model(broker=name + "-source"))  # type: ignore[call-arg]
    first = await cluster.inbound(InboundSpec(("other",), "g"))
    outcome = await asyncio.wait_for(run(settings(source, name, source={"topic": "other"})), PATIENCE_S)
    assert outcome.clean
    await first.close()


async def test_partitions_that_are_not_assigned_yet_are_waited_for(source: Broker, target: Broker, name: str) -> None:
    cluster = ADAPTER.make_cluster("a", ADAPTER.cluster_model(broker=name + "-source"))  # type: ignore[call-arg]
    other = await cluster.inbound(InboundSpec(("orders",), "g"))
    task = asyncio.ensure_future(run(settings(source, name), 0.1))
    while committed(source) == 0:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    assert not task.done(), "the group's other member has not read what it holds"
    await other.close()
    outcome = await asyncio.wait_for(task, PATIENCE_S)
    assert outcome.clean
    assert stored(target) == EXPECTED


async def test_an_inbound_that_cannot_be_opened_stops_its_route(source: Broker, target: Broker, name: str) -> None:
    gateway = Gateway(from_dict(settings(source, name), adapters=ADAPTERS), ADAPTERS)

    async def broken(_: InboundSpec) -> None:
        raise ZeroDivisionError("a bug")

    task = asyncio.ensure_future(gateway.run())
    while not gateway.routes:
        await asyncio.sleep(0)
    gateway.clusters["a"].inbound = broken  # type: ignore[method-assign, assignment]
    outcome = await asyncio.wait_for(task, PATIENCE_S)
    assert outcome.routes[0].error == "a bug"


async def test_the_log_reports_progress(
    source: Broker, target: Broker, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mqbridge.gateway.report.REPORT_INTERVAL_S", 0.05)
    caplog.set_level("INFO")
    assert (await run(settings(source, name))).clean
    assert "opened the targets of source topic a/orders (3 partitions): b/orders-copy (3 partitions)" in caplog.text
    assert f"route r: {COUNT:,} messages stored" in caplog.text


async def test_a_filter_passes_messages_that_cannot_be_decoded(source: Broker, target: Broker, name: str) -> None:
    put(source, "orders", 0, Message(b"?", defect="damaged"))
    delivery = {"dead_letter": {"cluster": "b", "topic": "dead"}}
    outcome = await run(settings(source, name, source={"msg_types": ["t1"]}, delivery=delivery))
    assert outcome.clean
    [letter] = target.topics["dead"][0].messages
    assert letter.payload == b"?"
    assert letter.property("mqbridge.dead.reason") == "it could not be read: damaged"


async def test_a_stop_before_a_lane_runs_takes_effect(source: Broker, target: Broker, name: str, tmp_path: Path) -> None:
    config = settings(source, name, state=str(tmp_path / "checkpoint.db"))
    await run(config)
    gateway = Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS)
    task = asyncio.ensure_future(gateway.run())
    while not gateway.routes:
        await asyncio.sleep(0)
    asking, answer = asyncio.Event(), asyncio.Event()

    async def slow_bounds(_: str) -> dict[str, Any]:
        asking.set()
        await answer.wait()
        return {}

    gateway.clusters["a"].bounds = slow_bounds  # type: ignore[method-assign, assignment]
    await asyncio.wait_for(asking.wait(), PATIENCE_S)
    gateway.stop()
    await asyncio.sleep(0.2)
    answer.set()
    assert (await asyncio.wait_for(task, PATIENCE_S)).clean


async def test_a_failed_bounds_request_does_not_stop_a_partition(
    source: Broker, target: Broker, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(source, name, state=str(tmp_path / "checkpoint.db"))
    await run(config)
    put(source, "orders", 0, Message(b"one more"))
    gateway = Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS)
    task = asyncio.ensure_future(gateway.run(0.3))
    while not gateway.routes:
        await asyncio.sleep(0)

    async def unable(_: str) -> dict[str, Any]:
        raise ClusterError("the admin address does not answer")

    gateway.clusters["a"].bounds = unable  # type: ignore[method-assign, assignment]
    outcome = await asyncio.wait_for(task, PATIENCE_S)
    assert outcome.clean
    assert outcome.routes[0].counters.stored == 1
    assert "starting without this check: the admin address does not answer" in caplog.text
