"""The checkpoint folder of a mirror. It belongs to one configuration, and only one mirror may use it at a time.

    DIR/mirror.json        the routes of the folder: their sources, targets and partition rules
    DIR/mirror.json.lock   locked by the running mirror, if the folder is on a local file system
    DIR/mirror.lease       renewed by the running mirror, if the folder is elsewhere
    DIR/ROUTE/             Spark's checkpoint of the route's query

The positions of a route are stored only here. A route with another name, source or target would continue at the positions of
another route, or start again and write everything twice. So the mirror rejects a folder if a recorded route has changed, or
is missing in the configuration. New routes may be added.
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
from mqbridge.spark.shared_files import MAX_RECORD_BYTES, read_bounded

VERSION = 1
"""Version of the format of `mirror.json`. Another version is an error."""
ROUTES_FILE, LEASE_FILE = "mirror.json", "mirror.lease"


class CheckpointFolder:
    """The folder at a path or at a URL such as `hdfs://…` or `s3://…`. Raises ConfigError if it cannot be accessed."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/") or "/"
        self.local_path = _local_path(self.location)
        """The folder's absolute path; None if the location is a URL of another file system."""
        try:
            if self.local_path is not None:
                self.local_path.mkdir(parents=True, exist_ok=True)
                self._file_system, self._root = fs.LocalFileSystem(), str(self.local_path)
            else:
                self._file_system, self._root = fs.FileSystem.from_uri(_for_pyarrow(self.location))
                self._file_system.create_dir(self._root, recursive=True)
        except (OSError, ValueError, ArrowException) as error:
            raise ConfigError(
                f"the checkpoint folder {location} cannot be used: {error}",
                hint="Choose a folder that both Spark and pyarrow can access from this machine",
            ) from error
        self._lock: int | None = None
        """Descriptor of the locked file; None while it is not locked, and if the folder is not local."""
        self._lease: Lease | None = None

    def route_checkpoint(self, name: str) -> str:
        """Return the folder for Spark's checkpoint of a route's query."""
        return f"{self._spark_location}/{quote(name, safe='')}"

    @property
    def is_lost(self) -> bool:
        """Whether another mirror has taken over the folder. A local folder, which has a lock, cannot be taken over."""
        return self._lease is not None and self._lease.is_lost

    def claim(self, config: Config, routes: list[Route], on_lost: Callable[[], None] = lambda: None) -> None:
        """Lock the folder and record these routes.

        If another mirror takes over the folder later, `on_lost` is called in another thread. Raises ConfigError if another mirror
        uses the folder, or if it belongs to other routes. Call `release` in any case, also after an error.
        """
        self._take_lock(on_lost)
        recorded = self._read_routes()
        current = {route.name: route_identity(config, route) for route in routes}
        try:
            problems = _describe_unknown_routes(recorded, config)
            for name, identity in current.items():
                if name in recorded and (difference := _describe_difference(name, recorded[name], identity)):
                    problems.append(difference)
        except (KeyError, TypeError, AttributeError) as error:
            raise self._damaged_error(f"unexpected content: {error!r}") from error
        if problems:
            raise ConfigError(
                f"the checkpoint folder {self.location} belongs to another mirror: {'; '.join(problems)}",
                hint="Use a separate folder for each mirror. In a new folder, a route begins at its start again and writes "
                "messages that are stored already",
            )
        self._write_routes(recorded | current)

    def release(self) -> None:
        """Unlock the folder for other mirrors."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    @property
    def _spark_location(self) -> str:
        """The folder as Spark accepts it: an absolute local path, or the URL."""
        return self.location if self.local_path is None else str(self.local_path)

    def _take_lock(self, on_lost: Callable[[], None]) -> None:
        """Take a lock of the operating system, which ends with the process. If the folder is not local, take a lease."""
        if self.local_path is None:
            self._lease = self._take_lease(on_lost)
            return
        lock = os.open(self.local_path / f"{ROUTES_FILE}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
        with contextlib.suppress(OSError):  # the content only names the holder in the error of another mirror
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _take_lease(self, on_lost: Callable[[], None]) -> Lease:
        lease = Lease(self._file_system, f"{self._root}/{LEASE_FILE}", self.location, on_lost)
        try:
            lease.acquire()
        except OSError as error:
            raise ConfigError(f"{self.location}/{LEASE_FILE} cannot be read or written: {error}") from error
        return lease

    def _read_routes(self) -> dict[str, Any]:
        """Return the recorded routes by name, each as `route_identity` described it; empty if no file exists yet."""
        try:
            content = orjson.loads(read_bounded(self._file_system, f"{self._root}/{ROUTES_FILE}", MAX_RECORD_BYTES))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"{self.location}/{ROUTES_FILE} cannot be read: {error}") from error
        except ValueError as error:
            raise self._damaged_error(str(error)) from error
        if not isinstance(content, dict) or content.get("version") != VERSION:
            raise ConfigError(
                f"{self.location}/{ROUTES_FILE} was written by another version of mqbridge: its format is not version {VERSION}",
                hint="Use that version of mqbridge, or a new checkpoint folder, in which every route begins at its start again",
            )
        routes = content.get("routes")
        if not isinstance(routes, dict):
            raise self._damaged_error("its key 'routes' is missing or is not an object")
        return routes

    def _damaged_error(self, problem: str) -> ConfigError:
        return ConfigError(
            f"{self.location}/{ROUTES_FILE} cannot be read: {problem}",
            hint="The file only records the routes. If the routes are the same as before, remove it: the mirror writes it again",
        )

    def _write_routes(self, routes: Mapping[str, Any]) -> None:
        content = orjson.dumps({"version": VERSION, "routes": routes}, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        path = f"{self._root}/{ROUTES_FILE}"
        try:
            with self._file_system.open_output_stream(f"{path}.new") as file:
                file.write(content)
            self._file_system.move(f"{path}.new", path)
        except OSError as error:
            raise ConfigError(f"{self.location}/{ROUTES_FILE} cannot be written: {error}") from error


def route_identity(config: Config, route: Route) -> dict[str, Any]:
    """Return the settings of a route that must not change while its positions are stored: source, targets, partition rules."""
    return {
        "from": {
            "cluster": route.source.cluster,
            "system": config.clusters[route.source.cluster].system,
            "topics": sorted(route.source.configured_topics),
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


def _describe_unknown_routes(recorded: Mapping[str, Any], config: Config) -> list[str]:
    """Return one problem for each recorded route that the configuration does not have."""
    names = {route.name for route in config.routes}
    return [
        f"it has positions of route {name!r}, which the configuration does not have" for name in sorted(recorded.keys() - names)
    ]


def _describe_difference(name: str, recorded: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Describe how a route differs from the recorded one; "" if it does not. Added topics are no difference."""
    source, recorded_source = current["from"], recorded["from"]
    if (source["cluster"], source["system"]) != (recorded_source["cluster"], recorded_source["system"]):
        return (
            f"route {name!r} read from {recorded_source['cluster']} ({recorded_source['system']}), "
            f"not from {source['cluster']} ({source['system']})"
        )
    if removed := sorted(set(recorded_source["topics"]) - set(source["topics"])):
        return f"route {name!r} also read {', '.join(map(repr, removed))}, which the configuration no longer names"
    if recorded["to"] != current["to"]:
        return f"route {name!r} wrote to {_describe_targets(recorded)}, not to {_describe_targets(current)}"
    return ""


def _describe_targets(route: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{target['cluster']}/{target['topic']} (partitions by {target['partitions']['by']})" for target in route["to"]
    )


def _for_pyarrow(url: str) -> str:
    """Return the URL with the scheme `s3`, as pyarrow calls it, in place of Hadoop's `s3a` or `s3n`."""
    scheme, separator, path = url.partition("://")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}{separator}{path}"


def _local_path(location: str) -> Path | None:
    """Return the path of a folder that is a path or a `file` URL; None for other URLs."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in location else Path(location).absolute()
