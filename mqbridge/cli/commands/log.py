"""`mqbridge log`: the group of the commands that work on the file of an embedded log."""

import typer

from mqbridge.cli.lazy_group import SETTINGS, LazyGroup, Subcommand


class LogCommands(LazyGroup):
    """The table of the subcommands. Each summary is the first line of the subcommand's docstring."""

    subcommands = {  # noqa: RUF012 - declared as a ClassVar in LazyGroup
        "backup": Subcommand(
            "mqbridge.cli.commands.log_backup:backup", "Copy an embedded log to a backup, while other processes use it."
        ),
        "check": Subcommand(
            "mqbridge.cli.commands.log_check:check", "Read everything in an embedded log, and show what is damaged or missing."
        ),
        "export": Subcommand(
            "mqbridge.cli.commands.log_export:export",
            "Write a new log with everything that is intact in another one, however damaged it is.",
        ),
    }


log = typer.Typer(name="log", cls=LogCommands, no_args_is_help=True, **SETTINGS)


@log.callback()
def group() -> None:
    """Back up, check and rescue the file of an embedded log.

    For example:

        mqbridge log backup /var/lib/mqbridge/log.db /backup/log.db
        mqbridge log check /var/lib/mqbridge/log.db
        mqbridge log export /var/lib/mqbridge/log.db /var/lib/mqbridge/intact.db

    `mqbridge log COMMAND --help` shows the options of each command.
    """
