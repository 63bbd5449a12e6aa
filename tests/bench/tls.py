"""Cost of TLS: each direction between open clusters and between locked ones; gateway and Java bridge alternate."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.bridge import Task, measure
from tests.bench.corpora import CORPORA
from tests.bench.ends import Clusters, fill_topic
from tests.bench.figures import Figures, median

CORPUS = CORPORA["ordinary"]
MESSAGES = 600_000
DIRECTIONS = (
    ("pulsar", "pulsar"),
    ("pulsar", "rocketmq"),
    ("rocketmq", "pulsar"),
    ("tubemq", "pulsar"),
    ("tubemq", "rocketmq"),
    ("rocketmq", "tubemq"),
)
HEADER = f"""## The cost of TLS

Payloads of {CORPUS.payload:,} B with five properties, in {CORPUS.partitions} partitions. Each direction is measured between
clusters without TLS, and then between clusters with TLS on every connection: Pulsar with tokens and authorization, RocketMQ
5.3.3 with mutual TLS and signatures (access control 2.0), TubeMQ with mutual TLS. The official TubeMQ client has no TLS, so the
Java bridge encrypts only its connections to the other cluster. The row `ratio` is the gateway's figure divided by the Java
bridge's.

| direction | bridge | messages/s | with TLS | ratio | CPU-s per million | with TLS | ratio |
|---|---|---|---|---|---|---|---|"""


def table(rounds: int, *, total: int, only: Sequence[str] | None = None) -> str:
    """Measure the directions and return the chapter: rates and CPU time of both bridges without and with TLS."""
    lines = [HEADER]
    for source, target in DIRECTIONS:
        if only is None or f"{source}-{target}" in only:
            open_ones = _medians(source, target, rounds, total, locked=False)
            locked_ones = _medians(source, target, rounds, total, locked=True)
            lines += rows(f"{source} to {target}", open_ones, locked_ones)
    runs = "One run" if rounds == 1 else f"Medians of {rounds} runs"
    return "\n".join(lines) + f"\n\n{runs} of {total:,} messages.\n"


def _medians(source: str, target: str, rounds: int, total: int, *, locked: bool) -> dict[str, Figures]:
    with Clusters(locked=locked) as clusters:
        here, there = clusters.side(source), clusters.side(target)
        task = Task(here, there, fill_topic(here, CORPUS, total), CORPUS.partitions, total)
        return {name: median(runs) for name, runs in measure(task, rounds).items()}


def rows(direction: str, open_ones: dict[str, Figures], locked_ones: dict[str, Figures]) -> list[str]:
    """Return the rows of one direction: gateway, Java bridge, and the ratios of the two."""
    lines = []
    for name, without in open_ones.items():
        with_tls = locked_ones[name]
        rates = f"{without.rate:,.0f} | {with_tls.rate:,.0f} | {with_tls.rate / without.rate:.2f}"
        costs = f"{without.cpu:.1f} | {with_tls.cpu:.1f} | {with_tls.cpu / without.cpu:.2f}"
        lines.append(f"| {direction} | {name} | {rates} | {costs} |")
    (ours, theirs), (our_tls, their_tls) = open_ones.values(), locked_ones.values()
    rates = f"{ours.rate / theirs.rate:.2f} | {our_tls.rate / their_tls.rate:.2f} | "
    return [*lines, f"| {direction} | ratio | {rates}| {ours.cpu / theirs.cpu:.2f} | {our_tls.cpu / their_tls.cpu:.2f} | |"]
