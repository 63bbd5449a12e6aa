"""The work of the quickstart: fill a topic, bridge it with the real gateway, compare the copy.

The gateway, the clusters and the files are those of `mqbridge run`, used through their public functions.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.topics import Bounds
from mqbridge.cli.demo.messages import Checksum, ordinary, too_large
from mqbridge.cli.producing.sender import Sender
from mqbridge.cli.reading.range_reader import Range, read
from mqbridge.config.options.config import Config
from mqbridge.errors import ConfigError, DeliveryError
from mqbridge.gateway.clusters import connected_clusters
from mqbridge.gateway.run import Gateway
from mqbridge.gateway.run_result import RunResult
from mqbridge.message import Message
from mqbridge.net.tasks import cancel, spawn

SOURCE, COPY, DEAD = "orders", "orders-copy", "orders-dead"
FEED_CHUNK = 1000
IDLE_S = 0.5
PROGRESS_S = 0.1
VERIFY_TIMEOUT_S = 600.0
TARGET_LIMIT_BYTES = 64 << 10

Report = Callable[[str, int, int], None]
"""Called with a step, the messages done, and the total."""

_CONFIGURATION = """\
# Written by `mqbridge quickstart`: one topic, bridged between two embedded logs.
clusters:
  source: {{system: log, path: {source}}}
  target: {{system: log, path: {target}, max_message_bytes: {limit}}}
routes:
  - name: orders
    from: {{cluster: source, topic: orders, group: quickstart}}
    to: {{cluster: target, topic: "{{topic}}-copy"}}
    delivery:
      dead_letter: {{cluster: source, topic: orders-dead}}
state: {state}
http: {{enabled: false}}
"""


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """Counts and checksums of one source partition and of its copy."""

    partition: str
    sent: int
    copied: int
    sent_checksum: str
    copied_checksum: str

    @property
    def equal(self) -> bool:
        """True if both have the same messages in the same order."""
        return self.sent == self.copied and self.sent_checksum == self.copied_checksum


@dataclass(frozen=True, slots=True)
class Step:
    """One part of the work and its duration."""

    name: str
    messages: int
    seconds: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class DemoResult:
    """The outcome. `refused` messages were made too large for the target, `dead` arrived as dead letters."""

    refused: int
    dead: int = 0
    clean: bool = False
    partitions: list[PartitionComparison] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if everything arrived, in order and unchanged."""
        return self.clean and self.dead == self.refused and all(row.equal for row in self.partitions)

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome for JSON."""
        steps = [asdict(step) | {"per_second": round(step.rate)} for step in self.steps]
        rows = [asdict(row) | {"equal": row.equal} for row in self.partitions]
        found = {"holds": self.holds, "dead_letters": self.dead, "too_large": self.refused}
        return found | {"steps": steps, "partitions": rows}


def write_configuration(folder: Path) -> Path:
    """Write the configuration of the demo into this folder. Raises ConfigError if it already has one."""
    file = folder / "quickstart.yaml"
    if file.exists():
        raise ConfigError("a quickstart was kept here before", location=str(file), hint="Choose another folder for --keep")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = {name: _quoted(folder.resolve() / f"{name}.db") for name in ("source", "target", "state")}
        file.write_text(_CONFIGURATION.format(**paths, limit=TARGET_LIMIT_BYTES), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}", hint="Choose another folder for --keep") from error
    return file


def _quoted(path: Path) -> str:
    """Quote a path for YAML: in single quotes only the quote itself is special to YAML, and `${` to mqbridge."""
    return "'" + str(path).replace("'", "''").replace("${", "$${") + "'"


async def bridge(config: Config, messages: int, partitions: int, report: Report) -> DemoResult:
    """Feed, bridge, verify. Raises ConfigError or ClusterError if a step cannot start."""
    result = DemoResult(refused=partitions)
    async with _timed(result, "fed", messages + partitions):
        sums = await _feed(config, messages, partitions, report)
    began = time.monotonic()
    outcome = await _gateway(config, messages + partitions, report)
    # The idle time that the gateway waits for at the end is not work.
    result.steps.append(Step("bridged", messages + partitions, max(time.monotonic() - began - IDLE_S, 0.001)))
    result.clean = outcome.clean
    result.dead = sum(route.counters.dead for route in outcome.routes)
    async with _timed(result, "verified", messages):
        copies, dead = await _read_back(config, report)
    result.dead = min(result.dead, dead)
    for name in sorted(sums.keys() | copies.keys(), key=int):
        sent, copied = sums.get(name, Checksum()), copies.get(name, Checksum())
        result.partitions.append(PartitionComparison(name, sent.count, copied.count, sent.value, copied.value))
    return result


@contextlib.asynccontextmanager
async def _timed(result: DemoResult, name: str, messages: int) -> AsyncIterator[None]:
    began = time.monotonic()
    yield
    result.steps.append(Step(name, messages, time.monotonic() - began))


async def _feed(config: Config, messages: int, partitions: int, report: Report) -> dict[str, Checksum]:
    """Fill the source topic and return the checksum of each partition."""
    sums: dict[str, Checksum] = {}
    total = messages + partitions
    async with connected_clusters(config) as clusters:
        source = clusters["source"]
        await source.create(SOURCE, partitions)
        for index in range(partitions):
            sender = Sender(await source.outbound(OutboundSpec(SOURCE, stamp_origin=False)), index)
            share = messages // partitions + (index < messages % partitions)
            checksum = sums[str(index)] = Checksum()
            fed = sum(one.count for one in sums.values()) + index
            chunk: list[Message] = []
            for message in ordinary(index, share):
                checksum.add(message)
                chunk.append(message)
                if len(chunk) == FEED_CHUNK:
                    await sender.send(chunk)
                    chunk = []
                    report("feed", fed + checksum.count, total)
                    await asyncio.sleep(0)
            await sender.send([*chunk, too_large(index)])
            await sender.finish()
            await sender.close()
            report("feed", fed + checksum.count + 1, total)
            if sender.refused:
                raise DeliveryError(f"the source refused {sender.refused} messages: {sender.reasons[0]}")
    return sums


async def _gateway(config: Config, total: int, report: Report) -> RunResult:
    gateway = Gateway(config)

    async def watch() -> None:
        while True:
            report("bridge", sum(route.counters.acknowledged for route in gateway.routes), total)
            await asyncio.sleep(PROGRESS_S)

    watcher = spawn(watch(), "progress")
    try:
        outcome = await gateway.run(IDLE_S)
    finally:
        await cancel(watcher)
    report("bridge", sum(route.counters.acknowledged for route in outcome.routes), total)
    return outcome


async def _read_back(config: Config, report: Report) -> tuple[dict[str, Checksum], int]:
    """Return the checksum of each partition of the copy, and the number of dead letters."""
    async with connected_clusters(config) as clusters:
        target = clusters["target"]
        bounds = await target.bounds(COPY)
        total = _held(bounds)
        sums = {name: Checksum() for name in bounds}
        ranges = {name: Range(one.first, one.next) for name, one in bounds.items()}
        async with asyncio.timeout(VERIFY_TIMEOUT_S), aclosing(read(target, COPY, ranges)) as chunks:
            async for partition, messages in chunks:
                checksum = sums[partition.name]
                for message in messages:
                    checksum.add(message)
                report("verify", sum(one.count for one in sums.values()), total)
        return sums, _held(await clusters["source"].bounds(DEAD))


def _held(bounds: Mapping[str, Bounds]) -> int:
    return sum(one.next[0] - one.first[0] for one in bounds.values())
