"""`mqbridge explain`: how each field is mapped from one system to another, and one real message before and after."""

import base64
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqbridge.adapter.inbound import Start
from mqbridge.cli.options import completion
from mqbridge.cli.options.cluster_options import ClusterOption, ConfigOption, JsonOption, choose, readable_topic
from mqbridge.cli.options.start_position import resolve_positions, select_partitions
from mqbridge.cli.output import message_format
from mqbridge.cli.output.console import command, print_json, print_table, stdout_console
from mqbridge.cli.process import event_loop
from mqbridge.cli.reading.range_reader import Range, read
from mqbridge.config.problems import nearest
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.mapping.field_table import Fate, FieldRule, FieldTable, MappedField, map_fields
from mqbridge.message import RESERVED_PREFIX, Message, Partition, Position, format_position, origin_prefix, parse_position

if TYPE_CHECKING:
    from mqbridge.adapter.registry import Adapter
    from mqbridge.config.cluster_choice import ClusterChoice

MAX_VALUE_CHARS = 300
"""Longer values are cut in a table; `--json` shows whole values."""

_PREFIXES = ("property ", "attribute ")
"""Words before the name of a property or attribute in the names that an adapter's `preview` returns."""


@command
def explain(
    *,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="SYSTEM|TOPIC SYSTEM",
            help="Two systems; or the topic of a real message and a system.",
            autocompletion=completion.systems_and_topics,
        ),
    ],
    message_from: Annotated[
        str | None,
        typer.Option(
            "--message",
            metavar="URL",
            help="Read one message of the topic from this cluster.",
            autocompletion=completion.profiles,
        ),
    ] = None,
    position: Annotated[
        str | None,
        typer.Option("--position", "-o", help="The position of the message, such as 12 or 12:3. Default: the first message."),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            "--partition", "-p", help="The partition of the message, by name or index; --position needs it if there are several."
        ),
    ] = None,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how every field of one system's messages is mapped to another system.

    For example:

        mqbridge explain tubemq pulsar
        mqbridge explain rocketmq pulsar --json
        mqbridge explain --message pulsar://127.0.0.1:6650 orders rocketmq
        mqbridge explain -F gateway.yaml -b source orders pulsar -p 0 --position 12:3

    With --message (or --config and --cluster) it reads a real message and shows it before and after the mapping. No group's
    position changes.
    """
    if len(names) != 2:
        raise typer.BadParameter("name two systems, or a topic and a system", param_hint="SYSTEM|TOPIC SYSTEM")
    if message_from is None and config is None:
        _explain_systems(_load_adapter(names[0]).table, _load_adapter(names[1]).table, as_json=as_json)
        return
    choice, target = choose(config, cluster, message_from), _load_adapter(names[1])
    source_partition, message = event_loop.run(
        _read_message(choice, names[0], partition, None if position is None else _parse_position(position))
    )
    _explain_message(choice.adapter.table, target, source_partition, message, as_json=as_json)


def _load_adapter(system: str) -> "Adapter":
    """Return the adapter of the system. Raises ConfigError if there is none."""
    from mqbridge.adapter.registry import load_adapters

    adapters = load_adapters()
    adapter = adapters.get(system)
    if adapter is None:
        raise ConfigError(f"there is no system {system!r}", hint=nearest(system, adapters))
    return adapter


def _parse_position(text: str) -> Position:
    try:
        return parse_position(text)
    except ValueError as error:
        raise ConfigError(f"--position {text!r} is not a position", hint="Use one such as 12 or 12:3") from error


# --- two systems ------------------------------------------------------------------------------------------------------


def _explain_systems(source: FieldTable, target: FieldTable, *, as_json: bool) -> None:
    """Print the mapping of every field of the source system."""
    steps = map_fields(source, target)
    if as_json:
        rows = [step._asdict() | {"fate": step.fate.value, "listener": _returned(step)} for step in steps]
        print_json({"source": source.system, "target": target.system, "listener": source.listener or None, "fields": rows})
        return
    ordered = sorted(steps, key=lambda step: list(Fate).index(step.fate))  # kept fields first, dropped fields last
    columns, cells = [source.title, "message", target.title, "fate"], list[tuple[str | None, ...]]()
    has_listener = any(step.listener for step in steps)
    for step in ordered:
        returned = (_returned(step),) if has_listener else ()
        cells.append((step.source, step.field, _short_names(step.target), step.fate.value, *returned, step.why))
    print_table([*columns, *(("listener",) if has_listener else ()), "why"], cells)
    if source.listener:
        stdout_console().print(f"\nListener for {source.title} SDKs: {source.listener}", markup=False, highlight=False)


def _returned(step: MappedField) -> str | None:
    """Return what SDKs get of the field from a listener for their system; None if no such listener maps it."""
    return None if step.listener is None else step.listener.value


def _short_names(native_names: str) -> str:
    """Remove the protocol structures from names that are not reserved, and repeated names: `a.X, b.X` becomes `X`."""
    names = native_names.split(", ")
    return ", ".join(dict.fromkeys(name if name.startswith(RESERVED_PREFIX) else name.rpartition(".")[2] for name in names))


# --- one message --------------------------------------------------------------------------------------------------------


async def _read_message(
    choice: "ClusterChoice", topic: str, partition: str | None, position: Position | None
) -> tuple[Partition, Message]:
    """Read the first message of the topic or partition, or the first one at or after the position.

    Raises ClusterError if there is none.
    """
    async with choice.connected() as cluster:
        described = await readable_topic(cluster, topic)
        names, bounds = select_partitions(described, [] if partition is None else [partition]), await cluster.bounds(topic)
        begin = await resolve_positions(cluster, topic, names, Start.EARLIEST if position is None else position, bounds)
        ranges = {name: Range(begin[name], bounds[name].next) for name in begin}
        async with aclosing(read(cluster, topic, ranges)) as chunks:
            async for source_partition, messages in chunks:
                return source_partition, messages[0]
    where = "" if position is None else f" at or after position {format_position(position)}"
    raise ClusterError(f"topic {topic!r} of cluster {choice.name!r} has no message to explain{where}", Failure.FATAL)


def _explain_message(
    source: FieldTable, target_adapter: "Adapter", partition: Partition, message: Message, *, as_json: bool
) -> None:
    """Print the fields of the message, and what the target's adapter would write for them."""
    target = target_adapter.table
    now_ms = time.time_ns() // 1_000_000
    after = target_adapter.preview(message, origin_prefix(partition), now_ms)
    written = [(native, _rule_of(target, native), value) for native, value in after]
    if as_json:
        rows = [_written_field(native, rule, value) for native, rule, value in written]
        fields = message_format.as_json(partition, message)
        print_json({"source": source.system, "target": target.system, "message": fields, "written": rows})
        return
    present_fields = [(field, value) for field, value in message.as_dict().items() if value not in (None, ())]
    before = [(_native_names(source, field), field, _format_value(value)) for field, value in present_fields]
    print_table([source.title, "message", "value"], before)
    stdout_console().print()
    shown = [(native, _format_value(value), rule.field, rule.fate.value, rule.why) for native, rule, value in written]
    print_table([target.title, "value", "message", "fate", "why"], shown)


