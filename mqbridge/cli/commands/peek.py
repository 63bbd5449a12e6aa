"""`mqbridge peek`: show some messages without joining a group or moving a group's position."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Start
from mqbridge.adapter.topics import Bounds
from mqbridge.cli.options.cluster_options import (
    ClusterOption,
    ConfigOption,
    TopicArgument,
    UrlOption,
    choose,
    operations_of,
    readable_topic,
)
from mqbridge.cli.options.start_position import (
    START_POSITION_HELP,
    StartPosition,
    parse_start_position,
    resolve_positions,
    select_partitions,
)
from mqbridge.cli.output import message_format
from mqbridge.cli.output.console import command, print_note
from mqbridge.cli.output.preview import LocatedMessage, MessageSelection, print_message
from mqbridge.cli.process import event_loop
from mqbridge.cli.reading.range_reader import Chunk, Range, read
from mqbridge.errors import ClusterError, ConfigError, Failure, RequestTimeout
from mqbridge.message import Position

if TYPE_CHECKING:
    from mqbridge.config.cluster_choice import ClusterChoice

DEFAULT_COUNT = 10
MAX_COUNT = 1000
"""Maximum number of messages: they are all kept in memory until they are printed."""
DEFAULT_PREVIEW_BYTES = 600
READ_TIMEOUT_S = 60.0
"""Time limit for reading, which begins after connecting."""


@dataclass(frozen=True, slots=True)
class PeekRequest:
    """The messages to show: `count` in all partitions together, from `start` on; without a `start`, the newest ones.

    `partitions` are names or indexes; empty means all.
    """

    partitions: Sequence[str]
    start: StartPosition | None
    count: int


@command
def peek(
    *,
    topic: TopicArgument,
    last: Annotated[
        int | None,
        typer.Option("--last", "-n", metavar="N", min=1, max=MAX_COUNT, help=f"The newest N messages. Default: {DEFAULT_COUNT}."),
    ] = None,
    first: Annotated[bool, typer.Option("--first", help="The oldest messages that the topic still has.")] = False,
    at_position: Annotated[
        str | None,
        typer.Option(
            "--at-position", "-o", metavar="POSITION", help=f"The messages from this position on: {START_POSITION_HELP}."
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-c",
            metavar="N",
            min=1,
            max=MAX_COUNT,
            help=f"Number of messages; not together with --last. Default: {DEFAULT_COUNT}.",
        ),
    ] = None,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", "-p", help="Only this partition, by name or index; may be repeated.")
    ] = None,
    preview: Annotated[
        int, typer.Option("--bytes", metavar="N", min=0, help="Show about N bytes of each payload at most.")
    ] = DEFAULT_PREVIEW_BYTES,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", "-J", help="Print one JSON object per message, as consume does.")] = False,
) -> None:
    """Show the newest messages of a topic, or those from a position on. Joins no group and moves no group's position.

    For example:

        mqbridge peek orders --at pulsar://127.0.0.1:6650
        mqbridge peek orders --first -c 3 -p 0 -F gateway.yaml -b source
        mqbridge peek orders -o now-15m --json --at rocketmq://127.0.0.1:9876

    TubeMQ reports where a topic ends only through the Master's web address (?admin=http://HOST:8080); without it, use --first.
    """
    request = _request(last, count, at_position, partition, first=first)
    selected = event_loop.run(_peek(choose(config, cluster, at), topic, request))
    for located in selected:
        if as_json:
            sys.stdout.buffer.write(orjson.dumps(message_format.as_json(*located), option=orjson.OPT_APPEND_NEWLINE))
        else:
            print_message(*located, limit=preview)
    sys.stdout.flush()
    if not selected:
        print_note(f"{topic} has no messages in the selected range")


def _request(
    last: int | None, count: int | None, at_position: str | None, partitions: list[str] | None, *, first: bool
) -> PeekRequest:
    """Make the request from the options. Raises ConfigError for options that exclude each other."""
    if sum((last is not None, first, at_position is not None)) > 1:
        raise ConfigError("--last, --first and --at-position exclude each other", hint="Give one of them")
    if last is not None and count is not None:
        raise ConfigError("--last and --count exclude each other", hint="--last N already is the number of messages")
    start: StartPosition | None = Start.EARLIEST if first else None
    if at_position is not None:
        start = parse_start_position(at_position, "--at-position")
    return PeekRequest(partitions=partitions or [], start=start, count=last or count or DEFAULT_COUNT)


async def _peek(choice: "ClusterChoice", topic: str, request: PeekRequest) -> list[LocatedMessage]:
    """Read the partitions up to their present ends and return the messages to show."""
    async with choice.connected() as cluster:
        described = await readable_topic(cluster, topic)
        names, bounds = select_partitions(described, request.partitions), await cluster.bounds(topic)
        begin = await _begin_positions(cluster, topic, names, request, bounds)
        ranges = {name: Range(begin.get(name, bounds[name].first), bounds[name].next) for name in names if name in bounds}
        newest = request.start is None  # the newest messages are at the end of a range, so each range is read whole
        selection = MessageSelection(request.count, newest=newest)
        chunks = read(cluster, topic, ranges, limit_per_partition=None if newest else request.count)
        await _collect(chunks, selection, topic)
        return selection.select()


async def _collect(chunks: AsyncGenerator[Chunk, None], selection: MessageSelection, topic: str) -> None:
    """Add all chunks to the selection. Raises RequestTimeout."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S), aclosing(chunks):
            async for chunk in chunks:
                selection.add(*chunk)
    except TimeoutError as error:
        raise RequestTimeout(
            f"{topic!r} could not be read within {READ_TIMEOUT_S:g} s; ask for one partition with -p, or for fewer messages"
        ) from error


async def _begin_positions(
    cluster: Cluster, topic: str, names: Sequence[str], request: PeekRequest, bounds: Mapping[str, Bounds]
) -> Mapping[str, Position]:
    """Return the position at which to begin, by partition name. A partition without one is read from its first message."""
    if request.start is Start.EARLIEST:
        return {}
    if request.start is None:
        positions = await operations_of(cluster).newest(topic, request.count)
        if not positions:
            raise ClusterError(
                f"cluster {cluster.name!r} does not report where {topic!r} ends; give its admin_url "
                "(--at URL?admin=http://HOST:PORT), or use --first",
                Failure.FATAL,
            )
        return positions
    return await resolve_positions(cluster, topic, names, request.start, bounds)
