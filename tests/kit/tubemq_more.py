"""Further servers for a TubeMQ cluster of the kit: a Broker that joins a running cluster, and standby Masters.

They use the settings of the cluster's first Broker or Master, with other ids, ports and folders.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.kit.process import HOST, JavaProcess, accepts, free_ports
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_admin import STORE_SETTINGS
from tests.kit.tubemq_settings import TLS_PORT

SECOND_HOST = "127.0.0.2"
"""Address of the second Broker. A Master identifies Brokers by their addresses, so each needs its own."""


def _changed(text: str, **values: object) -> str:
    """Return the text of a settings file with other values. Each name must already be in the file."""
    for name, value in values.items():
        text, replaced = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", text)
        assert replaced, f"the settings have no {name}"
    return text


class SecondBroker:
    """A second Broker of a running cluster, with id `number`."""

    def __init__(self, cluster: TubeMQ, number: int = 2) -> None:
        self.id, self._cluster = number, cluster
        self.port, self._web, metrics = free_ports(3)
        first = Path(cluster.broker.argv[-1])
        settings = cluster.folder / f"broker{number}.ini"
        store = cluster.folder / f"store{number}"
        store.mkdir()
        settings.write_text(
            _changed(
                first.read_text(), brokerId=number, port=self.port, webPort=self._web, primaryPath=store, promHttpPort=metrics
            )
        )
        settings.write_text(_changed(settings.read_text(), hostName=SECOND_HOST))
        argv = [*cluster.broker.argv[:-1], str(settings)]
        self.process = JavaProcess(f"tubemq-broker{number}", argv, cluster.folder, self._ready)

    def start(self) -> None:
        """Register the Broker at the Master, put it online, start it, and wait until it is ready."""
        self._cluster.admin(
            "admin_add_broker_configure",
            brokerId=self.id,
            brokerIp=SECOND_HOST,
            brokerPort=self.port,
            brokerTLSPort=TLS_PORT,
            brokerWebPort=self._web,
            createUser="tests",
            **STORE_SETTINGS,
        )
        self._cluster.admin("admin_online_broker_configure", brokerId=self.id, modifyUser="tests")
        self.process.start()

    def add_topic(self, topic: str, partitions: int) -> None:
        """Deploy a topic on this Broker too, and wait until it accepts messages."""
        self._cluster.admin(
            "admin_add_new_topic_record", topicName=topic, brokerId=self.id, numPartitions=partitions, createUser="tests"
        )
        self._cluster.admin("admin_reload_broker_configure", brokerId=self.id, modifyUser="tests")
        self.process.wait_until(lambda: self._serves(topic), f"serving {topic}")

    def close_topic(self, topic: str, **accepts_what: bool) -> None:
        """Change `acceptPublish` and `acceptSubscribe` of the topic at this Broker."""
        self._cluster.admin("admin_modify_topic_info", topicName=topic, brokerId=self.id, modifyUser="tests", **accepts_what)
        self._cluster.admin("admin_reload_broker_configure", brokerId=self.id, modifyUser="tests")

    def make_read_only(self) -> None:
        """Let the Broker accept no messages of any topic."""
        self._cluster.admin(
            "admin_set_broker_read_or_write", brokerId=self.id, acceptPublish=False, acceptSubscribe=True, modifyUser="tests"
        )

    def kill(self) -> None:
        """Kill the Broker."""
        self.process.kill()

    def _ready(self) -> bool:
        status = self._cluster.admin("admin_query_broker_run_status", brokerId=self.id)["data"]
        return accepts(self.port) and bool(status) and (status[0]["runStatus"], status[0]["subStatus"]) == ("running", "idle")

    def _serves(self, topic: str) -> bool:
        entries = self._cluster.admin("admin_query_topic_info", topicName=topic)["data"]
        infos = [info for entry in entries for info in entry["topicInfo"] if info["brokerId"] == self.id]
        return self._ready() and bool(infos) and infos[0]["runInfo"]["acceptPublish"] is True


class StandbyMasters:
    """Two Masters in addition to a cluster's first; the three elect a leader by majority. Start them before the Broker."""

    def __init__(self, cluster: TubeMQ) -> None:
        self._cluster = cluster
        first = Path(cluster.master.argv[-1])
        text = first.read_text()
        self.processes: list[JavaProcess] = []
        self.addresses = [cluster.masters]
        self._webs: dict[str, int] = {}
        for number in (2, 3):
            port, web, node, metrics = free_ports(4)
            metadata = cluster.folder / f"metadata{number}"
            metadata.mkdir()
            settings = cluster.folder / f"master{number}.ini"
            settings.write_text(
                _changed(
                    text,
                    port=port,
                    webPort=web,
                    repNodeName=f"node{number}",
                    repNodePort=node,
                    metaDataPath=metadata,
                    promHttpPort=metrics,
                )
            )
            argv = [*cluster.master.argv[:-1], str(settings)]
            self.processes.append(JavaProcess(f"tubemq-master{number}", argv, cluster.folder, lambda port=port: accepts(port)))  # type: ignore[misc]
            self.addresses.append(f"{HOST}:{port}")
        broker = Path(cluster.broker.argv[-1])
        broker.write_text(_changed(broker.read_text(), masterAddressList=",".join(self.addresses)))

    def start(self) -> None:
        """Start both Masters. The first Master must already run."""
        for process in self.processes:
            process.start()

    def kill(self) -> None:
        """Kill both Masters."""
        for process in self.processes:
            process.kill()
