"""`mqbridge log export`: keep what is intact in a damaged log."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqbridge.cli.options.cluster_options import JsonOption
from mqbridge.cli.options.log_file import ForceOption, LogFileArgument
from mqbridge.cli.output.console import command, print_json, print_note, print_table
from mqbridge.cli.output.ranges import ranges_text
from mqbridge.cli.process import event_loop
from mqbridge.cli.process.long_job import run_job

if TYPE_CHECKING:
    from mqbridge.log.store.export import ExportSummary


@command
def export(
    *,
    log: LogFileArgument,
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The file to write.")],
    topic: Annotated[list[str] | None, typer.Option("--topic", "-t", help="Export this topic only; may be repeated.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a new log with everything that is intact in another one, however damaged it is.

    For example:

        mqbridge log export /var/lib/mqbridge/log.db /var/lib/mqbridge/intact.db
        mqbridge log export /var/lib/mqbridge/log.db orders.db -t orders

    Messages keep their topics, partitions, offsets and times, and groups their positions; damaged messages are gaps. The log
    itself is only read, also while other processes use it. The disk of NEW needs room for twice the log.

    Messages are looked for in each page of the file, so that even those are found that SQLite does not find any more. Topics
    whose names are damaged are called topic-ID.
    """
    from mqbridge.log.store.export import export as export_log

    summary = event_loop.run(run_job(lambda report: export_log(log, new, topic or [], report, is_forced=force)))
    if as_json:
        partitions = [{**asdict(each), "missing": [missing._asdict() for missing in each.missing]} for each in summary.partitions]
        print_json({"log": str(log), "new": str(new), **asdict(summary), "partitions": partitions})
    else:
        _show(new, summary)


def _show(new: Path, summary: "ExportSummary") -> None:
    rows = [
        (each.topic, each.partition, each.first, each.next, each.messages, ranges_text(each.missing))
        for each in summary.partitions
    ]
    numbers = ["partition", "first", "next", "exported"]
    print_table(["topic", "partition", "first", "next", "exported", "missing offsets"], rows, right=numbers)
    for note in summary.notes:
        print_note(note)
    print_note(
        f"exported {summary.messages:,} messages and {summary.positions:,} committed offsets to {new};"
        f" {summary.missing:,} messages are missing"
    )
