"""`mqbridge run`: run the gateway. The gateway is imported only when the command runs: help and completion stay fast."""

from pathlib import Path
from typing import Annotated

import typer

from mqbridge.cli.output.console import debug, print_json, service
from mqbridge.cli.process import logs
from mqbridge.cli.running import gateway
from mqbridge.errors import ConfigError


@service
def run(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration.")],
    until_idle: Annotated[
        float | None,
        typer.Option(
            "--until-idle",
            metavar="SECONDS",
            min=0.0,
            help="End when no message has arrived for this long and all messages are delivered.",
        ),
    ] = None,
    fail_fast: Annotated[
        bool | None,
        typer.Option(
            "--fail-fast/--no-fail-fast",
            help="End when a cluster cannot be reached at the start, and stop routes that are not permitted what they need, "
            "instead of waiting. Default with --until-idle.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="At the end, print the totals of every route as JSON.")] = False,
) -> None:
    """Run the gateway until it is stopped.

    For example:

        mqbridge run tubemq-to-pulsar.yaml
        SOURCE_TOPIC=orders mqbridge run tubemq-to-pulsar.yaml --until-idle 5

    A gateway without listeners ends when all its routes have ended. With a listener it runs until it is stopped, also if it has
    no route; with --until-idle, listeners do not count.

    The first Ctrl-C or SIGTERM drains: messages in flight are delivered and acknowledged, the rest stays at the source.
    The second quits at once; the next run delivers the messages in flight again.

    If a cluster is unreachable at the start, the gateway waits for it: the routes of this cluster start when it answers, and the
    other routes run meanwhile. The gateway is not ready until every cluster has answered. A problem with the topics of the
    reachable clusters ends the gateway before it creates anything.

    With --until-idle the gateway waits up to a minute for partitions that its group has not assigned to it; after that, it
    assumes that other members of the group hold them. It ends only when the sources confirm that they have no more messages. If
    a source does not respond for 20 seconds, the gateway names the partitions that may have unread messages, and the exit code
    is 3.

    SIGHUP, or POST /reload on this machine, reads the configuration again: changed parts restart, the rest keeps running. An
    invalid configuration changes nothing. Both signals also work while the gateway starts.

    If standard error cannot be written (a full disk, a reader that has left or does not read), the gateway runs on without the
    lines, and then logs how many are lost.
    """
    from mqbridge.config.load import load, wants_json_log

    try:
        config = load(file)
    except ConfigError:
        if wants_json_log(file):  # report the invalid configuration in the log format that it asks for
            logs.configure("debug" if debug.get() else "warning", "json")
        raise
    gateway.configure_log(config)
    result = gateway.serve(config, until_idle, file, fail_fast=fail_fast)
    gateway.report(result)
    if as_json:
        print_json(result.as_json())
    raise typer.Exit(gateway.exit_code_of(result))
