"""`mqbridge explain`: what becomes of each field from one system to another, and of one real message."""

import base64
import time
from contextlib import aclosing
from typing import Annotated, Any

import typer

from mqbridge.adapter.inbound import Start
from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.cli import loop, records
from mqbridge.cli.console import command, out, print_json, print_table
from mqbridge.cli.places import find, pick
from mqbridge.cli.reach import ClusterOption, ConfigOption, JsonOption, no_topic
from mqbridge.cli.reader import Range, read
from mqbridge.config.chosen import Chosen, choose
from mqbridge.config.problems import nearest
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.mapping.field_table import Fate, FieldRule, FieldTable, map_fields
from mqbridge.message import RESERVED_PREFIX, Message, Partition, Position, origin_prefix, parse_position

SHOWN_CHARS = 300
"""Of a value in a table; `--json` shows all of it."""

_PREFIXES = ("property ", "attribute ")


@command
def explain(
    *,
    names: Annotated[
        list[str], typer.Argument(metavar="SYSTEM|TOPIC SYSTEM", help="Two systems; or the topic of a real message and a system.")
    ],
    message: Annotated[
        str | None, typer.Option("--message", metavar="URL", help="Read one message of the topic from this cluster.")
    ] = None,
    position: Annotated[
        str | None, typer.Option("--position", "-o", help="Which message: a position such as 12 or 12:3. Default: the first.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", help="Of this partition, by name or index; with --position.")
    ] = None,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what becomes of every field of one system's messages in another.

    With --message (or --config and --cluster) it reads one real message and shows it before and after. No group moves.

    For example:

        mqbridge explain tubemq pulsar

        mqbridge explain rocketmq pulsar --json

        mqbridge explain --message pulsar://127.0.0.1:6650 orders rocketmq

        mqbridge explain -F gateway.yaml -b source orders pulsar -p 0 --position 12:3
    """
    if len(names) != 2:
        raise typer.BadParameter("name two systems, or a topic and a system", param_hint="SYSTEM|TOPIC SYSTEM")
    if message is None and config is None:
        _direction(_adapter(names[0]).table, _adapter(names[1]).table, as_json=as_json)
        return
    chosen, target = choose(config, cluster, message), _adapter(names[1])
    place, found = loop.run(_read(chosen, names[0], partition, None if position is None else _position(position)))
    _message(chosen.adapter.table, target, place, found, as_json=as_json)


def _adapter(system: str) -> Adapter:
    adapters = load_adapters()
    found = adapters.get(system)
    if found is None:
        raise ConfigError(f"there is no system {system!r}", hint=nearest(system, adapters))
    return found


def _position(text: str) -> Position:
    try:
        return parse_position(text)
    except ValueError as error:
        raise ConfigError(f"--position {text!r} is no position", hint="Use one such as 12 or 12:3") from error


# --- a direction ------------------------------------------------------------------------------------------------------


def _direction(source: FieldTable, target: FieldTable, *, as_json: bool) -> None:
    steps = map_fields(source, target)
    if as_json:
        rows = [step._asdict() | {"fate": step.fate.value} for step in steps]
        print_json({"source": source.system, "target": target.system, "fields": rows})
        return
    ordered = sorted(steps, key=lambda step: list(Fate).index(step.fate))  # what arrives first, what does not last
    shown = [(step.source, step.field, _short(step.target), step.fate.value, step.why) for step in ordered]
    print_table([source.title, "message", target.title, "fate", "why"], shown)


def _short(natives: str) -> str:
    """Names without the protocol's structures that they stand in, each once: `a.X, b.X` as `X`."""
    names = natives.split(", ")
    return ", ".join(dict.fromkeys(name if name.startswith(RESERVED_PREFIX) else name.rpartition(".")[2] for name in names))


# --- a message --------------------------------------------------------------------------------------------------------


async def _read(chosen: Chosen, topic: str, partition: str | None, position: Position | None) -> tuple[Partition, Message]:
    """One message. Raises ClusterError when the topic has none there."""
    async with chosen.reached() as cluster:
        described = await cluster.describe(topic)
        if described is None:
            raise no_topic(topic, cluster)
        names, bounds = pick(described, [] if partition is None else [partition]), await cluster.bounds(topic)
        begin = await find(cluster, topic, names, Start.EARLIEST if position is None else position, bounds)
        ranges = {name: Range(begin[name], bounds[name].next) for name in begin}
        async with aclosing(read(cluster, topic, ranges)) as chunks:
            async for place, messages in chunks:
                return place, messages[0]
    raise ClusterError(f"topic {topic!r} of cluster {chosen.name!r} has no message there to explain", Failure.FATAL)


def _message(source: FieldTable, into: Adapter, place: Partition, message: Message, *, as_json: bool) -> None:
    target = into.table
    after = into.preview(message, origin_prefix(place), time.time_ns() // 1_000_000)
    written = [(native, _row_of(target, native), value) for native, value in after]
    if as_json:
        rows = [_as_json(native, row, value) for native, row, value in written]
        said = records.as_json(place, message)
        print_json({"source": source.system, "target": target.system, "message": said, "written": rows})
        return
    fields = [(field, value) for field, value in message.as_dict().items() if value not in (None, ())]
    print_table([source.title, "message", "value"], [(_natives(source, field), field, _shown(value)) for field, value in fields])
    out().print()
    shown = [(native, _shown(value), row.field, row.fate.value, row.why) for native, row, value in written]
    print_table([target.title, "value", "message", "fate", "why"], shown)


def _as_json(native: str, row: FieldRule, value: str | bytes) -> dict[str, Any]:
    said: dict[str, Any] = {"native": native, "field": row.field, "fate": row.fate.value, "why": row.why}
    text = _text(value)
    return said | (
        {"value_base64": base64.b64encode(value).decode()} if text is None and isinstance(value, bytes) else {"value": text}
    )


def _natives(table: FieldTable, field: str) -> str:
    return ", ".join(dict.fromkeys(row.native for row in table.rules_of(field) if not row.native.startswith("mqbridge.")))


def _row_of(table: FieldTable, native: str) -> FieldRule:
    """The row that speaks of a native name; a name that no row has is a user's property."""
    name = next((native.removeprefix(prefix) for prefix in _PREFIXES if native.startswith(prefix)), native)
    for row in table.rules:
        if row.native in {native, name}:
            return row
        if row.native.endswith("*") and name.startswith(row.native.split("*")[0].removesuffix("N.")):
            return row
    return FieldRule(native, "properties", Fate.NATIVE, "as it is")


def _text(value: str | bytes) -> str | None:
    """None for bytes that are no text."""
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError:
        return None


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.hex(" ") if (text := _text(value)) is None else text
    elif isinstance(value, tuple) and value and isinstance(value[0], tuple):
        value = ", ".join(f"{key}={text}" for key, text in value)
    elif isinstance(value, tuple):
        value = ":".join(map(str, value)) if isinstance(value[0], int) else ", ".join(value)
    text = str(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text)} characters)"
