"""A real TubeMQ cluster, Master and Broker 2.4.0, on loopback with temporary data.

The cluster is ready when the Master reports that every topic accepts publish and subscribe, and when the Broker accepts
connections. Topics are created before the Broker starts (`topics`, and a pool of unused topics for `take_topic`), or added
later, which takes three heartbeats of the Broker (1.3 s).
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.kit.guard import guard
from tests.kit.maven import java
from tests.kit.process import HOST, LESS_COMPILING, JavaProcess, accepts
from tests.kit.started import Started
from tests.kit.tubemq_admin import STORE_SETTINGS, Admin
from tests.kit.tubemq_jars import server_jars
from tests.kit.tubemq_settings import SEGMENTS, Locks, Settings

MASTER_JVM = ["-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", *LESS_COMPILING]
MASTER_MAIN = str(Path(__file__).with_name("QuickMaster.java"))
BROKER_JVM = ["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=1g"]
BROKER_MAIN = "org.apache.inlong.tubemq.server.tools.BrokerStartup"
# Number of unused topics created at the start, by number of partitions.
POOL = {1: 8, 3: 8, 8: 8}
# Number of topics that `take_topic` creates at once when the pool is empty.
REFILL = 4
# Every 10 s the Broker writes its caches to files, except caches that it created or wrote less than 4 s ago. The time of the last
# message does not matter: a cache may be written between two sends, and a get from the file then ends between the two messages.
STORED_TIMEOUT_S = 60.0
INDEX_ENTRY_BYTES = 28


class TubeMQ(Started):
    """Master and Broker; `start()` and `stop()`, or `with`.

    `master` and `broker` are JavaProcess objects; they can be started, stopped, killed, frozen and restarted separately.
    By default (`memory_store=True`) the Broker acknowledges a message when it is in memory. For up to 14 s a kill can then lose
    it; `wait_stored` waits until it is in a file. With False the Broker writes each message to a file first.
    `store_settings` are parameters of admin_add_broker_configure, `segments` the sizes of the Broker's files. `locks` and `users`
    are those of `tubemq_locked`.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        pool: Mapping[int, int] = POOL,
        memory_store: bool = True,
        store_settings: Mapping[str, object] = STORE_SETTINGS,
        segments: Mapping[str, object] = SEGMENTS,
        locks: Locks | None = None,
        users: Path | None = None,
    ) -> None:
        self._topics = dict(topics or {})
        self._numbers = itertools.count(1)
        self._pool = {partitions: self._fresh_names(partitions, count) for partitions, count in pool.items()}
        self._topics |= {name: partitions for partitions, names in self._pool.items() for name in names}
        self._lock = threading.RLock()
        self._store_settings = dict(store_settings)
        jars = server_jars()
        self.folder = Path(tempfile.mkdtemp(prefix="mqbridge-tubemq-"))
        guard().folder(self.folder)
        self._settings = Settings(self.folder, memory_store=memory_store, segments=segments, locks=locks)
        self._admin = Admin(self._settings)
        classpath = [f"-Dlog4j2.configurationFile={self._settings.log4j}", "-cp", f"{jars}/*"]
        verifying = [f"-Dmqbridge.users={users}"] if users else []
        master = [str(java()), *MASTER_JVM, *verifying, *classpath, MASTER_MAIN, "-f", str(self._settings.master_ini)]
        broker = [str(java()), *BROKER_JVM, *classpath, BROKER_MAIN, "-f", str(self._settings.broker_ini)]
        self.master = JavaProcess("tubemq-master", master, self.folder, self._master_ready)
        self.broker = JavaProcess("tubemq-broker", broker, self.folder, self._broker_ready)

    @property
    def servers(self) -> list[JavaProcess]:
        """The processes of the cluster."""
        return [self.master, self.broker]

    @property
    def masters(self) -> str:
        """Master addresses for clients, HOST:PORT."""
        return f"{HOST}:{self._settings.master}"

    @property
    def keys(self) -> dict[str, Any]:
        """Further options of clients, `tls` and `auth`; empty for a cluster that is not locked."""
        return {}

    @property
    def broker_port(self) -> int:
        """RPC port of the Broker."""
        return self._settings.broker

    @property
    def admin_url(self) -> str:
        """URL of the Master's admin API."""
        return self._admin.master_url

    @property
    def broker_admin_url(self) -> str:
        """URL of the Broker's admin API."""
        return self._admin.broker_url

    @property
    def topics(self) -> dict[str, int]:
        """All topics, including the pool, with their number of partitions."""
        return dict(self._topics)

    def start(self) -> None:
        """Start both servers with all topics, and wait until they are ready."""
        self.master.start()
        self._admin.add_broker(self._store_settings)
        self._admin.add_topics(self._topics)
        self.broker.start()

    def stop(self) -> None:
        """Stop both servers with SIGTERM, the Broker first (it needs 4 s or more), and remove the data."""
        self.broker.stop()
        self.master.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill both servers and remove the data. This is faster than `stop`."""
        self.broker.kill()
        self.master.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self) -> None:
        """Stop both servers with SIGTERM, and start them again with the same ports and data."""
        self.broker.stop()
        self.master.restart()
        self.broker.start()

    def restart_broker(self, away_s: float = 0.0) -> None:
        """Restart the Broker in order, as an upgrade does. It writes its memory to files before it ends."""
        self.broker.restart_in_order(away_s)

    def kill_broker_when_stored(self, *topics: str) -> None:
        """Kill the Broker when all acknowledged messages of these topics are in files. Nobody may send meanwhile."""
        for topic in topics:
            self.wait_stored(topic)
        self.broker.kill()

    def add_topic(self, name: str, partitions: int = 1) -> None:
        """Add a topic and wait until it accepts messages."""
        self.add_topics({name: partitions})

    def add_topics(self, topics: Mapping[str, int]) -> None:
        """Add topics (name -> partitions) at once, and wait until all accept messages."""
        with self._lock:
            self._admin.add_topics(topics)
            self._admin.reload()
            self._topics |= topics
        self.broker.wait_until(lambda: self._serves(topics), f"serving {', '.join(topics)}")

    def take_topic(self, partitions: int = 1) -> str:
        """Return the name of an unused topic."""
        with self._lock:
            names = self._pool.setdefault(partitions, [])
            if not names:
                names += self._fresh_names(partitions, REFILL)
                self.add_topics(dict.fromkeys(names, partitions))
            return names.pop()

    def message_count(self, topic: str) -> int:
        """Return the number of messages that the Broker has ever accepted for a topic, from the end of its index."""
        return self._admin.index_bytes(topic) // INDEX_ENTRY_BYTES

    def wait_stored(self, topic: str) -> None:
        """Wait until all acknowledged messages of a topic are in files, so that a kill cannot lose them."""
        self.broker.wait_until(
            lambda: self._filed_bytes(topic) == self._admin.index_bytes(topic), f"storing {topic}", STORED_TIMEOUT_S
        )

    def admin(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call the Master's admin API, with the token. Raises ClusterError if the call or one of its entries is rejected."""
        return self._admin.master(method, **parameters)

    def broker_admin(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call the Broker's admin API. Raises ClusterError if the call is rejected."""
        return self._admin.broker(method, **parameters)

    def _fresh_names(self, partitions: int, count: int) -> list[str]:
        return [f"pool_{partitions}p_{number:03}" for number in itertools.islice(self._numbers, count)]

    def _master_ready(self) -> bool:
        """Return True if the Master is the leader and, if the Broker runs, its topics accept messages again."""
        return self._admin.leads() and (not self.broker.running or self._broker_ready())

    def _broker_ready(self) -> bool:
        return accepts(self._settings.broker) and self._serves(self._topics)

    def _serves(self, topics: Iterable[str]) -> bool:
        return self._admin.settled() and self._admin.open_topics().issuperset(topics)

    def _filed_bytes(self, topic: str) -> int:
        """Return the end offset of a topic's index files. The name of a file is the offset of its first byte."""
        stores = self._settings.store.glob(f"{topic}-*/index")
        last = (max(store.glob("*.index"), default=None) for store in stores)
        return sum(int(file.stem) + file.stat().st_size for file in last if file)
