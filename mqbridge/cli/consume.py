"""`mqbridge consume`: print messages. The letters are kcat's.

Without a group it reads as a group of its own with a random name, so that no real group moves.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import orjson
import typer
from pydantic import BaseModel

from mqbridge.adapter import Bounds, Cluster, InboundSpec, Start, Topic
from mqbridge.cli import loop, records
from mqbridge.cli.console import command, say
from mqbridge.cli.places import HELP, Place, find, parse_place, pick
from mqbridge.cli.reach import Chosen, ClusterOption, ConfigOption, SettingOption, UrlOption, choose, no_topic
from mqbridge.cli.reading import temporary
from mqbridge.cli.tail import Show, Tail, Wanted
from mqbridge.errors import ClusterError, ConfigError
from mqbridge.message import Message, Partition, Position


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read, as the command line says it; no place is where the group stands."""

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
    options = chosen.inbound_options(setting or ())

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
        bounds = await _bounds(cluster, reading)
        if reading.group is None:
            return await _without_group(cluster, described, reading, names, bounds, options, show)
        return await _as_group(cluster, described, reading, names, bounds, options, show)


async def _bounds(cluster: Cluster, reading: Reading) -> dict[str, Bounds]:
    """Where partitions begin and end. Some clusters tell only through an administrative address: what can do without it does."""
    needed = isinstance(reading.place, tuple) or (reading.group is not None and isinstance(reading.place, Start))
    if not needed and not reading.exit_at_end:
        return {}
    try:
        return dict(await cluster.bounds(reading.topic))
    except ClusterError:
        if needed:
            raise
        return {}


async def _without_group(
    cluster: Cluster,
    topic: Topic,
    reading: Reading,
    names: Sequence[str],
    bounds: dict[str, Bounds],
    options: BaseModel,
    show: Show,
) -> int:
    begin: dict[str, Position] = {}
    if not isinstance(reading.place, Start) and reading.place is not None:
        begin = await find(cluster, topic.name, names, reading.place, bounds)
    wanted = Wanted(
        frozenset(names),
        "beginning",
        exit_at_end=reading.exit_at_end,
        count=reading.count,
        begin=begin,
        msg_types=reading.msg_types,
    )
    tail = Tail(wanted, show)
    tail.expect(topic, bounds, seek=True)
    start = Start.LATEST if reading.place is Start.LATEST else Start.EARLIEST
    async with temporary(cluster, topic.name, begin, options, start=start, msg_types=reading.msg_types) as inbound:
        return await tail.run(inbound)


async def _as_group(
    cluster: Cluster,
    topic: Topic,
    reading: Reading,
    names: Sequence[str],
    bounds: dict[str, Bounds],
    options: BaseModel,
    show: Show,
) -> int:
    place = reading.place
    seeks = "stored" if place is None else await find(cluster, topic.name, names, place, bounds)
    wanted = Wanted(
        frozenset(names),
        seeks,
        exit_at_end=reading.exit_at_end,
        count=reading.count,
        shared=True,
        msg_types=reading.msg_types,
    )
    tail = Tail(wanted, show)
    tail.expect(topic, bounds, seek=cluster.capabilities.seek)
    inbound = await cluster.inbound(
        InboundSpec(
            topics=(topic.name,),
            group=str(reading.group),
            start=Start.LATEST if place is Start.LATEST else Start.EARLIEST,
            msg_types=reading.msg_types,
            options=options,
        )
    )
    try:
        return await tail.run(inbound)
    finally:
        await inbound.close()
