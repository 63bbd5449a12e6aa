"""Shell text as data: its commands, the program that each of them calls, and the arguments of `mqbridge`."""

import re
import shlex
from collections.abc import Sequence
from typing import Any

from typer import Context
from typer.main import get_command

from mqbridge.cli.app import app
from mqbridge.cli.lazy_group import LazyCommand

ROOT_COMMAND: Any = get_command(app)
"""The Click command of `mqbridge`."""


def commands(text: str) -> list[list[str]]:
    """Return the words of each command; loops, pipes and lists are split into their commands."""
    split_commands = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words: list[str] = []
        is_file = False
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        for word in [*lexer, ";"]:
            if is_file:
                is_file = False
            elif set(word) <= set("<>"):
                is_file = True
            elif set(word) <= set(";|&()<>"):
                if words:
                    split_commands.append(words)
                words = []
            else:
                words.append(word)
    return split_commands


def program(words: list[str]) -> tuple[str, list[str]]:
    """Return the name of the program, without its folder, and its arguments; variables and shell words before it are removed."""
    rest = [*words]
    while rest and (re.match(r"\w+=", rest[0]) or rest[0] in ("do", "then", "until", "while", "if", "sudo", "!")):
        rest.pop(0)
    return (rest[0].rpartition("/")[2], rest[1:]) if rest else ("", [])


def parse_arguments(arguments: Sequence[str], page: str) -> None:
    """Parse arguments of `mqbridge` that a page or file contains. Raises for a command or an option that does not exist."""
    command, context, rest = ROOT_COMMAND, _context(ROOT_COMMAND, None), arguments
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        subcommand = command.get_command(context, rest[0])
        assert subcommand is not None, f"{page}: mqbridge has no command {rest[0]!r}"
        command = subcommand.load() if isinstance(subcommand, LazyCommand) else subcommand
        context, rest = _context(command, context), rest[1:]
    command.make_parser(context).parse_args([*rest])


def _context(command: Any, parent: Any) -> Any:
    return Context(command, info_name=command.name, parent=parent)
