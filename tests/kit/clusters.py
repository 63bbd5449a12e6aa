"""Starts real TubeMQ, Pulsar and RocketMQ servers concurrently, for the tests and on the command line."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.kit.maven import cache_folder, say
from tests.kit.mounted import mount
from tests.kit.process import ClusterError
from tests.kit.pulsar import Pulsar, server_folder
from tests.kit.pulsar_locked import LockedPulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.rocketmq_settings import OLD_VERSION, VERSION
from tests.kit.rocketmq_settings import server_jars as rocketmq_jars
from tests.kit.started import Started
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_jars import server_jars as tubemq_jars
from tests.kit.tubemq_locked import LockedTubeMQ

Cluster = TubeMQ | Pulsar | RocketMQ
FETCHED = {
    "tubemq": [tubemq_jars],
    "pulsar": [server_folder],
    "rocketmq": [partial(rocketmq_jars, version) for version in (VERSION, OLD_VERSION)],
}
SYSTEMS = tuple(FETCHED)
WATCH_S = 1.0
# Long enough to observe clients while the server is down.
AWAY_S = 5.0
DESCRIPTION = "Real TubeMQ 2.4.0, Pulsar 4.0.8 and RocketMQ 5.3.3 or 4.9.7 servers on loopback, with temporary data."
EXAMPLES = """examples:
  python -m tests.kit.clusters start
  python -m tests.kit.clusters start tubemq --topic orders:3 --topic audit:1
  python -m tests.kit.clusters start rocketmq --topic orders:8 --rocketmq-version 4.9.7
  python -m tests.kit.clusters start rocketmq pulsar --locked /tmp/secrets --topic orders:4
  python -m tests.kit.clusters start --env /tmp/servers.sh &    then: . /tmp/servers.sh
  MQBRIDGE_CACHE=/var/cache/mqbridge python -m tests.kit.clusters fetch

The addresses go to standard output as export lines, progress to standard error. A server that is killed by hand is
started again after 5 s with the same port and data. A JDK 17 and Maven are needed; downloads are stored in
MQBRIDGE_CACHE (default ~/.cache/mqbridge) and in Maven's local repository."""


@contextmanager
def running(clusters: Sequence[Started]) -> Iterator[list[Future[None]]]:
    """Start clusters concurrently; each future is done when its cluster is ready. All clusters are killed at the end."""
    with ThreadPoolExecutor(max(1, len(clusters))) as pool:
        try:
            yield [pool.submit(cluster.start) for cluster in clusters]
        finally:
            for cluster in clusters:
                cluster.kill()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m tests.kit.clusters",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    start = commands.add_parser("start", help="start servers, print their addresses, and run until Ctrl-C")
    start.add_argument("--topic", action="append", default=[], type=_topic, metavar="NAME:PARTITIONS",
                       help="create this topic in TubeMQ, Pulsar's public/default and RocketMQ")  # fmt: skip
    start.add_argument(
        "--env", type=Path, metavar="FILE", help="also write the export lines to this file when the servers are ready"
    )
    start.add_argument("--no-memory-store", action="store_true",
                       help="let the TubeMQ Broker write each message to its file before it acknowledges it")  # fmt: skip
    start.add_argument(
        "--locked",
        type=Path,
        metavar="FOLDER",
        help="require TLS and credentials, which are written to this folder (see mqbridge/shipped/locked.yaml)",
    )
    start.add_argument("--rocketmq-version", choices=(VERSION, OLD_VERSION), default=VERSION, help=f"default: {VERSION}")
    fetch = commands.add_parser("fetch", help="only download what the servers need")
    for command in (start, fetch):
        command.add_argument("systems", nargs="*", type=_system, metavar="SYSTEM", help=f"{', '.join(SYSTEMS)}; default: all")
    return top


def main() -> None:
    """Run one command; exit with 1 and a message if it fails."""
    arguments = parser().parse_args()
    systems = arguments.systems or list(SYSTEMS)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments.command == "fetch":
            _fetch(systems)
        else:
            _serve(systems, arguments)
    except ClusterError as error:
        say(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        say("all servers are stopped and their data is removed")


def _fetch(systems: list[str]) -> None:
    for system in systems:
        for fetch in FETCHED[system]:
            say(f"{system} is in {fetch()}")
    say(f"everything is in {cache_folder()}")


def _serve(systems: list[str], arguments: argparse.Namespace) -> None:
    topics: dict[str, int] = dict(arguments.topic)
    clusters: list[Cluster] = []
    locked = arguments.locked is not None
    if "tubemq" in systems:
        tubemq_class = LockedTubeMQ if locked else TubeMQ
        clusters.append(tubemq_class(topics, pool={}, memory_store=not arguments.no_memory_store))
    if "pulsar" in systems:
        clusters.append(LockedPulsar() if locked else Pulsar())
    if "rocketmq" in systems:
        clusters.append(RocketMQ(version=arguments.rocketmq_version, locked=locked))
    begin = time.monotonic()
    say(f"starting {' and '.join(systems)} (some 5 s for TubeMQ and RocketMQ, 10 to 30 s for Pulsar)")
    with running(clusters) as ready:
        for future in ready:
            future.result()
        exports = "".join(line for cluster in clusters for line in _prepared(cluster, topics))
        if locked:
            exports += f"export SECRETS={arguments.locked.resolve()}\n"
            for cluster in clusters:
                mount(arguments.locked, cluster)
        print(exports, end="", flush=True)
        if arguments.env:
            arguments.env.write_text(exports)
        say(f"ready after {time.monotonic() - begin:.1f} s; press Ctrl-C to stop")
        _watch(clusters)


def _prepared(cluster: Cluster, topics: dict[str, int]) -> list[str]:
    """Print the processes of a cluster, create the topics, and return the export lines."""
    for server in cluster.servers:
        say(f"{server.name}: pid {server.pid}, {server.rss_bytes() >> 20} MiB, log {server.log}")
    if isinstance(cluster, TubeMQ):
        return [f"export TUBEMQ_MASTERS={cluster.masters}\n", f"export TUBEMQ_ADMIN_URL={cluster.admin_url}\n"]
    for name, partitions in topics.items():
        cluster.create_topic(name, partitions)
    if isinstance(cluster, RocketMQ):
        return [f"export ROCKETMQ_NAME_SERVERS={';'.join(cluster.name_servers)}\n"]
    return [f"export PULSAR_URL={cluster.service_url}\n", f"export PULSAR_ADMIN_URL={cluster.admin_url}\n"]


def _watch(clusters: Sequence[Cluster]) -> None:
    while True:
        time.sleep(WATCH_S)
        for server in [server for cluster in clusters for server in cluster.servers if not server.running]:
            say(f"{server.name} (pid {server.pid}) ended; starting it again in {AWAY_S:.0f} s")
            time.sleep(AWAY_S)
            server.start()
            say(f"{server.name} is ready again, pid {server.pid}")


def _system(name: str) -> str:
    if name not in SYSTEMS:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(SYSTEMS)}")
    return name


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    if not name or not partitions.isdecimal() or int(partitions) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PARTITIONS, such as orders:3")
    return name, int(partitions)


if __name__ == "__main__":
    main()
