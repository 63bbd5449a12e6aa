"""`mqbridge offsets`: the bounds of a topic's partitions, a group's positions in them, and moving the group."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqbridge.cli.group_state import reset
from mqbridge.cli.group_state.lag import PartitionLag, fetch_lag, format_lag, position_text, sum_or_none
from mqbridge.cli.options.cluster_options import (
    ClusterOption,
    ConfigOption,
    JsonOption,
    TopicArgument,
    UrlOption,
    choose,
    operations_of,
    readable_topic,
)
from mqbridge.cli.options.start_position import START_POSITION_HELP, parse_start_position, select_partitions
from mqbridge.cli.output.console import command, print_json, print_note, print_table
from mqbridge.cli.process import event_loop
from mqbridge.errors import ConfigError

if TYPE_CHECKING:
    from mqbridge.config.cluster_choice import ClusterChoice


@command
def offsets(
    *,
    topic: TopicArgument,
    group: Annotated[str | None, typer.Option("--group", "-G", help="Also show the positions of this group.")] = None,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", "-p", help="Only this partition, by name or index; may be repeated.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--reset", metavar="POSITION", help=f"Move the group to this position: {START_POSITION_HELP}.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what --reset would do.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Carry out --reset.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Let --reset create a group that does not exist.")] = False,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the first and next position of each partition, with -G also a group's position; or move that group.

    For example:

        mqbridge offsets orders --at rocketmq://127.0.0.1:9876
        mqbridge offsets orders -G billing --reset now-2h --dry-run --at pulsar://127.0.0.1:6650
        mqbridge offsets orders -G billing --reset 1200 -p broker-a:0 --yes -F gateway.yaml -b source

    A group can be moved only while it has no members: stop its consumers first.
    """
    choice, partitions = choose(config, cluster, at), partition or []
    if to is None:
        if yes or dry_run or create:
            raise ConfigError("--yes, --dry-run and --create need --reset", hint="Give the new position with --reset POSITION")
        unit, rows = event_loop.run(_offsets(choice, topic, group, partitions))
        _show(topic, group, unit, rows, as_json=as_json)
        return
    if group is None:
        raise ConfigError("--reset moves a group, and no group is given", hint="Name it with -G")
    request = reset.ResetRequest(
        topic, group, partitions, parse_start_position(to, "--reset"), create=create, execute=yes and not dry_run
    )
    plan = event_loop.run(reset.reset(choice, request))
    reset.show(plan, as_json=as_json)
    if not yes and not dry_run:
        raise ConfigError("nothing was moved", hint="Add --yes to move it, or --dry-run to only show the plan")


async def _offsets(
    choice: "ClusterChoice", topic: str, group: str | None, partitions: list[str]
) -> tuple[str, list[PartitionLag]]:
    """Return the unit of the lag, and the bounds of each partition, with a group also its position and lag."""
    async with choice.connected() as cluster:
        described = await readable_topic(cluster, topic)
        names, bounds = select_partitions(described, partitions), await cluster.bounds(topic)
        if group is None:
            # Without a group no lag is shown, so its unit does not matter.
            return "messages", [PartitionLag(name, bounds.get(name)) for name in names]
        rows, _ = await fetch_lag(cluster, topic, group, names, bounds)
        return operations_of(cluster).backlog_unit, rows


def _show(topic: str, group: str | None, unit: str, rows: list[PartitionLag], *, as_json: bool) -> None:
    messages, lag = sum_or_none(row.message_count for row in rows), sum_or_none(row.lag for row in rows)
    if as_json:
        report: dict[str, Any] = {"topic": topic, "partitions": [_as_json(row, group) for row in rows], "messages": messages}
        print_json(report if group is None else report | {"group": group, "lag": lag, "lag_unit": unit})
        return
    columns = ["partition", "first", "next", "messages", *(["committed", "lag"] if group else [])]
    cells = [_cells(row, group) for row in rows]
    if len(rows) > 1:
        cells.append(("total", None, None, messages, *((None, "?" if lag is None else f"{lag:,}") if group else ())))
    print_table(columns, cells, right=columns[1:])
    if all(row.bounds is None for row in rows):
        print_note(
            "the cluster does not report where its partitions begin and end: give its admin_url (--at URL?admin=http://HOST:PORT)"
        )
    if group is not None and all(row.committed is None for row in rows):
        print_note(f"group {group} has no position in {topic}")
    elif unit != "messages" and lag is not None:
        print_note(f"the lag counts {unit}")


def _as_json(row: PartitionLag, group: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "partition": row.partition,
        "first": None if row.bounds is None else position_text(row.bounds.first),
        "next": None if row.bounds is None else position_text(row.bounds.next),
        "messages": row.message_count,
    }
    return fields if group is None else fields | {key: row.as_dict()[key] for key in ("committed", "lag", "at_end")}


def _cells(row: PartitionLag, group: str | None) -> tuple[Any, ...]:
    return (*_as_json(row, None).values(), *((position_text(row.committed), format_lag(row)) if group else ()))
