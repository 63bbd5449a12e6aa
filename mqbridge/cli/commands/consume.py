"""`mqbridge consume`: print messages. The short options are those of kcat.

Without a group, the command reads partitions by position: it moves no group and creates none.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import InboundSpec, Start
from mqbridge.adapter.topics import Bounds
from mqbridge.cli.options import completion
from mqbridge.cli.options.cluster_options import (
    ClusterOption,
    ConfigOption,
    SettingOption,
    UrlOption,
    choose,
    parse_settings,
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
from mqbridge.cli.process import event_loop, exit_codes, streams
from mqbridge.cli.reading.group_reader import GroupReader, GroupReadSpec, ShowMessages
from mqbridge.cli.reading.range_reader import Range, read
from mqbridge.errors import ClusterError, ConfigError
from mqbridge.message import Message, Partition, Position

if TYPE_CHECKING:
    from pydantic import BaseModel

    from mqbridge.config.cluster_choice import ClusterChoice


class ReaderLeft(Exception):
    """The reader of standard output has left, so that no more messages are to be read for it."""


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """The options of the command. Without `start` (only with a group), reading resumes at the group's position.

    No `partitions` or `msg_types` means all of them, and no `count` means no limit. With `exit_at_end`, reading ends at the
    present ends of the partitions; otherwise it waits for new messages.
    """

    topic: str
    group: str | None
    partitions: Sequence[str]
    start: StartPosition | None
    exit_at_end: bool
    count: int | None
    msg_types: frozenset[str]


@command
def consume(
    *,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic.", autocompletion=completion.topics)],
    partition: Annotated[
        list[str] | None, typer.Option("--partition", "-p", help="Only this partition, by name or index; may be repeated.")
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="POSITION",
            help=f"stored (the group's position, only with -G), {START_POSITION_HELP}. Default: stored with -G, else earliest.",
        ),
    ] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit", "-e", help="End when every partition has been read to its end.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="End after this many messages.")] = None,
    msg_type: Annotated[
        list[str] | None,
        typer.Option("--msg-type", "-T", help="Only this message type (TubeMQ) or tag (RocketMQ); may be repeated."),
    ] = None,
    fmt: Annotated[str, typer.Option("--format", "-f", help=message_format.HELP)] = message_format.DEFAULT_FORMAT,
    group: Annotated[
        str | None,
        typer.Option("--group", "-G", help="Consume as a member of this group and acknowledge; without it, no group moves."),
    ] = None,
    setting: SettingOption = None,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", "-J", help="Print one JSON object per message.")] = False,
) -> None:
    r"""Print messages as they arrive, payloads byte for byte, until interrupted (exit code 130); -e or -c end it earlier.

    For example:

        mqbridge consume -t orders -e --at pulsar://127.0.0.1:6650
        mqbridge consume -t orders -o now-15m -T paid --at rocketmq://127.0.0.1:9876
        mqbridge consume -t orders -o end -f '%t [%p] %o: %k %s\n' -F gateway.yaml -b target
        mqbridge consume -t orders -G audit -c 10 --json --at tubemq://127.0.0.1:8715

    Without -G, no group is joined or moved. With -G, whole batches are acknowledged: if -c ends the command within a batch, the
    messages of this batch are delivered again.
    """
    write = _json_line if as_json else message_format.compile_format(fmt)
    start = _parse_offset(offset, group)
    choice = choose(config, cluster, at)
    options = parse_settings(choice.adapter.inbound_options, setting or ())
    if setting and group is None:
        raise ConfigError("-X sets how a member of a group consumes, and no group is given", hint="Name the group with -G")

    def show(part: Partition, messages: list[Message]) -> None:
        sys.stdout.buffer.write(b"".join([write(part, message) for message in messages]))
        sys.stdout.buffer.flush()
        if not streams.has_reader():
            raise ReaderLeft

    request = ConsumeRequest(
        topic=topic,
        group=group,
        partitions=partition or [],
        start=start,
        exit_at_end=exit_at_end,
        count=count,
        msg_types=frozenset(msg_type or ()),
    )
    try:
        shown = event_loop.run(_consume(choice, request, options, show))
    except ReaderLeft:  # `mqbridge consume … | head` has what it wants
        raise typer.Exit(exit_codes.OK) from None
    if sys.stderr.isatty():
        print_note(f"{shown:,} messages")


def _json_line(partition: Partition, message: Message) -> bytes:
    return orjson.dumps(message_format.as_json(partition, message), option=orjson.OPT_APPEND_NEWLINE)


def _parse_offset(offset: str | None, group: str | None) -> StartPosition | None:
    """Return the position at which to start; None for the group's own position. Raises ConfigError."""
    if offset is None:
        return Start.EARLIEST if group is None else None
    if offset != "stored":
        return parse_start_position(offset, "-o")
    if group is None:
        raise ConfigError("-o stored needs a group", hint="Name it with -G")
    return None


