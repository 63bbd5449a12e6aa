"""The `mqbridge` program: its subcommands and what they have in common.

A subcommand's module is imported when the subcommand is used; see `lazy_group`.
"""

from typing import Annotated

import typer

from mqbridge import __version__
from mqbridge.cli.lazy_group import SETTINGS, LazyGroup, Subcommand
from mqbridge.cli.process import exit_codes

COMMANDS_PACKAGE = "mqbridge.cli.commands"


class Commands(LazyGroup):
    """The table of all subcommands. Each summary is the first line of the subcommand's docstring."""

    subcommands = {  # noqa: RUF012 - declared as a ClassVar in LazyGroup
        "quickstart": Subcommand(
            f"{COMMANDS_PACKAGE}.quickstart:quickstart",
            "Publish through a Pulsar listener, bridge the stream, and prove that it arrived. Needs nothing but Python.",
        ),
        "run": Subcommand(f"{COMMANDS_PACKAGE}.run:run", "Run the gateway until it is stopped."),
        "listen": Subcommand(f"{COMMANDS_PACKAGE}.listen:listen", "Serve unmodified clients of a system over any cluster."),
        "check": Subcommand(
            f"{COMMANDS_PACKAGE}.check:check", "Check a configuration; names every problem at once, each with its line."
        ),
        "example": Subcommand(
            f"{COMMANDS_PACKAGE}.example:example", "Print a complete configuration, to begin with; without a name, list them."
        ),
        "state": Subcommand(
            f"{COMMANDS_PACKAGE}.state:state",
            "Show which brokers the state file of a gateway knows, by topic; or forget one that is gone for good.",
        ),
        "schema": Subcommand(f"{COMMANDS_PACKAGE}.schema:schema", "Print the JSON Schema of the configuration, for editors."),
        "topics": Subcommand(
            f"{COMMANDS_PACKAGE}.topics:topics",
            "List topics, describe them (partitions with first and next position, settings), or create them.",
        ),
        "groups": Subcommand(
            f"{COMMANDS_PACKAGE}.groups:groups",
            "Show the groups of a topic: committed positions, lag, and the member that holds each partition.",
        ),
        "offsets": Subcommand(
            f"{COMMANDS_PACKAGE}.offsets:offsets",
            "Show the first and next position of each partition, with -G also a group's position; or move that group.",
        ),
        "peek": Subcommand(
            f"{COMMANDS_PACKAGE}.peek:peek",
            "Show the newest messages of a topic, or those from a position on. Joins no group and moves no group's position.",
        ),
        "produce": Subcommand(
            f"{COMMANDS_PACKAGE}.produce:produce",
            "Send messages: every line of standard input, or every file as one message. Bytes are sent as they are.",
        ),
        "consume": Subcommand(
            f"{COMMANDS_PACKAGE}.consume:consume",
            "Print messages as they arrive, payloads byte for byte, until interrupted (exit code 130); -e or -c end it earlier.",
        ),
        "log": Subcommand(f"{COMMANDS_PACKAGE}.log:log", "Back up, check and rescue the file of an embedded log."),
        "explain": Subcommand(
            f"{COMMANDS_PACKAGE}.explain:explain", "Show how every field of one system's messages is mapped to another system."
        ),
        "spark": Subcommand(
            f"{COMMANDS_PACKAGE}.spark:spark",
            "Bulk pipelines on Spark. They need `pip install 'mqbridge[spark]'` and Java 17 or newer.",
        ),
    }


app = typer.Typer(
    name="mqbridge",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exit_codes.HELP,
    **SETTINGS | {"add_completion": True},  # only the program itself has --install-completion, no subcommand
)


def _print_version(is_given: bool) -> None:
    """Print the version, and whether the compiled module is used, and exit; do nothing if `--version` is not given."""
    if is_given:
        from mqbridge import native

        typer.echo(f"mqbridge {__version__}\ncompiled module: {native.state}")
        raise typer.Exit


@app.callback()
def configure_logging(
    with_debug: Annotated[
        bool, typer.Option("--debug", help="Log everything and show tracebacks of expected errors too.")
    ] = False,
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.", show_default=False),
    ] = False,
) -> None:
    """A protocol gateway between Apache InLong TubeMQ, Apache Pulsar and Apache RocketMQ.

    For example:

        mqbridge quickstart
        mqbridge example tubemq-to-pulsar > tubemq-to-pulsar.yaml
        mqbridge check tubemq-to-pulsar.yaml --connect
        mqbridge run tubemq-to-pulsar.yaml
        mqbridge peek orders --at pulsar://127.0.0.1:6650

    Start with `mqbridge quickstart`: it needs nothing but Python. `mqbridge COMMAND --help` shows examples of each command.
    """
    from mqbridge.cli.output.console import debug
    from mqbridge.cli.process import logs

    debug.set(with_debug)
    logs.configure("debug" if with_debug else "warning")
