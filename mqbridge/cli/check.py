"""`mqbridge check`: whether a configuration can be used, and with --connect whether its clusters and topics are there."""

import asyncio
from collections.abc import Sized
from pathlib import Path
from typing import Annotated, Any

import typer

from mqbridge.adapter import Cluster, load_adapters
from mqbridge.cli import exits, loop
from mqbridge.cli.console import command, debug, print_json, print_table, say
from mqbridge.cli.reach import Chosen, JsonOption
from mqbridge.config.load import load
from mqbridge.config.models import Config, Route
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import ConfigError, MqbridgeError
from mqbridge.routing.topics import is_pattern, render, select


@command
def check(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration.")],
    connect: Annotated[bool, typer.Option("--connect", help="Also reach every cluster and look at the routes' topics.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a configuration; names every problem at once, each with its line.

    For example:

        mqbridge check config/tubemq-to-pulsar.yaml

        mqbridge check config/tubemq-to-pulsar.yaml --connect
    """
    try:
        config = load(file)
    except ConfigError as error:
        if not as_json or debug.get():
            raise
        problems = error.errors if isinstance(error, ConfigErrors) else [error]
        print_json({"file": str(file), "ok": False, "problems": [_problem(problem) for problem in problems]})
        raise typer.Exit(exits.USAGE) from None
    clusters, routes = loop.run(_look(config)) if connect else ([], [_plan(route) for route in config.routes])
    failed = any(row["error"] for row in [*clusters, *routes])
    if as_json:
        said = {"file": str(file), "ok": not failed, "problems": [], "routes": routes}
        print_json(said | ({"clusters": clusters} if connect else {}))
    else:
        _show(file, config, clusters, routes)
    raise typer.Exit(exits.CLUSTER if failed else exits.OK)


def _problem(error: ConfigError) -> dict[str, str]:
    return {"place": error.place, "path": error.path, "problem": error.problem, "hint": error.hint}


def _plan(route: Route) -> dict[str, Any]:
    source = route.source
    return {
        "name": route.name,
        "from": {"cluster": source.cluster, "topics": list(source.wanted), "group": source.group},
        "to": [{"cluster": target.cluster, "topic": target.topic} for target in route.targets],
        "topics": [],
        "error": None,
    }


async def _look(config: Config) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    adapters = load_adapters()
    chosen = {name: Chosen(name, adapters[one.system], one.settings) for name, one in config.clusters.items()}
    reports = await asyncio.gather(*(_examine(one, config) for one in chosen.values()))
    topics = {name: found for report in reports for name, found in report[1].items()}
    routes = [_plan(route) | topics.get(route.name, {"error": "its source cluster cannot be reached"}) for route in config.routes]
    return [report[0] for report in reports], routes


async def _examine(chosen: Chosen, config: Config) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """One cluster, and the routes that begin in it."""
    state: dict[str, Any] = {"name": chosen.name, "system": chosen.adapter.system, "reachable": False, "error": None}
    found: dict[str, dict[str, Any]] = {}
    try:
        async with chosen.reached() as cluster:
            state["reachable"] = True
            for route in config.routes:
                if route.source.cluster == chosen.name:
                    found[route.name] = await _source(cluster, route)
    except MqbridgeError as error:
        state["error"] = str(error)
    return state, found


async def _source(cluster: Cluster, route: Route) -> dict[str, Any]:
    wanted = route.source.wanted
    try:
        existing = await cluster.topics() if any(map(is_pattern, wanted)) else []
        chosen = select(wanted, existing)
        described = [(one, await cluster.describe(one.topic)) for one in chosen]
    except MqbridgeError as error:
        return {"error": str(error)}
    missing = ", ".join(repr(one.topic) for one, topic in described if topic is None)
    topics = [
        {"topic": one.topic, "partitions": len(topic.partitions), "targets": [render(to.topic, one) for to in route.targets]}
        for one, topic in described
        if topic is not None
    ]
    if missing:
        return {"topics": topics, "error": f"cluster {cluster.name!r} has no topic {missing}"}
    return {"topics": topics, "error": None if topics else f"no topic of cluster {cluster.name!r} matches {', '.join(wanted)}"}


def _show(file: Path, config: Config, clusters: list[dict[str, Any]], routes: list[dict[str, Any]]) -> None:
    if clusters:
        print_table(["cluster", "system", "state"], [(row["name"], row["system"], row["error"] or "reached") for row in clusters])
    rows = [row for route in routes for row in _route_rows(route, bool(clusters))]
    print_table(["route", "from", "to", *(["state"] if clusters else [])], rows)
    if not any(row["error"] for row in [*clusters, *routes]):
        say(f"{file}: no problems ({_count(config.clusters, 'cluster')}, {_count(config.routes, 'route')})")


def _count(things: Sized, word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _route_rows(route: dict[str, Any], looked: bool) -> list[tuple[str, ...]]:
    source, name = route["from"], route["name"]
    rows: list[tuple[str, ...]] = [
        (
            name,
            f"{source['cluster']}/{topic['topic']}",
            ", ".join(f"{to['cluster']}/{target}" for to, target in zip(route["to"], topic["targets"], strict=True)),
            f"{topic['partitions']} partitions",
        )
        for topic in route["topics"]
    ]
    if rows and route["error"] is None:
        return rows
    plan = (
        name,
        f"{source['cluster']}/{', '.join(source['topics'])}",
        ", ".join(f"{to['cluster']}/{to['topic']}" for to in route["to"]),
    )
    return [*rows, (*plan, route["error"]) if looked else plan]
