"""`mqbridge check`: validate a configuration; with --connect also its clusters and topics."""

import asyncio
import contextlib
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqbridge import native
from mqbridge.adapter.cluster import Cluster
from mqbridge.cli.options.cluster_options import JsonOption
from mqbridge.cli.output.console import command, debug, print_json, print_note, print_table
from mqbridge.cli.process import event_loop, exit_codes
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import ConfigError, MqbridgeError

if TYPE_CHECKING:
    from mqbridge.config.cluster_choice import ClusterChoice
    from mqbridge.config.options.config import Config
    from mqbridge.config.options.listener import ListenerConfig
    from mqbridge.config.options.route import Route
    from mqbridge.gateway.listener_check import ListenerFindings
    from mqbridge.routes.plan import Plan


@command
def check(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration.")],
    connect: Annotated[
        bool, typer.Option("--connect", help="Also connect to every cluster; check topics and the folder of `state`.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Count warnings as errors: the exit code is then 3.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a configuration; names every problem at once, each with its line.

    For example:

        mqbridge check tubemq-to-pulsar.yaml
        mqbridge check tubemq-to-pulsar.yaml --connect

    Exit codes: 0 if nothing is wrong, 2 for a mistake in the file, 3 for a problem that --connect finds at a cluster. Warnings,
    which only --connect finds, do not change the exit code without --strict.
    """
    from mqbridge.config.load import load
    from mqbridge.delivery.checkpoint import check_folder

    try:
        config = load(file)
        if config.listeners:
            _check_numbers(config)
        if connect and config.state is not None:  # without --connect, this need not be the gateway's machine
            check_folder(config.state)
    except ConfigError as error:
        if not as_json or debug.get():
            raise
        problems = error.errors if isinstance(error, ConfigErrors) else [error]
        print_json({"file": str(file), "ok": False, "problems": [_problem_fields(problem) for problem in problems]})
        raise typer.Exit(exit_codes.USAGE) from None
    clusters, routes, listeners = (
        event_loop.run(_check_clusters(config))
        if connect
        else ([], _routes_fields(config), [_listener_fields(listener) for listener in config.listeners])
    )
    has_warnings = any(row["warnings"] for row in [*routes, *listeners])
    failed = any(row["error"] for row in [*clusters, *routes, *listeners]) or (strict and has_warnings)
    if as_json:
        result = {"file": str(file), "ok": not failed, "problems": [], "routes": routes, "listeners": listeners}
        print_json(result | ({"clusters": clusters} if connect else {}))
    else:
        _show(clusters, routes, listeners)
        if not failed:
            counts = [_count(config.clusters, "cluster"), _count(config.routes, "route")]
            counts += [_count(config.listeners, "listener")] if config.listeners else []
            print_note(f"{file}: no problems ({', '.join(counts)})")
    raise typer.Exit(exit_codes.CLUSTER if failed else exit_codes.OK)


def _check_numbers(config: "Config") -> None:
    """Raise ConfigErrors if a cluster cannot serve the clients of a listener. Without listeners, nothing of this is loaded."""
    from mqbridge.gateway.listeners import check_listeners

    check_listeners(config)


def _problem_fields(error: ConfigError) -> dict[str, str]:
    return {"place": error.location, "path": error.path, "problem": error.problem, "hint": error.hint}


def _routes_fields(config: "Config") -> list[dict[str, Any]]:
    """Return the fields of each route that need no connection, for JSON."""
    from mqbridge.config.topic_graph import TopicGraph

    graph = TopicGraph.of(config)
    return [_route_fields(route, graph.notes(route)) for route in config.routes]


def _route_fields(route: "Route", notes: list[str]) -> dict[str, Any]:
    """Return the fields of a route for JSON; those that need a connection are empty."""
    source = route.source
    return {
        "name": route.name,
        "from": {"cluster": source.cluster, "topics": list(source.configured_topics), "group": source.group},
        "to": [{"cluster": target.cluster, "topic": target.topic} for target in route.targets],
        "topics": [],
        "notes": notes,
        "warnings": [],
        "error": None,
    }


def _listener_fields(listener: "ListenerConfig") -> dict[str, Any]:
    """Return the fields of a listener for JSON; those that need a connection are empty."""
    return {
        "name": listener.name,
        "system": listener.system,
        "cluster": listener.cluster,
        "listen": listener.listen,
        "web": listener.web,
        "notes": [],
        "warnings": [],
        "error": None,
    }


async def _check_clusters(config: "Config") -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Connect to every cluster, plan every route and check every listener; return the fields of each of them, for JSON."""
    from mqbridge.adapter.known_brokers import HasBrokers
    from mqbridge.adapter.registry import load_adapters
    from mqbridge.config.cluster_choice import ClusterChoice
    from mqbridge.config.topic_graph import TopicGraph
    from mqbridge.delivery.state_brokers import look_up_brokers
    from mqbridge.gateway.listener_check import check_listener
    from mqbridge.routes.plan import Planner
    from mqbridge.routes.unprotected import add_unprotected_problems

    adapters = load_adapters()
    async with contextlib.AsyncExitStack() as stack:
        choices = [ClusterChoice(name, adapters[body.system], body.settings) for name, body in config.clusters.items()]
        connections = await asyncio.gather(*(_connect(stack, choice) for choice in choices))
        clusters = {
            choice.name: cluster for choice, (_, cluster) in zip(choices, connections, strict=True) if cluster is not None
        }
        for name, cluster in clusters.items():
            if config.state is not None and isinstance(cluster, HasBrokers):
                look_up_brokers(config.state, name, cluster.known_brokers)
        graph = TopicGraph.of(config)
        planner = Planner(clusters, graph=graph)
        plans = [await planner.plan(route) for route in config.routes]
        await add_unprotected_problems(plans, clusters)
        routes = [
            _route_fields(plan.route, [])
            | _plan_fields(plan, graph.notes(plan.route))
            | {"warnings": await _warnings(plan, clusters)}
            for plan in plans
        ]
        listeners = [
            _listener_fields(listener) | _findings_fields(await check_listener(listener, config, clusters, adapters))
            for listener in config.listeners
        ]
    return [fields for fields, _ in connections], routes, listeners


def _findings_fields(found: "ListenerFindings") -> dict[str, Any]:
    """Return the fields of a checked listener."""
    return {
        "listen": found.address,
        "web": found.web,
        "notes": found.notes,
        "warnings": found.warnings,
        "error": "; ".join(found.errors) or None,
    }


async def _connect(stack: contextlib.AsyncExitStack, choice: "ClusterChoice") -> tuple[dict[str, Any], Cluster | None]:
    """Connect to a cluster; return its fields for JSON, and the cluster if it answered. `stack` closes the cluster."""
    fields: dict[str, Any] = {"name": choice.name, "system": choice.adapter.system, "reachable": False, "error": None}
    try:
        cluster = await stack.enter_async_context(choice.connected())
    except MqbridgeError as error:
        return fields | {"error": str(error)}, None
    return fields | {"reachable": True}, cluster


def _plan_fields(plan: "Plan", notes: list[str]) -> dict[str, Any]:
    """Return the fields of a planned route: its topics with their targets, the notes, and the problems as one text.

    `notes` are those that need no plan.
    """
    from mqbridge.routing.topics import render_target_topic

    topics = [
        {
            "topic": source.selected.topic,
            "partitions": len(source.topic.partitions),
            "targets": [render_target_topic(target.topic, source.selected) for target in plan.route.targets],
        }
        for source in plan.sources
    ]
    excluded = [f"the topic {plan.route.source.cluster}/{topic} is not read: {reason}" for topic, reason in plan.excluded.items()]
    return {
        "topics": topics,
        "notes": [*notes, *excluded, *plan.change_notes],
        "error": "; ".join(map(str, plan.problems)) or None,
    }


async def _warnings(plan: "Plan", clusters: Mapping[str, Cluster]) -> list[str]:
    """Return the retention warnings about the route's topics in the reachable clusters."""
    from mqbridge.routes.retention_warnings import warnings_about

    return await warnings_about([use for use in plan.topic_uses if use.cluster in clusters], clusters)


def _show(clusters: list[dict[str, Any]], routes: list[dict[str, Any]], listeners: list[dict[str, Any]]) -> None:
    """Print the clusters (with `--connect`), the routes, the listeners, their notes and warnings."""
    if clusters:
        print_table(["cluster", "system", "state"], [(row["name"], row["system"], row["error"] or "reached") for row in clusters])
    rows = [row for route in routes for row in _route_rows(route, is_planned=bool(clusters))]
    if rows or not listeners:
        print_table(["route", "from", "to", *(["state"] if clusters else [])], rows)
    if listeners:
        states = [(row["error"] or "can start",) if clusters else () for row in listeners]
        print_table(
            ["listener", "system", "listen", "cluster", *(["state"] if clusters else [])],
            [
                (row["name"], row["system"], row["listen"] or "default", row["cluster"], *state)
                for row, state in zip(listeners, states, strict=True)
            ],
        )
    for kind, checked in (("route", routes), ("listener", listeners)):
        for row in checked:
            for note in row["notes"]:
                print_note(f"{kind} {row['name']}: {note}")
            for warning in row["warnings"]:
                print_note(f"WARNING: {kind} {row['name']}: {warning}")
    if native.compiled is None:
        print_note(native.notice)


def _count(items: Sized, word: str) -> str:
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"


def _route_rows(route: dict[str, Any], is_planned: bool) -> list[tuple[str, ...]]:
    """Return one row per source topic. A route that is not planned or has an error gets a row as configured, after these."""
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
    configured = (
        name,
        f"{source['cluster']}/{', '.join(source['topics'])}",
        ", ".join(f"{to['cluster']}/{to['topic']}" for to in route["to"]),
    )
    return [*rows, (*configured, route["error"]) if is_planned else configured]
