"""The checkpoint folder of a mirror. It belongs to certain routes, and one mirror at a time may use it.

    DIR/mirror.json        the routes of the folder: their sources, targets and partition rules
    DIR/mirror.json.lock   locked by the running mirror, if the folder is on a local file system
    DIR/mirror.lease       renewed by the running mirror, if the folder is elsewhere
    DIR/ROUTE/             Spark's checkpoint of the route's query

The positions of a route are stored only here. A route with another name, source or target would continue at the positions of
another route, or start again and write everything twice. So the mirror rejects a folder of other routes.
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
    """The folder at a path or at a URL such as `hdfs://…` or `s3://…`. Raises ConfigError if it cannot be accessed."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/") or "/"
        self.local_path = _local_path(self.location)
        try:
            if self.local_path is not None:
                self.local_path.mkdir(parents=True, exist_ok=True)
                self._files, self._root = fs.LocalFileSystem(), str(self.local_path)
            else:
                self._files, self._root = fs.FileSystem.from_uri(_for_pyarrow(self.location))
                self._files.create_dir(self._root, recursive=True)
        except (OSError, ValueError, ArrowException) as error:
            raise ConfigError(
                f"the checkpoint folder {location} cannot be used: {error}",
                hint="Choose a folder that both Spark and pyarrow can access from this machine",
            ) from error
        self._lock: int | None = None
        self._lease: Lease | None = None

    def of_route(self, name: str) -> str:
        """Return the folder of the checkpoint of a route's query."""
        return f"{self._base}/{quote(name, safe='')}"

    @property
    def is_lost(self) -> bool:
        """Whether another mirror has taken over the folder."""
        return self._lease is not None and self._lease.is_lost

    def claim(self, config: Config, routes: list[Route], on_lost: Callable[[], None] = lambda: None) -> None:
        """Lock the folder for these routes. Raises ConfigError if another mirror uses it, or if it belongs to other routes.

        `on_lost` is called in another thread if another mirror takes over the folder.
        """
        self._take_lock(on_lost)
        recorded = self._read()
        claimed = {route.name: identity(config, route) for route in routes}
        try:
            problems = [
                *_unknown_routes(recorded, config),
                *(_difference(name, recorded[name], claimed[name]) for name in claimed if name in recorded),
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise self._damaged(f"unexpected content: {error!r}") from error
        if problems := [problem for problem in problems if problem]:
            raise ConfigError(
                f"the checkpoint folder {self.location} belongs to another mirror: {'; '.join(problems)}",
                hint="Use a separate folder for each mirror. In a new folder, a route begins at its start again and writes "
                "messages that are stored already",
            )
        self._write(recorded | claimed)

    def release(self) -> None:
        """Unlock the folder for other mirrors."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    @property
    def _base(self) -> str:
        return self.location if self.local_path is None else str(self.local_path)

    def _take_lock(self, on_lost: Callable[[], None]) -> None:
        """Take a lock of the operating system, which ends with the process; without a local path, take a lease."""
        if self.local_path is None:
            self._lease = self._take_lease(on_lost)
            return
        lock = os.open(self.local_path / f"{FILE}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(lock, 1000, 0).decode(errors="replace").strip()
            os.close(lock)
            raise ConfigError(
                f"the checkpoint folder {self.location} is in use by another mirror{f' ({holder})' if holder else ''}",
                hint="Use a separate folder for each mirror, or stop the other mirror",
            ) from error
        self._lock = lock
        with contextlib.suppress(OSError):  # the content only names the holder, for people
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _take_lease(self, on_lost: Callable[[], None]) -> Lease:
        lease = Lease(self._files, f"{self._root}/{LEASE}", self.location, on_lost)
        try:
            lease.acquire()
        except OSError as error:
            raise ConfigError(f"{self.location}/{LEASE} cannot be read or written: {error}") from error
        return lease

    def _read(self) -> dict[str, Any]:
        try:
            with self._files.open_input_stream(f"{self._root}/{FILE}") as file:
                content = orjson.loads(file.read())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"{self.location}/{FILE} cannot be read: {error}") from error
        except ValueError as error:
            raise self._damaged(str(error)) from error
        if not isinstance(content, dict) or content.get("version") != VERSION:
            raise ConfigError(f"{self.location}/{FILE} was written by another version of mqbridge")
        routes = content.get("routes")
        if not isinstance(routes, dict):
            raise self._damaged("it has no routes")
        return routes

    def _damaged(self, problem: str) -> ConfigError:
        return ConfigError(
            f"{self.location}/{FILE} cannot be read: {problem}",
            hint="The file only records the routes. If they are the same as before, remove it: the mirror writes it again",
        )

    def _write(self, routes: Mapping[str, Any]) -> None:
        content = orjson.dumps({"version": VERSION, "routes": routes}, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        path = f"{self._root}/{FILE}"
        try:
            with self._files.open_output_stream(f"{path}.new") as file:
                file.write(content)
            self._files.move(f"{path}.new", path)
        except OSError as error:
            raise ConfigError(f"{self.location}/{FILE} cannot be written: {error}") from error


def identity(config: Config, route: Route) -> dict[str, Any]:
    """Return the parts of a route without which its positions are invalid: source, targets and partition rules."""
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


def _unknown_routes(recorded: Mapping[str, Any], config: Config) -> list[str]:
    names = {route.name for route in config.routes}
    return [
        f"it has positions of a route {name!r}, which the configuration does not have" for name in sorted(recorded.keys() - names)
    ]


def _difference(name: str, recorded: Mapping[str, Any], claimed: Mapping[str, Any]) -> str:
    """Describe how a route differs from the recorded one; "" if it does not. Added topics are no difference."""
    source, before = claimed["from"], recorded["from"]
    if (source["cluster"], source["system"]) != (before["cluster"], before["system"]):
        return (
            f"route {name!r} read from {before['cluster']} ({before['system']}), "
            f"not from {source['cluster']} ({source['system']})"
        )
    if removed := sorted(set(before["topics"]) - set(source["topics"])):
        return f"route {name!r} read {', '.join(map(repr, removed))} too"
    if recorded["to"] != claimed["to"]:
        return f"route {name!r} wrote to {_describe_targets(recorded)}, not to {_describe_targets(claimed)}"
    return ""


def _describe_targets(route: Mapping[str, Any]) -> str:
    return ", ".join(f"{to['cluster']}/{to['topic']} (partitions by {to['partitions']['by']})" for to in route["to"])


def _for_pyarrow(url: str) -> str:
    """Replace Hadoop's names of the s3 scheme with pyarrow's."""
    scheme, separator, path = url.partition("://")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}{separator}{path}"


def _local_path(location: str) -> Path | None:
    """Return the path of a folder on this machine; None for other URLs."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in location else Path(location).absolute()
