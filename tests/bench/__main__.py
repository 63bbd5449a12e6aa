"""`make bench`: the figures of docs/benchmarks.md, measured on this machine.

python -m tests.bench            codec, bridge, tls, clients and spark
python -m tests.bench codec      seconds, needs no server
python -m tests.bench tls --direction pulsar-rocketmq --messages 200000    what TLS costs; a shorter run of one direction
python -m tests.bench clients    our clients beside the official ones
python -m tests.bench spark --jobs "source|copy" --rows 200000    some of the work on Spark; what it is compared with runs too
python -m tests.bench bridge --against DIR    this gateway and that of another checkout, say of the commit before, in turn
python -m tests.bench --write    also renews what was measured in docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

from tests.bench import bridge, clients, codec, spark, tls
from tests.kit.maven import say

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
SIZES = {100: 1_000_000, 1_000: 600_000, 10_000: 80_000}
"""Messages by body size."""
DIRECTIONS = (
    ("tubemq", "pulsar", (100, 1_000, 10_000)),
    ("rocketmq", "pulsar", (1_000,)),
    ("rocketmq", "tubemq", (1_000,)),
    ("pulsar", "rocketmq", (1_000,)),
    ("tubemq", "rocketmq", (1_000,)),
    ("pulsar", "pulsar", (1_000,)),
)
"""What is measured, with which sizes of bodies."""
ROUNDS = 3

INTRO = """# Benchmarks

Written by `make bench`. Machines differ and shared ones drift: read the ratios, and measure on yours.
"""


def machine() -> str:
    """What was measured on."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?"
    )
    packages = ", ".join(f"{name} {version(name)}" for name in ("uvloop", "protobuf", "crc32c"))
    return (
        f"{os.cpu_count()} x {model}, Linux, Python {platform.python_version()}, {packages}; servers and bridge share the cores."
    )


def codec_table() -> str:
    """ns per message."""
    rows = {size: codec.measure(size) for size in SIZES}
    names = list(next(iter(rows.values())))
    lines = [
        "## Codec",
        "",
        "ns per message on one core, packs of 500 messages with five attributes. Decoding goes from a whole frame to messages",
        "(of TubeMQ's, pairs are read only when asked for), encoding from messages to whole frames.",
        "",
        "| body | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    lines += [f"| {size:,} B | " + " | ".join(f"{rows[size][name]:,.0f}" for name in names) + " |" for size in SIZES]
    return "\n".join(lines) + "\n"


def before_and_after(other: Path, rounds: int) -> str:
    """This gateway beside that of another checkout (with a .venv of its own), in every direction."""
    lines = [
        f"## This checkout and {other}",
        "",
        "| direction | body | gateway | messages/s | MB/s | CPU-s per million | peak RSS, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    runners = {"this": bridge.run_gateway, "the other": partial(bridge.run_gateway, checkout=other)}
    for source, target, sizes in DIRECTIONS:
        for size in sizes:
            measured = bridge.measure(source, target, size, SIZES[size], rounds, runners)
            lines += bridge_rows(f"{source} to {target}", size, {name: bridge.median(runs) for name, runs in measured.items()})
    return "\n".join(lines) + "\n"


def bridge_table(rounds: int) -> str:
    """Messages/s, MB/s, CPU and memory of every direction, beside the Java bridge."""
    lines = [
        "## End to end",
        "",
        "8 partitions, five properties, real servers on the same machine (TubeMQ 2.4.0, Pulsar 4.0.8, RocketMQ 5.3.3 with pull",
        f"limits raised to 1,024 messages and 1 MiB), medians of {rounds} runs in turn. The Java bridge does the same job on the",
        "official clients: asynchronous, batched where the client can, acknowledging only what is stored.",
        "",
        "| direction | body | bridge | messages/s | MB/s | CPU-s per million | peak RSS, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for source, target, sizes in DIRECTIONS:
        for size in sizes:
            found = {
                name: bridge.median(runs) for name, runs in bridge.measure(source, target, size, SIZES[size], rounds).items()
            }
            lines += bridge_rows(f"{source} to {target}", size, found)
    return "\n".join(lines) + "\n"


def bridge_rows(direction: str, size: int, found: dict[str, bridge.Figures]) -> list[str]:
    """The lines of one direction and size, the last one the first as a ratio of the second."""
    lines = []
    for name, figures in found.items():
        cells = f"{figures.rate:,.0f} | {figures.rate * size / 1e6:.0f} | {figures.cpu:.1f} | {figures.rss_mb:.0f}"
        lines.append(f"| {direction} | {size:,} B | {name} | {cells} |")
    ours, theirs = found.values()
    rate, cpu, rss = ours.rate / theirs.rate, ours.cpu / theirs.cpu, ours.rss_mb / theirs.rss_mb
    return [*lines, f"| {direction} | {size:,} B | ratio | {rate:.2f} | {rate:.2f} | {cpu:.2f} | {rss:.2f} |"]


def main() -> None:
    """Measure, print, and write when asked."""
    parser = argparse.ArgumentParser(
        "python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="*", default=[*CHAPTERS, "tls", "spark"], help="codec, bridge, tls, clients, spark (default all)"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each bridge and client (default {ROUNDS})")
    parser.add_argument("--write", action="store_true", help="renew these chapters of docs/benchmarks.md")
    parser.add_argument("--against", type=Path, metavar="DIR", help="bridge: beside another checkout instead of the Java bridge")
    parser.add_argument(
        "--jobs", default="", metavar="REGEX", help="spark: the work and ends to measure, as in its table (default all)"
    )
    parser.add_argument("--rows", type=int, default=spark.ROWS, help=f"spark: rows of a job (default {spark.ROWS:,})")
    parser.add_argument("--direction", action="append", metavar="SOURCE-TARGET", help="tls: only this one; may be repeated")
    parser.add_argument("--messages", type=int, default=SIZES[tls.SIZE], help="tls: messages of a run (default %(default)s)")
    arguments = parser.parse_args()
    if arguments.against is not None:
        print(before_and_after(arguments.against.resolve(), arguments.rounds))
        return
    measured: dict[str, str] = {}
    of_tls = partial(tls.table, total=arguments.messages, only=arguments.direction)
    every = {**CHAPTERS, "tls": of_tls, "spark": partial(spark.table, chosen=arguments.jobs, rows=arguments.rows)}
    for what, measure in every.items():
        if what in arguments.what:
            say(what)
            measured |= chapters(measure(arguments.rounds))
    print("\n".join(measured.values()))
    if arguments.write:
        found = chapters(PAGE.read_text()) | measured
        PAGE.write_text("\n".join([INTRO, machine() + "\n", *found.values()]))
        say(f"wrote {PAGE.name}")


CHAPTERS: dict[str, Callable[[int], str]] = {"codec": lambda _: codec_table(), "bridge": bridge_table, "clients": clients.table}


def chapters(page: str) -> dict[str, str]:
    """The chapters of a page by their titles."""
    texts = [f"## {text.strip()}\n" for text in f"\n{page}".split("\n## ")[1:]]
    return {text.splitlines()[0]: text for text in texts}


if __name__ == "__main__":
    main()
