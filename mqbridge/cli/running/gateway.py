"""Runs a gateway until it ends, as `mqbridge run` and `mqbridge listen` do. The gateway is imported only then."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mqbridge.cli.output.console import debug, print_note
from mqbridge.cli.process import event_loop, exit_codes, logs

if TYPE_CHECKING:
    from mqbridge.config.options.config import Config
    from mqbridge.gateway.listeners import ListenerRunner
    from mqbridge.gateway.run import Gateway
    from mqbridge.gateway.run_result import RouteResult, RunResult


def exit_code_of(result: "RunResult") -> int:
    """Return the exit code after a run."""
    if result.clean:
        return exit_codes.OK
    return exit_codes.STOPPED if result.has_stopped else exit_codes.CLUSTER


def configure_log(config: "Config") -> None:
    """Configure the log as the configuration says."""
    logs.configure("debug" if debug.get() else config.log.level, config.log.format)


def serve(
    config: "Config",
    until_idle_s: float | None,
    file: Path | None = None,
    *,
    fail_fast: bool | None = None,
    on_serving: "Callable[[ListenerRunner], None] | None" = None,
) -> "RunResult":
    """Run the gateway until it ends. SIGINT and SIGTERM drain it, SIGHUP reloads `file`.

    `on_serving` is called with each listener that begins to serve clients. Raises ConfigError or ClusterError if it cannot start.
    """
    from mqbridge.gateway.run import Gateway

    gateway = Gateway(config, path=file, fail_fast=fail_fast)
    gateway.on_applied = configure_log
    if on_serving is not None:
        gateway.on_serving = on_serving

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
    """Print one line per route, per listener, per partition that may have unread messages, and per unreachable cluster.

    The lines are on standard error.
    """
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
    for listener in result.listeners:
        counts = listener.counts
        print_note(
            f"listener {listener.name}: {counts['received_messages']:,} messages received, {counts['delivered_messages']:,} "
            f"delivered, {counts['redelivered_messages']:,} of them again, {counts['dead_letters']:,} dead letters"
        )
    for cluster, reason in result.unreachable.items():
        print_note(f"cluster {cluster} {reason}")


def _stopped_suffix(route: "RouteResult") -> str:
    """Return the end of the line for a route that stopped, or has stopped partitions or topics; the log has the reason."""
    if route.error is not None:
        return "; stopped, see the error above"
    return f"; {len(route.stopped)} partitions or topics stopped, see the errors above" if route.stopped else ""
