"""`mqbridge spark`: the group of the commands that run on Spark. Listing them needs no Spark."""

import typer

from mqbridge.cli.lazy_group import SETTINGS, LazyGroup, Subcommand


class SparkCommands(LazyGroup):
    """The table of the subcommands. Each summary is the first line of the subcommand's docstring."""

    subcommands = {  # noqa: RUF012 - declared as a ClassVar in LazyGroup
        "quickstart": Subcommand(
            "mqbridge.cli.commands.spark_quickstart:quickstart",
            "Write a topic, count it per minute and mirror it with Spark. Needs Java 17, and no cluster.",
        ),
        "mirror": Subcommand(
            "mqbridge.cli.commands.spark_mirror:mirror",
            "Move the topics of routes with Spark: first the backlog, then what arrives.",
        ),
    }


spark = typer.Typer(name="spark", cls=SparkCommands, no_args_is_help=True, **SETTINGS)


@spark.callback()
def group() -> None:
    """Bulk pipelines on Spark. They need `pip install 'mqbridge[spark]'` and Java 17 or newer.

    For example:

        mqbridge spark quickstart
        mqbridge spark mirror rocketmq-to-pulsar.yaml --checkpoint /var/lib/mirror

    `mqbridge spark COMMAND --help` shows the options of each command.
    """
