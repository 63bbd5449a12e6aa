"""Cases of the end-to-end benchmark, and its chapter of docs/explanation/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tests.bench.bridge import GATEWAY, JAVA, RUNNERS, Runner, Task, measure
from tests.bench.corpora import CORPORA, ORDINARY
from tests.bench.ends import SEED, Clusters, fill_topic
from tests.bench.figures import Figures, median
from tests.e2e.sides import SYSTEMS
from tests.kit.maven import say

DIRECTIONS = tuple(f"{source}-{target}" for source in SYSTEMS for target in SYSTEMS)
MESSAGES = 200_000
BYTES = 500_000_000
"""Maximum total size of the payloads of one topic."""


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """A row of the table: one measured quantity."""

    corpus: str
    raised: bool
    """True for raised pull limits of RocketMQ."""
    rules: bool
    direction: str

    @property
    def ends(self) -> tuple[str, str]:
        """The source system and the target system."""
        source, target = self.direction.split("-")
        return source, target

    @property
    def how(self) -> str:
        """Return the corpus, and settings that differ from the defaults."""
        return self.corpus + (", raised pull limits" if self.raised else "") + (", rules" if self.rules else "")


def cases(directions: Iterable[str], corpora: Iterable[str], *, raised: bool, rules: bool) -> list[Case]:
    """Return a case for every corpus and direction. Raised pull limits exist only for RocketMQ sources."""
    chosen = [one for one in directions if not raised or one.startswith("rocketmq-")]
    return [Case(corpus, raised, rules, direction) for corpus in corpora for direction in chosen]


def everything() -> list[Case]:
    """Return all cases that `make bench` measures."""
    found = cases(DIRECTIONS, CORPORA, raised=False, rules=False)
    found += cases(DIRECTIONS, ORDINARY, raised=True, rules=False)
    return found + cases(DIRECTIONS, ORDINARY[:1], raised=False, rules=True)


def messages_of(corpus: str, most: int) -> int:
    """Return the number of messages for a topic: `most`, or fewer if the corpus has large messages."""
    return min(most, BYTES // CORPORA[corpus].payload)


def moved_messages(total: int, system: str, most_into: Mapping[str, int]) -> int:
    """Return the number of messages that a run moves from a topic of `total` messages into a target system."""
    return min(total, most_into.get(system, total))


Row = tuple[Case, dict[str, Figures]]


def rows(
    chosen: Sequence[Case],
    most: int,
    rounds: int,
    runners: Mapping[str, Runner] = RUNNERS,
    seed: int = SEED,
    most_into: Mapping[str, int] | None = None,
) -> Iterator[Row]:
    """Yield the median figures of every case. Each corpus gets new clusters, because they keep all messages written to them.

    `most` is the maximum number of messages in a topic. A run moves all of them, or fewer into a target system in `most_into`.
    """
    for corpus, of_corpus in groupby(sorted(chosen), key=lambda case: case.corpus):
        total = messages_of(corpus, most)
        with Clusters() as clusters:
            topics: dict[tuple[str, bool], str] = {}
            for case in of_corpus:
                source, target = (clusters.side(system, raised=case.raised) for system in case.ends)
                filled = source.system, case.raised
                if filled not in topics:
                    say(f"filling {source.system} with {total:,} messages: {corpus}")
                    topics[filled] = fill_topic(source, CORPORA[corpus], total, seed)
                say(f"{case.direction}: {case.how}")
                moved = moved_messages(total, target.system, most_into or {})
                task = Task(source, target, topics[filled], CORPORA[corpus].partitions, moved, case.rules)
                yield case, {name: median(runs) for name, runs in measure(task, rounds, runners).items()}


def table(found: Iterable[Row], names: Sequence[str]) -> list[str]:
    """Return a table with a row per case: the figures of each bridge, and the ratios of the first to the second."""
    figures = "messages/s | CPU-s per million | RSS, MB |"
    heads = [f"{name}: {figures}" for name in names] + ["ratio: messages/s | CPU | RSS |"] * (len(names) > 1)
    lines = ["| direction | corpus | " + " ".join(heads)]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    for case, by_name in found:
        cells = [_cells(by_name[name]) for name in names]
        if len(names) > 1:
            ratio = by_name[names[0]].beside(by_name[names[1]])
            cells.append(f"{ratio.rate:.2f} | {ratio.cpu:.2f} | {ratio.rss_mb:.2f}")
        lines.append(f"| {case.direction.replace('-', ' to ')} | {case.how} | {' | '.join(cells)} |")
    return lines


def _cells(figures: Figures) -> str:
    return f"{figures.rate:,.0f} | {figures.cpu:.1f} | {figures.rss_mb:.0f}"


def chapter(chosen: Sequence[Case], most: int, rounds: int, runners: Mapping[str, Runner], seed: int = SEED) -> str:
    """Measure the cases and return the chapter about them."""
    runs = "one run" if rounds == 1 else f"medians of {rounds} alternating runs"
    return "\n".join(
        [
            "## End to end",
            "",
            "The servers run on the same machine: TubeMQ 2.4.0, Pulsar 4.0.8, RocketMQ 5.3.3, with their default settings.",
            "By default RocketMQ returns at most 32 messages per pull; rows with raised pull limits use 1,024 messages and",
            f"1 MiB. The memory cache of TubeMQ is off. The official Java client writes the source topic: {most:,} random",
            f"messages (seed {seed}), fewer of 10 KB. Figures are {runs}. A run is measured from the moment a fifth of the",
            "messages is stored until the last one is stored. The columns are messages per second, CPU-seconds of the",
            "bridge's process per million messages (microseconds per message), and its peak resident memory (RSS).",
            "",
            f"`{JAVA}` does the same with the official clients: asynchronously, with batches where the client supports",
            f"them, and it acknowledges only stored messages. The ratios are `{GATEWAY}` divided by `{JAVA}`. In rows with",
            "rules, both drop a quarter of the messages by a property, remove, rename and add a property, and choose the",
            "partition by a property.",
            "",
            *(
                f"- `{name}`: {CORPORA[name].about}; {_partitions(name)}"
                for name in dict.fromkeys(case.corpus for case in chosen)
            ),
            "",
            *table(rows(chosen, most, rounds, runners, seed), list(runners)),
            "",
        ]
    )


def _partitions(name: str) -> str:
    count = CORPORA[name].partitions
    return "1 partition" if count == 1 else f"{count} partitions"
