"""Command groups that import a subcommand's module only when that subcommand is used.

Listing the subcommands, for help or for the shell's completion, takes their names and summaries from a table and imports nothing.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

SETTINGS: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": "markdown"}
"""Arguments of every `typer.Typer`; only the top-level app adds completion."""


class Subcommand(NamedTuple):
    """The function or `typer.Typer` that declares a subcommand, as `module:name`, and the first line of its help."""

    target: str
    summary: str


class LazyGroup(TyperGroup):
    """A group whose subcommands are declared in a table."""

    subcommands: ClassVar[Mapping[str, Subcommand]] = {}
    """Subcommands by name, in the order that `--help` shows."""
    is_lazy: ClassVar[bool] = True
    """If False, `get_command` imports the command at once: `command_page` sets this, to read the options of all commands."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is Click's
        """Return the names of all subcommands."""
        return list(self.subcommands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the signature is Click's
        """Return the command with this name, or None. Its module is imported when its arguments are parsed; see `is_lazy`."""
        subcommand = self.subcommands.get(cmd_name)
        if subcommand is None:
            return None
        command = LazyCommand(cmd_name, subcommand)
        return command if self.is_lazy else command.load()


class LazyCommand(TyperCommand):
    """Stands for a subcommand in lists, and imports it to parse its arguments."""

    def __init__(self, name: str, subcommand: Subcommand) -> None:
        super().__init__(name, help=subcommand.summary, callback=None, params=[])
        self._target = subcommand.target

    def load(self) -> Any:
        """Import the target and return its Click command: the target is a function (a command) or a `typer.Typer` (a group)."""
        module, _, attribute = self._target.partition(":")
        target = getattr(import_module(module), attribute)
        if isinstance(target, typer.Typer):
            return get_command(target)
        app = typer.Typer(**SETTINGS)
        app.command(self.name)(target)
        return get_command(app)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the real command and return its context, whose `command` is the imported one instead of this placeholder."""
        return self.load().make_context(info_name, args, parent, **extra)
