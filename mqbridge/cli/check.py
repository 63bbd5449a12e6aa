"""`mqbridge check`: whether a configuration can be used, and with --connect whether its clusters and topics are there."""

import asyncio
import contextlib
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Annotated, Any

import typer

from mqbridge import native
from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import load_adapters
from mqbridge.cli import exits, loop
from mqbridge.cli.console import command, debug, print_json, print_table, say
from mqbridge.cli.reach import JsonOption
from mqbridge.config.chosen import Chosen
from mqbridge.config.load import load
from mqbridge.config.options.config import Config
from mqbridge.config.options.route import Route
from mqbridge.config.problems import ConfigErrors
from mqbridge.delivery.checkpoint import check_folder
from mqbridge.errors import ConfigError, MqbridgeError
from mqbridge.gateway.cautions import warnings_about
from mqbridge.gateway.plan import Plan, Planner
from mqbridge.routing.topics import render


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
        if connect and config.state is not None:
            check_folder(config.state)
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
        "notes": [],
        "warnings": [],
        "error": None,
    }


async def _look(config: Config) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    adapters = load_adapters()
    async with contextlib.AsyncExitStack() as stack:
        chosen = [Chosen(name, adapters[one.system], one.settings) for name, one in config.clusters.items()]
        reached = await asyncio.gather(*(_reach(stack, one) for one in chosen))
        clusters = {one.name: cluster for one, (_, cluster) in zip(chosen, reached, strict=True) if cluster is not None}
        planner = Planner(clusters)
        plans = [await planner.plan(route) for route in config.routes]
        routes = [_plan(plan.route) | _seen(plan) | {"warnings": await _warnings(plan, clusters)} for plan in plans]
    return [state for state, _ in reached], routes


async def _reach(stack: contextlib.AsyncExitStack, chosen: Chosen) -> tuple[dict[str, Any], Cluster | None]:
    """What to say of a cluster, and the cluster where it was reached; `stack` closes it."""
    state: dict[str, Any] = {"name": chosen.name, "system": chosen.adapter.system, "reachable": False, "error": None}
    try:
        cluster = await stack.enter_async_context(chosen.reached())
    except MqbridgeError as error:
        return state | {"error": str(error)}, None
    return state | {"reachable": True}, cluster


def _seen(plan: Plan) -> dict[str, Any]:
    topics = [
        {
            "topic": one.selected.topic,
            "partitions": len(one.topic.partitions),
            "targets": [render(target.topic, one.selected) for target in plan.route.targets],
        }
        for one in plan.sources
    ]
    return {"topics": topics, "notes": plan.notes, "error": "; ".join(map(str, plan.problems)) or None}


async def _warnings(plan: Plan, clusters: Mapping[str, Cluster]) -> list[str]:
    return await warnings_about([use for use in plan.uses if use.cluster in clusters], clusters)


def _show(file: Path, config: Config, clusters: list[dict[str, Any]], routes: list[dict[str, Any]]) -> None:
    if clusters:
        print_table(["cluster", "system", "state"], [(row["name"], row["system"], row["error"] or "reached") for row in clusters])
    rows = [row for route in routes for row in _route_rows(route, bool(clusters))]
    print_table(["route", "from", "to", *(["state"] if clusters else [])], rows)
    for route in routes:
        for note in route["notes"]:
            say(f"route {route['name']}: {note}")
        for warning in route["warnings"]:
            say(f"WARNING: route {route['name']}: {warning}")
    if native.compiled is None:
        say(native.remark)
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
