"""Runs the listeners of a gateway: binds their ports, starts them once their clusters are connected, and closes them.

A listener whose clusters are unreachable at the start keeps its ports bound, and starts when they are reached, as routes do.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import Adapter
from mqbridge.config.options.config import Config
from mqbridge.config.options.listener import ListenerConfig, is_loopback
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import ClusterError, ConfigError, MqbridgeError
from mqbridge.gateway.clusters import make_clusters
from mqbridge.gateway.listener_settings import settings_of
from mqbridge.groups.store import GroupStore
from mqbridge.listener.listener import Listener, ListenerState
from mqbridge.listener.server import ServedSystem, load_servers
from mqbridge.net.backoff import Backoff
from mqbridge.net.tasks import cancel, spawn
from mqbridge.routes.closing import close_by_deadline

log = logging.getLogger(__name__)

MIN_START_PAUSE_S, MAX_START_PAUSE_S = 0.5, 30.0
"""Minimum and maximum pause between two attempts to start a listener whose clusters are connected."""
_WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
"""Hosts that stand for all addresses of the machine."""


def group_store_path(state: Path) -> Path:
    """Return the path of the file with the state of groups: beside the state file, whose lock guards both.

    Links are resolved, as for the lock: so it is one file for all links to the state file.
    """
    resolved = Path(os.path.realpath(state))
    return resolved.with_name(f"{resolved.name}.groups")


def member_name() -> str:
    """Return the name by which operators see this gateway among the members of a group."""
    return f"mqbridge-{socket.gethostname()}-{os.getpid()}"


class ListenerRunner:
    """One listener of a gateway. Call `bind`, then `run` in a task, and `close` at the end."""

    def __init__(
        self,
        config: ListenerConfig,
        listener: Listener,
        wait_connected: Callable[[], Awaitable[object]],
        connect_error: Callable[[], MqbridgeError | None],
        on_serving: "Callable[[ListenerRunner], None]",
    ) -> None:
        """`wait_connected` waits until all its clusters are connected, and `connect_error` returns why one is not.

        `on_serving` is called when it serves clients.
        """
        self.config, self.listener = config, listener
        self._wait_connected, self._connect_error, self._on_serving = wait_connected, connect_error, on_serving
        self._error: MqbridgeError | None = None
        """Why it could not be started, or bound again."""
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        settings = listener.settings
        self.address = _address_text(settings.host, settings.port)
        """The address at which clients connect: HOST:PORT, from `bind` on with the bound port."""
        self.web_address = None if settings.web is None else _address_text(*settings.web)
        """The address of the HTTP interface, in the same form; None if it is not served."""

    @property
    def name(self) -> str:
        """The listener's name."""
        return self.config.name

    @property
    def state(self) -> ListenerState:
        """The listener's state."""
        return self.listener.state

    @property
    def problem(self) -> str | None:
        """Why it does not serve clients; None while it does."""
        if self.state is ListenerState.SERVING:
            return None
        if (error := self._error or self._connect_error()) is not None:
            return str(error)
        return "it is starting" if self.state is ListenerState.BOUND else f"it is {self.state.value}"

    def bind(self) -> None:
        """Bind the ports, and warn if other machines can reach them. Raises ConfigError."""
        self.listener.bind()
        settings = self.listener.settings
        self.address = _address_text(settings.host, self.listener.port.port)
        if settings.web is not None and self.listener.web_port is not None:
            self.web_address = _address_text(settings.web[0], self.listener.web_port.port)
        for host in {settings.host, *(() if settings.web is None else (settings.web[0],))}:
            if not is_loopback(host):
                log.warning(
                    "listener %s is OPEN: it accepts everybody who can reach %s, because listeners do not authenticate; whoever "
                    "connects may read and write all its topics%s",
                    self.name,
                    host,
                    ", and delete them (manage: true)" if settings.manage else "",
                )

    def keep_problem(self, error: MqbridgeError) -> None:
        """Show this error as the reason why it does not serve clients."""
        self._error = error

    async def start(self) -> None:
        """Serve clients now. Raises ClusterError."""
        await self.listener.start()
        self._error = None
        self._on_serving(self)

    def run_in_task(self) -> None:
        """Start a task that serves clients once all clusters are connected; does nothing if they are served."""
        if self.state is ListenerState.BOUND:
            self._task = spawn(self._run(), f"listener {self.name}")

    async def _run(self) -> None:
        """Wait until the clusters are connected, and start; retry after every error."""
        if (error := self._connect_error()) is not None:
            log.info("listener %s is bound to %s and waits for its clusters: %s", self.name, self.address, error)
        await self._wait_connected()
        pauses = Backoff(MIN_START_PAUSE_S, MAX_START_PAUSE_S)
        while True:
            try:
                await self.start()
            except MqbridgeError as error:
                level = logging.DEBUG if self._error is not None else logging.WARNING  # only the first failure is logged
                self._error = error
            except Exception as bug:  # a bug of a server must not leave the listener waiting for ever
                level = logging.ERROR
                log.exception("listener %s cannot start because of an unexpected error", self.name)
                self._error = ClusterError(f"starting failed with an unexpected error: {bug!r}")
            else:
                return
            delay = pauses.delay()
            log.log(level, "listener %s cannot start, trying again in %.1f s: %s", self.name, delay, self._error)
            await asyncio.sleep(delay)

    async def close(self, deadline: float | None) -> None:
        """Send clients away and release everything, by the deadline (loop time). It may be called again, and then waits too."""
        if self._closing is None:
            self._closing = spawn(self._close(deadline), f"close of listener {self.name}")
        await asyncio.shield(self._closing)

    async def _close(self, deadline: float | None) -> None:
        await cancel(self._task)
        if deadline is None:
            deadline = asyncio.get_running_loop().time()
        try:
            await close_by_deadline(deadline, f"listener {self.name}", self.listener.close(deadline))
        except Exception:  # the others still have to be closed
            log.exception("listener %s could not be closed in order", self.name)

    def shares_address(self, others: "Iterable[ListenerRunner]") -> bool:
        """Return True if it cannot be bound before one of these is closed."""
        return any(
            port == other_port != 0 and (host == other_host or bool(_WILDCARDS & {host, other_host}))
            for host, port in _addresses(self)
            for other in others
            for other_host, other_port in _addresses(other)
        )


