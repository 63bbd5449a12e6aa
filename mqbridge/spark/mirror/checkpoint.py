"""The checkpoint folder of a mirror: whose it is, and that only one has it.

    DIR/mirror.json        which routes it belongs to: their sources, targets and partition rules
    DIR/mirror.json.lock   held by the mirror that runs, where the folder is on a disk of this machine
    DIR/mirror.lease       written by it again and again, where it is not
    DIR/ROUTE/             Spark's checkpoint of the route's query

Positions live in there and nowhere else. A route that was given another name, another source or another target would go on where
another one stopped, or begin anew and write everything twice, so it is refused.
"""

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import orjson
from pyarrow import ArrowException, fs

from mqbridge.config.options.config import Config
from mqbridge.config.options.route import Route
from mqbridge.errors import ConfigError
from mqbridge.spark.mirror.lease import Lease

VERSION = 1
FILE, LEASE = "mirror.json", "mirror.lease"


class CheckpointFolder:
    """A folder by its path, or by a URL such as `hdfs://…` or `s3://…`. Raises ConfigError when it cannot be reached."""

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/") or "/"
        self.local = _local(self.place)
        try:
            if self.local is not None:
                self.local.mkdir(parents=True, exist_ok=True)
                self._files, self._root = fs.LocalFileSystem(), str(self.local)
            else:
                self._files, self._root = fs.FileSystem.from_uri(_for_pyarrow(self.place))
                self._files.create_dir(self._root, recursive=True)
        except (OSError, ValueError, ArrowException) as error:
            raise ConfigError(
                f"the checkpoint folder {place} cannot be used: {error}",
                hint="pyarrow has to reach it, as the driver's Spark has",
            ) from error
        self._lock: int | None = None
        self._lease: Lease | None = None

    def of_route(self, name: str) -> str:
        """Where the query of a route keeps its checkpoint."""
        return f"{self._base}/{quote(name, safe='')}"

    @property
    def is_lost(self) -> bool:
        """Whether another mirror has taken it over meanwhile."""
        return self._lease is not None and self._lease.is_lost

    def claim(self, config: Config, routes: list[Route], on_lost: Callable[[], None] = lambda: None) -> None:
        """Take the folder for these routes. Raises ConfigError when another mirror has it, or it belongs to other routes.

        `on_lost` is called, in another thread, should it be taken over by another mirror.
        """
        self._take_lock(on_lost)
        known = self._read()
        wanted = {route.name: identity(config, route) for route in routes}
        try:
            problems = [
                *_strangers(known, config),
                *(_difference(name, known[name], wanted[name]) for name in wanted if name in known),
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise self._damaged(f"{error!r} was not expected") from error
        if told := [problem for problem in problems if problem]:
            raise ConfigError(
                f"the checkpoint folder {self.place} belongs to another mirror: {'; '.join(told)}",
                hint="Use a folder of its own for each mirror; without its checkpoint a route begins anew and writes what is "
                "there already",
            )
        self._write(known | wanted)

    def release(self) -> None:
        """Let others have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    @property
    def _base(self) -> str:
        return self.place if self.local is None else str(self.local)

    def _take_lock(self, on_lost: Callable[[], None]) -> None:
        """By the operating system, so that it ends with the process; elsewhere by a lease."""
        if self.local is None:
            self._lease = self._taken_lease(on_lost)
            return
        lock = os.open(self.local / f"{FILE}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(lock, 1000, 0).decode(errors="replace").strip()
            os.close(lock)
            raise ConfigError(
                f"the checkpoint folder {self.place} is in use by another mirror{f' ({holder})' if holder else ''}",
                hint="Give each mirror a folder of its own, or stop the other one",
            ) from error
        self._lock = lock
        with contextlib.suppress(OSError):  # for people only
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _taken_lease(self, on_lost: Callable[[], None]) -> Lease:
        lease = Lease(self._files, f"{self._root}/{LEASE}", self.place, on_lost)
        try:
            lease.take()
        except OSError as error:
            raise ConfigError(f"{self.place}/{LEASE} cannot be used: {error}") from error
        return lease

    def _read(self) -> dict[str, Any]:
        try:
            with self._files.open_input_stream(f"{self._root}/{FILE}") as file:
                content = orjson.loads(file.read())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"{self.place}/{FILE} cannot be read: {error}") from error
        except ValueError as error:
            raise self._damaged(str(error)) from error
        if not isinstance(content, dict) or content.get("version") != VERSION:
            raise ConfigError(f"{self.place}/{FILE} is not of this version of mqbridge")
        routes = content.get("routes")
        if not isinstance(routes, dict):
            raise self._damaged("it has no routes")
        return routes

    def _damaged(self, problem: str) -> ConfigError:
        return ConfigError(
            f"{self.place}/{FILE} cannot be read: {problem}",
            hint="It says only what the routes were. When they are the same as before, remove it: it is written anew",
        )

    def _write(self, routes: Mapping[str, Any]) -> None:
        content = orjson.dumps({"version": VERSION, "routes": routes}, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        path = f"{self._root}/{FILE}"
        try:
            with self._files.open_output_stream(f"{path}.new") as file:
                file.write(content)
            self._files.move(f"{path}.new", path)
        except OSError as error:
            raise ConfigError(f"{self.place}/{FILE} cannot be written: {error}") from error


def identity(config: Config, route: Route) -> dict[str, Any]:
    """What of a route its positions belong to."""
    return {
        "from": {
            "cluster": route.source.cluster,
            "system": config.clusters[route.source.cluster].system,
            "topics": sorted(route.source.wanted),
        },
        "to": [
            {
                "cluster": target.cluster,
                "system": config.clusters[target.cluster].system,
                "topic": target.topic,
                "partitions": target.partitions.model_dump(mode="json"),
            }
            for target in route.targets
        ],
    }


def _strangers(known: Mapping[str, Any], config: Config) -> list[str]:
    names = {route.name for route in config.routes}
    return [
        f"it has positions of a route {name!r}, which the configuration does not have" for name in sorted(known.keys() - names)
    ]


def _difference(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What of a route is not as it was, for people; "" for nothing. Topics may be added: they begin as new ones do."""
    source, was = now["from"], before["from"]
    if (source["cluster"], source["system"]) != (was["cluster"], was["system"]):
        return f"route {name!r} read from {was['cluster']} ({was['system']}), not from {source['cluster']} ({source['system']})"
    if gone := sorted(set(was["topics"]) - set(source["topics"])):
        return f"route {name!r} read {', '.join(map(repr, gone))} too"
    if before["to"] != now["to"]:
        return f"route {name!r} wrote to {_targets(before)}, not to {_targets(now)}"
    return ""


def _targets(one: Mapping[str, Any]) -> str:
    return ", ".join(f"{to['cluster']}/{to['topic']} (partitions by {to['partitions']['by']})" for to in one["to"])


def _for_pyarrow(place: str) -> str:
    """Hadoop has names of its own for s3."""
    scheme, mark, rest = place.partition("://")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}{mark}{rest}"


def _local(place: str) -> Path | None:
    """The path of a folder on this machine, None for others."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in place else Path(place).absolute()
