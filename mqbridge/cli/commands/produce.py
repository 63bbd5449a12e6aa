"""`mqbridge produce`: send lines or files as messages. The short options are those of kcat."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.cli.options import completion
from mqbridge.cli.options.cluster_options import (
    ClusterOption,
    ConfigOption,
    SettingOption,
    UrlOption,
    choose,
    parse_settings,
    topic_not_found,
)
from mqbridge.cli.options.start_position import parse_timestamp, select_partitions
from mqbridge.cli.output.console import command, print_json, print_note
from mqbridge.cli.output.escape import text_bytes
from mqbridge.cli.process import event_loop, exit_codes
from mqbridge.cli.producing import read_input
from mqbridge.cli.producing.parse_message import MessageBuilder, text_or_bytes
from mqbridge.errors import ConfigError, MqbridgeError, RequestTimeout
from mqbridge.message import Message, Pair, format_position
from mqbridge.net.tasks import cancel, spawn

if TYPE_CHECKING:
    from pydantic import BaseModel

    from mqbridge.cli.producing.sender import Sender
    from mqbridge.config.cluster_choice import ClusterChoice

WATCH_S = 0.1
"""Pause between two checks of the time limit."""
PROGRESS_S = 10.0
"""Pause between two notes about messages that wait."""
TIME_EXAMPLES = "now+30s, 2026-11-21T14:00 or @MS"


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """The options that say where and how to send.

    Without `partition`, the key of a message chooses the partition, without a key round robin; `rate` is in messages per second,
    None without a limit; `timeout_s` limits the time without a stored message, None: no limit; `options` are the system's own
    settings.
    """

    topic: str
    partition: str | None
    ordered: bool
    rate: float | None
    timeout_s: float | None
    options: "BaseModel"


@command
def produce(
    *,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Each file is one message; - is standard input. Without files, each line of standard input is a message.",
        ),
    ] = None,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic; it must exist.", autocompletion=completion.topics)],
    lines: Annotated[bool, typer.Option("--lines", "-l", help="Each line of the files is a message.")] = False,
    delimiter: Annotated[
        str, typer.Option("--delimiter", "-D", help=r"The text between two messages, with \n, \r, \t and \0 (a null byte).")
    ] = r"\n",
    from_json: Annotated[
        bool,
        typer.Option("--from-json", help="Each line is a message with its fields, as consume --json and peek --json write it."),
    ] = False,
    partition: Annotated[
        str | None,
        typer.Option(
            "--partition", "-p", help="The partition, by name or index. Default: by the key; without a key, round robin."
        ),
    ] = None,
    key_delimiter: Annotated[
        str | None, typer.Option("--key-delimiter", "-K", help="The text between the key and the payload of each message.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every message.")] = None,
    ordering_key: Annotated[str | None, typer.Option("--ordering-key", help="The ordering key of every message.")] = None,
    index_key: Annotated[
        list[str] | None,
        typer.Option("--index-key", help="A key by which messages can be found (RocketMQ's KEYS); may be repeated."),
    ] = None,
    message_property: Annotated[
        list[str] | None, typer.Option("--property", "-H", metavar="K=V", help="A property; may be repeated.")
    ] = None,
    msg_type: Annotated[str | None, typer.Option("--msg-type", "-T", help="The message type (TubeMQ) or tag (RocketMQ).")] = None,
    attributes: Annotated[str | None, typer.Option("--attributes", help="TubeMQ's attribute string, as it is.")] = None,
    event_time: Annotated[
        str | None, typer.Option("--event-time", metavar="TIME", help=f"The event time of every message: {TIME_EXAMPLES}.")
    ] = None,
    deliver_at: Annotated[
        str | None, typer.Option("--deliver-at", metavar="TIME", help=f"Deliver the messages at this time: {TIME_EXAMPLES}.")
    ] = None,
    null: Annotated[bool, typer.Option("--null", "-Z", help="An empty payload is a tombstone.")] = False,
    repeat: Annotated[int, typer.Option("--repeat", "-n", min=1, help="Send every message this many times.")] = 1,
    rate: Annotated[float | None, typer.Option("--rate", min=0.001, help="At most this many messages per second.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0.1,
            help="Give up if nothing is stored for this many seconds; by default sends are retried for ever.",
        ),
    ] = None,
    unordered: Annotated[bool, typer.Option("--unordered", help="Do not keep the order of a partition; may be faster.")] = False,
    setting: SettingOption = None,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", "-J", help="Print as JSON how many messages were stored and refused.")
    ] = False,
) -> None:
    r"""Send messages: every line of standard input, or every file as one message. Bytes are sent as they are.

    For example:

        echo hello | mqbridge produce -t orders --at pulsar://127.0.0.1:6650
        mqbridge produce -t orders -l -K : -H source=test lines.txt -F gateway.yaml -b source
        mqbridge produce -t images photo.jpg -k photo -T jpeg --at tubemq://127.0.0.1:8715
        mqbridge produce -t orders -T paid --deliver-at now+30s --at rocketmq://127.0.0.1:9876 < orders.txt
        mqbridge peek orders --json --at pulsar://a:6650 | mqbridge produce -t orders --from-json --at pulsar://b:6650

    Keys, properties and types have the bytes of their arguments, UTF-8 or not. With --from-json, every value must have the type
    of its field: names and values of properties are texts.

    While messages wait, their number, and why sends fail, is printed every ten seconds. With --timeout, it ends with exit code 3
    if nothing is stored for so long; messages that were sent may be stored later.
    If messages are refused, it continues, prints the reasons, and ends with exit code 4.
    When interrupted, it waits for the receipts of the sent messages, prints the counts, and ends with exit code 130.
    """
    builder = MessageBuilder(
        key_delimiter=text_bytes(key_delimiter) if key_delimiter else None,
        key=None if key is None else text_or_bytes(text_bytes(key)),
        ordering_key=None if ordering_key is None else text_bytes(ordering_key),
        keys=tuple(index_key or ()),
        properties=tuple(_parse_property(text) for text in message_property or ()),
        msg_type=msg_type,
        attributes=None if attributes is None else text_bytes(attributes),
        event_time=_parse_time(event_time, "--event-time"),
        deliver_at=_parse_time(deliver_at, "--deliver-at"),
        empty_is_null=null,
        from_json=from_json,
    )
    split_into_records = not files or lines or from_json
    source = (
        read_input.split_records(files or [], _parse_delimiter(delimiter))
        if split_into_records
        else read_input.whole_files(files or [])
    )
    choice = choose(config, cluster, at)
    request = ProduceRequest(
        topic=topic,
        partition=partition,
        ordered=not unordered,
        rate=rate,
        timeout_s=timeout,
        options=parse_settings(choice.adapter.outbound_options, setting or ()),
    )
    report, reasons, interrupted = event_loop.run(_produce(choice, request, builder, _build_messages(source, builder, repeat)))
    if as_json:
        print_json(report)
    else:
        print_note(f"{report['stored']:,} messages stored in {topic}{', then interrupted' if interrupted else ''}")
    for reason in reasons:
        print_note(f"refused: {reason}")
    raise typer.Exit(exit_codes.INTERRUPTED if interrupted else exit_codes.STOPPED if report["refused"] else exit_codes.OK)


def _parse_property(text: str) -> Pair:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ConfigError(f"-H {text!r} is not a property", hint="Write NAME=VALUE")
    return key, value


def _parse_time(text: str | None, option: str) -> int | None:
    """Return the time in ms since the epoch; None if the option is not given. Raises ConfigError."""
    try:
        return None if text is None else parse_timestamp(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is not a time", hint=f"Write {TIME_EXAMPLES}") from error


def _parse_delimiter(text: str) -> bytes:
    delimiter = text.replace(r"\n", "\n").replace(r"\r", "\r").replace(r"\t", "\t").replace(r"\0", "\0")
    if not delimiter:
        raise ConfigError("-D is empty", hint=r"Write the text between two messages, such as \0")
    return text_bytes(delimiter)


async def _produce(
    choice: "ClusterChoice", request: ProduceRequest, builder: MessageBuilder, messages: AsyncIterator[list[Message]]
) -> tuple[dict[str, Any], list[str], bool]:
    """Send all messages; return the report for JSON, the reasons of refused messages, and True if interrupted."""
    interrupted = False
    async with choice.connected() as cluster:
        if builder.deliver_at is not None and not cluster.capabilities.delay:
            raise ConfigError(f"cluster {cluster.name!r} cannot delay messages", hint="Send them without --deliver-at")
        sender = await _open_sender(cluster, request)
        failure: MqbridgeError | None = None
        close_deadline: float | None = None
        try:
            await _send_watched(sender, messages, request)
        except asyncio.CancelledError:
            interrupted = True
        except RequestTimeout as error:
            failure, close_deadline = error, asyncio.get_running_loop().time()
        except MqbridgeError as error:
            failure = error
        finally:
            await sender.close(close_deadline)
        if failure is not None:
            print_note(f"{sender.stored:,} messages were stored in {request.topic} before the error")
            raise failure
    positions = {str(index): format_position(position) for index, position in sorted(sender.positions.items())}
    report = {"topic": request.topic, "stored": sender.stored, "refused": sender.refused, "last_positions": positions}
    return report, sender.refusal_reasons, interrupted


async def _send_watched(sender: "Sender", messages: AsyncIterator[list[Message]], request: ProduceRequest) -> None:
    """Send all messages; print the progress meanwhile.

    Raises ClusterError, RequestTimeout if nothing is stored for the time limit of the request.
    """
    sending = spawn(_send_all(sender, messages), "produce", log_errors=False)
    watch = spawn(_watch(sender, request), "progress of produce", log_errors=False)
    try:
        await asyncio.wait([sending, watch], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(sending, watch)
    for task in (sending, watch):
        if not task.cancelled():
            task.result()


async def _send_all(sender: "Sender", messages: AsyncIterator[list[Message]]) -> None:
    async for chunk in messages:
        await sender.send(chunk)
    await sender.finish()


async def _watch(sender: "Sender", request: ProduceRequest) -> None:
    """Print the progress every PROGRESS_S while messages wait for their receipts. Raises RequestTimeout, see `_send_watched`."""
    loop, printed_at = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    while True:
        await asyncio.sleep(WATCH_S)
        why = "" if (reason := sender.failure_reason) is None else f"; sends fail and are retried: {reason}"
        if request.timeout_s is not None and sender.waiting_s() >= request.timeout_s:
            raise RequestTimeout(f"nothing was stored in {request.topic!r} for {request.timeout_s:g} s{why}")
        if sender.in_flight_messages and loop.time() - printed_at >= PROGRESS_S:
            printed_at = loop.time()
            print_note(
                f"{sender.stored:,} messages stored in {request.topic}, {sender.in_flight_messages:,} are sent and wait{why}"
            )


async def _open_sender(cluster: Cluster, request: ProduceRequest) -> "Sender":
    """Open the sender of the request. Raises ClusterError, or ConfigError for a partition that does not exist or is read-only."""
    from mqbridge.cli.producing.sender import Sender

    described = await cluster.describe(request.topic)
    if described is None:
        raise topic_not_found(request.topic, cluster)
    index = None
    if request.partition is not None:
        index = described.partitions.index(select_partitions(described, [request.partition])[0])
    spec = OutboundSpec(request.topic, ordered=request.ordered, stamp_origin=False, options=request.options)
    outbound = await cluster.outbound(spec)
    if index is not None and index >= outbound.partitions:  # an outbound counts only partitions that accept messages
        await outbound.close()
        raise ConfigError(
            f"{request.topic!r} accepts no messages in partition {request.partition}", hint="Choose another partition"
        )
    return Sender(outbound, index, rate=request.rate)


async def _build_messages(
    source: AsyncIterator[list[bytes]], builder: MessageBuilder, repeat: int
) -> AsyncIterator[list[Message]]:
    """Yield the messages of each chunk of records, each message `repeat` times; empty lines between JSON objects are skipped."""
    async for chunk in source:
        yield [builder.make_message(record) for record in chunk if record or not builder.from_json for _ in range(repeat)]
