"""`mqbridge log backup`: copy a log while other processes use it."""

from pathlib import Path
from typing import Annotated

import typer

from mqbridge.cli.options.cluster_options import JsonOption
from mqbridge.cli.options.log_file import ForceOption, LogFileArgument
from mqbridge.cli.output.console import command, print_json, print_note
from mqbridge.cli.process import event_loop
from mqbridge.cli.process.long_job import run_job


@command
def backup(
    *,
    log: LogFileArgument,
    destination: Annotated[Path, typer.Argument(metavar="BACKUP", help="The file to write.")],
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy an embedded log to a backup, while other processes use it.

    For example:

        mqbridge log backup /var/lib/mqbridge/log.db /backup/log.db
        mqbridge log backup log:///var/lib/mqbridge/log.db /backup/log.db --force

    The backup has everything that was acknowledged before the command began, and is one file. It appears under its name when it
    is complete and on the disk. While it is made, the `-wal` file of the log grows by what is written.

    To restore it, stop every process that has the log open, move the log with its `-wal` and `-shm` files away, and put the
    backup in its place. Leave the `-mark` file where it is: by it, the exact number of messages that are missing is logged.
    """
    from mqbridge.log.store.backup import backup as make_backup

    summary = event_loop.run(run_job(lambda report: make_backup(log, destination, report, is_forced=force)))
    if as_json:
        print_json({"log": str(log), "backup": str(destination), **summary._asdict()})
    else:
        print_note(
            f"copied {summary.topics} topics, {summary.partitions} partitions, {summary.messages:,} messages,"
            f" {summary.bytes:,} bytes in {summary.seconds:.1f} s to {destination}"
        )
