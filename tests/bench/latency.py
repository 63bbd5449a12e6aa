"""Added latency at a share of the load that is possible, of the gateway and of the Java bridge.

A probe (`BenchProbe.java`) sends messages to the source topic with the official client, at a fixed rate, and receives them from
the target topic with the official client: a message's time is from handing it to the one client until the other hands it out, on
one clock. The same path without a bridge is taken beforehand, in one cluster after the other and at the same rate: from a topic
of the source cluster back to the probe, and from one of the target cluster. A bridge that takes no time at all would make a
message wait for both, so what a bridge adds is a quantile of the times through it, less the same quantile of the sum of two
independent draws from the times without it.

The load is a share of what the slower of the two chains (sender, source, bridge, target, receiver, all on this machine) moves
when nothing holds the sender back. On two cores it has to be small: at a quarter of it all five already wait for a core most of
the time. Both bridges run all the time, on topics of their own, and have moved these messages before.
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
HELLO = 800
"""Messages that have come before the others are sent: a group takes seconds until it has its partitions."""
SECONDS = 40
"""Of sending at the fixed rate, the first third of which the figures leave out."""
WARMUP = 1 / 3
LOAD = 0.05
SHOWN = (0.5, 0.99)
THINNED = 500
"""Of the values whose sums are taken in pairs."""


@dataclass(frozen=True, slots=True)
class Times:
    """What a probe measured."""

    rate: float
    """Messages per second that were received."""
    quantiles: Sequence[float]
    """Evenly spaced ones of the times, in microseconds."""

    def at(self, share: float) -> float:
        """The time that so large a share of the messages took at most."""
        return quantile(self.quantiles, share)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values in order."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summed(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """The distribution of the sum of two independent times, of each of which evenly spaced quantiles are known."""
    thin, slim = (values[:: max(1, len(values) // THINNED)] for values in (one, other))
    return sorted(a + b for a in thin for b in slim)


def added(through: Times, source: Times, target: Times, share: float) -> float:
    """Microseconds that the bridge adds at a quantile."""
    return through.at(share) - quantile(summed(source.quantiles, target.quantiles), share)


@dataclass(frozen=True, slots=True)
class Latency:
    """One direction."""

    direction: str
    rate: float
    """Messages per second that were sent."""
    source: Times
    """Of the path through the source cluster alone; likewise the next."""
    target: Times
    through: Mapping[str, Times]
    """By bridge."""


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
    """A bridge at work between two fresh topics."""
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
    """Send messages at a rate, or as fast as possible, and receive them. A group reads one topic, as RocketMQ requires."""
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
    """Lines of the table, times in ms."""
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
    """The chapter of docs/explanation/benchmarks.md."""
    lines = [
        "## Added latency",
        "",
        f"{corpus.about}, {corpus.partitions} partitions, at {load:.0%} of what the slower chain of sender, bridge",
        f"and receiver moves on this machine, for {SECONDS} s, of which the first third is left out. Milliseconds from handing a",
        "message to the official Java client of the source until that of the target hands it out, all on one clock; `alone` is",
        "the same without a bridge: a message that goes through each of the two clusters, one after the other (the sum of",
        "independent draws of both, measured one after the other at the same rate). What a bridge adds is the difference.",
        "Clients of TubeMQ look for new messages every 400 ms.",
        "",
        "| direction | messages/s | bridge | p50 | p99 | alone: p50 | p99 | added: p50 | p99 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    with Clusters() as clusters:
        for direction in directions:
            lines += rows(measure(clusters, direction, corpus, load=load, gateway_only=gateway_only))
    return "\n".join([*lines, ""])
