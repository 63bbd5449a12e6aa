"""`mqbridge run`: run the gateway. The gateway is imported only when the command runs: help and completion stay fast."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqbridge.cli.output.console import debug, print_json, print_note, service
from mqbridge.cli.process import event_loop, exit_codes, logs
from mqbridge.errors import ConfigError

if TYPE_CHECKING:
    from mqbridge.config.options.config import Config
    from mqbridge.gateway.run import Gateway
    from mqbridge.gateway.run_result import RouteResult, RunResult


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
    _configure_log(config)
    result = serve(config, until_idle, file, fail_fast=fail_fast)
    report(result)
    if as_json:
        print_json(result.as_json())
    raise typer.Exit(_exit_code(result))


def _exit_code(result: "RunResult") -> int:
    if result.clean:
        return exit_codes.OK
    return exit_codes.STOPPED if result.has_stopped else exit_codes.CLUSTER


def _configure_log(config: "Config") -> None:
    logs.configure("debug" if debug.get() else config.log.level, config.log.format)


def serve(
    config: "Config", until_idle_s: float | None, file: Path | None = None, *, fail_fast: bool | None = None
) -> "RunResult":
    """Run the gateway until it ends. SIGINT and SIGTERM drain it, SIGHUP reloads `file`.

    Raises ConfigError or ClusterError if it cannot start.
    """
    from mqbridge.gateway.run import Gateway

    gateway = Gateway(config, path=file, fail_fast=fail_fast)
    gateway.on_applied = _configure_log

    def stop() -> bool:
        """Tell the gateway to end, after the first signal; return False to have `main` cancelled instead."""
        if not gateway.ready and until_idle_s is not None:
            return False  # a run until idle that has not started is cancelled: there is nothing to drain
        if not gateway.ready:
            gateway.stop()
            return True
        gateway.stop()
        print_note("draining; press Ctrl-C again to quit at once")
        return True

    return event_loop.run(
        gateway.run(until_idle_s),
        stop=stop,
        on_quit=lambda: _print_in_flight(gateway),
        on_hangup=None if file is None else gateway.reloader.request,  # without a file there is nothing to reload
    )


def _print_in_flight(gateway: "Gateway") -> None:
    """Print how many batches each route has in flight; called when the process ends without draining."""
    states = [(route.name, route.state) for route in gateway.routes]
    in_flight = [(name, state.in_flight_batches, state.budget.used) for name, state in states if state.in_flight_batches]
    for name, batches, size in in_flight:
        print_note(
            f"route {name} leaves {batches} batches in flight ({size / 1e6:,.1f} MB): they are delivered again by the next run"
        )
    if not in_flight:
        print_note("nothing was in flight")


ALWAYS_SHOWN_TOTALS = ("received", "stored", "dead", "acknowledged")
"""Names of the totals that the summary line always shows; it shows the others only if they are not 0."""


def report(result: "RunResult") -> None:
    """Print one line per route, per partition that may have unread messages, and per unreachable cluster, on standard error."""
    from mqbridge.delivery.counters import declared_totals

    for route in result.routes:
        totals = route.counters.totals()
        rate = totals["stored"] / result.seconds if result.seconds else 0.0
        shown = [
            total for total in declared_totals() if total.label and (totals[total.name] or total.name in ALWAYS_SHOWN_TOTALS)
        ]
        counted = ", ".join(f"{totals[total.name]:,} {total.label}" for total in shown)
        print_note(f"route {route.name}: {counted} in {result.seconds:.1f} s ({rate:,.0f}/s){_stopped_suffix(route)}")
        for partition, reason in route.unread.items():
            print_note(f"route {route.name}: {partition} may have unread messages: {reason}")
    for cluster, reason in result.unreachable.items():
        print_note(f"cluster {cluster} {reason}")


def _stopped_suffix(route: "RouteResult") -> str:
    """Return the end of the line for a route that stopped, or has stopped partitions or topics; the log has the reason."""
    if route.error is not None:
        return "; stopped, see the error above"
    return f"; {len(route.stopped)} partitions or topics stopped, see the errors above" if route.stopped else ""
