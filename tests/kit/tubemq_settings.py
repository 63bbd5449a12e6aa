"""Settings, web templates and log configuration of the TubeMQ servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.kit.process import HOST, free_ports

BROKER_ID = 1
TOKEN = "mqbridge"  # confModAuthToken: required by admin calls that change the configuration
# Longer than 13 s, the default heartbeat interval of Java clients. A smaller value would not release the partitions of a dead
# consumer earlier, because the Broker's own lease is at least 20 s.
CONSUMER_TIMEOUT_MS = 15_000
CONSUMER_LEASE_MS = 20_000
# If a killed Broker returns within this time, its topics stay open.
BROKER_TIMEOUT_MS = 25_000
BALANCE_MS = 2_000
BROKER_HEARTBEAT_MS = 500

LOG4J = """<Configuration>
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
  <Loggers><Root level="info"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""
# The admin servlet formats each response with these templates; ours contain only the response.
TEMPLATES = ["templates/screen/webapi.vm", "templates/layout/webapi.vm"]


# Sizes of the files of a store. The retention deletes a file as a whole, when its last message is old enough.
SEGMENTS: Mapping[str, object] = {"maxSegmentSize": 256 << 20, "maxIndexSegmentSize": 22_020_096}
# Files of about 100 messages, and the shortest pause between two checks of the retention that a Broker accepts.
SHORT_SEGMENTS: Mapping[str, object] = {"maxSegmentSize": 20_000, "maxIndexSegmentSize": 2_800, "logClearupDurationMs": 60_000}

# The Broker reports this TLS port even without TLS, and the Master compares it. Without TLS, nothing listens on it.
TLS_PORT = 8124


@dataclass(frozen=True)
class Locks:
    """Additional settings of a locked cluster: those of the section of each server, and TLS settings."""

    master: str
    broker: str
    tls: str
    """Settings of [tlsSetting] without the port; empty without TLS."""


class Settings:
    """Ports and settings files of one cluster. They do not change during its lifetime."""

    def __init__(
        self, folder: Path, *, memory_store: bool, segments: Mapping[str, object] = SEGMENTS, locks: Locks | None = None
    ) -> None:
        ports = free_ports(7)
        self.master, self.master_web, self.broker, self.broker_web, metadata, *metrics = ports
        self._locks, self._segments = locks, segments
        self.master_tls, self.broker_tls = free_ports(2) if locks and locks.tls else (0, TLS_PORT)
        self.log4j = folder / "log4j2.xml"
        self.log4j.write_text(LOG4J)
        self.master_ini = folder / "master.ini"
        self.master_ini.write_text(self._master(folder, metadata, metrics[0]))
        self.broker_ini = folder / "broker.ini"
        self.broker_ini.write_text(self._broker(folder, memory_store, metrics[1]))
        self.store = folder / "store"
        for made in (self.store, folder / "metadata"):
            made.mkdir()
        for name in TEMPLATES:
            template = folder / "web" / name
            template.parent.mkdir(parents=True)
            template.write_text("$!sb")

    def _master(self, folder: Path, metadata: int, metrics: int) -> str:
        """Return the settings of the Master. Its metadata is in the embedded store (meta_bdb), a group of one node."""
        return f"""[master]
hostName={HOST}
port={self.master}
webPort={self.master_web}
consumerBalancePeriodMs={BALANCE_MS}
consumerHeartbeatTimeoutMs={CONSUMER_TIMEOUT_MS}
producerHeartbeatTimeoutMs=45000
brokerHeartbeatTimeoutMs={BROKER_TIMEOUT_MS}
confModAuthToken={TOKEN}
webResourcePath={folder}/web
{self._locks.master if self._locks else ""}
{self._tls(self.master_tls)}
[meta_bdb]
repGroupName=mqbridge
repNodeName=node1
repNodePort={metadata}
repHelperHost={HOST}:{metadata}
metaDataPath={folder}/metadata

{_metrics(metrics)}"""

    def _broker(self, folder: Path, memory_store: bool, metrics: int) -> str:
        """Return the settings of the Broker. 10 s is the minimum of logFlush…DurMs, the interval for writing caches."""
        segments = "\n".join(f"{name}={value}" for name, value in self._segments.items())
        return f"""[broker]
brokerId={BROKER_ID}
hostName={HOST}
port={self.broker}
webPort={self.broker_web}
masterAddressList={HOST}:{self.master}
primaryPath={folder}/store
{segments}
transferSize=524288
consumerRegTimeoutMs={CONSUMER_LEASE_MS}
heartbeatPeriodMs={BROKER_HEARTBEAT_MS}
logFlushMemDurMs=10000
logFlushDiskDurMs=10000
enableMemStore={str(memory_store).lower()}
{self._locks.broker if self._locks else ""}
{self._tls(self.broker_tls)}
{_metrics(metrics)}"""

    def _tls(self, port: int) -> str:
        return f"[tlsSetting]\ntlsEnable=true\ntlsPort={port}\n{self._locks.tls}\n" if self._locks and self._locks.tls else ""


def _metrics(port: int) -> str:
    """Return the settings of the metrics listener. Even if it is disabled, a server opens it, by default on port 9081."""
    return f"[prometheus]\npromEnable=true\npromHttpPort={port}\n"
