"""Profile of the gateway's CPU time: `python -m tests.bench profile rocketmq-pulsar ordinary`.

The gateway reads the same topic three times; each run is measured from the moment a fifth of the messages is stored. The first
run has no profiler, and gives the CPU time per message and batch. The second is sampled by py-spy with native frames, and
gives the shares of packages and functions. In the third the system calls are counted.

--write replaces the direction's chapter of docs/explanation/profile.md, and the picture docs/explanation/profile.svg.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.bench import flame
from tests.bench.bridge import WARMUP, Task, reading, run_gateway, started, wait_done
from tests.bench.bridge_page import DIRECTIONS, messages_of
from tests.bench.corpora import CORPORA
from tests.bench.ends import SEED, Clusters, fill_topic
from tests.bench.figures import Figures
from tests.bench.pages import chapters, machine, renew
from tests.bench.stacks import MAPPING, Stack, largest, parse, shares
from tests.bench.syscalls import counter
from tests.kit.gateway import GatewayProcess
from tests.kit.maven import say

DOCS = Path(__file__).resolve().parents[2] / "docs" / "explanation"
PY_SPY = Path(sys.executable).with_name("py-spy")
MESSAGES = 150_000
RATE = 211
"""Samples per second: a prime number, to avoid sampling in step with periodic work."""
FUNCTIONS = 25
STOP_S = 60


@dataclass(frozen=True, slots=True)
class Profile:
    """Results of the three runs."""

    direction: str
    corpus: str
    figures: Figures
    stacks: list[Stack]
    calls: dict[str, int]
    counted: Figures
    """Figures of the run whose system calls were counted; its batches differ from the first run's."""
    messages: int
    """Messages of that run."""
    tool: str
    """Name of the tool that counted the system calls."""


def measure(task: Task, corpus: str, checkout: Path | None) -> Profile:
    """Run the gateway three times, and return the results."""
    figures = run_gateway(task, "plain", checkout)
    say(f"undisturbed: {figures} (load {os.getloadavg()[0]:.1f})")
    stacks = _sampled(task, checkout)
    say(f"sampled: {sum(stack.samples for stack in stacks):,} samples")
    direction = f"{task.source.system}-{task.target.system}"
    with started(task, "counted", checkout) as gateway, tempfile.TemporaryDirectory(prefix="mqbridge-calls-") as folder:
        counting = counter(gateway.process.pid, Path(folder))
        wait_done(gateway, int(task.total * WARMUP))
        counting.start()
        begin = reading(gateway)
        end = wait_done(gateway, task.total)
        counting.stop()
        calls = counting.calls()
    counted = end.figures(begin, 0)
    say(f"counted by {counting.name}: {sum(calls.values()):,} system calls")
    return Profile(direction, corpus, figures, stacks, calls, counted, end.done - begin.done, counting.name)


def _sampled(task: Task, checkout: Path | None) -> list[Stack]:
    with started(task, "sampled", checkout) as gateway, tempfile.NamedTemporaryFile(prefix="mqbridge-stacks-") as file:
        wait_done(gateway, int(task.total * WARMUP))
        sampler = _sampler(gateway, file.name)
        wait_done(gateway, task.total)
        sampler.send_signal(signal.SIGINT)
        _, errors = sampler.communicate(timeout=STOP_S)
        text = Path(file.name).read_text()
        if not text:
            raise AssertionError(f"py-spy took no samples:\n{errors.decode(errors='replace')}")
        return parse(text)


