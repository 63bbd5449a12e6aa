"""`mqbridge groups`: who consumes a topic, how far each has come, and which member holds what."""

from typing import Annotated, Any

import typer

from mqbridge.adapter.operations import Member
from mqbridge.cli import loop
from mqbridge.cli.console import command, print_json, print_table, say
from mqbridge.cli.reach import ClusterOption, ConfigOption, JsonOption, UrlOption, no_topic, operations_of
from mqbridge.cli.standing import Standing, lag_text, standing, text_of
from mqbridge.config.chosen import Chosen, choose

Group = tuple[str, list[Standing], list[Member]]


@command
def groups(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    group: Annotated[list[str] | None, typer.Option("--group", "-G", help="Only these groups.")] = None,
    members: Annotated[
        bool, typer.Option("--members", "-m", help="The members and what each holds, instead of the lag.")
    ] = False,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the groups of a topic with their committed positions, their lag, and who holds which partition.

    The lag is in messages where positions count messages, else as the system counts (Pulsar: entries).

    For example:

        mqbridge groups orders --at tubemq://127.0.0.1:8715?admin=http://127.0.0.1:8080

        mqbridge groups orders --members --at rocketmq://127.0.0.1:9876

        mqbridge groups orders -G mqbridge -F gateway.yaml -b source --json
    """
    unit, found = loop.run(_groups(choose(config, cluster, at), topic, group))
    if members:
        _show_members(found, as_json=as_json)
    else:
        _show(found, unit, as_json=as_json)


async def _groups(chosen: Chosen, topic: str, only: list[str] | None) -> tuple[str, list[Group]]:
    async with chosen.reached() as cluster:
        found = await cluster.describe(topic)
        if found is None:
            raise no_topic(topic, cluster)
        operations, bounds = operations_of(cluster), await cluster.bounds(topic)
        names = only or sorted(await operations.groups(topic))
        rows = [(name, *await standing(cluster, topic, name, found.partitions, bounds)) for name in names]
        return operations.backlog_unit, rows


def _show(found: list[Group], unit: str, *, as_json: bool) -> None:
    rows = [(group, one) for group, partitions, _ in found for one in partitions]
    if as_json:
        print_json([{"group": group, **one.as_dict(), "member": one.member} for group, one in rows])
        return
    shown = [
        (group, one.partition, text_of(one.committed), one.bounds and text_of(one.bounds.next), lag_text(one), one.member)
        for group, one in rows
    ]
    print_table(["group", "partition", "committed", "next", "lag", "member"], shown, right=["committed", "next", "lag"])
    if unit != "messages" and any(one.lag is not None for _, one in rows):
        say(f"the lag counts {unit}")


def _show_members(found: list[Group], *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"group": group, "member": one.id, "address": one.address or None, "partitions": one.partitions}
        for group, _, members in found
        for one in members
    ]
    if as_json:
        print_json(rows)
        return
    columns = ["group", "member", "address", "partitions"]
    shown = [(*(row[name] for name in columns[:3]), _held(row["partitions"])) for row in rows]
    print_table(columns, shown)
    if not rows:
        say("nobody consumes it now")


def _held(partitions: tuple[str, ...] | None) -> str:
    return "?" if partitions is None else ", ".join(partitions) or "none"
