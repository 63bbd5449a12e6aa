"""`mqbridge log check`: read everything in a log, show what is damaged or missing, and repair what can be repaired."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqbridge.cli.options.cluster_options import JsonOption
from mqbridge.cli.options.log_file import LogFileArgument
from mqbridge.cli.output.console import command, print_failure, print_json, print_note, print_table
from mqbridge.cli.output.ranges import ranges_text
from mqbridge.cli.process import event_loop, exit_codes
from mqbridge.cli.process.long_job import run_job

if TYPE_CHECKING:
    from pathlib import Path

    from mqbridge.log.store.check_result import CheckedPartition, CheckResult


@command
def check(
    *,
    log: LogFileArgument,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="First repair what the messages themselves tell, while no other process has the log open."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read everything in an embedded log, and show what is damaged or missing.

    For example:

        mqbridge log check /var/lib/mqbridge/log.db
        mqbridge log check /var/lib/mqbridge/log.db --json
        mqbridge log check /var/lib/mqbridge/log.db --repair

    Exit codes: 0 if nothing is wrong, 4 if something is damaged or missing, 3 if the file cannot be read.

    Other processes may use the log. SQLite's own check comes first: it reads the whole file, and during it the `-wal` file grows
    by what is written.

    --repair rebuilds the indexes, rewrites damaged bounds of partitions from their messages, and drops damaged committed offsets
    and memberships, whose groups then read from the oldest message again. It deletes no messages. It cannot repair damaged
    messages, names of topics and pages: `mqbridge log export` writes a new log without them.
    """
    event_loop.run(_check(log, is_repaired=repair, as_json=as_json))


async def _check(log: "Path", *, is_repaired: bool, as_json: bool) -> None:
    from mqbridge.log.store.check import check as check_log
    from mqbridge.log.store.repair import repair

    done = await run_job(lambda report: repair(log, report)) if is_repaired else []
    result = await run_job(lambda report: check_log(log, report))
    if as_json:
        fields = {"log": str(log), "ok": result.is_ok, "repaired": done, **asdict(result)}
        fields["partitions"] = [_fields(each) for each in result.partitions]
        print_json(fields)
    else:
        for line in done:
            print_note(f"repaired: {line}")
        _show(log, result)
    if not result.is_ok:
        raise typer.Exit(exit_codes.STOPPED)


def _fields(partition: "CheckedPartition") -> dict[str, Any]:
    return {**asdict(partition), "lost": [each._asdict() for each in partition.lost]}


def _show(log: "Path", result: "CheckResult") -> None:
    rows = [
        (each.topic, each.partition, each.first, each.next, each.messages, each.hidden, ranges_text(each.lost))
        for each in result.partitions
    ]
    numbers = ["partition", "first", "next", "intact", "hidden"]
    print_table(["topic", "partition", "first", "next", "intact", "hidden", "lost offsets"], rows, right=numbers)
    for note in result.notes:
        print_note(note)
    problems = list(result.problems)
    for each in result.partitions:
        where = f"topic {each.topic}, partition {each.partition}: "
        for note in each.notes:
            print_note(where + note)
        problems += [where + problem for problem in each.problems]
    if problems:
        print_failure(*problems)
    messages = sum(each.messages for each in result.partitions)
    if result.is_ok:
        print_note(f"{log}: nothing is wrong ({messages:,} messages, {result.positions:,} committed offsets)")
        return
    lost = result.lost_newest + sum(end - begin for each in result.partitions for begin, end in each.lost)
    hidden = sum(each.hidden for each in result.partitions)
    print_note(
        f"{log}: {messages:,} messages are intact, of which the index hides {hidden:,}; {lost:,} are lost. Stop the processes"
        " that have the log open, then try `mqbridge log check --repair`, restore a backup, or keep what is intact by"
        " `mqbridge log export`"
    )
