"""The work of `mqbridge quickstart`: publish to a listener, bridge the topic to a copy with the real gateway, compare the copy.

It uses the same gateway, clusters and configuration file as `mqbridge run`, through their public functions.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mqbridge.adapter.topics import Bounds
from mqbridge.cli.demo.messages import Checksum, ordinary_messages, too_large_message
from mqbridge.cli.demo.wire_sender import CHUNK_MESSAGES, has_official_sdk, publish
from mqbridge.cli.reading.range_reader import Range, read
from mqbridge.config.options.config import Config
from mqbridge.errors import ConfigError, RequestTimeout
from mqbridge.gateway.clusters import connected_clusters
from mqbridge.gateway.run import Gateway
from mqbridge.gateway.run_result import RunResult
from mqbridge.message import Message
from mqbridge.net.tasks import cancel, spawn

SOURCE_TOPIC = "orders"
COPY_TOPIC = "orders-copy"
DEAD_LETTER_TOPIC = "orders-dead"
SERVE_TIMEOUT_S = 30.0
"""Time for the start of the listener."""
IDLE_S = 0.5
"""The gateway ends when no message has arrived for this time."""
PROGRESS_INTERVAL_S = 0.1
"""Interval of the reports while the gateway runs."""
VERIFY_TIMEOUT_S = 600.0
"""Time limit for reading the copy back: a damaged copy must not let the command wait forever."""
TARGET_LIMIT_BYTES = 64 << 10
"""Maximum size of a message in the target."""

ReportProgress = Callable[[str, int, int], None]
"""A callback that receives the name of a step, the number of messages done, and their total."""

_CONFIGURATION = """\
# Written by `mqbridge quickstart`: Pulsar applications publish to a topic, which is bridged between two embedded logs.
clusters:
  source: {{system: log, path: {source}}}
  target: {{system: log, path: {target}, max_message_bytes: {limit}}}
listeners:
  - {{name: quickstart, system: pulsar, listen: "127.0.0.1:0", cluster: source}}
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
    """A completed step of the work, with its duration."""

    name: str
    messages: int
    seconds: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class DemoResult:
    """The results of a run."""

    too_large: int
    """Messages that were sent although they are too large for the target."""
    has_official_sdk: bool = False
    """True if the official Python SDK has published the messages."""
    dead_letters: int = 0
    """Messages that the gateway wrote to the dead-letter topic and that were found there."""
    gateway_clean: bool = False
    """True if no route and no partition stopped with an error."""
    partitions: list[PartitionComparison] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """True if every message arrived, in order and unchanged, and every message that is too large is a dead letter."""
        return self.gateway_clean and self.dead_letters == self.too_large and all(row.equal for row in self.partitions)

    def as_dict(self) -> dict[str, Any]:
        """Return the results for JSON."""
        steps = [asdict(step) | {"per_second": round(step.rate)} for step in self.steps]
        rows = [asdict(row) | {"equal": row.equal} for row in self.partitions]
        totals = {"holds": self.is_complete, "dead_letters": self.dead_letters, "too_large": self.too_large}
        return totals | {"steps": steps, "partitions": rows}


