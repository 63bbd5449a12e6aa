"""`mqbridge consume`: print messages. The letters are kcat's.

Without a group it reads as a group of its own with a random name, so that no real group moves.
"""

import secrets
import sys
from typing import Annotated

import orjson
import typer

from mqbridge.adapter import InboundSpec, Start
from mqbridge.cli import loop, records
from mqbridge.cli.console import command, say
from mqbridge.cli.reach import Chosen, ClusterOption, ConfigOption, UrlOption, choose, no_topic
from mqbridge.cli.tail import Tail, Wanted
from mqbridge.errors import ConfigError
from mqbridge.message import Message, Partition, Position, parse_position

THROW_AWAY = "mqbridge-cli-"


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
            "--offset", "-o", help="beginning, end, stored (with -G), or a position. Default: stored with -G, else beginning."
        ),
    ] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit", "-e", help="End when every partition was read to its end.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="End after so many messages.")] = None,
    fmt: Annotated[
        str,
        typer.Option(
            "--format", "-f", help="%t topic %p partition %o position %k key %s payload %S its length %T time %h properties."
        ),
    ] = records.DEFAULT_FORMAT,
    group: Annotated[
        str | None, typer.Option("--group", "-G", help="Consume as this group and acknowledge; without it no group moves.")
    ] = None,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", "-J", help="Print one JSON object per message.")] = False,
) -> None:
    r"""Print messages as they come.

    For example:

        mqbridge consume -t orders -e --at pulsar://127.0.0.1:6650

        mqbridge consume -t orders -o end -f '%t [%p] %o: %k %s\n' -F gateway.yaml -b target

        mqbridge consume -t orders -G audit -c 10 --json --at tubemq://127.0.0.1:8715
    """
    write = _json_line if as_json else records.compile_format(fmt)
    position = _position(offset, partition or [], group)

    def show(part: Partition, messages: list[Message]) -> None:
        sys.stdout.buffer.write(b"".join([write(part, message) for message in messages]))
        sys.stdout.buffer.flush()

    wanted = Wanted(frozenset(partition or ()), position, exit_at_end=exit_at_end, count=count, shared=group is not None)
    shown = loop.run(_consume(choose(config, cluster, at), topic, group, wanted, Tail(wanted, show)))
    if sys.stderr.isatty():
        say(f"{shown:,} messages")


def _json_line(partition: Partition, message: Message) -> bytes:
    return orjson.dumps(records.as_json(partition, message), option=orjson.OPT_APPEND_NEWLINE)


def _position(offset: str | None, partitions: list[str], group: str | None) -> str | Position:
    """Where to begin: `beginning`, `end`, `stored`, or a position. Raises ConfigError."""
    offset = offset or ("stored" if group else "beginning")
    if offset == "stored" and group is None:
        raise ConfigError("-o stored needs a group", hint="Name it with -G")
    if offset in {"beginning", "end", "stored"}:
        return offset
    try:
        position = parse_position(offset)
    except ValueError as error:
        raise ConfigError(
            f"-o {offset!r} is no place", hint="Use beginning, end, stored, or a position such as 12 or 12:3"
        ) from error
    if len(partitions) != 1:
        raise ConfigError(f"the position {offset} is of one partition", hint="Name it with -p")
    return position


async def _consume(chosen: Chosen, topic: str, group: str | None, wanted: Wanted, tail: Tail) -> int:
    async with chosen.reached() as cluster:
        described = await cluster.describe(topic)
        if described is None:
            raise no_topic(topic, cluster)
        # Some clusters tell their bounds only through an administrative address: not asked without need.
        bounds = await cluster.bounds(topic) if wanted.shared and wanted.position in {"beginning", "end"} else {}
        tail.expect(described, bounds, seek=cluster.capabilities.seek)
        spec = InboundSpec(
            topics=(topic,),
            group=group or THROW_AWAY + secrets.token_hex(6),
            start=Start.LATEST if wanted.position == "end" else Start.EARLIEST,
            temporary=group is None,
            options=chosen.adapter.inbound_options(),
        )
        inbound = await cluster.inbound(spec)
        try:
            return await tail.run(inbound)
        finally:
            await inbound.close()
