"""The interface between the conformance suite and a system under test."""

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
from mqbridge.log.adapter.registration import ADAPTER as LOG
from mqbridge.testing.memory.adapter.registration import ADAPTER as MEMORY
from mqbridge.testing.memory.broker import delete_broker, get_broker
from tests.conformance import network_faults
from tests.strategies import COMPARED_FIELDS


class Room(Enum):
    """How lanes share `InboundSpec.max_bytes`."""

    EXACT = auto()
    """Never more, except for a single larger batch."""
    DIVIDED = auto()
    """Each lane has a share; an empty lane takes the next batch even if that is larger."""
    LOOSE = auto()
    """Each lane may hold some bytes of its own beyond the limit."""


class Harness(Protocol):
    """One system under test. `cluster()` makes another client of the same system, not yet connected."""

    name: str
    max_payload: int
    """Size of a payload that must be accepted: close to the system's limit."""
    carried: tuple[str, ...]
    """Fields of a message that arrive unchanged."""
    inbound_options: BaseModel | None
    """The options for joining groups."""
    refusing_options: BaseModel | None
    """The options of a target that refuses messages above the system's limit; None if every target does."""
    one_reader: bool
    """True if one member of a group at a time reads a partition."""
    confirms_messages: bool
    """True if a group may stop between any two messages; False if only between units of several messages."""
    finds_last: bool
    """True if the system knows the position of the last message."""
    room: Room
    """How the system keeps `max_bytes`."""
    finds_times: bool
    """True if the system knows when a message was stored."""
    patience_s: float
    """Timeout in seconds for expected events."""

    def cluster(self) -> Cluster: ...

    async def topic(self, cluster: Cluster, partitions: int) -> str:
        """Create a topic with this number of partitions."""

    def unknown_topic(self) -> str:
        """Return a well-formed topic name that does not exist."""

    async def settle(self) -> None:
        """Wait until bounds, and groups that start at the end, include every message that the system has acknowledged."""

    def cut_off(self) -> AbstractAsyncContextManager[None] | None:
        """Cut the network of this process while the context is open; None if every send is complete when `send` returns."""

    def close(self) -> None: ...


class BuiltIn:
    """A built-in system, which creates its topics through the contract."""

    carried = COMPARED_FIELDS
    inbound_options: BaseModel | None = None
    refusing_options: BaseModel | None = None
    one_reader = True
    confirms_messages = True
    finds_last = True
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
        return network_faults.memory(get_broker(self._broker))

    def close(self) -> None:
        delete_broker(self._broker)


class LogHarness(BuiltIn):
    def __init__(self, folder: Path) -> None:
        self._file = folder / "conformance.db"
        config = LOG.cluster_model(path=self._file, lease="3s", poll="10ms", busy_timeout="100ms")
        super().__init__("log", LOG, config, (16 << 20) - 100, finds_times=True)

    def cut_off(self) -> AbstractAsyncContextManager[None]:
        return network_faults.file(self._file)
