"""Help texts: each begins with an example, and every example parses."""

import re
import shlex
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from mqbridge.cli.app import Commands, app
from mqbridge.cli.commands.log import LogCommands
from mqbridge.cli.commands.spark import SparkCommands
from mqbridge.cli.lazy_group import LazyCommand, LazyGroup, Subcommand

PATHS: list[tuple[str, ...]] = [
    (),
    *((name,) for name in Commands.subcommands),
    *(("spark", name) for name in SparkCommands.subcommands),
    *(("log", name) for name in LogCommands.subcommands),
]
OPERATORS = {"|", ">", "<", ">>", "&&", ";"}


def command_at(path: tuple[str, ...]) -> Any:
    command = get_command(app)
    for name in path:
        assert isinstance(command, LazyGroup)
        stub = command.get_command(None, name)
        assert stub is not None
        command = stub.load()
    return command


def examples(text: str) -> list[list[str]]:
    """Return the arguments of every `mqbridge …` in the indented lines of a help text."""
    commands: list[list[str]] = []
    for line in re.findall(r"^    (\S.*)$", text, re.MULTILINE):
        words = shlex.split(line)
        for start in [index for index, word in enumerate(words) if word == "mqbridge" and _starts_command(words[:index])]:
            end = next((index for index in range(start, len(words)) if words[index] in OPERATORS), len(words))
            commands.append(words[start + 1 : end])
    return commands


def _starts_command(before: list[str]) -> bool:
    return not before or before[-1] in OPERATORS or re.fullmatch(r"[A-Z_]+=.*", before[-1]) is not None


def parse(arguments: list[str]) -> None:
    """Parse arguments as the program does, including those of the subcommand, but run nothing. Raises the usage error."""
    command = get_command(app)
    context = command.make_context("mqbridge", list(arguments))
    while isinstance(context.command, LazyGroup):
        rest = [*context._protected_args, *context.args]
        name, subcommand, rest = context.command.resolve_command(context, rest)
        assert subcommand is not None
        context = subcommand.make_context(name, rest, parent=context)


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_begins_with_an_example_and_every_example_parses(path: tuple[str, ...]) -> None:
    text = command_at(path).help
    summary, introduction, code, *_ = text.split("\n\n")
    assert "\n" not in summary
    assert introduction == "For example:"
    assert examples(code)
    assert any(tuple(arguments[: len(path)]) == path for arguments in examples(code))
    for arguments in examples(text):
        parse(arguments)


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_example_is_shown_on_a_line_of_its_own(path: tuple[str, ...]) -> None:
    """Typer joins the lines of examples at the end of a help text: a paragraph must follow them."""
    code = command_at(path).help.split("\n\n")[2]
    shown = CliRunner().invoke(app, [*path, "--help"], env={"NO_COLOR": "1"}).output
    lines = [line.strip() for line in shown.splitlines()]
    begins = [example.strip()[:24] for example in code.splitlines()]  # a narrow terminal wraps the rest
    assert [begin for begin in begins if not any(line.startswith(begin) for line in lines)] == []


@pytest.mark.parametrize("arguments", [["peek", "orders", "--nosuch"], ["peek"], ["spark", "mirror", "x.yaml"]])
def test_parse_rejects_an_example_with_wrong_arguments(arguments: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)no such option|missing"):
        parse(arguments)


@pytest.mark.parametrize("group", [Commands, SparkCommands, LogCommands])
def test_listed_summaries_are_the_first_lines_of_the_commands(group: type[LazyGroup]) -> None:
    def first_line(name: str, subcommand: Subcommand) -> str:
        return str(LazyCommand(name, subcommand).load().help).partition("\n")[0]

    listed = {name: subcommand.summary for name, subcommand in group.subcommands.items()}
    assert listed == {name: first_line(name, subcommand) for name, subcommand in group.subcommands.items()}
