"""A listener as a process of its own, which is killed, suspended, stopped and started again at the same port.

The process runs this file: one listener over one cluster, without a configuration file. It stores the state of groups in its
folder, which survives the process. Its connections to the cluster, and those of clients to it, can go through
`tests/kit/tcp_proxy.py`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import uvloop

from mqbridge.adapter.registry import load_adapters
from mqbridge.groups.store import GroupStore
from mqbridge.listener.listener import Listener, ListenerSettings
from mqbridge.listener.server import load_servers
from tests.kit.guard import guard
from tests.kit.process import HOST, accepts, free_ports
from tests.kit.redirected import VARIABLE, RedirectedLoop
from tests.kit.tcp_proxy import Network

log = logging.getLogger(__name__)

REPOSITORY = Path(__file__).resolve().parents[2]
POLL_S = 0.05
START_TIMEOUT_S, STOP_TIMEOUT_S = 120.0, 60.0
DRAIN_S = 10.0
"""Time that the listener has to stop in order."""
TOPICS = {"pulsar": "persistent://public/default/{topic}", "rocketmq": "{topic}", "tubemq": "{topic}"}
"""Names of topics for clients, by the system that is served."""
RETRY_S = 0.5
"""Pause after a start that the cluster has refused."""


class ListenerOptions(NamedTuple):
    """What a listener of a test serves."""

    system: str
    """System of the cluster."""
    cluster: dict[str, Any]
    """Settings of the cluster in a configuration."""
    serves: str = "pulsar"
    """System whose clients it serves."""
    owns_groups: bool = False
    group: str = "{group}-{topic}"
    deduplicate: bool = False
    create_partitions: int | None = 4
    unacknowledged_span: int = 10_000
    parking: str = "mqbridge-app"
    """Begin of the names of topics in which messages wait."""


class ListenerProcess:
    """A process with one listener. As a context manager it is killed at the end."""

    def __init__(
        self,
        name: str,
        options: ListenerOptions,
        folder: Path,
        *,
        advertise: str | None = None,
        network: Network | None = None,
        checkout: Path | None = None,
    ) -> None:
        """`network` carries its connections to the cluster; `advertise` is the address of a proxy before it, see there."""
        (self.port,) = free_ports(1)
        self.name, self.options, self.folder = name, options, folder
        self.log = folder / "listener.log"
        self.advertise = advertise
        """The address that clients are told; may be set before `start`, because a proxy needs our port."""
        self._network, self._checkout = network, checkout
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """The service URL for Pulsar clients that connect directly."""
        return f"pulsar://{self.address}"

    @property
    def address(self) -> str:
        """HOST:PORT, which is what RocketMQ clients want of a name server."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the present process, or of the last one."""
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        """True if the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit code of the last process; None while it runs."""
        return None if self._process is None else self._process.poll()

    def text(self) -> str:
        """Return the log of all processes so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def start(self) -> None:
        """Start a process, and wait until it accepts connections. Raises AssertionError if it does not."""
        assert not self.runs, f"{self.name} runs already"
        settings = {**self.options._asdict(), "name": self.name, "port": self.port, "folder": str(self.folder)}
        root = self._checkout or REPOSITORY
        environment = {**os.environ, "PYTHONPATH": str(root)}
        if self._network is not None:
            environment[VARIABLE] = self._network.redirections
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.kit.listener", json.dumps({**settings, "advertise": self.advertise})],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=root,
                start_new_session=True,
            )
        guard().process(self._process.pid)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not accepts(self.port):
            assert self.runs, f"{self.name} ended when it was started:\n{self.text()[-6000:]}"
            assert time.monotonic() < deadline, f"{self.name} does not serve:\n{self.text()[-6000:]}"
            time.sleep(POLL_S)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> int:
        """Send SIGTERM, wait for the end, and return the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end after SIGTERM:\n{self.text()[-6000:]}") from None

    def freeze(self) -> None:
        """Send SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


async def serve(settings: dict[str, Any]) -> None:
    """Serve until SIGTERM, then stop in order."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    adapter = load_adapters()[settings["system"]]
    cluster = adapter.make_cluster("store", adapter.cluster_model(**settings["cluster"]))
    await cluster.connect()
    store = GroupStore(Path(settings["folder"], "groups.db"))
    listener = Listener(
        ListenerSettings(
            name="app",
            system=settings["serves"],
            host=HOST,
            port=settings["port"],
            web=None,
            advertise=settings["advertise"],
            cluster="store",
            topics=TOPICS[settings["serves"]],
            owns_groups=settings["owns_groups"],
            group=settings["group"],
            parking=settings["parking"],
            create_partitions=settings["create_partitions"],
            manage=True,
            deduplicate=settings["deduplicate"],
            dead_letter_cluster="store",
            dead_letter_topic="mqbridge-dead-app",
            connections=1000,
            in_flight_bytes=64 << 20,
            unacknowledged_bytes=32 << 20,
            unacknowledged_span=settings["unacknowledged_span"],
        ),
        load_servers()[settings["serves"]],
        cluster,
        cluster,
        store,
        settings["name"],
    )
    listener.bind()
    while not stop.is_set():
        try:
            await listener.start()
            break
        except Exception:
            log.exception("the listener cannot start yet")
            await asyncio.sleep(RETRY_S)
    await stop.wait()
    await listener.close(asyncio.get_running_loop().time() + DRAIN_S)
    await store.close()
    await cluster.close()


def main() -> None:
    """Run the listener whose settings are the argument."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with asyncio.Runner(loop_factory=RedirectedLoop if VARIABLE in os.environ else uvloop.new_event_loop) as runner:
        runner.run(serve(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
