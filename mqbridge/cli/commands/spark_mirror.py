"""`mqbridge spark mirror`: move the topics of routes with Spark. Its help needs no Spark."""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mqbridge.adapter.inbound import Start
from mqbridge.cli.options.start_position import Timestamp, parse_start_position
from mqbridge.cli.output.console import command, debug, print_json, print_note, stderr_console
from mqbridge.cli.process import exit_codes, logs
from mqbridge.cli.process.event_loop import QUIT_CODE
from mqbridge.errors import ConfigError

if TYPE_CHECKING:
    from mqbridge.spark.mirror.job import Mirror
    from mqbridge.spark.mirror.progress import RouteProgress

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 30.0
"""Interval of the log lines with the progress of each route, if standard error is not a terminal."""


@command
def mirror(
    *,
    file: Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration, the same as for `run`.")],
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Where the mirror stores its positions: a folder of its own, or a URL such as hdfs://… .",
        ),
    ],
    route: Annotated[list[str] | None, typer.Option("--route", metavar="NAME", help="Only this route; may be repeated.")] = None,
    through: Annotated[
        Literal["pump", "rows"],
        typer.Option(
            "--through",
            help="`pump`: tasks read and send messages directly. `rows`: messages pass through Spark as rows, which is slower.",
        ),
    ] = "pump",
    follow: Annotated[
        bool,
        typer.Option("--follow/--until-caught-up", help="Continue with new messages, or end at the present end of the source."),
    ] = True,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME",
            help="Start of a route that has no checkpoint yet; a time is now-2h, 2026-11-21T14:00 or @MS. "
            "Default: the `start` of the route.",
        ),
    ] = None,
    batch_size: Annotated[
        str, typer.Option("--max-bytes-per-batch", metavar="SIZE", help="Approximate size of one batch of a route.")
    ] = "",
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark's master; local[*] unless spark-submit has one.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus at this address, under /metrics."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="At the end, print the totals of every route as JSON.")] = False,
) -> None:
    """Move the topics of routes with Spark: first the backlog, then what arrives.

    For example:

        mqbridge spark mirror rocketmq-to-pulsar.yaml --checkpoint /var/lib/mirror
        mqbridge spark mirror tubemq-to-pulsar.yaml --checkpoint hdfs://nn/mirror --until-caught-up --master yarn

    The routes do the same as in the gateway: patterns, templates, filters, edits, partition rules, dead letters, created topics.
    Positions are in the checkpoint, not in the route's group. Each message is stored once, even if the driver, a task or a server
    fails in the middle and the same command is started again.

    The first Ctrl-C or SIGTERM ends every route after its running batch. The second ends it at once. Either way the next run
    resumes where this one ended.
    """
    from mqbridge.config.load import load, wants_json_log

    try:
        config = load(file)
    except ConfigError:
        if wants_json_log(file):  # so that the error is printed as JSON; the log of a valid configuration is set up below
            logs.configure("debug" if debug.get() else "warning", "json")
        raise
    from mqbridge.spark.prerequisites import check_prerequisites

    check_prerequisites()
    logs.configure("debug" if debug.get() else config.log.level, config.log.format)
    for name in ("py4j", "pyspark"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mqbridge.spark.mirror.job import Mirror
    from mqbridge.spark.mirror.settings import DEFAULT_BATCH_BYTES, MirrorSettings

    settings = MirrorSettings(
        file=file,
        checkpoint=checkpoint,
        routes=tuple(route or ()),
        through=through,
        follow=follow,
        start=None if start is None else _parse_start(start),
        batch_bytes=_parse_batch_size(batch_size) if batch_size else DEFAULT_BATCH_BYTES,
        master=master,
        conf=dict(_parse_spark_settings(conf or ())),
        metrics=None if listen is None else _parse_address(listen),
        quiet=not debug.get(),  # Spark itself logs only errors
    )
    started_at = time.monotonic()
    display = ProgressDisplay()
    job = Mirror(settings, display.show, on_started=lambda: _stop_on_signals(job))
    try:
        routes = job.run()
    finally:
        display.close()
    report(routes, time.monotonic() - started_at, as_json=as_json)
    raise typer.Exit(exit_codes.OK if all(route.error is None for route in routes) else exit_codes.STOPPED)


# --- option values ----------------------------------------------------------------------------------------------------


def _parse_start(text: str) -> Start | int:
    """Parse `--from`: EARLIEST, LATEST, or a time in ms since the epoch. Raises ConfigError."""
    position = parse_start_position(text, "--from")
    if isinstance(position, Start):
        return position
    if isinstance(position, Timestamp):
        return position.ms
    raise ConfigError(f"--from {text!r} is a position, and a route has many partitions", hint="Use earliest, latest or a time")


def _parse_batch_size(text: str) -> int:
    from mqbridge.config.units import parse_size

    try:
        size = parse_size(text)
    except ValueError as error:
        raise ConfigError(str(error), path="--max-bytes-per-batch") from error
    if not size:
        raise ConfigError("the size of a batch must not be 0", path="--max-bytes-per-batch")
    return size


def _parse_spark_settings(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.startswith("spark."):
            raise ConfigError(f"{text!r} is not a setting of Spark", path="--set", hint="Write spark.NAME=VALUE")
        yield name, value


def _parse_address(text: str) -> tuple[str, int]:
    from mqbridge.config.units import split_listen_address

    try:
        return split_listen_address(text)
    except ValueError as error:
        raise ConfigError(str(error), path="--metrics") from error


# --- signals ----------------------------------------------------------------------------------------------------------


def _stop_on_signals(job: "Mirror") -> None:
    """Replace the signal handlers of Spark: the first signal stops the job after the running batches, the second at once."""
    received: list[int] = []

    def on_signal(number: int, _: Any) -> None:
        received.append(number)
        if len(received) > 1:
            try:
                job.clean_up()
                for route in job.route_progress:
                    if not route.is_done:
                        print_note(f"route {route.name} leaves a batch unfinished: the next run continues with it")
                sys.stderr.flush()
            finally:
                os._exit(QUIT_CODE)  # the JVM and its tasks end when their pipe to this process closes
        job.stop()
        with contextlib.suppress(RuntimeError):  # the signal came while the same stream is being written
            print_note("stopping after the running batches; press Ctrl-C again to end at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


# --- output ------------------------------------------------------------------------------------------------------------


class ProgressDisplay:
    """Shows progress: changing lines on a terminal, otherwise log lines."""

    def __init__(self) -> None:
        from rich.live import Live

        console = stderr_console()
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal and not logs.is_json() else None
        self._logged_at = time.monotonic()
        self._is_open = False

    def show(self, routes: Sequence["RouteProgress"]) -> None:
        """Show the progress of all routes. The job calls this several times a second."""
        from rich.console import Group
        from rich.text import Text

        now = time.monotonic()
        if self._live is not None:
            if not self._is_open:
                self._live.start()
                self._is_open = True
            self._live.update(Group(*(Text(route.line(now)) for route in routes)))
        elif now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            for route in routes:
                log.info("mirror progress: %s", route.line(now))

    def close(self) -> None:
        """Stop updating; the last lines stay on the terminal."""
        if self._is_open and self._live is not None:
            self._live.stop()


ALWAYS_SHOWN_TOTALS = ("received", "stored", "dead")
"""Names of the totals that the summary line always shows; it shows the others only if they are not 0."""


def report(routes: Sequence["RouteProgress"], seconds: float, *, as_json: bool) -> None:
    """Print one line per route on standard error, as `run` does; with `as_json` also JSON on standard output.

    `seconds` is the duration of the run.
    """
    from mqbridge.spark.mirror.progress import COUNT_LABELS

    for route in routes:
        totals = route.run_totals()
        rate = totals.get("stored", 0) / seconds if seconds else 0.0
        counted = [
            f"{totals.get(name, 0):,} {word}"
            for name, word in COUNT_LABELS.items()
            if totals.get(name) or name in ALWAYS_SHOWN_TOTALS
        ]
        stopped = "; stopped, see the error above" if route.error is not None else ""
        print_note(f"route {route.name}: {', '.join(counted)} in {seconds:.1f} s ({rate:,.0f}/s){stopped}")
    if as_json:
        rows = [{"name": route.name, **route.run_totals(), "batches": route.batches, "error": route.error} for route in routes]
        print_json({"routes": rows, "seconds": seconds, "clean": all(route.error is None for route in routes)})
