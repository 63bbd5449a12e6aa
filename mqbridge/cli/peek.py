"""`mqbridge peek`: look at some messages without joining a group or moving anything."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

import orjson
import typer

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Start
from mqbridge.adapter.topics import Bounds
from mqbridge.cli import loop, records
from mqbridge.cli.console import command, say
from mqbridge.cli.glance import Collected, Seen, show
from mqbridge.cli.places import HELP, Place, find, parse_place, pick
from mqbridge.cli.reach import ClusterOption, ConfigOption, UrlOption, no_topic, operations_of
from mqbridge.cli.reader import Chunk, Range, read
from mqbridge.config.chosen import Chosen, choose
from mqbridge.errors import ClusterError, ConfigError, Failure, RequestTimeout
from mqbridge.message import Position

SHOWN = 10
MAX_SHOWN = 1000
PREVIEW_BYTES = 600
PATIENCE_S = 60.0
"""For reading; opening has deadlines of its own."""


@dataclass(frozen=True, slots=True)
class Look:
    """What to look at: the newest if there is no place, else what begins there."""

    partitions: Sequence[str]
    place: Place | None
    count: int


@command
def peek(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    last: Annotated[
        int | None,
        typer.Option("--last", "-n", metavar="N", min=1, max=MAX_SHOWN, help=f"The newest N; {SHOWN} if nothing is said."),
    ] = None,
    first: Annotated[bool, typer.Option("--first", help="The oldest that are still there.")] = False,
    at_position: Annotated[
        str | None, typer.Option("--at-position", "-o", metavar="PLACE", help=f"From here on: {HELP}.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-c", metavar="N", min=1, max=MAX_SHOWN, help=f"How many, if not {SHOWN}."),
    ] = None,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", "-p", help="Only this partition, by name or index; may be repeated.")
    ] = None,
    preview: Annotated[
        int, typer.Option("--bytes", metavar="N", min=0, help="How much of each payload to show.")
    ] = PREVIEW_BYTES,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", "-J", help="Print one JSON object per message, as consume does.")] = False,
) -> None:
    """Look at the newest messages of a topic, or at those from some place on. No group is joined or moved.

    TubeMQ says where a topic ends only with the Master's web address (?admin=http://HOST:8080); without it use --first.

    For example:

        mqbridge peek orders --at pulsar://127.0.0.1:6650

        mqbridge peek orders --first -c 3 -p 0 -F gateway.yaml -b source

        mqbridge peek orders -o now-15m --json --at rocketmq://127.0.0.1:9876
    """
    found = loop.run(_peek(choose(config, cluster, at), topic, _look(last, count, at_position, partition, first=first)))
    for seen in found:
        if as_json:
            sys.stdout.buffer.write(orjson.dumps(records.as_json(*seen), option=orjson.OPT_APPEND_NEWLINE))
        else:
            show(*seen, preview)
    sys.stdout.flush()
    if not found:
        say(f"{topic} has no message there")


def _look(last: int | None, count: int | None, at: str | None, partitions: list[str] | None, *, first: bool) -> Look:
    if sum((last is not None, first, at is not None)) > 1 or (last is not None and count is not None):
        raise ConfigError("--last, --first and --at-position exclude each other", hint="Give one of them, the last two with -c")
    place = parse_place("earliest", "--first") if first else None if at is None else parse_place(at, "--at-position")
    return Look(partitions or [], place, last or count or SHOWN)


async def _peek(chosen: Chosen, topic: str, look: Look) -> list[Seen]:
    async with chosen.reached() as cluster:
        described = await cluster.describe(topic)
        if described is None:
            raise no_topic(topic, cluster)
        names, bounds = pick(described, look.partitions), await cluster.bounds(topic)
        begin = await _begin(cluster, topic, names, look, bounds)
        ranges = {name: Range(begin.get(name, bounds[name].first), bounds[name].next) for name in names if name in bounds}
        newest = look.place is None
        collected = Collected(look.count, newest=newest)
        chunks = read(cluster, topic, ranges, each=None if newest else look.count)
        await _collect(chunks, collected, topic)
        return collected.chosen()


async def _collect(chunks: AsyncGenerator[Chunk, None], collected: Collected, topic: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S), aclosing(chunks):
            async for chunk in chunks:
                collected.add(*chunk)
    except TimeoutError as error:
        raise RequestTimeout(
            f"{topic!r} could not be read within {PATIENCE_S:g} s; look at one partition with -p, or at fewer messages"
        ) from error


async def _begin(
    cluster: Cluster, topic: str, names: Sequence[str], look: Look, bounds: Mapping[str, Bounds]
) -> Mapping[str, Position]:
    """Where to begin, by partition; the beginning where nothing is said."""
    if look.place is Start.EARLIEST:
        return {}
    if look.place is None:
        found = await operations_of(cluster).newest(topic, look.count)
        if not found:
            raise ClusterError(
                f"cluster {cluster.name!r} does not say where {topic!r} ends; give its admin_url "
                "(--at URL?admin=http://HOST:PORT), or use --first",
                Failure.FATAL,
            )
        return found
    return await find(cluster, topic, names, look.place, bounds)