def write_configuration(folder: Path) -> Path:
    """Write the configuration of the demo into this folder. Raises ConfigError if it already has one."""
    file = folder / "quickstart.yaml"
    if file.exists():
        raise ConfigError(
            "the folder already has the files of a quickstart", location=str(file), hint="Choose another folder for --keep"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = {name: _quoted(folder.resolve() / f"{name}.db") for name in ("source", "target", "state")}
        file.write_text(_CONFIGURATION.format(**paths, limit=TARGET_LIMIT_BYTES), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}", hint="Choose another folder for --keep") from error
    return file


def _quoted(path: Path) -> str:
    """Quote a path for YAML: in single quotes only `'` is special to YAML, and only `${` (a variable) to mqbridge."""
    return "'" + str(path).replace("'", "''").replace("${", "$${") + "'"


async def bridge(config: Config, messages: int, partitions: int, report_progress: ReportProgress) -> DemoResult:
    """Fill the source topic, bridge it, and compare the copy.

    Raises ConfigError or ClusterError if a step fails, DeliveryError if messages are not stored, and RequestTimeout if the
    copy cannot be read within VERIFY_TIMEOUT_S.

    `messages` messages fit into the target; one more in each partition is too large for it.
    """
    result = DemoResult(too_large=partitions, has_official_sdk=has_official_sdk())
    async with _record_step(result, "fed", messages + partitions):
        originals = await _fill(config, messages, partitions, report_progress)
    began = time.monotonic()
    outcome = await _run_gateway(config, messages + partitions, report_progress)
    # The gateway ends after IDLE_S without a message: that time is not part of the work.
    result.steps.append(Step("bridged", messages + partitions, max(time.monotonic() - began - IDLE_S, 0.001)))
    result.gateway_clean = outcome.clean
    result.dead_letters = sum(route.counters.dead for route in outcome.routes)
    async with _record_step(result, "verified", messages):
        copies, dead_letters = await _read_back(config, report_progress)
    result.dead_letters = min(result.dead_letters, dead_letters)  # each counts if the gateway counted it and the topic has it
    for name in sorted(originals.keys() | copies.keys(), key=int):
        sent, copied = originals.get(name, Checksum()), copies.get(name, Checksum())
        result.partitions.append(PartitionComparison(name, sent.count, copied.count, sent.value, copied.value))
    return result


@contextlib.asynccontextmanager
async def _record_step(result: DemoResult, name: str, messages: int) -> AsyncIterator[None]:
    """Append a step with the duration of the block to the result."""
    began = time.monotonic()
    yield
    result.steps.append(Step(name, messages, time.monotonic() - began))


async def _fill(config: Config, messages: int, partitions: int, report_progress: ReportProgress) -> dict[str, Checksum]:
    """Publish the messages to the source topic through the listener, as a Pulsar application does.

    Returns the checksum of each partition, without its too large message. Raises DeliveryError, ClusterError.
    """
    async with connected_clusters(config) as clusters:
        await clusters["source"].create(SOURCE_TOPIC, partitions)
    checksums: dict[str, Checksum] = {}
    fed = 0

    def report_sent(count: int) -> None:
        nonlocal fed
        fed += count
        report_progress("feed", min(fed, messages + partitions), messages + partitions)

    async with _serving(config) as url:
        for index in range(partitions):
            count = messages // partitions + (index < messages % partitions)  # the first partitions get the remainder
            checksum = checksums[str(index)] = Checksum()
            await publish(url, f"{SOURCE_TOPIC}-partition-{index}", _sent_messages(index, count, checksum), report_sent)
            report_sent((count + 1) % CHUNK_MESSAGES)
    return checksums


def _sent_messages(partition: int, count: int, checksum: Checksum) -> Iterator[Message]:
    """Yield the messages of a partition, and add them to its checksum; the last one, which is too large, is not added."""
    for message in ordinary_messages(partition, count):
        checksum.add(message)
        yield message
    yield too_large_message(partition)


@contextlib.asynccontextmanager
async def _serving(config: Config) -> AsyncIterator[str]:
    """Run a gateway with the listener, and without the route; yield the URL for clients. Raises ConfigError, ClusterError."""
    gateway = Gateway(config.model_copy(update={"routes": ()}))
    serving: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    gateway.on_serving = lambda listener: serving.set_result(f"pulsar://{listener.address}")
    running = spawn(gateway.run(), "listener", log_errors=False)
    try:
        await asyncio.wait([serving, running], timeout=SERVE_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        if not serving.done():
            raise RequestTimeout(f"the listener does not serve clients after {SERVE_TIMEOUT_S:g} s")
        yield serving.result()
    finally:
        gateway.stop()
        await asyncio.wait([running])
    running.result()


async def _run_gateway(config: Config, total: int, report_progress: ReportProgress) -> RunResult:
    """Run the gateway until the source topic is bridged, and report its progress every PROGRESS_INTERVAL_S."""
    gateway = Gateway(config)

    async def report_loop() -> None:
        while True:
            report_progress("bridge", sum(route.state.counters.acknowledged for route in gateway.routes), total)
            await asyncio.sleep(PROGRESS_INTERVAL_S)

    reporter = spawn(report_loop(), "progress")
    try:
        outcome = await gateway.run(IDLE_S)
    finally:
        await cancel(reporter)
    report_progress("bridge", sum(route.counters.acknowledged for route in outcome.routes), total)
    return outcome


async def _read_back(config: Config, report_progress: ReportProgress) -> tuple[dict[str, Checksum], int]:
    """Return the checksum of each partition of the copy, and the number of dead letters."""
    async with connected_clusters(config) as clusters:
        target = clusters["target"]
        bounds = await target.bounds(COPY_TOPIC)
        total = _message_count(bounds)
        checksums = {name: Checksum() for name in bounds}
        ranges = {name: Range(partition.first, partition.next) for name, partition in bounds.items()}
        try:
            async with asyncio.timeout(VERIFY_TIMEOUT_S), aclosing(read(target, COPY_TOPIC, ranges)) as chunks:
                async for partition, messages in chunks:
                    checksum = checksums[partition.name]
                    for message in messages:
                        checksum.add(message)
                    report_progress("verify", sum(each.count for each in checksums.values()), total)
        except TimeoutError as error:
            read_count = sum(each.count for each in checksums.values())
            raise RequestTimeout(
                f"only {read_count} of {total} copied messages could be read in {VERIFY_TIMEOUT_S:g} s from {COPY_TOPIC!r}"
            ) from error
        return checksums, _message_count(await clusters["source"].bounds(DEAD_LETTER_TOPIC))


def _message_count(bounds: Mapping[str, Bounds]) -> int:
    """Return the number of messages in a topic of an embedded log, where positions count messages."""
    return sum(partition.message_count or 0 for partition in bounds.values())
