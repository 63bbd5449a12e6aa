"""A client, and what it opens, in another event loop than its own: at once an error that says which."""

import asyncio
import gc
import inspect
import threading
import warnings
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import pytest

from mqbridge.errors import ClusterError, WrongEventLoop
from tests.library.conftest import System
from tests.patience import PATIENCE_S, SERVER_PATIENCE_S

OPENERS: dict[str, dict[str, dict[str, Any]]] = {
    "pulsar": {"reader": {}, "entry_producer": {}, "entry_consumer": {"group": "entries"}},
    "rocketmq": {
        "pop_consumer": {"group": "pop"},
        "reader": {},
        "transaction_producer": {"producer_group": "transactions", "check": lambda *_: None},
    },
    "tubemq": {
        "partition_sender": {},
        "load_balancing_sender": {},
        "pack_consumer": {"group": "packs"},
        "pack_puller": {"group": "pulls"},
        "balanced_consumer": {"group": "balanced"},
    },
}
"""What else than a producer and a consumer the clients open, with arguments."""
WITHOUT_LOOP = {
    *("wake", "take", "failed_consumers", "schema_version"),  # Pulsar
    *("submit", "withdraw", "on_settled", "on_attempt_done", "on_state_change", "start", "share"),  # TubeMQ
}
"""Public methods that use no loop, or are called by other objects of the client only."""
LOW_LEVEL = {
    "EntryProducer": {"send"},
    "PackConsumer": {"assignments", "close"},
    "PartitionSender": {"send", "room", "flush", "close"},
}
"""Methods that are checked of classes that the gateway uses too; of others all are."""


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="home", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SERVER_PATIENCE_S)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def home() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


async def call(opened: object, name: str) -> None:
    """Call a method with None for each argument that it needs, and await what it returns."""
    method = getattr(opened, name)
    parameters = inspect.signature(method).parameters.values()
    result = method(
        *(None for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD),
        **{each.name: None for each in parameters if each.default is each.empty and each.kind is each.KEYWORD_ONLY},
    )
    async with asyncio.timeout(PATIENCE_S):
        if inspect.isawaitable(result):
            await result
        elif isinstance(result, AsyncIterator):
            await anext(result)


def public_methods(opened: object) -> list[str]:
    names = [name for name, _ in inspect.getmembers(type(opened), inspect.isfunction) if not name.startswith("_")]
    return [name for name in names if name not in WITHOUT_LOOP and name in LOW_LEVEL.get(type(opened).__name__, names)]


def test_nothing_works_in_another_loop(system: System, home: LoopThread) -> None:
    topic = system.take_topic(1)
    client: Any = system.client()

    async def open_all() -> list[Any]:
        opened = [await client.producer(topic), await client.consumer(topic, f"group-{topic}")]
        for name, arguments in OPENERS[system.name].items():
            name_of_partition = f"{topic}-partition-0" if name == "entry_producer" else topic
            groups = {key: f"{value}-{topic}" if key == "group" else value for key, value in arguments.items()}
            opened.append(await getattr(client, name)(name_of_partition, **groups))
        return opened

    opened = home.run(open_all())
    for each in opened:
        assert public_methods(each)
        for name in public_methods(each):
            with pytest.raises(WrongEventLoop, match="belongs to an event loop of thread 'home'"):
                asyncio.run(call(each, name))
    for opening in (lambda: client.producer(topic), lambda: client.consumer(topic, "group"), client.close):
        with pytest.raises(WrongEventLoop, match="belongs to an event loop of thread 'home'"):
            asyncio.run(_await(opening))
    home.run(_send(opened[0]))  # nothing of this has disturbed the loop of the client
    message = home.run(opened[1].receive(SERVER_PATIENCE_S))
    with pytest.raises(WrongEventLoop, match="where no event loop runs"):
        opened[1].acknowledge(message)
    home.run(client.close())
    with pytest.raises(ClusterError, match="is closed"):
        home.run(_await(lambda: client.producer(topic)))


async def _await(function: Any) -> Any:
    return await function()


async def _send(producer: Any) -> Any:
    return await producer.send(b"message")


def test_a_client_that_outlives_its_loop(system: System) -> None:
    _outlive(system)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # about the connections of the closed loop
        gc.collect()


def _outlive(system: System) -> None:
    topic = system.take_topic(1)
    client: Any = system.client()
    opened: list[Any] = []

    async def use() -> None:
        opened.append(await client.producer(topic))
        await _send(opened[0])

    asyncio.run(use())
    for function in (use, lambda: _send(opened[0])):
        with pytest.raises(WrongEventLoop, match=r"which is closed.*each call of asyncio\.run makes a new event loop"):
            asyncio.run(_await(function))
    asyncio.run(opened[0].close())
    asyncio.run(client.close())
    with pytest.raises(ClusterError, match="is closed"):
        asyncio.run(use())
