"""A real RocketMQ cluster, name servers and brokers 5.3.3 or 4.9.7, on loopback with temporary data.

A broker is ready when every name server knows it, which is later than its port is open, and when it has stored a message in
the topic BenchmarkTest, which it creates itself. Creating a topic takes milliseconds.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.kit import rocketmq_remoting as remoting
from tests.kit.guard import guard
from tests.kit.maven import java
from tests.kit.process import HOST, LESS_COMPILING, ClusterError, JavaProcess, free_ports, take_port
from tests.kit.rocketmq_lock import USERS, Lock, User
from tests.kit.rocketmq_remoting import NO_CREDENTIALS
from tests.kit.rocketmq_settings import (
    BROKER_MAIN,
    LOGBACK,
    LOGBACK_XML,
    NAME_SERVER_MAIN,
    OLD_LOGBACKS,
    OLD_VERSION,
    VERSION,
    broker_conf,
    jvm,
    name_server_conf,
    server_jars,
)
from tests.kit.started import Started

# The broker has a second listener, the fast or VIP port; its number is lower than the main port by this distance.
FAST_PORT_DISTANCE = 2
NAME_SERVER_HEAP_MB = 128
CONF = "server.conf"
# Every broker makes this topic when it starts.
PROBE_TOPIC = "BenchmarkTest"


class RocketMQ(Started):
    """Name servers and brokers; `start()` and `stop()`, or `with`.

    `broker` (the first of `brokers`) and `name_server_process` (the first of `name_server_processes`) are JavaProcess objects:
    they can be started, stopped, killed, frozen and restarted separately. Killing a broker loses no acknowledged message,
    because messages are in the page cache. A normal stop of a broker takes 15 s or more. `settings` override those of
    rocketmq_settings.py for every broker (names of broker.conf; a broker ignores unknown names). Pull limits have their
    defaults, 32 messages. With `locked`, every port requires TLS with a client certificate, and every request a signature;
    `lock` has the certificates and keys.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        brokers: int = 1,
        name_servers: int = 1,
        heap_mb: int = 512,
        version: str = VERSION,
        locked: bool = False,
        java_options: Sequence[str] = (),
    ) -> None:
        self.version, self._more_options = version, list(java_options)
        self._numbers = itertools.count(1)
        self._opened = False
        self._lock = threading.Lock()
        server_jars(version)
        self.folder = Path(tempfile.mkdtemp(prefix="mqbridge-rocketmq-"))
        guard().folder(self.folder)
        self.lock = Lock(self.folder / "certificates", version) if locked else None
        self.credentials = NO_CREDENTIALS if self.lock is None else self.lock.credentials()
        self.name_servers = [f"{HOST}:{port}" for port in free_ports(name_servers)]
        self.broker_addresses = [f"{HOST}:{port}" for port in _broker_ports(brokers)]
        self.broker_names = [f"broker-{letter}" for letter, _ in zip("abcdefgh", range(brokers), strict=False)]
        self.name_server_processes = [self._name_server(number) for number in range(name_servers)]
        self.brokers = [self._broker(number, settings or {}, heap_mb) for number in range(brokers)]

    @property
    def servers(self) -> list[JavaProcess]:
        """The processes of the cluster."""
        return [*self.name_server_processes, *self.brokers]

    @property
    def name_server(self) -> str:
        """HOST:PORT of the first name server."""
        return self.name_servers[0]

    @property
    def name_server_process(self) -> JavaProcess:
        """The first name server."""
        return self.name_server_processes[0]

    @property
    def broker(self) -> JavaProcess:
        """The first broker."""
        return self.brokers[0]

    @property
    def broker_address(self) -> str:
        """HOST:PORT of the first broker."""
        return self.broker_addresses[0]

    def start(self) -> None:
        """Start the name servers, then the brokers, and wait until all serve.

        The order matters: a broker that finds no name server when it starts retries only after 10 s.
        """
        self._start(self.name_server_processes)
        self._start(self.brokers)
        if self.lock is not None and not self._opened:
            self._opened = True
            if self.version != OLD_VERSION:
                for user in USERS:
                    self.open_for(user)

    def open_for(self, user: User) -> None:
        """Create or replace a user of a locked cluster, with these keys and permissions. 4.9 needs some seconds to notice."""
        assert self.lock is not None
        for broker, address in zip(self.brokers, self.broker_addresses, strict=True):
            self.lock.open_for(user, address, broker.folder)

    def wait_admitted(self, user: User) -> None:
        """Wait until every broker accepts the user's keys. The check is an empty heartbeat, which needs no rights."""
        assert self.lock is not None
        credentials, body = self.lock.credentials(user), b'{"clientID":"tests","consumerDataSet":[],"producerDataSet":[]}'
        for broker, address in zip(self.brokers, self.broker_addresses, strict=True):
            heartbeat = partial(remoting.request, address, remoting.HEART_BEAT, {}, body, credentials=credentials)
            broker.wait_until(lambda: heartbeat().status == remoting.SUCCESS, f"admitting {user.name}")  # noqa: B023

    def certificates(self) -> list[bytes]:
        """Return the certificates that the servers present now, name servers first."""
        return [remoting.certificate(address, self.credentials) for address in (*self.name_servers, *self.broker_addresses)]

    def stop(self) -> None:
        """Stop all servers with SIGTERM, the brokers first (15 s or more), and remove the data."""
        self._stop(self.brokers)
        self._stop(self.name_server_processes)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill all servers and remove the data. This is faster than `stop`."""
        for server in reversed(self.servers):
            server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self) -> None:
        """Stop all servers with SIGTERM, and start them again with the same ports and data."""
        self._stop(self.brokers)
        self._stop(self.name_server_processes)
        self.start()

    def kill_broker(self, number: int = 0) -> None:
        """Kill one broker. Its ports and data are kept."""
        self.brokers[number].kill()

    def restart_broker(self, number: int = 0, away_s: float = 0.0) -> None:
        """Restart one broker in order, as an upgrade does; only start it if it does not run."""
        self.brokers[number].restart_in_order(away_s)

    def create_topic(self, name: str, queues: int = 4, *, attributes: str = "") -> str:
        """Create or change a topic with this number of queues on each broker. Wait until all name servers know it.

        `attributes` are like `+message.type=FIFO,+cleanup.policy=COMPACTION`.
        """
        for address in self.broker_addresses:
            remoting.create_topic(address, name, queues, attributes, credentials=self.credentials)
        want = dict.fromkeys(self.broker_names, queues)
        self.broker.wait_until(lambda: all(self.queues(name, each) == want for each in self.name_servers), f"serving {name}")
        return name

    def take_topic(self, queues: int = 4) -> str:
        """Create a new topic with this number of queues on each broker, and return its name."""
        with self._lock:
            number = next(self._numbers)
        return self.create_topic(f"topic_{queues}q_{number:03}", queues)

    def queues(self, topic: str, name_server: str | None = None) -> dict[str, int]:
        """Return the number of write queues by broker name, from a name server; empty for an unknown topic."""
        route = remoting.route(name_server or self.name_server, topic, credentials=self.credentials) or {"queueDatas": []}
        return {entry["brokerName"]: entry["writeQueueNums"] for entry in route["queueDatas"]}

    def send(
        self, topic: str, body: bytes, *, queue: int = 0, properties: Mapping[str, str] | None = None, broker: int = 0
    ) -> int:
        """Store one message in an existing topic, and return its queue offset."""
        address = self.broker_addresses[broker]
        answer = remoting.send(address, topic, body, queue=queue, properties=properties, credentials=self.credentials)
        if answer.status != remoting.SUCCESS:
            raise ClusterError(f"{self.brokers[broker].name} refused a message for {topic}: {answer.status} {answer.remark}")
        return int(answer.fields["queueOffset"])

    def message_count(self, topic: str) -> int:
        """Return the number of messages in the queues of a topic; see `settle`."""
        return sum(
            self._offset(remoting.GET_MAX_OFFSET, broker, topic, queue)
            - self._offset(remoting.GET_MIN_OFFSET, broker, topic, queue)
            for broker, queues in self.queues(topic).items()
            for queue in range(queues)
        )

    def settle(self) -> None:
        """Wait until stored messages are in the topic's queues, where offsets, pulls and starts at the end include them."""
        for broker, address in zip(self.brokers, self.broker_addresses, strict=True):
            if broker.running:
                broker.wait_until(partial(self._indexed, address), "putting messages into queues")

    def configure(self, settings: Mapping[str, object]) -> None:
        """Change settings of every broker while it runs; most take effect at once."""
        body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        for address in self.broker_addresses:
            remoting.call(address, remoting.UPDATE_BROKER_CONFIG, body=body, credentials=self.credentials)

    def _indexed(self, address: str) -> bool:
        return remoting.unindexed(address, credentials=self.credentials) == 0

    def _offset(self, code: int, broker: str, topic: str, queue: int) -> int:
        address = self.broker_addresses[self.broker_names.index(broker)]
        return int(
            remoting.call(address, code, {"topic": topic, "queueId": queue}, credentials=self.credentials).fields["offset"]
        )

    def _home(self, name: str) -> Path:
        home = self.folder / name
        home.mkdir()
        (home / "conf").mkdir()
        for logback in (LOGBACK, *OLD_LOGBACKS):
            (home / logback).write_text(LOGBACK_XML)
        return home

    def _name_server(self, number: int) -> JavaProcess:
        name = f"rocketmq-name-server-{number}"
        home = self._home(name)
        (home / CONF).write_text(name_server_conf(_port(self.name_servers[number])))
        options, main = jvm(NAME_SERVER_HEAP_MB, home, self.version), NAME_SERVER_MAIN[self.version]
        argv = [str(java()), *options, *self._java_options(), *LESS_COMPILING, *main, "-c", CONF]
        return JavaProcess(name, argv, home, lambda: self._name_server_ready(number))

    def _broker(self, number: int, settings: Mapping[str, object], heap_mb: int) -> JavaProcess:
        name = f"rocketmq-{self.broker_names[number]}"
        home = self._home(name)
        port = _port(self.broker_addresses[number])
        if self.lock is not None:
            self.lock.prepare(home)
            settings = {**self.lock.broker_settings(), **settings}
        conf = broker_conf(self.broker_names[number], port, port + 1, self.name_servers, settings)
        (home / CONF).write_text(conf)
        argv = [str(java()), *jvm(heap_mb, home, self.version), *self._java_options(), *BROKER_MAIN[self.version], "-c", CONF]
        return JavaProcess(name, argv, home, lambda: self._broker_ready(number))

    def _java_options(self) -> list[str]:
        return self._more_options if self.lock is None else [*self.lock.java_options, *self._more_options]

    def _name_server_ready(self, number: int) -> bool:
        """Return True if the name server responds and all running brokers have registered with it."""
        known = self.queues(PROBE_TOPIC, self.name_servers[number])
        return all(name in known for name, broker in zip(self.broker_names, self.brokers, strict=True) if broker.running)

    def _broker_ready(self, number: int) -> bool:
        processes = zip(self.name_servers, self.name_server_processes, strict=True)
        asked = [address for address, process in processes if process.running]
        if not all(self.broker_names[number] in self.queues(PROBE_TOPIC, address) for address in asked):
            return False
        return (
            remoting.send(self.broker_addresses[number], PROBE_TOPIC, b"ready?", credentials=self.credentials).status
            == remoting.SUCCESS
        )

    def _start(self, servers: list[JavaProcess]) -> None:
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(JavaProcess.start, servers))

    def _stop(self, servers: list[JavaProcess]) -> None:
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(JavaProcess.stop, servers))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _broker_ports(count: int) -> list[int]:
    """Choose main ports of brokers whose fast port (two lower) and replication port (one higher) are free, too."""
    found: list[int] = []
    while len(found) < count:
        (port,) = free_ports(1)
        if take_port(port - FAST_PORT_DISTANCE) and take_port(port + 1):
            found.append(port)
    return found