def _sampler(gateway: GatewayProcess, file: str) -> subprocess.Popen[bytes]:
    argv = [str(PY_SPY), "record", "--pid", str(gateway.process.pid), "--native", "--rate", str(RATE), "--duration", "unlimited"]
    return subprocess.Popen([*argv, "--format", "raw", "--output", file], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def page(profile: Profile) -> str:
    """A page of Markdown about one profile."""
    figures = profile.figures
    of_groups = shares(profile.stacks, profile.figures.kernel / profile.figures.cpu)
    batch = figures.batch
    rest = sum(share for group, share in of_groups.items() if group != MAPPING)
    lines = [
        f"## {profile.direction.replace('-', ' to ')}, {profile.corpus}",
        "",
        f"{CORPORA[profile.corpus].about}. Without profiler: {figures}. CPU microseconds by group:",
        "",
        f"| group | share | per message | per batch of {batch:.0f} messages |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {group} | {share:.1%} | {share * figures.cpu:.2f} | {share * figures.cpu * batch:.0f} |"
        for group, share in of_groups.items()
    ]
    lines += [
        f"| all but {MAPPING} | {rest:.1%} | {rest * figures.cpu:.2f} | {rest * figures.cpu * batch:.0f} |",
        f"| all | 100% | {figures.cpu:.2f} | {figures.cpu * batch:.0f} |",
        "",
        f"System calls (counted by {profile.tool}, {profile.counted.batch:.0f} messages per batch):",
        "",
        "| call | per message | per batch |",
        "|---|---|---|",
        *_rows(profile),
        "",
        "The functions with the most CPU time outside the kernel. Library calls count for the calling function.",
        "",
        "| function | group | share | per message |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{where}` | {group} | {share:.1%} | {share * (figures.cpu - figures.kernel):.2f} |"
        for where, group, share in largest(profile.stacks, FUNCTIONS)
    ]
    return "\n".join([*lines, ""])


def _rows(profile: Profile) -> list[str]:
    per_batch = profile.counted.batch / profile.messages
    total = sum(profile.calls.values())
    rows = [(name, count) for name, count in profile.calls.items() if count > total / 200]
    return [f"| {name} | {count / profile.messages:.4f} | {count * per_batch:.2f} |" for name, count in [*rows, ("all", total)]]


INTRO = """# Profile

Written by `python -m tests.bench profile DIRECTION CORPUS --write`. This page shows how the gateway's CPU time is divided among
its packages and functions. Absolute figures depend on the machine: compare the shares. The share of the kernel is its own account
of the process. The other shares come from stack samples: a sample counts for the innermost package of mqbridge on the stack, or
for the event loop, so the libraries that the mapping calls count for the mapping.

![Flame graph](profile.svg)
"""


def main(argv: list[str]) -> None:
    """Measure the profile and print it; with --write also write it to the page."""
    parser = argparse.ArgumentParser(
        "python -m tests.bench profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("direction", choices=DIRECTIONS, metavar="DIRECTION", help="such as rocketmq-pulsar")
    parser.add_argument("corpus", choices=CORPORA, help=", ".join(CORPORA))
    parser.add_argument("--messages", type=int, default=MESSAGES, help="messages of a run (default %(default)s)")
    parser.add_argument("--pulls", choices=("default", "raised"), default="default", help="RocketMQ's pull limits")
    parser.add_argument("--rules", action="store_true", help="a route with a filter, edits, and partitions chosen by a property")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the random corpus (default %(default)s)")
    parser.add_argument("--checkout", type=Path, metavar="DIR", help="profile the gateway of another checkout")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the flame graph here")
    parser.add_argument(
        "--write", action="store_true", help="replace a chapter of docs/explanation/profile.md, and docs/explanation/profile.svg"
    )
    given = parser.parse_args(argv)
    if not PY_SPY.exists():
        parser.error("py-spy is not installed here: pip install '.[bench]'")
    source, target = given.direction.split("-")
    corpus = CORPORA[given.corpus]
    with Clusters() as clusters:
        here, there = (clusters.side(system, raised=given.pulls == "raised") for system in (source, target))
        total = messages_of(given.corpus, given.messages)
        task = Task(here, there, fill_topic(here, corpus, total, given.seed), corpus.partitions, total, given.rules)
        profile = measure(task, given.corpus, given.checkout and given.checkout.resolve())
    text = page(profile)
    print(text)
    for file in [given.svg] * (given.svg is not None) + [DOCS / "profile.svg"] * given.write:
        file.write_text(flame.svg(profile.stacks, f"{source} to {target}, {given.corpus}"))
    if given.write:
        renew(DOCS / "profile.md", f"{INTRO}\n{machine()}\n", chapters(text))
