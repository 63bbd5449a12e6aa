"""The `mqbridge` program: its subcommands and what they have in common."""

from typing import Annotated

import typer

from mqbridge import __version__
from mqbridge.cli import check, consume, exits, explain, groups, logs, offsets, peek, produce, quickstart, run, schema, topics
from mqbridge.cli.console import debug

app = typer.Typer(
    name="mqbridge",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exits.HELP,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mqbridge {__version__}")
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
    debug.set(with_debug)
    logs.configure("debug" if with_debug else "warning")


app.command()(quickstart.quickstart)
app.command()(run.run)
app.command()(check.check)
app.command()(schema.schema)
app.command()(topics.topics)
app.command()(groups.groups)
app.command()(offsets.offsets)
app.command()(peek.peek)
app.command()(produce.produce)
app.command()(consume.consume)
app.command()(explain.explain)


def main() -> None:
    """The entry point."""
    app()
