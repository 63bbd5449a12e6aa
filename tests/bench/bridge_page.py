"""What is measured end to end, and the chapter of docs/explanation/benchmarks.md about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tests.bench.bridge import GATEWAY, JAVA, Runner, Task, measure
from tests.bench.corpora import CORPORA, ORDINARY
from tests.bench.ends import SEED, Clusters, fill_topic
from tests.bench.figures import Figures, median
from tests.e2e.sides import SYSTEMS
from tests.kit.maven import say

DIRECTIONS = tuple(f"{source}-{target}" for source in SYSTEMS for target in SYSTEMS)
MESSAGES = 200_000
BYTES = 500_000_000
"""At most, of the bodies of one topic."""


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """One line of the table."""

    corpus: str
    raised: bool
    """RocketMQ's pull limits."""
    rules: bool
    direction: str

    @property
    def ends(self) -> tuple[str, str]:
        """Source and target."""
        source, target = self.direction.split("-")
        return source, target

    @property
    def how(self) -> str:
        """Return the corpus, and settings that differ from the defaults."""
        return self.corpus + (", raised pull limits" if self.raised else "") + (", rules" if self.rules else "")


def cases(directions: Iterable[str], corpora: Iterable[str], *, raised: bool, rules: bool) -> list[Case]:
    """Every corpus in every direction: with or without rules; raised pull limits mean something of RocketMQ only."""
    chosen = [one for one in directions if not raised or one.startswith("rocketmq-")]
    return [Case(corpus, raised, rules, direction) for corpus in corpora for direction in chosen]


def everything() -> list[Case]:
    """What `make bench` measures."""
    found = cases(DIRECTIONS, CORPORA, raised=False, rules=False)
    found += cases(DIRECTIONS, ORDINARY, raised=True, rules=False)
    return found + cases(DIRECTIONS, ORDINARY[:1], raised=False, rules=True)


def messages_of(corpus: str, most: int) -> int:
    """How many messages a topic of a corpus gets: fewer of large ones."""
    return min(most, BYTES // CORPORA[corpus].payload)


Row = tuple[Case, dict[str, Figures]]


def rows(chosen: Sequence[Case], most: int, rounds: int, runners: Mapping[str, Runner], seed: int = SEED) -> Iterator[Row]:
    """Medians of every case; clusters are started anew for each corpus, since they keep all that they are given."""
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
                task = Task(source, target, topics[filled], CORPORA[corpus].partitions, total, case.rules)
                yield case, {name: median(runs) for name, runs in measure(task, rounds, runners).items()}


def table(found: Iterable[Row], names: Sequence[str]) -> list[str]:
    """A line per case: the figures of each bridge, and those of the first as ratios of those of the second."""
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
    """The chapter of docs/explanation/benchmarks.md."""
    runs = "one run" if rounds == 1 else f"medians of {rounds} runs in turn"
    return "\n".join(
        [
            "## End to end",
            "",
            "Real servers on the same machine: TubeMQ 2.4.0, Pulsar 4.0.8, RocketMQ 5.3.3, all with the settings that they are",
            "shipped with (RocketMQ answers a pull with 32 messages at most) unless a line says that pull limits are raised, to",
            "1,024 messages and 1 MiB. TubeMQ stores without its memory cache. The source topic is written by the official Java",
            f"client: {most:,} messages, fewer of 10 KB, drawn from a seed ({seed}). Figures are {runs}, from the moment a fifth",
            "of the messages is through to the last one: messages per second, CPU-seconds of the bridge's process per million",
            "messages (which are microseconds per message), and its peak memory.",
            f"`{JAVA}` does the same job on the official clients: asynchronous, batched where the client can, acknowledging only",
            f"what is stored. A ratio is that of `{GATEWAY}` to it. With rules both leave out a quarter of the messages by a",
            "property, remove, rename and make a property, and choose the partition by a property.",
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
