"""What the suite needs to know of a system to hold its adapter to the contract."""

import itertools
import os
from contextlib import AbstractAsyncContextManager
from enum import Enum, auto
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from pydantic import BaseModel

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import Adapter
from mqbridge.log.adapter.cluster import ADAPTER as LOG
from mqbridge.memory.adapter.cluster import ADAPTER as MEMORY
from mqbridge.memory.broker import broker, forget
from tests.conformance import cut
from tests.strategies import CARRIED


class Room(Enum):
    """What lanes hand out together, of `InboundSpec.max_bytes`."""

    EXACT = auto()
    """Never more, but for a single batch."""
    DIVIDED = auto()
    """Each lane has a part; one that holds nothing takes what was sent at once even if that is larger."""
    LOOSE = auto()
    """Each lane has some room of its own besides."""


class Harness(Protocol):
    """One system under test. `cluster()` makes another client of the same system, not yet connected."""

    name: str
    max_payload: int
    """Bytes of a payload that must be taken: close under the system's limit."""
    carried: tuple[str, ...]
    """Fields of a message that arrive as they were sent."""
    inbound_options: BaseModel | None
    """The settings that groups are joined with."""
    one_reader: bool
    """A partition is read by one member of a group at a time."""
    room: Room
    """How `max_bytes` holds."""
    finds_times: bool
    """Whether the system knows what it stored when."""
    patience_s: float
    """After so many seconds without what must come, a test fails."""

    def cluster(self) -> Cluster: ...

    async def topic(self, cluster: Cluster, partitions: int) -> str:
        """A new topic of that many partitions."""

    def unknown_topic(self) -> str:
        """A well-formed name of no topic."""

    async def settle(self) -> None:
        """Wait until the system's bounds, and groups that begin at the end, count what it has acknowledged."""

    def cut_off(self) -> AbstractAsyncContextManager[None] | None:
        """While it lasts, nothing that this process sends arrives; None where every send is done when it returns."""

    def close(self) -> None: ...


class BuiltIn:
    """A system that creates its topics through the contract."""

    carried = CARRIED
    inbound_options: BaseModel | None = None
    one_reader = True
    room = Room.EXACT
    patience_s = 20.0

    def __init__(self, name: str, adapter: Adapter, config: BaseModel, max_payload: int, *, finds_times: bool) -> None:
        self.name, self.max_payload, self.finds_times = name, max_payload, finds_times
        self._adapter, self._config = adapter, config
        self._clients = itertools.count(1)

    def cluster(self) -> Cluster:
        return self._adapter.make_cluster(f"{self.name}-{next(self._clients)}", self._config)

    async def topic(self, cluster: Cluster, partitions: int) -> str:
        name = f"topic-{uuid4().hex[:8]}"
        await cluster.create(name, partitions)
        return name

    def unknown_topic(self) -> str:
        return f"none-{uuid4().hex[:8]}"

    async def settle(self) -> None:
        pass

    def cut_off(self) -> AbstractAsyncContextManager[None] | None:
        return None

    def close(self) -> None:
        pass


class MemoryHarness(BuiltIn):
    def __init__(self, *, individual_ack: bool) -> None:
        self._broker = f"conformance-{os.getpid()}-{individual_ack}"
        config = MEMORY.cluster_model(broker=self._broker, individual_ack=individual_ack)
        super().__init__("memory", MEMORY, config, 5 << 20, finds_times=False)

    def cut_off(self) -> AbstractAsyncContextManager[None]:
        return cut.memory(broker(self._broker))

    def close(self) -> None:
        forget(self._broker)


class LogHarness(BuiltIn):
    def __init__(self, folder: Path) -> None:
        self._file = folder / "conformance.db"
        config = LOG.cluster_model(path=self._file, lease="3s", poll="10ms", busy_timeout="100ms")
        super().__init__("log", LOG, config, (16 << 20) - 100, finds_times=True)

    def cut_off(self) -> AbstractAsyncContextManager[None]:
        return cut.file(self._file)
