"""`mqbridge produce`: lines or files become messages. The letters are kcat's."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from mqbridge.adapter import Cluster, OutboundSpec
from mqbridge.cli import exits, loop
from mqbridge.cli.console import command, print_json, say
from mqbridge.cli.reach import Chosen, ClusterOption, ConfigOption, UrlOption, choose, no_topic
from mqbridge.cli.sender import Sender
from mqbridge.errors import ConfigError
from mqbridge.message import Message, Pair, format_position

READ_BYTES = 256 << 10
"""One read of lines: what has arrived by then goes out at once, so `tail -f` flows."""
MAX_FILE_BYTES = 64 << 20
"""A larger file is not one message in any of the systems."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a piece of input becomes a message."""

    key_delimiter: bytes | None = None
    key: str | None = None
    properties: tuple[Pair, ...] = ()
    msg_type: str | None = None
    attributes: bytes | None = None
    empty_is_null: bool = False

    def message(self, piece: bytes) -> Message:
        """The message of one piece."""
        key: str | bytes | None = self.key
        if self.key_delimiter is not None and self.key_delimiter in piece:
            raw, _, piece = piece.partition(self.key_delimiter)
            key = _text(raw)
        payload = None if self.empty_is_null and not piece else piece
        return Message(payload, self.properties, key=key, msg_type=self.msg_type, attributes=self.attributes)


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


@command
def produce(
    *,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", exists=True, dir_okay=False, help="Each file is one message; without any, lines of stdin."
        ),
    ] = None,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic; it must exist.")],
    lines: Annotated[bool, typer.Option("--lines", "-l", help="Each line of the files is a message.")] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Partition by its index; else by key, or in turn.")
    ] = None,
    key_delimiter: Annotated[str | None, typer.Option("--key-delimiter", "-K", help="Splits the key from the payload.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every message.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--property", "-H", metavar="K=V", help="A property; may be repeated.")
    ] = None,
    msg_type: Annotated[
        str | None, typer.Option("--msg-type", "-T", help="The message type (TubeMQ), the tag (RocketMQ).")
    ] = None,
    attributes: Annotated[str | None, typer.Option("--attributes", help="TubeMQ's attribute string, as it is.")] = None,
    null: Annotated[bool, typer.Option("--null", "-Z", help="An empty payload is a tombstone.")] = False,
    repeat: Annotated[int, typer.Option("--repeat", "-n", min=1, help="Send every message so many times.")] = 1,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", "-J", help="Print what was stored as JSON.")] = False,
) -> None:
    """Send messages: every line of standard input, or every file as one message.

    For example:

        echo hello | mqbridge produce -t orders --at pulsar://127.0.0.1:6650

        mqbridge produce -t orders -l -K : -H source=test lines.txt -F gateway.yaml -b source

        mqbridge produce -t images photo.jpg -k photo -T jpeg --at tubemq://127.0.0.1:8715
    """
    properties = tuple(_pair(text) for text in header or ())
    form = Form(
        key_delimiter=key_delimiter.encode() if key_delimiter else None,
        key=key,
        properties=properties,
        msg_type=msg_type,
        attributes=None if attributes is None else attributes.encode(),
        empty_is_null=null,
    )
    pieces = _whole(files) if files and not lines else _lines(files)
    report, reasons = loop.run(_produce(choose(config, cluster, at), topic, _messages(pieces, form, repeat), partition))
    if as_json:
        print_json(report)
    else:
        say(f"{report['stored']:,} messages stored in {topic}")
    for reason in reasons:
        say(f"refused: {reason}")
    raise typer.Exit(exits.STOPPED if report["refused"] else exits.OK)


def _pair(text: str) -> Pair:
    key, mark, value = text.partition("=")
    if not mark or not key:
        raise ConfigError(f"-H {text!r} is not a property", hint="Write NAME=VALUE")
    return key, value


async def _produce(
    chosen: Chosen, topic: str, messages: AsyncIterator[list[Message]], partition: int | None
) -> tuple[dict[str, Any], list[str]]:
    async with chosen.reached() as cluster:
        sender = await _open(cluster, chosen, topic, partition)
        try:
            async for chunk in messages:
                await sender.send(chunk)
            await sender.finish()
        finally:
            await sender.close()
    positions = {str(index): format_position(position) for index, position in sorted(sender.positions.items())}
    report = {"topic": topic, "stored": sender.stored, "refused": sender.refused, "last_positions": positions}
    return report, sender.reasons


async def _open(cluster: Cluster, chosen: Chosen, topic: str, partition: int | None) -> Sender:
    if await cluster.describe(topic) is None:
        raise no_topic(topic, cluster)
    options = chosen.adapter.outbound_options()
    outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False, options=options))
    if partition is not None and partition >= outbound.partitions:
        await outbound.close()
        raise ConfigError(f"{topic!r} has no partition {partition}", hint=f"It has {outbound.partitions}, counted from 0")
    return Sender(outbound, partition)


async def _messages(pieces: AsyncIterator[list[bytes]], form: Form, repeat: int) -> AsyncIterator[list[Message]]:
    async for chunk in pieces:
        yield [form.message(piece) for piece in chunk for _ in range(repeat)]


async def _whole(files: list[Path]) -> AsyncIterator[list[bytes]]:
    for path in files:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES} bytes", hint="Send its lines with -l")
        yield [await asyncio.to_thread(path.read_bytes)]


async def _lines(files: list[Path] | None) -> AsyncIterator[list[bytes]]:
    if not files:
        async for chunk in _lines_of(sys.stdin.buffer):
            yield chunk
    for path in files or ():
        with path.open("rb") as file:
            async for chunk in _lines_of(file):
                yield chunk


async def _lines_of(file: BinaryIO) -> AsyncIterator[list[bytes]]:
    left = b""
    # read1 returns what is there instead of waiting for a whole buffer.
    while data := await asyncio.to_thread(file.read1, READ_BYTES):  # type: ignore[attr-defined]
        *whole, left = (left + data).split(b"\n")
        if whole:
            yield whole
    if left:
        yield [left]
