"""A real Pulsar cluster of two brokers, a ZooKeeper and a bookie. Each is a process that can be killed separately.

The brokers have the settings of the standalone server. Load is not balanced: the leader assigns each bundle of topics to a broker
at the first lookup, and it stays there until it is unloaded.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.kit.guard import guard
from tests.kit.maven import java
from tests.kit.process import HOST, START_TIMEOUT_S, ClusterError, JavaProcess, accepts, free_ports
from tests.kit.pulsar import server_folder
from tests.kit.pulsar_settings import LOG4J, SETTINGS, jvm, properties_text
from tests.kit.started import Started
from tests.kit.web import call

CLUSTER = "two"
BROKERS = 2
SESSION_MS = 4000
"""Timeout of a ZooKeeper session: a killed broker owns its topics until its session expires."""

ZOOKEEPER_SETTINGS = {"tickTime": 1000, "clientPortAddress": HOST, "admin.enableServer": "false", "maxClientCnxns": 0}
BOOKIE_NAMES = (
    "allowLoopback", "journalSyncData", "journalMaxGroupWaitMSec", "nettyMaxFrameSizeBytes", "diskUsageThreshold",
    "diskUsageWarnThreshold", "flushInterval", "gcWaitTime", "ledgerStorageClass", "dbStorage_writeCacheMaxSizeMb",
    "dbStorage_readAheadCacheMaxSizeMb",
)  # fmt: skip
"""Names of those settings of the standalone server that belong to its bookie."""


class Broker:
    """Process and addresses of one broker."""

    def __init__(self, server: JavaProcess, port: int, web_port: int) -> None:
        self.server, self.port, self.web_port = server, port, web_port

    @property
    def service_url(self) -> str:
        """Service URL for clients."""
        return f"pulsar://{HOST}:{self.port}"

    @property
    def admin_url(self) -> str:
        """Base of the admin REST API."""
        return f"http://{HOST}:{self.web_port}"

    @property
    def id(self) -> str:
        """Name of the broker in the cluster, for the parameter `destinationBroker` of an unload."""
        return f"{HOST}:{self.web_port}"


class PulsarCluster(Started):
    """The cluster. Each of `brokers` can be killed and started again separately."""

    def __init__(self, *, heap_mb: int = 256) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mqbridge-pulsar-cluster-"))
        guard().folder(self.folder)
        (self.folder / "log4j2.xml").write_text(LOG4J)
        self._java = [str(java()), *jvm(heap_mb), "-cp", f"{self.folder}:{server_folder() / 'lib'}/*"]
        self._zookeeper_port, self._bookie_port, *ports = free_ports(2 + 2 * BROKERS)
        self.zookeeper = self._process(
            "zookeeper",
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            {**ZOOKEEPER_SETTINGS, "clientPort": self._zookeeper_port, "dataDir": self.folder / "zookeeper"},
            port=self._zookeeper_port,
        )
        self.bookie = self._process(
            "bookie",
            "org.apache.bookkeeper.server.Main",
            {
                **{name: SETTINGS[name] for name in BOOKIE_NAMES},
                "bookiePort": self._bookie_port,
                "listeningInterface": "lo",
                "advertisedAddress": HOST,
                "metadataServiceUri": f"metadata-store:{self._store}",
                "journalDirectory": self.folder / "journal",
                "ledgerDirectories": self.folder / "ledgers",
                "httpServerEnabled": "false",
            },
            "--conf",
            port=self._bookie_port,
        )
        self.brokers = [self._broker(index, *ports[2 * index : 2 * index + 2]) for index in range(BROKERS)]

    @property
    def _store(self) -> str:
        return f"zk:{HOST}:{self._zookeeper_port}"

    @property
    def servers(self) -> list[JavaProcess]:
        """The processes of the cluster."""
        return [self.zookeeper, self.bookie, *(broker.server for broker in self.brokers)]

    @property
    def service_url(self) -> str:
        """Service URL with all brokers; a client uses the first one that responds."""
        return "pulsar://" + ",".join(f"{HOST}:{broker.port}" for broker in self.brokers)

    def start(self) -> None:
        """Start all processes and wait until both brokers are ready."""
        self.zookeeper.start()
        self._set_up()
        self.bookie.start()
        with ThreadPoolExecutor(BROKERS) as pool:
            list(pool.map(lambda broker: broker.server.start(), self.brokers))

    def kill(self) -> None:
        """Kill all processes and remove the data."""
        for server in reversed(self.servers):
            server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def admin(self, method: str, path: str, body: Any = None, *, broker: int = 0) -> tuple[int, Any]:
        """Call a broker's admin REST API with a path below /admin/v2; return the status and the parsed response.

        Redirects are not followed.
        """
        status, text = call(f"{self.brokers[broker].admin_url}/admin/v2/{path}", method=method, body=body)
        return status, json.loads(text) if text and status < 300 else text

    def _set_up(self) -> None:
        """Write the initial metadata of the cluster, with a program of Pulsar."""
        store = self._store
        first = self.brokers[0]
        argv = [
            *self._java, "org.apache.pulsar.PulsarClusterMetadataSetup", "--cluster", CLUSTER, "--metadata-store", store,
            "--configuration-metadata-store", store, "--web-service-url", first.admin_url,
            "--broker-service-url", first.service_url,
        ]  # fmt: skip
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
        if done.returncode:
            raise ClusterError(f"the cluster's metadata could not be written: {done.stdout[-3000:]}{done.stderr[-3000:]}")

    def _broker(self, index: int, port: int, web_port: int) -> Broker:
        settings = {name: value for name, value in SETTINGS.items() if name not in BOOKIE_NAMES}
        settings |= {
            "clusterName": CLUSTER,
            "metadataStoreUrl": self._store,
            "configurationMetadataStoreUrl": self._store,
            "metadataStoreSessionTimeoutMillis": SESSION_MS,
            "brokerServicePort": port,
            "webServicePort": web_port,
            "loadBalancerEnabled": "true",
            "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
            # Messages that neither a subscription nor retention keeps are deleted at once instead of within two minutes.
            "retentionCheckIntervalInSeconds": 1,
            "loadBalancerSheddingEnabled": "false",
            "loadBalancerAutoBundleSplitEnabled": "false",
            # A broker releases its bundles one by one during shutdown. Tests kill it anyway.
            "brokerShutdownTimeoutMs": 5000,
        }
        server = self._process(
            f"broker-{index}",
            "org.apache.pulsar.PulsarBrokerStarter",
            settings,
            "--broker-conf",
            ready=lambda: call(f"http://{HOST}:{web_port}/admin/v2/brokers/health") == (200, "ok"),
        )
        return Broker(server, port, web_port)

    def _process(
        self, name: str, main: str, settings: dict[str, object], *options: str, port: int = 0, ready: Any = None
    ) -> JavaProcess:
        file = self.folder / f"{name}.conf"
        file.write_text(properties_text(settings))
        return JavaProcess(name, [*self._java, main, *options, file.name], self.folder, ready or (lambda: accepts(port)))
