"""`mqbridge spark`: what runs on Spark. Works without Spark installed, until a command of it is used."""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from mqbridge.adapter.inbound import Start
from mqbridge.cli import exits, logs
from mqbridge.cli.console import command, debug, err, print_json, say
from mqbridge.cli.loop import QUIT_CODE
from mqbridge.cli.places import Moment, parse_place
from mqbridge.cli.spark_quickstart import quickstart
from mqbridge.config.load import load, wants_json_log
from mqbridge.config.units import parse_size, split_address
from mqbridge.errors import ConfigError

if TYPE_CHECKING:
    from mqbridge.spark.mirror.job import Mirror
    from mqbridge.spark.mirror.progress import RouteProgress

log = logging.getLogger(__name__)

LOG_EVERY_S = 30.0
"""A line per route, where nobody watches a terminal."""

spark = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@spark.callback()
def group() -> None:
    """Bulk pipelines on Spark. They need `pip install 'mqbridge[spark]'` and Java 17."""


spark.command()(quickstart)


@spark.command()
@command
def mirror(
    *,
    file: Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration: the same that `run` takes.")],
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint", metavar="DIR", help="Where positions are kept: a folder of its own, or a URL such as hdfs://… ."
        ),
    ],
    route: Annotated[list[str] | None, typer.Option("--route", metavar="NAME", help="Only this route; may be repeated.")] = None,
    through: Annotated[
        Literal["pump", "rows"],
        typer.Option("--through", help="`pump`: tasks move the messages themselves. `rows`: messages are rows of Spark."),
    ] = "pump",
    follow: Annotated[
        bool, typer.Option("--follow/--until-caught-up", help="Go on with what comes, or end where the source ends now.")
    ] = True,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME",
            help="Where a route begins that has no checkpoint yet; a time is now-2h, 2026-11-21T14:00 or @MS. "
            "Default: the `start` of the route.",
        ),
    ] = None,
    batch: Annotated[
        str, typer.Option("--max-bytes-per-batch", metavar="SIZE", help="About what one batch of a route holds.")
    ] = "",
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark's master; local[*] unless spark-submit has one.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Answer Prometheus at /metrics there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="At the end print what every route did, as JSON.")] = False,
) -> None:
    """Move the topics of routes with Spark: what is there, then what comes.

    Routes are those of the gateway, and do the same: patterns, templates, filters, edits, partition rules, dead letters, topics
    that are made. Positions are in the checkpoint, not in the route's group. Each message is stored once, also when the driver, a
    task or a server ends in the middle and the same command is started again.

    The first Ctrl-C or SIGTERM ends every route behind the batch that runs. The second ends it at once. Either way the next run
    goes on where this one ended.

    For example:

        mqbridge spark mirror config/rocketmq-to-pulsar.yaml --checkpoint /var/lib/mirror

        mqbridge spark mirror config/tubemq-to-pulsar.yaml --checkpoint hdfs://nn/mirror --until-caught-up --master yarn
    """
    try:
        config = load(file)
    except ConfigError:
        if wants_json_log(file):
            logs.configure("debug" if debug.get() else "warning", "json")
        raise
    from mqbridge.spark.prerequisites import check_prerequisites

    check_prerequisites()
    logs.configure("debug" if debug.get() else config.log.level, config.log.format)
    for name in ("py4j", "pyspark"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mqbridge.spark.mirror.job import Mirror
    from mqbridge.spark.mirror.settings import BATCH_BYTES, MirrorSettings

    settings = MirrorSettings(
        file,
        checkpoint,
        tuple(route or ()),
        through,
        follow,
        None if start is None else _begin(start),
        _size(batch) if batch else BATCH_BYTES,
        master,
        dict(_pairs(conf or ())),
        None if listen is None else _address(listen),
        quiet=not debug.get(),
    )
    began = time.monotonic()
    show = Shown()
    job = Mirror(settings, show.show, on_started=lambda: _stop_on_signals(job))
    try:
        routes = job.run()
    finally:
        show.close()
    report(routes, time.monotonic() - began, as_json=as_json)
    raise typer.Exit(exits.OK if all(one.error is None for one in routes) else exits.STOPPED)


# --- what people wrote ------------------------------------------------------------------------------------------------


def _begin(text: str) -> Start | int:
    place = parse_place(text, "--from")
    if isinstance(place, Start):
        return place
    if isinstance(place, Moment):
        return place.ms
    raise ConfigError(f"--from {text!r} is a position, and a route has many partitions", hint="Use earliest, latest or a time")


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise ConfigError(str(error), path="--max-bytes-per-batch") from error
    if not size:
        raise ConfigError("a batch of no bytes moves nothing", path="--max-bytes-per-batch")
    return size


def _pairs(given: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in given:
        name, mark, value = text.partition("=")
        if not mark or not name.startswith("spark."):
            raise ConfigError(f"{text!r} is no setting of Spark", path="--set", hint="Write spark.NAME=VALUE")
        yield name, value


def _address(text: str) -> tuple[str, int]:
    try:
        return split_address(text)
    except ValueError as error:
        raise ConfigError(str(error), path="--metrics") from error


# --- signals ----------------------------------------------------------------------------------------------------------


def _stop_on_signals(job: "Mirror") -> None:
    """The first signal stops between two batches, the second at once. Spark has set a handler of its own by now."""
    seen: list[int] = []

    def on_signal(number: int, _: Any) -> None:
        seen.append(number)
        if len(seen) > 1:
            try:
                job.clean_up()
                for one in job.routes:
                    if not one.done:
                        say(f"route {one.name} leaves a batch in the middle: the next run goes on with it")
                sys.stderr.flush()
            finally:
                os._exit(QUIT_CODE)  # the JVM ends with the pipe that it has to us, and its tasks with it
        say("stopping behind the batches that run; press Ctrl-C again to end at once")
        job.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


# --- what people see --------------------------------------------------------------------------------------------------


class Shown:
    """Progress: lines that change on a terminal, lines of the log elsewhere."""

    def __init__(self) -> None:
        console = err()
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal and not logs.is_json() else None
        self._logged_at = time.monotonic()
        self._is_open = False

    def show(self, routes: Sequence["RouteProgress"]) -> None:
        """Called several times a second."""
        now = time.monotonic()
        if self._live is not None:
            if not self._is_open:
                self._live.start()
                self._is_open = True
            self._live.update(Group(*(Text(one.line(now)) for one in routes)))
        elif now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            for one in routes:
                log.info("%s", one.line(now))

    def close(self) -> None:
        """Leave the last lines where they are."""
        if self._is_open and self._live is not None:
            self._live.stop()


ALWAYS_SAID = ("received", "stored", "dead")
"""Totals of the closing line; the others are in it when they are not 0."""


def report(routes: Sequence["RouteProgress"], seconds: float, *, as_json: bool) -> None:
    """One line per route on standard error, as `run` has it; JSON on standard output when that is wanted."""
    from mqbridge.spark.mirror.progress import WORDS

    if as_json:
        rows = [{"name": one.name, **one.run_totals(), "batches": one.batches, "error": one.error} for one in routes]
        print_json({"routes": rows, "seconds": seconds, "clean": all(one.error is None for one in routes)})
    for one in routes:
        done = one.run_totals()
        rate = done.get("stored", 0) / seconds if seconds else 0.0
        said = [f"{done.get(name, 0):,} {word}" for name, word in WORDS.items() if done.get(name) or name in ALWAYS_SAID]
        ended = "; stopped, see the error above" if one.error is not None else ""
        say(f"route {one.name}: {', '.join(said)} in {seconds:.1f} s ({rate:,.0f}/s){ended}")
