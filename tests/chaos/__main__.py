"""`make chaos`: random faults for two instances of the gateway on real servers.

python -m tests.chaos --seed 7 --seconds 60 --direction pulsar-rocketmq
python -m tests.chaos --seed 1-10 --direction all        ten runs, each with a route for every direction
python -m tests.chaos --seed 7 --show                    only print the schedule
python -m tests.chaos --seed 7 --only late,cut,roll      only these kinds of faults
python -m tests.chaos --seed 7 --load slow               a few messages per second in every direction
python -m tests.chaos --seed 7 --gateway DIR             run the gateway of another checkout
python -m tests.chaos soak --minutes 60                  an hour of slow traffic, with faults at fixed times: see soak.py
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from pathlib import Path

from tests.chaos import page, soak
from tests.chaos.run import Result, run
from tests.chaos.schedule import DIRECTIONS, KINDS, KNOWN_DIRECTIONS, LOADS, WITHOUT_SERVERS, Schedule, clusters, draw
from tests.chaos.systems import SYSTEMS
from tests.chaos.systems.system import System
from tests.kit import java
from tests.kit.clusters import running
from tests.kit.maven import say

EVERY = "all"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("command", nargs="?", choices=("soak",), help="run faults at fixed times instead of random ones")
    top.add_argument("--minutes", type=float, default=60.0, help="duration of soak (60)")
    top.add_argument("--seed", type=_seeds, default=None, help="a number, or FIRST-LAST; default: the current time")
    top.add_argument("--seconds", type=float, default=60.0, help="duration of the faults (60)")
    top.add_argument(
        "--direction",
        type=_directions,
        default=None,
        help=f"one or more of {', '.join(KNOWN_DIRECTIONS)}, or all, those between servers (default; soak: {soak.DIRECTION})",
    )
    top.add_argument("--load", choices=LOADS, default="", help="load of every direction (default: drawn for each)")
    top.add_argument("--only", type=_kinds, default=(), help=f"one or more of {', '.join(kind.name for kind in KINDS)}")
    top.add_argument("--logs", type=Path, default=Path("chaos-logs"), help="folder for the logs of the instances (chaos-logs)")
    top.add_argument("--gateway", type=Path, default=None, help="run the gateway of another checkout")
    top.add_argument("--write", action="store_true", help="write the results to docs/explanation/chaos.md")
    top.add_argument("--show", action="store_true", help="only print the schedule")
    return top


def main() -> None:
    """Execute the runs one after the other; exit with 1 if one failed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments = parser().parse_args()
    schedules = _schedules(arguments)
    directions = schedules[0].directions
    if arguments.show:
        for schedule in schedules:
            print("\n".join(_plan(schedule)))
        return
    if set(directions) - {WITHOUT_SERVERS}:
        java.build()
    systems = {name: SYSTEMS[name]() for name in clusters(directions)}
    with running(list(systems.values())) as ready:
        for future in ready:
            future.result()
        results = [_execute(schedule, systems, arguments.logs, arguments.gateway) for schedule in schedules]
    if arguments.write:
        page.write(results)
    sys.exit(1 if any(result.problems for result in results) else 0)


def _schedules(arguments: argparse.Namespace) -> list[Schedule]:
    if arguments.command == "soak":
        return [soak.schedule(arguments.minutes, arguments.direction or (soak.DIRECTION,))]
    seeds = arguments.seed or range(int(time.time()), int(time.time()) + 1)
    directions = arguments.direction or DIRECTIONS
    return [draw(seed, arguments.seconds, directions, arguments.only, arguments.load) for seed in seeds]


def _execute(schedule: Schedule, systems: dict[str, System], logs: Path, gateway: Path | None) -> Result:
    folder = (logs / f"{time.strftime('%m%d-%H%M%S')}-seed-{schedule.seed}").resolve()
    folder.mkdir(parents=True)
    for line in _plan(schedule):
        say(line)
    result = asyncio.run(run(schedule, systems, folder, gateway and gateway.resolve()))
    lines = [*result.lines(), f"  the logs are in {folder}"]
    (folder / "verdict.txt").write_text("\n".join([*_plan(schedule), *lines, ""]))
    print("\n".join(lines), flush=True)
    return result


def _plan(schedule: Schedule) -> list[str]:
    memory = ", ".join(f"{name} {size}" for name, size in schedule.in_flight_bytes.items())
    first = "both instances start" if schedule.second_instance else "only instance a starts"
    end = "both run at the end" if len(schedule.last) > 1 else f"only {schedule.last[0]} runs at the end"
    members = f"{first}, {end}" if len(schedule.instances) > 1 else "one instance"
    options = f"in_flight_bytes: {memory}; orderly: {str(schedule.orderly).lower()}; heartbeat: {schedule.heartbeat_s}s"
    return [
        f"seed {schedule.seed}, {schedule.seconds:g} s, {' '.join(schedule.directions)}",
        f"{members}, shutdown_timeout {schedule.shutdown_s} s; {options}",
        *(f"{direction}: {load}; {schedule.layouts[direction]}" for direction, load in schedule.loads.items()),
        *map(str, schedule.events),
    ]


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _directions(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(",")) if text not in ("", EVERY) else DIRECTIONS
    if unknown := set(chosen) - set(KNOWN_DIRECTIONS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(KNOWN_DIRECTIONS)}")
    return chosen


def _kinds(text: str) -> tuple[str, ...]:
    chosen = tuple(filter(None, text.split(",")))
    if unknown := set(chosen) - {kind.name for kind in KINDS}:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(kind.name for kind in KINDS)}")
    return chosen


if __name__ == "__main__":
    main()