async def _consume(choice: "ClusterChoice", request: ConsumeRequest, options: "BaseModel", show: ShowMessages) -> int:
    """Read with or without a group; return the number of messages shown. `options` are those of `-X`, for a group only."""
    async with choice.connected() as cluster:
        described = await readable_topic(cluster, request.topic)
        names = select_partitions(described, request.partitions)
        needs_bounds = request.start is not None or request.exit_at_end
        bounds = await cluster.bounds(request.topic) if needs_bounds else {}
        if request.start is None:
            return await _read_as_group(cluster, request, {}, names, bounds, options, show)
        begin = await resolve_positions(cluster, request.topic, names, request.start, bounds)
        if request.group is None:
            return await _read_without_group(cluster, request, begin, bounds, show)
        return await _read_as_group(cluster, request, begin, names, bounds, options, show)


async def _read_without_group(
    cluster: Cluster, request: ConsumeRequest, begin: Mapping[str, Position], bounds: Mapping[str, Bounds], show: ShowMessages
) -> int:
    """Read each partition from its position in `begin`, by partition name; return the number of messages shown."""
    ranges = {name: Range(position, bounds[name].next if request.exit_at_end else None) for name, position in begin.items()}
    shown = 0
    async with aclosing(read(cluster, request.topic, ranges, msg_types=request.msg_types)) as chunks:
        async for partition, messages in chunks:
            selected = messages if request.count is None else messages[: request.count - shown]
            show(partition, selected)
            shown += len(selected)
            if shown == request.count:
                break
    return shown


async def _read_as_group(
    cluster: Cluster,
    request: ConsumeRequest,
    begin: Mapping[str, Position],
    names: Sequence[str],
    bounds: Mapping[str, Bounds],
    options: "BaseModel",
    show: ShowMessages,
) -> int:
    """Read the partitions `names` as a member of the group; return the number of messages shown.

    Reading starts at the positions in `begin`, by partition name; if it is empty, at the group's own positions.
    """
    if begin and not cluster.capabilities.seek:
        raise ConfigError(
            f"cluster {cluster.name!r} cannot move a member of a group to a position",
            hint="Use -o stored, or read without a group",
        )
    group = str(request.group)  # never None here
    reader = GroupReader(
        GroupReadSpec(
            frozenset(names),
            ends={name: bounds[name].next for name in names if name in bounds},
            begin=begin,
            committed=await _committed(cluster, request.topic, group, bounds) if request.exit_at_end else {},
            stop_at_end=request.exit_at_end,
            count=request.count,
            msg_types=request.msg_types,
        ),
        show,
    )
    # Where the group begins in partitions that have neither a position in `begin` nor a committed one.
    start = Start.LATEST if request.start is Start.LATEST else Start.EARLIEST
    inbound = await cluster.inbound(InboundSpec((request.topic,), group, start, request.msg_types, options=options))
    try:
        return await reader.run(inbound)
    finally:
        await inbound.close()


async def _committed(cluster: Cluster, topic: str, group: str, bounds: Mapping[str, Bounds]) -> dict[str, Position]:
    """Return where the group resumes, by partition name: at its committed position, or else at the partition's first message.

    If the committed positions cannot be read, this is the first message of every partition. The reader then notices only after
    a pause without messages that the group has read a partition to its end already.
    """
    first = {name: partition.first for name, partition in bounds.items()}
    try:
        return first | dict(await cluster.committed(topic, group))
    except ClusterError:
        return first
