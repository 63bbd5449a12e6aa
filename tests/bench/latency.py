"""Benchmark of the latency that the gateway and the Java bridge add, at a small share of the maximum rate.

A probe (`BenchProbe.java`) sends messages to the source topic at a fixed rate and receives them from the target topic, both with
official clients. The latency of a message lasts from the send call until the other client delivers it, by one clock. Beforehand
the probe measures each cluster alone at the same rate: it sends to a topic of the cluster and receives from the same topic. With
a bridge that needs no time, a message would need the sum of these two latencies. The added latency at a quantile is therefore
that quantile of the latency through the bridge minus the same quantile of the sum of two independent samples.

The rate is a share (LOAD) of the maximum rate of the slower bridge, measured with an unlimited sender. On two cores it has to be
small: at a quarter of the maximum, sender, source, bridge, target and receiver already wait for a core most of the time. Both
bridges run all the time, each on topics of its own, and have moved messages before the measurement.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.bench.bridge import GATEWAY, JAVA, Task, java_bridge, started
from tests.bench.corpora import Corpus
from tests.bench.ends import Clusters, java_arguments, java_flags, take_topic
from tests.e2e.sides import Side
from tests.kit import java
from tests.kit.maven import say

UNPACED = 60_000
"""Messages that are sent as fast as possible, to measure the maximum rate."""
HELLO = 800
"""Messages that must arrive before the others are sent: a group needs seconds to get its partitions."""
SECONDS = 40
"""Duration of sending at the fixed rate."""
WARMUP = 1 / 3
"""Share of the messages, at the start, that the figures leave out."""
LOAD = 0.05
"""Sending rate as a share of the maximum rate of the slower bridge."""
SHOWN = (0.5, 0.99)
"""Quantiles in the table."""
THINNED = 500
"""Approximate number of values of each distribution that are added in pairs."""


@dataclass(frozen=True, slots=True)
class Times:
    """Results of a probe."""

    rate: float
    """Messages per second that were received."""
    quantiles: Sequence[float]
    """Evenly spaced quantiles of the latency, in microseconds."""

    def at(self, share: float) -> float:
        """Return the quantile of the latency for this share of the messages."""
        return quantile(self.quantiles, share)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summed(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the sorted sums of two independent latencies, each given by evenly spaced quantiles."""
    thin, slim = (values[:: max(1, len(values) // THINNED)] for values in (one, other))
    return sorted(a + b for a in thin for b in slim)


def added(through: Times, source: Times, target: Times, share: float) -> float:
    """Return the microseconds that the bridge adds at a quantile."""
    return through.at(share) - quantile(summed(source.quantiles, target.quantiles), share)


@dataclass(frozen=True, slots=True)
class Latency:
    """Results of one direction."""

    direction: str
    rate: float
    """Messages per second that were sent."""
    source: Times
    """Latency in the source cluster alone."""
    target: Times
    """Latency in the target cluster alone."""
    through: Mapping[str, Times]
    """Latency through each bridge, by its name."""


def measure(clusters: Clusters, direction: str, corpus: Corpus, *, load: float = LOAD, gateway_only: bool = False) -> Latency:
    """Measure one direction with both bridges, at this fraction of the maximum rate."""
    here, there = map(partial(clusters.side, raised=False), direction.split("-"))
    send = partial(probe, corpus)
    with contextlib.ExitStack() as stack:
        names = [GATEWAY] if gateway_only else [GATEWAY, JAVA]
        ways = {name: stack.enter_context(_bridged(here, there, name, corpus.partitions)) for name in names}
        moved = {name: send(here, there, *way, UNPACED) for name, way in ways.items()}
        for name, times in moved.items():
            say(f"{direction}, {name}: {times.rate:,.0f} messages/s from end to end")
        rate = load * min(times.rate for times in moved.values())
        count = int(rate * SECONDS)
        source, target = _without(here, there, corpus, count, rate)
        through = {name: send(here, there, *way, count, rate, start=HELLO + UNPACED) for name, way in ways.items()}
    found = Latency(direction, rate, source, target, through)
    say("\n".join(rows(found)))
    return found


@contextlib.contextmanager
def _bridged(here: Side, there: Side, name: str, partitions: int) -> Iterator[tuple[str, str]]:
    """Run a bridge between two new topics; yield their names."""
    topic, into = take_topic(here, partitions), take_topic(there, partitions)
    task = Task(here, there, topic, partitions, 0)
    group = name.split(maxsplit=1)[0].lower()
    with started(task, group, into=into) if name == GATEWAY else java_bridge(task, group, into):
        yield topic, into


def _without(here: Side, there: Side, corpus: Corpus, count: int, rate: float) -> list[Times]:
    """Measure the latency of each cluster alone, one after the other, because a bridge loads each of them only once."""
    topics = [take_topic(side, corpus.partitions) for side in (here, there)]
    return [probe(corpus, side, side, topic, topic, count, rate) for side, topic in zip((here, there), topics, strict=True)]


def probe(corpus: Corpus, here: Side, there: Side, topic: str, into: str, count: int, rate: float = 0, start: int = 0) -> Times:
    """Send messages to `topic` and receive them from `into`, with a group for this topic only, as RocketMQ requires.

    A `rate` of 0 means as fast as possible; `start` is the number of the first message.
    """
    arguments: dict[str, Any] = {**java_arguments(there, here), **corpus.arguments(here.system)}
    last = java.run(
        "BenchProbe",
        flags=[*java.BRIDGE_FLAGS, *java_flags(here, there)],
        topic=topic,
        from_topic=into,
        group=f"probe_{into.rpartition('/')[2]}",
        start=start,
        hello=HELLO,
        messages=HELLO + count,
        warmup=HELLO + int(count * WARMUP),
        rate=int(rate),
        **arguments,
    )[-1]
    return Times(last["rate"], last["quantiles"])


def rows(found: Latency) -> list[str]:
    """Return the rows of one direction, with times in ms."""
    alone = summed(found.source.quantiles, found.target.quantiles)
    without = " | ".join(f"{quantile(alone, share) / 1000:.1f}" for share in SHOWN)
    lines = []
    for name, times in found.through.items():
        through = " | ".join(f"{times.at(share) / 1000:.1f}" for share in SHOWN)
        more = " | ".join(f"{added(times, found.source, found.target, share) / 1000:.1f}" for share in SHOWN)
        direction = found.direction.replace("-", " to ")
        lines.append(f"| {direction} | {found.rate:,.0f} | {name} | {through} | {without} | {more} |")
    return lines


def chapter(directions: Sequence[str], corpus: Corpus, *, load: float = LOAD, gateway_only: bool = False) -> str:
    """Measure the directions and return the chapter about them."""
    lines = [
        "## Added latency",
        "",
        f"Messages: {corpus.about}, {corpus.partitions} partitions. Times are in milliseconds, from the send call of the",
        "source's official Java client until the target's delivers the message, by one clock. The sending rate is",
        f"{load:.0%} of the rate that the slower of the two bridges reaches on this machine, for {SECONDS} s; the first",
        "third is left out.",
        "",
        "`alone` is the latency without a bridge: each cluster is measured by itself at the same rate, and independent",
        "samples of the two are added, for a message that passes through one cluster after the other. `added` is the",
        "difference of the two quantiles, so it can be slightly negative. Clients of TubeMQ poll for new messages every",
        "400 ms.",
        "",
        "| direction | messages/s | bridge | p50 | p99 | alone: p50 | p99 | added: p50 | p99 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    with Clusters() as clusters:
        for direction in directions:
            lines += rows(measure(clusters, direction, corpus, load=load, gateway_only=gateway_only))
    return "\n".join([*lines, ""])
