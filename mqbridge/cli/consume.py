"""`mqbridge consume`: print messages. The letters are kcat's.

Without a group it reads the partitions themselves, so that no group moves and none is left behind.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

import orjson
import typer
from pydantic import BaseModel

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import InboundSpec, Start
from mqbridge.adapter.topics import Bounds
from mqbridge.cli import loop, records
from mqbridge.cli.console import command, say
from mqbridge.cli.group_reader import GroupReader, GroupReading, Show
from mqbridge.cli.places import HELP, Place, find, parse_place, pick
from mqbridge.cli.reach import ClusterOption, ConfigOption, SettingOption, UrlOption, no_topic, options_from
from mqbridge.cli.reader import Range, read
from mqbridge.config.chosen import Chosen, choose
from mqbridge.errors import ClusterError, ConfigError
from mqbridge.message import Message, Partition, Position


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read, as the command line says it; without a place it goes on where the group is."""

    topic: str
    group: str | None
    partitions: Sequence[str]
    place: Place | None
    exit_at_end: bool
    count: int | None
    msg_types: frozenset[str]


@command
def consume(
    *,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic.")],
    partition: Annotated[
        list[str] | None, typer.Option("--partition", "-p", help="Only this partition, by name or index; may be repeated.")
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset", "-o", metavar="PLACE", help=f"stored (with -G, and the default there), {HELP}. Default: earliest."
        ),
    ] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit", "-e", help="End when every partition was read to its end.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="End after so many messages.")] = None,
    msg_type: Annotated[
        list[str] | None,
        typer.Option("--msg-type", "-T", help="Only this message type (TubeMQ) or tag (RocketMQ); may be repeated."),
    ] = None,
    fmt: Annotated[str, typer.Option("--format", "-f", help=records.HELP)] = records.DEFAULT_FORMAT,
    group: Annotated[
        str | None, typer.Option("--group", "-G", help="Consume as this group and acknowledge; without it no group moves.")
    ] = None,
    setting: SettingOption = None,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", "-J", help="Print one JSON object per message.")] = False,
) -> None:
    r"""Print messages as they come, payloads byte for byte; interrupt it to end (130), or say where with -e or -c.

    For example:

        mqbridge consume -t orders -e --at pulsar://127.0.0.1:6650

        mqbridge consume -t orders -o now-15m -T paid --at rocketmq://127.0.0.1:9876

        mqbridge consume -t orders -o end -f '%t [%p] %o: %k %s\n' -F gateway.yaml -b target

        mqbridge consume -t orders -G audit -c 10 --json --at tubemq://127.0.0.1:8715
    """
    write = _json_line if as_json else records.compile_format(fmt)
    place = _place(offset, group)
    chosen = choose(config, cluster, at)
    options = options_from(chosen.adapter.inbound_options, setting or ())
    if setting and group is None:
        raise ConfigError("-X sets how a member of a group consumes", hint="Name the group with -G")

    def show(part: Partition, messages: list[Message]) -> None:
        sys.stdout.buffer.write(b"".join([write(part, message) for message in messages]))
        sys.stdout.buffer.flush()

    reading = Reading(topic, group, partition or [], place, exit_at_end, count, frozenset(msg_type or ()))
    shown = loop.run(_consume(chosen, reading, options, show))
    if sys.stderr.isatty():
        say(f"{shown:,} messages")


def _json_line(partition: Partition, message: Message) -> bytes:
    return orjson.dumps(records.as_json(partition, message), option=orjson.OPT_APPEND_NEWLINE)


def _place(offset: str | None, group: str | None) -> Place | None:
    """Where to begin; None where the group stands. Raises ConfigError."""
    if offset is None:
        return Start.EARLIEST if group is None else None
    if offset != "stored":
        return parse_place(offset, "-o")
    if group is None:
        raise ConfigError("-o stored needs a group", hint="Name it with -G")
    return None


async def _consume(chosen: Chosen, reading: Reading, options: BaseModel, show: Show) -> int:
    async with chosen.reached() as cluster:
        described = await cluster.describe(reading.topic)
        if described is None:
            raise no_topic(reading.topic, cluster)
        names = pick(described, reading.partitions)
        bounds_matter = reading.place is not None or reading.exit_at_end
        bounds = await cluster.bounds(reading.topic) if bounds_matter else {}
        if reading.place is None:
            return await _as_group(cluster, reading, {}, names, bounds, options, show)
        begin = await find(cluster, reading.topic, names, reading.place, bounds)
        if reading.group is None:
            return await _without_group(cluster, reading, begin, bounds, show)
        return await _as_group(cluster, reading, begin, names, bounds, options, show)


async def _without_group(
    cluster: Cluster, reading: Reading, begin: Mapping[str, Position], bounds: Mapping[str, Bounds], show: Show
) -> int:
    ranges = {name: Range(position, bounds[name].next if reading.exit_at_end else None) for name, position in begin.items()}
    shown = 0
    async with aclosing(read(cluster, reading.topic, ranges, msg_types=reading.msg_types)) as chunks:
        async for partition, messages in chunks:
            left = messages if reading.count is None else messages[: reading.count - shown]
            show(partition, left)
            shown += len(left)
            if shown == reading.count:
                break
    return shown


async def _as_group(
    cluster: Cluster,
    reading: Reading,
    begin: Mapping[str, Position],
    names: Sequence[str],
    bounds: Mapping[str, Bounds],
    options: BaseModel,
    show: Show,
) -> int:
    if begin and not cluster.capabilities.seek:
        raise ConfigError("this system cannot move to a position", hint="Use -o stored, or read without a group")
    group = str(reading.group)
    reader = GroupReader(
        GroupReading(
            frozenset(names),
            ends={name: bounds[name].next for name in names if name in bounds},
            begin=begin,
            committed=await _committed(cluster, reading.topic, group, bounds) if reading.exit_at_end else {},
            until_end=reading.exit_at_end,
            count=reading.count,
            msg_types=reading.msg_types,
        ),
        show,
    )
    start = Start.LATEST if reading.place is Start.LATEST else Start.EARLIEST
    inbound = await cluster.inbound(InboundSpec((reading.topic,), group, start, reading.msg_types, options=options))
    try:
        return await reader.run(inbound)
    finally:
        await inbound.close()


async def _committed(cluster: Cluster, topic: str, group: str, bounds: Mapping[str, Bounds]) -> dict[str, Position]:
    """Where the group goes on, as far as the cluster tells: at the beginning where it never was."""
    first = {name: one.first for name, one in bounds.items()}
    try:
        return first | dict(await cluster.committed(topic, group))
    except ClusterError:
        return first
