"""`make bench`: measures the figures of docs/explanation/benchmarks.md on this machine.

python -m tests.bench            codec, overhead, ratios, bridge, latency, memory, clients, listeners, tls and spark
python -m tests.bench codec      encoding and decoding; takes seconds, needs no server
python -m tests.bench overhead   CPU time per batch without encoding and decoding; takes a minute, needs no server
python -m tests.bench ratios --write    CPU time relative to the Java bridge in the nine directions, for page and README
python -m tests.bench bridge --direction rocketmq-pulsar --corpus single --messages 100000 --rounds 1 --gateway-only
                                 one direction without the Java bridge, for a quick result
python -m tests.bench bridge --against DIR    this gateway and the gateway of another checkout, alternating
python -m tests.bench latency --direction tubemq-pulsar    latency added by the gateway and by the Java bridge
python -m tests.bench memory     memory of a gateway whose target is unreachable; takes two minutes
python -m tests.bench tls --direction pulsar-rocketmq --messages 200000    cost of TLS; a shorter run of one direction
python -m tests.bench listener --case Shared    some of the runs with a listener and with a real Pulsar standalone
python -m tests.bench clients    our clients and the official ones
python -m tests.bench spark --jobs "source|copy" --rows 200000    some of the Spark jobs, and the Kafka jobs to compare with
python -m tests.bench profile rocketmq-pulsar ordinary    CPU time by package and function (see `profile --help`)
python -m tests.bench --write    also replaces the measured chapters of docs/explanation/benchmarks.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench import (
    bridge,
    bridge_page,
    clients,
    codec,
    latency,
    listener,
    memory,
    overhead,
    profile,
    ratios,
    rocketmq_listener,
    spark,
    tls,
    tubemq_listener,
)
from tests.bench.corpora import CORPORA, ORDINARY
from tests.bench.ends import SEED
from tests.bench.pages import chapters, machine, renew
from tests.kit.maven import say

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "benchmarks.md"
SIZES = (100, 1_000, 10_000)
"""Payload sizes in bytes for the codec benchmark."""
ROUNDS = 3

INTRO = """# Benchmarks

