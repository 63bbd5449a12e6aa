"""`mqbridge run`: the gateway itself. The only place of the command line that starts it."""

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from mqbridge.cli import exits, logs, loop
from mqbridge.cli.console import command, debug, print_json, say
from mqbridge.config.load import load
from mqbridge.config.options.config import Config
from mqbridge.delivery.counters import declared
from mqbridge.gateway.outcome import Outcome
from mqbridge.gateway.run import Gateway


@command
def run(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration.")],
    until_idle: Annotated[
        float | None,
        typer.Option("--until-idle", metavar="SECONDS", min=0.0, help="End when nothing came for so long and all is delivered."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="At the end print what every route did, as JSON.")] = False,
) -> None:
    """Run the gateway until it is stopped.

    The first Ctrl-C or SIGTERM drains: what is in flight is delivered and acknowledged, the rest stays at the source.
    The second quits at once; what was in flight is then delivered again by the next run.

    With --until-idle it waits up to a minute for partitions that its group has not given it; then others of the group have them.

    SIGHUP, or POST /reload, reads the configuration again: what changed is restarted, the rest goes on. A configuration that
    cannot be used changes nothing.

    For example:

        mqbridge run config/tubemq-to-pulsar.yaml

        SOURCE_TOPIC=orders mqbridge run config/tubemq-to-pulsar.yaml --until-idle 5
    """
    config = load(file)
    _log_as(config)
    outcome = serve(config, until_idle, file)
    if as_json:
        print_json(outcome.as_json())
    report(outcome)
    raise typer.Exit(exits.OK if outcome.clean else exits.STOPPED)


def _log_as(config: Config) -> None:
    logs.configure("debug" if debug.get() else config.log.level, config.log.format)


def serve(config: Config, until_idle_s: float | None, file: Path | None = None) -> Outcome:
    """Run the gateway; signals drain it, SIGHUP reads `file` again. Raises ConfigError or ClusterError when it cannot begin."""
    gateway = Gateway(config, path=file)
    gateway.on_applied = _log_as

    def stop() -> bool:
        if not gateway.ready:
            return False  # still connecting: nothing to drain
        say("draining; press Ctrl-C again to quit at once")
        gateway.stop()
        return True

    async def main() -> Outcome:
        # Without a file there is nothing to read again, and a hangup ends the process as it does by default.
        if file is not None and (hangup := getattr(signal, "SIGHUP", None)) is not None:
            asyncio.get_running_loop().add_signal_handler(hangup, gateway.reloader.request)
        return await gateway.run(until_idle_s)

    return loop.run(main(), stop=stop)


ALWAYS_SAID = ("received", "stored", "dead", "acknowledged")
"""Totals of the closing line; the others are in it when they are not 0."""


def report(outcome: Outcome) -> None:
    """One line per route, and one per partition that stopped or cluster that is away, on standard error."""
    for route in outcome.routes:
        totals = route.counters.totals()
        rate = totals["stored"] / outcome.seconds if outcome.seconds else 0.0
        said = [one for one in declared() if one.word and (totals[one.name] or one.name in ALWAYS_SAID)]
        counted = ", ".join(f"{totals[one.name]:,} {one.word}" for one in said)
        say(f"route {route.name}: {counted} in {outcome.seconds:.1f} s ({rate:,.0f}/s)")
        if route.error is not None:
            say(f"route {route.name} stopped: {route.error}")
        for partition, reason in route.stopped.items():
            if reason != route.error:
                say(f"{partition} stopped: {reason}")
    for cluster, reason in outcome.away.items():
        say(f"cluster {cluster} {reason}")