def _written_field(native: str, rule: FieldRule, value: str | bytes) -> dict[str, Any]:
    """Return a field of the target's message for JSON; a value that is not UTF-8 is in `value_base64`."""
    fields: dict[str, Any] = {"native": native, "field": rule.field, "fate": rule.fate.value, "why": rule.why}
    text = _text(value)
    return fields | (
        {"value_base64": base64.b64encode(value).decode()} if text is None and isinstance(value, bytes) else {"value": text}
    )


def _native_names(table: FieldTable, field: str) -> str:
    """Return the source system's own names for a field of the message."""
    return ", ".join(dict.fromkeys(rule.native for rule in table.rules_of(field) if not rule.native.startswith(RESERVED_PREFIX)))


def _rule_of(table: FieldTable, native: str) -> FieldRule:
    """Return the rule for a name of the target system. A name without a rule is a property of the user.

    The name of a rule may be a pattern, such as `mqbridge.u.*`, or `mqbridge.x.N.*`, in which N stands for a number.
    """
    name = next((native.removeprefix(prefix) for prefix in _PREFIXES if native.startswith(prefix)), native)
    for rule in table.rules:
        if rule.native in {native, name}:
            return rule
        if rule.native.endswith("*") and name.startswith(rule.native.split("*")[0].removesuffix("N.")):
            return rule
    return FieldRule(native, "properties", Fate.NATIVE, "as it is")


def _text(value: str | bytes) -> str | None:
    """Return the value as text; None for bytes that are not UTF-8."""
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError:
        return None


def _format_value(value: Any) -> str:
    """Format a field's value for a table: bytes, properties (pairs), a position (numbers), keys (texts), or another value."""
    if isinstance(value, bytes):
        value = value.hex(" ") if (text := _text(value)) is None else text
    elif isinstance(value, tuple) and value and isinstance(value[0], tuple):
        value = ", ".join(f"{key}={text}" for key, text in value)
    elif isinstance(value, tuple):
        value = ":".join(map(str, value)) if isinstance(value[0], int) else ", ".join(value)
    text = str(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}… ({len(text)} characters)"