Written by `make bench`. Absolute figures depend on the machine and its load: compare the ratios, and measure
on your own machine.
"""


def codec_table() -> str:
    """Return the chapter about the codecs: nanoseconds per message."""
    rows = {size: codec.measure(size) for size in SIZES}
    names = list(next(iter(rows.values())))
    lines = [
        "## Codec",
        "",
        "Nanoseconds per message on one core, for packs of 500 messages with five attributes. Decoding converts a frame to",
        "messages (the attributes of TubeMQ messages are parsed only on access); encoding converts messages to frames.",
        "",
        "| body | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    lines += [f"| {size:,} B | " + " | ".join(f"{rows[size][name]:,.0f}" for name in names) + " |" for size in SIZES]
    return "\n".join(lines) + "\n"


def bridge_chapter(arguments: argparse.Namespace) -> str:
    """Measure the selected directions and corpora, and return the chapter about them."""
    chosen = bridge_page.everything()
    if arguments.direction or arguments.corpus or arguments.pulls != "default" or arguments.rules:
        raised = arguments.pulls == "raised"
        directions, corpora = arguments.direction or bridge_page.DIRECTIONS, arguments.corpus or ORDINARY
        chosen = bridge_page.cases(directions, corpora, raised=raised, rules=arguments.rules)
    against = arguments.against and arguments.against.resolve()
    runners = bridge.runners(gateway_only=arguments.gateway_only, against=against)
    messages = arguments.messages or bridge_page.MESSAGES
    return bridge_page.chapter(chosen, messages, arguments.rounds, runners, arguments.seed)


def ratios_chapter(arguments: argparse.Namespace) -> str:
    """Measure the CPU time relative to the Java bridge, and return the chapter about it."""
    found = ratios.measure(arguments.direction, arguments.rounds, arguments.messages, arguments.seed)
    if arguments.write:
        ratios.renew_readme(found)
    return ratios.chapter(found, arguments.rounds, arguments.messages)


CHAPTERS: dict[str, Callable[[argparse.Namespace], str]] = {
    "codec": lambda _: codec_table(),
    "overhead": lambda _: overhead.chapter(),
    "ratios": ratios_chapter,
    "bridge": bridge_chapter,
    "latency": lambda given: latency.chapter(
        given.direction or bridge_page.DIRECTIONS,
        CORPORA[(given.corpus or ORDINARY)[0]],
        load=given.load,
        gateway_only=given.gateway_only,
    ),
    "memory": lambda given: memory.chapter(seed=given.seed),
    "clients": lambda given: clients.table(given.rounds),
    "listener": lambda given: listener.table(given.rounds, given.messages, only=given.case),
    "rocketmq-listener": lambda given: rocketmq_listener.table(given.rounds, given.messages, only=given.case),
    "tubemq-listener": lambda given: tubemq_listener.table(given.rounds, given.messages, only=given.case),
    "tls": lambda given: tls.table(given.rounds, total=given.messages or tls.MESSAGES, only=given.direction),
    "spark": lambda given: spark.table(given.rounds, chosen=given.jobs, rows=given.rows),
}


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", default=[*CHAPTERS], metavar="WHAT", help=f"{', '.join(CHAPTERS)} (default all)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each bridge and client (default {ROUNDS})")
    parser.add_argument("--write", action="store_true", help="replace these chapters of docs/explanation/benchmarks.md")
    parser.add_argument(
        "--direction",
        action="append",
        metavar="SOURCE-TARGET",
        help="ratios, bridge, latency, tls: only this one; may be repeated",
    )
    parser.add_argument(
        "--messages",
        type=int,
        help=f"number in a run (ratios: default {ratios.MESSAGES:,}; bridge: {bridge_page.MESSAGES:,}; tls: {tls.MESSAGES:,})",
    )
    of_bridge = parser.add_argument_group("bridge")
    of_bridge.add_argument("--corpus", action="append", choices=CORPORA, help="only this one; may be repeated")
    of_bridge.add_argument("--pulls", choices=("default", "raised"), default="default", help="RocketMQ's pull limits")
    of_bridge.add_argument("--rules", action="store_true", help="with a filter, edits, and partitions chosen by a property")
    of_bridge.add_argument("--seed", type=int, default=SEED, help="seed of the random corpora (default %(default)s)")
    of_bridge.add_argument("--gateway-only", action="store_true", help="only the gateway (with --against: that of DIR)")
    of_bridge.add_argument("--against", type=Path, metavar="DIR", help="compare with another checkout, not the Java bridge")
    of_latency = parser.add_argument_group("latency")
    of_latency.add_argument(
        "--load",
        type=float,
        default=latency.LOAD,
        metavar="SHARE",
        help="sending rate as a share of the maximum (default %(default)s)",
    )
    parser.add_argument("--case", default="", metavar="TEXT", help="listener: only the cases whose names contain this text")
    of_spark = parser.add_argument_group("spark")
    of_spark.add_argument(
        "--jobs", default="", metavar="REGEX", help="work and ends of the jobs to measure, as in the table (default all)"
    )
    of_spark.add_argument("--rows", type=int, default=spark.ROWS, help=f"rows of a job (default {spark.ROWS:,})")
    return parser


def main(argv: list[str]) -> None:
    """Measure the selected chapters and print them; with --write also write them to the page."""
    if argv[:1] == ["profile"]:
        profile.main(argv[1:])
        return
    arguments = options().parse_args(argv)
    if arguments.against is not None:
        arguments.what = ["bridge"]
    measured: dict[str, str] = {}
    for what, measure in CHAPTERS.items():
        if what in arguments.what:
            say(what)
            measured |= chapters(measure(arguments))
    print("\n".join(measured.values()))
    if arguments.write:
        renew(PAGE, f"{INTRO}\n{machine()}\n", measured)


if __name__ == "__main__":
    main(sys.argv[1:])
