"""`mqbridge run`: the gateway itself. The only place of the command line that starts it."""

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from mqbridge.cli import exits, logs, loop
from mqbridge.cli.console import command, debug, print_json, say
from mqbridge.config.load import load, wants_json_log
from mqbridge.config.options.config import Config
from mqbridge.delivery.counters import declared
from mqbridge.errors import ConfigError
from mqbridge.gateway.outcome import Outcome, RouteOutcome
from mqbridge.gateway.run import Gateway


@command
def run(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration.")],
    until_idle: Annotated[
        float | None,
        typer.Option("--until-idle", metavar="SECONDS", min=0.0, help="End when nothing came for so long and all is delivered."),
    ] = None,
    fail_fast: Annotated[
        bool | None,
        typer.Option(
            "--fail-fast/--no-fail-fast",
            help="End when a cluster cannot be reached at the start, instead of waiting for it. Default with --until-idle.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="At the end print what every route did, as JSON.")] = False,
) -> None:
    """Run the gateway until it is stopped.

    The first Ctrl-C or SIGTERM drains: what is in flight is delivered and acknowledged, the rest stays at the source.
    The second quits at once; what was in flight is then delivered again by the next run.

    Clusters that cannot be reached at the start are waited for: their routes begin when they are there, the others run meanwhile,
    and the gateway is not ready. What is wrong with the topics of the others ends it before anything is created.

    With --until-idle it waits up to a minute for partitions that its group has not given it; then others of the group have them.

    SIGHUP, or POST /reload, reads the configuration again: what changed is restarted, the rest goes on. A configuration that
    cannot be used changes nothing.

    For example:

        mqbridge run config/tubemq-to-pulsar.yaml

        SOURCE_TOPIC=orders mqbridge run config/tubemq-to-pulsar.yaml --until-idle 5
    """
    try:
        config = load(file)
    except ConfigError:
        if wants_json_log(file):
            logs.configure("debug" if debug.get() else "warning", "json")
        raise
    _log_as(config)
    outcome = serve(config, until_idle, file, fail_fast=fail_fast)
    if as_json:
        print_json(outcome.as_json())
    report(outcome)
    raise typer.Exit(exits.OK if outcome.clean else exits.STOPPED)


def _log_as(config: Config) -> None:
    logs.configure("debug" if debug.get() else config.log.level, config.log.format)


def serve(config: Config, until_idle_s: float | None, file: Path | None = None, *, fail_fast: bool | None = None) -> Outcome:
    """Run the gateway; signals drain it, SIGHUP reads `file` again. Raises ConfigError or ClusterError when it cannot begin."""
    gateway = Gateway(config, path=file, fail_fast=fail_fast)
    gateway.on_applied = _log_as

    def stop() -> bool:
        if not gateway.ready and until_idle_s is not None:
            return False  # a job that has not begun is interrupted: there is nothing to drain
        if not gateway.ready:
            gateway.stop()
            return True
        say("draining; press Ctrl-C again to quit at once")
        gateway.stop()
        return True

    async def main() -> Outcome:
        # Without a file there is nothing to read again, and a hangup ends the process as it does by default.
        if file is not None and (hangup := getattr(signal, "SIGHUP", None)) is not None:
            asyncio.get_running_loop().add_signal_handler(hangup, gateway.reloader.request)
        return await gateway.run(until_idle_s)

    return loop.run(main(), stop=stop, quitting=lambda: _tell_left(gateway))


def _tell_left(gateway: Gateway) -> None:
    """What is in flight when it quits at once."""
    left = [(route.name, route.in_flight, route.budget.used) for route in gateway.routes if route.in_flight]
    for name, batches, size in left:
        say(f"route {name} leaves {batches} batches in flight ({size / 1e6:,.1f} MB): they are delivered again by the next run")
    if not left:
        say("nothing was in flight")


ALWAYS_SAID = ("received", "stored", "dead", "acknowledged")
"""Totals of the closing line; the others are in it when they are not 0."""


def report(outcome: Outcome) -> None:
    """One line per route, and one per cluster that is away, on standard error."""
    for route in outcome.routes:
        totals = route.counters.totals()
        rate = totals["stored"] / outcome.seconds if outcome.seconds else 0.0
        said = [one for one in declared() if one.word and (totals[one.name] or one.name in ALWAYS_SAID)]
        counted = ", ".join(f"{totals[one.name]:,} {one.word}" for one in said)
        say(f"route {route.name}: {counted} in {outcome.seconds:.1f} s ({rate:,.0f}/s){_stopped(route)}")
    for cluster, reason in outcome.away.items():
        say(f"cluster {cluster} {reason}")


def _stopped(route: RouteOutcome) -> str:
    """That it stopped; the log has said why when it did."""
    if route.error is not None:
        return "; stopped, see the error above"
    return f"; {len(route.stopped)} partitions stopped, see the errors above" if route.stopped else ""
