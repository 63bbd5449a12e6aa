"""`mqbridge produce`: lines or files become messages. The letters are kcat's."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.cli import exits, loop, pieces
from mqbridge.cli.console import command, print_json, say
from mqbridge.cli.forms import Form
from mqbridge.cli.places import parse_moment, pick
from mqbridge.cli.reach import ClusterOption, ConfigOption, SettingOption, UrlOption, no_topic, options_from
from mqbridge.cli.sender import Sender
from mqbridge.config.chosen import Chosen, choose
from mqbridge.errors import ConfigError, MqbridgeError
from mqbridge.message import Message, Pair, format_position

TIME = "now+30s, 2026-11-21T14:00 or @MS"


@dataclass(frozen=True, slots=True)
class Sending:
    """How to send."""

    topic: str
    partition: str | None
    ordered: bool
    rate: float | None
    options: BaseModel


@command
def produce(
    *,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Each file is one message, - is standard input; without any, lines of standard input.",
        ),
    ] = None,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic; it must exist.")],
    lines: Annotated[bool, typer.Option("--lines", "-l", help="Each line of the files is a message.")] = False,
    delimiter: Annotated[
        str, typer.Option("--delimiter", "-D", help=r"What divides messages instead of \n; \0 for null.")
    ] = r"\n",
    from_json: Annotated[
        bool,
        typer.Option("--from-json", help="Each line is a message with its fields, as consume --json and peek --json write it."),
    ] = False,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", help="Partition by its name or index; else by key, or in turn.")
    ] = None,
    key_delimiter: Annotated[str | None, typer.Option("--key-delimiter", "-K", help="Splits the key from the payload.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every message.")] = None,
    ordering_key: Annotated[str | None, typer.Option("--ordering-key", help="The ordering key of every message.")] = None,
    index_key: Annotated[
        list[str] | None, typer.Option("--index-key", help="A key to find it by (RocketMQ's KEYS); may be repeated.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--property", "-H", metavar="K=V", help="A property; may be repeated.")
    ] = None,
    msg_type: Annotated[
        str | None, typer.Option("--msg-type", "-T", help="The message type (TubeMQ), the tag (RocketMQ).")
    ] = None,
    attributes: Annotated[str | None, typer.Option("--attributes", help="TubeMQ's attribute string, as it is.")] = None,
    event_time: Annotated[str | None, typer.Option("--event-time", metavar="TIME", help=f"When it happened: {TIME}.")] = None,
    deliver_at: Annotated[
        str | None, typer.Option("--deliver-at", metavar="TIME", help=f"Hold it back until then: {TIME}.")
    ] = None,
    null: Annotated[bool, typer.Option("--null", "-Z", help="An empty payload is a tombstone.")] = False,
    repeat: Annotated[int, typer.Option("--repeat", "-n", min=1, help="Send every message so many times.")] = 1,
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, help="At most so many messages per second.")] = None,
    unordered: Annotated[bool, typer.Option("--unordered", help="Do not keep the order of a partition; may be faster.")] = False,
    setting: SettingOption = None,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", "-J", help="Print what was stored as JSON.")] = False,
) -> None:
    r"""Send messages: every line of standard input, or every file as one message. Bytes are sent as they are.

    When it is interrupted, what was sent is waited for and counted, and it ends with 130.

    For example:

        echo hello | mqbridge produce -t orders --at pulsar://127.0.0.1:6650

        mqbridge produce -t orders -l -K : -H source=test lines.txt -F gateway.yaml -b source

        mqbridge produce -t images photo.jpg -k photo -T jpeg --at tubemq://127.0.0.1:8715

        mqbridge produce -t orders -T paid --deliver-at now+30s --at rocketmq://127.0.0.1:9876 < orders.txt

        mqbridge peek orders --json --at pulsar://a:6650 | mqbridge produce -t orders --from-json --at pulsar://b:6650
    """
    form = Form(
        key_delimiter=key_delimiter.encode() if key_delimiter else None,
        key=key,
        ordering_key=None if ordering_key is None else ordering_key.encode(),
        keys=tuple(index_key or ()),
        properties=tuple(_pair(text) for text in header or ()),
        msg_type=msg_type,
        attributes=None if attributes is None else attributes.encode(),
        event_time=_moment(event_time, "--event-time"),
        deliver_at=_moment(deliver_at, "--deliver-at"),
        empty_is_null=null,
        from_json=from_json,
    )
    in_pieces = not files or lines or from_json
    source = pieces.divided(files or [], _delimiter(delimiter)) if in_pieces else pieces.whole(files or [])
    chosen = choose(config, cluster, at)
    sending = Sending(topic, partition, not unordered, rate, options_from(chosen.adapter.outbound_options, setting or ()))
    report, reasons, interrupted = loop.run(_produce(chosen, sending, form, _messages(source, form, repeat)))
    if as_json:
        print_json(report)
    else:
        say(f"{report['stored']:,} messages stored in {topic}{', then interrupted' if interrupted else ''}")
    for reason in reasons:
        say(f"refused: {reason}")
    raise typer.Exit(exits.INTERRUPTED if interrupted else exits.STOPPED if report["refused"] else exits.OK)


def _pair(text: str) -> Pair:
    key, mark, value = text.partition("=")
    if not mark or not key:
        raise ConfigError(f"-H {text!r} is not a property", hint="Write NAME=VALUE")
    return key, value


def _moment(text: str | None, option: str) -> int | None:
    try:
        return None if text is None else parse_moment(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is no time", hint=f"Write {TIME}") from error


def _delimiter(text: str) -> bytes:
    found = text.replace(r"\n", "\n").replace(r"\r", "\r").replace(r"\t", "\t").replace(r"\0", "\0")
    if not found:
        raise ConfigError("-D is empty", hint=r"Write what divides messages, such as \0")
    return found.encode()


async def _produce(
    chosen: Chosen, sending: Sending, form: Form, messages: AsyncIterator[list[Message]]
) -> tuple[dict[str, Any], list[str], bool]:
    interrupted = False
    async with chosen.reached() as cluster:
        if form.deliver_at is not None and not cluster.capabilities.delay:
            raise ConfigError(f"cluster {cluster.name!r} cannot hold messages back", hint="Send them without --deliver-at")
        sender = await _open(cluster, sending)
        failed: MqbridgeError | None = None
        try:
            async for chunk in messages:
                await sender.send(chunk)
            await sender.finish()
        except asyncio.CancelledError:
            interrupted = True
        except MqbridgeError as error:
            failed = error
        finally:
            await sender.close()
        if failed is not None:
            say(f"{sender.stored:,} messages were stored in {sending.topic} before that")
            raise failed
    positions = {str(index): format_position(position) for index, position in sorted(sender.positions.items())}
    report = {"topic": sending.topic, "stored": sender.stored, "refused": sender.refused, "last_positions": positions}
    return report, sender.reasons, interrupted


async def _open(cluster: Cluster, sending: Sending) -> Sender:
    described = await cluster.describe(sending.topic)
    if described is None:
        raise no_topic(sending.topic, cluster)
    place = None
    if sending.partition is not None:
        place = described.partitions.index(pick(described, [sending.partition])[0])
    spec = OutboundSpec(sending.topic, ordered=sending.ordered, stamp_origin=False, options=sending.options)
    outbound = await cluster.outbound(spec)
    if place is not None and place >= outbound.partitions:
        await outbound.close()
        raise ConfigError(f"{sending.topic!r} takes no messages in partition {sending.partition}", hint="Choose another")
    return Sender(outbound, place, rate=sending.rate)


async def _messages(source: AsyncIterator[list[bytes]], form: Form, repeat: int) -> AsyncIterator[list[Message]]:
    async for chunk in source:
        yield [form.message(piece) for piece in chunk if piece or not form.from_json for _ in range(repeat)]
