"""`mqbridge example`: the configurations that are shipped with the program."""

import sys
from typing import Annotated

import typer

from mqbridge.cli.output.console import command, print_table, stdout_console
from mqbridge.config.shipped import shipped_configuration, shipped_configurations, summary


@command
def example(
    *,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="The example to print. Without it, all are listed.", autocompletion=shipped_configurations
        ),
    ] = None,
) -> None:
    """Print a complete configuration, to begin with; without a name, list them.

    For example:

        mqbridge example
        mqbridge example tubemq-to-pulsar > tubemq-to-pulsar.yaml
        mqbridge check tubemq-to-pulsar.yaml

    Set the variables that an example reads, or edit the file. `mqbridge check` reports every problem with its line.
    """
    if name is not None:
        sys.stdout.write(shipped_configuration(name))
        return
    examples = shipped_configurations()
    print_table(["example", "what it does"], [(each, summary(text)) for each, text in examples.items()])
    stdout_console().print("\nTo begin with one: mqbridge example NAME > gateway.yaml", soft_wrap=True)
