"""`mqbridge topics`: list, describe and create topics."""

from typing import Annotated, Any

import typer

from mqbridge.adapter.cluster import Cluster
from mqbridge.cli import loop
from mqbridge.cli.console import command, out, print_json, print_table
from mqbridge.cli.reach import ClusterOption, ConfigOption, JsonOption, UrlOption, no_topic
from mqbridge.cli.standing import Standing
from mqbridge.config.chosen import Chosen, choose
from mqbridge.message import format_position


@command
def topics(
    *,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Describe these; without any, list all.")
    ] = None,
    create: Annotated[
        int | None, typer.Option("--create", metavar="N", min=1, help="Create the topics with N partitions, or grow them to N.")
    ] = None,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List topics, describe them (partitions, bounds, how they are set up), or create them.

    For example:

        mqbridge topics --at pulsar://127.0.0.1:6650

        mqbridge topics orders -F gateway.yaml -b source

        mqbridge topics orders --create 8 --at log:///tmp/orders.db
    """
    loop.run(_topics(choose(config, cluster, at), names or [], create, as_json))


async def _topics(chosen: Chosen, names: list[str], create: int | None, as_json: bool) -> None:
    async with chosen.reached() as cluster:
        if create is not None and not names:
            raise typer.BadParameter("name the topics to create", param_hint="TOPIC")
        if not names:
            found = sorted(await cluster.topics())
            print_json(found) if as_json else print_table(["topic"], [(name,) for name in found])
            return
        for name in names if create is not None else []:
            await cluster.create(name, create or 1)
        described = [await _describe(cluster, name) for name in names]
    if as_json:
        print_json(described)
        return
    rows = [
        (one["topic"], part["name"], part["first"], part["next"], part["messages"])
        for one in described
        for part in one["partitions"]
    ]
    print_table(["topic", "partition", "first", "next", "messages"], rows, right=["first", "next", "messages"])
    settings = [(one["topic"], name, value) for one in described for name, value in one["settings"].items()]
    if settings:
        out().print()
        print_table(["topic", "setting", "value"], settings)


async def _describe(cluster: Cluster, name: str) -> dict[str, Any]:
    topic = await cluster.describe(name)
    if topic is None:
        raise no_topic(name, cluster)
    bounds = await cluster.bounds(name)
    rows = [
        {
            "name": partition,
            "first": format_position(bounds[partition].first) if partition in bounds else None,
            "next": format_position(bounds[partition].next) if partition in bounds else None,
            "messages": Standing(partition, bounds.get(partition)).held,
        }
        for partition in topic.partitions
    ]
    settings = {} if cluster.operations is None else dict(await cluster.operations.settings(name))
    return {"topic": name, "partitions": rows, "settings": settings}
