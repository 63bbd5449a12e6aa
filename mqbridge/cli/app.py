"""The `mqbridge` program: its subcommands and what they have in common.

A command's module, with all that it needs, is imported when the command is used, or when help lists them all.
"""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from mqbridge import __version__
from mqbridge.cli import exits

COMMANDS = (
    "quickstart",
    "run",
    "check",
    "schema",
    "topics",
    "groups",
    "offsets",
    "peek",
    "produce",
    "consume",
    "explain",
    "spark",
)
"""In the order of the help: the names of the modules, and in each of the function, or of a group of commands."""

SETTINGS: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": "markdown"}


class LazyGroup(TyperGroup):
    """Finds a command by importing its module."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - whatever it is asked for
        """All names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - as above
        """The command of this name."""
        if cmd_name not in COMMANDS:
            return None
        found = getattr(import_module(f"mqbridge.cli.{cmd_name}"), cmd_name)
        if isinstance(found, typer.Typer):
            return get_command(found)
        single = typer.Typer(add_completion=False, **SETTINGS)
        single.command(cmd_name)(found)
        return get_command(single)


app = typer.Typer(
    name="mqbridge",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exits.HELP,
    **SETTINGS,
)


def _version(wanted: bool) -> None:
    if wanted:
        from mqbridge import native

        typer.echo(f"mqbridge {__version__}\ncompiled module: {native.state}")
        raise typer.Exit


@app.callback()
def common(
    with_debug: Annotated[
        bool, typer.Option("--debug", help="Log everything and show tracebacks of expected errors too.")
    ] = False,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.", show_default=False)
    ] = False,
) -> None:
    """A protocol gateway between Apache InLong TubeMQ, Apache Pulsar and Apache RocketMQ.

    Start with `mqbridge quickstart`: it needs nothing but Python.
    """
    from mqbridge.cli import logs
    from mqbridge.cli.console import debug

    debug.set(with_debug)
    logs.configure("debug" if with_debug else "warning")