def check_numbers(config: ListenerConfig, system: ServedSystem, cluster: Cluster) -> None:
    """Raise ConfigError if the clients of a listener need numbers that the messages of its cluster do not have."""
    if system.needs_dense_numbers and not cluster.numbering.dense:
        raise ConfigError(
            f"clients of {system.system} number the messages of a queue one by one, and the positions of cluster "
            f"{cluster.name!r} do not count messages",
            path=f"listeners.{config.name}.cluster",
            hint="Choose a cluster whose positions are offsets, such as one of RocketMQ or an embedded log",
        )


def check_listeners(
    config: Config, adapters: Mapping[str, Adapter] | None = None, servers: Mapping[str, ServedSystem] | None = None
) -> None:
    """Raise ConfigErrors if a cluster cannot serve the clients of a listener; opens no connection.

    `adapters` and `servers` None mean all that are installed.
    """
    servers = load_servers() if servers is None else servers
    errors = []
    for listener in config.listeners:
        (cluster,) = make_clusters({listener.cluster: config.clusters[listener.cluster]}, adapters).values()
        try:
            check_numbers(listener, servers[listener.system], cluster)
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise ConfigErrors(errors)


def make_runner(
    config: ListenerConfig,
    whole: Config,
    clusters: Mapping[str, Cluster],
    adapters: Mapping[str, Adapter],
    servers: Mapping[str, ServedSystem],
    store: GroupStore | None,
    wait_connected: Callable[[Collection[str]], Awaitable[object]],
    error_of: Callable[[Iterable[str]], MqbridgeError | None],
    on_serving: Callable[[ListenerRunner], None],
) -> ListenerRunner:
    """Make the runner of a listener of the configuration `whole`. Raises ConfigError.

    `store` is the state of groups; None without a state file. `wait_connected` and `error_of`: see `InitialConnections`.
    """
    if config.groups == "own" and store is None:
        raise ConfigError(
            "`groups: own` needs the state file, and `state` takes effect only at a start",
            path=f"listeners.{config.name}.groups",
            hint="Restart the gateway",
        )
    system, letters = servers[config.system], clusters[config.dead_letter_cluster]
    check_numbers(config, system, clusters[config.cluster])
    settings = settings_of(
        config,
        system,
        uniform_groups=adapters[whole.clusters[config.cluster].system].uniform_groups,
        dead_letter_names=letters.capabilities.topic_name,
    )
    listener = Listener(settings, system, clusters[config.cluster], letters, store, member_name())
    return ListenerRunner(
        config,
        listener,
        lambda: wait_connected(config.clusters),
        lambda: error_of(config.clusters),
        on_serving,
    )


def _addresses(runner: ListenerRunner) -> list[tuple[str, int]]:
    settings = runner.listener.settings
    return [(settings.host, settings.port), *([] if settings.web is None else [settings.web])]


def _address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
