"""A listener for RocketMQ clients in a gateway: what it shows of its groups over HTTP, and what its metrics count."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqbridge.config.load import from_dict
from mqbridge.errors import ClusterError
from mqbridge.gateway.run import Gateway
from mqbridge.gateway.status_server import StatusServer
from mqbridge.listener.listener import ListenerState
from mqbridge.rocketmq.library.client import RocketMQClient
from mqbridge.rocketmq.library.transactions import State
from tests.gateway.world import until
from tests.patience import PATIENCE_S


@asynccontextmanager
async def shown(folder: Path, patch: pytest.MonkeyPatch, groups: str) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """Run a gateway over a log with the topic `orders`; yield the address for clients, and what asks its HTTP interface."""
    ports: list[int] = []
    enter = StatusServer.__aenter__

    async def remember(self: StatusServer) -> StatusServer:
        ports.append(self.port)
        return await enter(self)

    patch.setattr(StatusServer, "__aenter__", remember)
    config = {
        "clusters": {"store": {"system": "log", "path": str(folder / "log.db")}},
        "listeners": [{"name": "app", "system": "rocketmq", "cluster": "store", "listen": "127.0.0.1:0", "groups": groups}],
        "state": str(folder / "state.db"),
        "http": {"listen": "127.0.0.1:0"},
        "shutdown_timeout": "5s",
    }
    gateway = Gateway(from_dict(config))
    running = asyncio.ensure_future(gateway.run())
    try:
        await until(lambda: running.done() or any(each.state is ListenerState.SERVING for each in gateway.listeners))
        assert not running.done(), running.result()
        await gateway.clusters["store"].create("orders", 1)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[0]}", timeout=PATIENCE_S) as http:
            yield gateway.listeners[0].address, http
    finally:
        gateway.stop()
        async with asyncio.timeout(PATIENCE_S):
            await running


async def listener_of(http: httpx.AsyncClient) -> dict[str, Any]:
    """Return what is shown of the listener."""
    (listener,) = (await http.get("/listeners")).json()
    return dict(listener)


async def samples(http: httpx.AsyncClient) -> dict[str, float]:
    """Return the metrics of the listener, by name without the prefix."""
    lines = (await http.get("/metrics")).text.splitlines()
    pairs = [line.rpartition(" ") for line in lines if line.startswith("mqbridge_listener_")]
    return {name.partition("{")[0].removeprefix("mqbridge_listener_"): float(value) for name, _, value in pairs}


async def never_asked(_: object) -> State:
    return State.UNKNOWN


@pytest.mark.parametrize("groups", ["own", "backing"])
async def test_groups_and_producers_are_shown_and_counted(
    groups: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with shown(tmp_path, monkeypatch, groups) as (address, http), RocketMQClient(f"rocketmq://{address}") as client:
        async with (
            client.producer("orders") as producer,
            client.transaction_producer("orders", never_asked, producer_group="shop"),
            client.consumer("orders", "billing") as consumer,
        ):
            for number in range(3):
                await producer.send(b"%d" % number)
            received = [await consumer.receive(PATIENCE_S) for _ in range(3)]
            for message in received[1:]:
                consumer.acknowledge(message)
            consumer.negative_acknowledge(received[0])
            again = await consumer.receive(PATIENCE_S)
            assert again.payload == b"0"
            consumer.acknowledge(again)
            listener, metrics = await listener_of(http), await samples(http)
        (group,) = listener["details"]["subscriptions"]
        (member,) = group.pop("consumers")
        assert group == {"name": "billing", "topics": ["%RETRY%billing", "orders"], "problem": None}
        assert member["address"].startswith("127.0.0.1:")
        producers = [each["name"] for each in listener["details"]["producers"]]
        assert "shop" in producers  # beside that of the other producer, which has a group only for its heartbeats
        assert (listener["system"], listener["producers"], listener["consumers"]) == ("rocketmq", len(producers), 1)
        assert (metrics["producers"], metrics["consumers"], metrics["up"]) == (len(producers), 1, 1)
        assert metrics["received_messages_total"] == 3
        assert metrics["delivered_messages_total"] == 4
        assert metrics["redelivered_messages_total"] == 1
        assert metrics["parked_messages_total"] == 1
        assert metrics["refused_requests_total"] == 0, (
            "a new group is told that it has no offset and no members, which is no refusal"
        )
        assert metrics["dead_letters_total"] == 0
        assert "could not be sent back" not in caplog.text, "the id of the message is that of its offset"


async def test_refused_requests_are_counted_and_clients_that_are_gone_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shown(tmp_path, monkeypatch, "own") as (address, http):
        async with RocketMQClient(f"rocketmq://{address}") as client:
            async with client.consumer("orders", "billing"):
                before = await listener_of(http)
                assert before["consumers"] == 1
            with pytest.raises(ClusterError, match="not permitted: set `manage: true`"):
                await client.groups.delete("billing")
        listener = await listener_of(http)
        assert (listener["consumers"], listener["details"]) == (0, {"producers": [], "subscriptions": []})
        assert listener["refused_requests"] == (await samples(http))["refused_requests_total"] > before["refused_requests"]
