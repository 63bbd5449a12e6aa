"""`mqbridge groups`: the groups of a topic, their positions and lag, and the members with their assigned partitions."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqbridge.adapter.operations import Member
from mqbridge.cli.group_state.lag import PartitionLag, fetch_lag, format_lag, position_text
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
from mqbridge.cli.output.console import command, print_json, print_note, print_table
from mqbridge.cli.process import event_loop

if TYPE_CHECKING:
    from mqbridge.config.cluster_choice import ClusterChoice

GroupState = tuple[str, list[PartitionLag], list[Member]]
"""The name of a group, its lag in each partition, and its members."""


@command
def groups(
    *,
    topic: TopicArgument,
    group: Annotated[list[str] | None, typer.Option("--group", "-G", help="Only this group; may be repeated.")] = None,
    members: Annotated[
        bool, typer.Option("--members", "-m", help="Show the members and the partitions assigned to each, instead of the lag.")
    ] = False,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the groups of a topic: committed positions, lag, and the member that holds each partition.

    For example:

        mqbridge groups orders --at "tubemq://127.0.0.1:8715?admin=http://127.0.0.1:8080"
        mqbridge groups orders --members --at rocketmq://127.0.0.1:9876
        mqbridge groups orders -G mqbridge -F gateway.yaml -b source --json

    The lag is in messages if the system counts messages, otherwise in the unit of the system (Pulsar: entries).
    """
    unit, states = event_loop.run(_groups(choose(config, cluster, at), topic, group))
    if members:
        _show_members(states, as_json=as_json)
    else:
        _show(states, unit, as_json=as_json)


async def _groups(choice: "ClusterChoice", topic: str, only: list[str] | None) -> tuple[str, list[GroupState]]:
    """Return the unit of the lag, and the states of all groups of the topic, or of those in `only`."""
    async with choice.connected() as cluster:
        described = await readable_topic(cluster, topic)
        operations, bounds = operations_of(cluster), await cluster.bounds(topic)
        names = only or sorted(await operations.groups(topic))
        rows = [(name, *await fetch_lag(cluster, topic, name, described.partitions, bounds)) for name in names]
        return operations.backlog_unit, rows


def _show(states: list[GroupState], unit: str, *, as_json: bool) -> None:
    rows = [(group, lag) for group, partitions, _ in states for lag in partitions]
    if as_json:
        print_json([{"group": group, **lag.as_dict(), "member": lag.member} for group, lag in rows])
        return
    cells = [
        (
            group,
            lag.partition,
            position_text(lag.committed),
            lag.bounds and position_text(lag.bounds.next),
            format_lag(lag),
            lag.member,
        )
        for group, lag in rows
    ]
    print_table(["group", "partition", "committed", "next", "lag", "member"], cells, right=["committed", "next", "lag"])
    if unit != "messages" and any(lag.lag is not None for _, lag in rows):
        print_note(f"the lag counts {unit}")


def _show_members(states: list[GroupState], *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"group": group, "member": member.id, "address": member.address or None, "partitions": member.partitions}
        for group, _, members in states
        for member in members
    ]
    if as_json:
        print_json(rows)
        return
    columns = ["group", "member", "address", "partitions"]
    cells = [(*(row[name] for name in columns[:3]), _partition_names(row["partitions"])) for row in rows]
    print_table(columns, cells)
    if not rows:
        print_note("no member consumes the topic now")


def _partition_names(partitions: tuple[str, ...] | None) -> str:
    """Return the text for a member's partitions, which are None if the system does not report them."""
    return "?" if partitions is None else ", ".join(partitions) or "none"
