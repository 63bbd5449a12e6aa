"""The work of one process on a log: it appends, and reads as a member of a group, until it is killed or has done its share."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.adapter.receipt import Receipt
from mqbridge.errors import MqbridgeError
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Partition, Share
from tests.log.faults import units
from tests.log.faults.history import Recorder
from tests.log.faults.members import Member
from tests.log.faults.messages import MessageId, payload, random_size, topic_name
from tests.log.faults.saying import RecordHandler, stray
from tests.log.faults.units import units_of

UNITS, REPEATED = 0.4, 0.1
"""Fractions of sends that consist of units, and of a sender's sends that are repeated."""
CRASHED = 9
"""Exit code of a process that ended without closing the log."""


@dataclass(frozen=True)
class Workload:
    """What one process does."""

    path: Path
    topics: Mapping[int, int]
    """The number of partitions of each topic."""
    writer: int
    """Number of the process among those of the fault."""
    seed: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the log besides its path."""
    sends: int = 0
    """Number of sends in each cycle; 0: no limit."""
    cycles: int = 1
    """How often the log is opened."""
    group: str | None = None
    max_payload: int = 300_000
    in_flight: int = 8
    """Maximum number of sends without a receipt."""
    pause_s: float = 0.0
    """Mean pause between two sends."""
    drain_s: float = 5.0
    """How long the member reads on after the last send, until it has confirmed everything."""
    is_writer: bool = True
    rejoins: bool = True
    """The member leaves its group and joins again now and then."""
    crashes: bool = False
    """The process ends without closing the log."""
    before_cycle: Callable[[int], None] = lambda _: None
    ends: Callable[[], bool] = lambda: False
    """Ends the sending when it returns True."""

    @property
    def config(self) -> LogSettings:
        """The settings of the log."""
        return LogSettings.model_validate({"path": self.path, "poll": "10ms", "lease": "5s", "retention": None, **self.settings})


def run(workload: Workload, recorder: Recorder) -> None:
    """Work in this process. Errors of mqbridge are recorded; any other exception is recorded as a problem."""
    units.install()
    RecordHandler.install(lambda text: recorder.record("said", text), lambda text: recorder.record("problem", text))
    try:
        asyncio.run(_work(workload, recorder))
    except MqbridgeError as error:
        recorder.record("said", f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - the judge reports it
        recorder.record("problem", stray(error))


async def _work(workload: Workload, recorder: Recorder) -> None:
    rng = random.Random(workload.seed)
    number = 0
    for cycle in range(workload.cycles):
        workload.before_cycle(cycle)
        cluster = LogCluster("log", workload.config)
        await cluster.connect()
        try:
            for topic, partitions in workload.topics.items():
                await cluster.create(topic_name(topic), partitions)
            recorder.record("open")
            member = None
            if workload.group is not None:
                member = Member(cluster, workload.group, workload.topics, random.Random(rng.random()), recorder)
                member.start(rejoins=workload.rejoins)
            if workload.is_writer:
                number = await Writer(workload, cluster, recorder, rng, number).write()
            else:
                while not workload.ends():
                    await asyncio.sleep(0.01)
            if member is not None:
                await member.drain(workload.drain_s)
            if workload.crashes and cycle == workload.cycles - 1:
                os._exit(CRASHED)
        finally:
            await cluster.close()
    recorder.record("done")


class Writer:
    """Sends numbered messages to all partitions."""

    def __init__(self, workload: Workload, cluster: LogCluster, recorder: Recorder, rng: random.Random, number: int) -> None:
        self._workload, self._cluster, self._recorder, self._rng = workload, cluster, recorder, rng
        self._number = number
        self._running: set[asyncio.Future[Receipt]] = set()
        self._is_refused = False
        """True once a send failed for good."""

    async def write(self) -> int:
        """Send until the workload ends; return the number of the next message."""
        # Topics with an odd number have no sender, as most targets.
        outbounds = {
            topic: await self._cluster.outbound(
                OutboundSpec(
                    topic_name(topic),
                    stamp_origin=False,
                    keep_units=True,
                    sender=None if topic % 2 else f"writer-{self._workload.writer}",
                )
            )
            for topic in self._workload.topics
        }
        sends = 0
        while not self._is_refused and not self._workload.ends():
            if self._workload.sends and sends == self._workload.sends:
                break
            self._send(outbounds)
            sends += 1
            await asyncio.sleep(self._rng.expovariate(1 / self._workload.pause_s) if self._workload.pause_s else 0)
            if len(self._running) >= self._rng.randint(1, self._workload.in_flight):
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        if self._running:
            await asyncio.wait(self._running)
        for outbound in outbounds.values():
            await outbound.close()
        return self._number

    def _send(self, outbounds: Mapping[int, Outbound]) -> None:
        """Send the next messages as one share."""
        topic = self._rng.choice(list(outbounds))
        partition = self._rng.randrange(self._workload.topics[topic])
        count = self._rng.choice((1, 1, 1, 2, 5, 12))
        ids = [MessageId(topic, partition, self._workload.writer, self._number + index) for index in range(count)]
        self._number += count
        sizes = [random_size(self._rng, self._workload.max_payload // count) for _ in ids]
        self._recorder.record("send", ids, sizes)
        payloads = [payload(id_, size) for id_, size in zip(ids, sizes, strict=True)]
        source = Partition("faults", f"writer-{self._workload.writer}", str(partition), partition)
        if self._rng.random() < UNITS:
            share = Share(units_of(payloads, ids[0].number, self._rng.choice((1, 3, 12)), source))
        else:
            messages = [Message(data, position=(id_.number,)) for id_, data in zip(ids, payloads, strict=True)]
            share = Share(Batch.of(messages, source))
        repeats = 2 if topic % 2 == 0 and self._rng.random() < REPEATED else 1
        for _ in range(repeats):  # the judge complains if a repeated send is stored twice
            future = outbounds[topic].send(partition, share)
            self._running.add(future)
            future.add_done_callback(lambda done: self._on_receipt(ids, done))

    def _on_receipt(self, ids: list[MessageId], future: asyncio.Future[Receipt]) -> None:
        self._running.discard(future)
        error = None if future.cancelled() else future.exception()
        if isinstance(error, MqbridgeError):
            self._is_refused = True
            self._recorder.record("said", f"send: {type(error).__name__}: {error}")
        elif error is not None:
            self._is_refused = True
            self._recorder.record("problem", stray(error))
        elif not future.cancelled():
            receipt = future.result()
            failed = {failure.index for failure in receipt.failures}
            stored = [
                (id_, at[0])
                for index, (id_, at) in enumerate(zip(ids, receipt.positions, strict=True))
                if index not in failed and at  # a repeated send has no positions
            ]
            if stored:
                self._recorder.record("ack", [id_ for id_, _ in stored], [offset for _, offset in stored])
            for failure in receipt.failures:
                self._recorder.record("said", f"send: {failure.reason}")


async def read_range(cluster: LogCluster, topic: int, partition: int, begin: int, end: int) -> int:
    """Return the number of messages that `Cluster.read` yields from `begin` to before `end`. Raises ClusterError, GapError."""
    count = 0
    async for batch in read(cluster, topic_name(topic), str(partition), (begin,), (end,)):
        count += batch.count
    return count


def elapsed_s(since_ns: int) -> float:
    """Return the seconds since a time of `time.monotonic_ns`."""
    return (time.monotonic_ns() - since_ns) / 1e9
