"""Java options, standalone.conf and log configuration of the Pulsar standalone server."""

from __future__ import annotations

from collections.abc import Mapping

from tests.kit.process import HOST

VERSION = "4.0.8"
MAIN = "org.apache.pulsar.PulsarStandaloneStarter"

LOG4J = """<Configuration>
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""

OPENED = [
    "java.base/java.io", "java.base/java.util.zip", "java.base/java.nio", "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform", "java.management/sun.management", "jdk.management/com.sun.management.internal",
]  # fmt: skip
PROPERTIES = {
    "io.netty.tryReflectionSetAccessible": "true",
    "java.net.preferIPv4Stack": "true",
    "pulsar.allocator.exit_on_oom": "true",
    "log4j.shutdownHookEnabled": "false",
    "log4j2.is.webapp": "false",
    "log4j.configurationFile": "log4j2.xml",
    "bookkeeper.metadata.bookie.drivers": "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
    "bookkeeper.metadata.client.drivers": "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
}

SETTINGS: dict[str, object] = {
    "clusterName": "standalone",
    "metadataStoreUrl": "",
    "configurationMetadataStoreUrl": "",
    "bindAddress": HOST,
    "advertisedAddress": HOST,
    "loadBalancerEnabled": "false",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
    "webSocketServiceEnabled": "false",
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    "bookkeeperClientMinNumRacksPerWriteQuorum": 1,
    # Acknowledged positions are stored once per second. With the default of 0.1, a kill causes a redelivery of 10 s of messages.
    "managedLedgerDefaultMarkDeleteRateLimit": 1,
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    # Otherwise topics without clients are deleted after a minute.
    "brokerDeleteInactiveTopicsEnabled": "false",
    "numIOThreads": 2,
    "numOrderedExecutorThreads": 2,
    "managedLedgerCacheSizeMB": 64,
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "allowLoopback": "true",
    "journalSyncData": "false",
    "journalMaxGroupWaitMSec": 1,
    "nettyMaxFrameSizeBytes": 5253120,
    "diskUsageThreshold": 0.99,
    "diskUsageWarnThreshold": 0.99,
    "flushInterval": 60000,
    "gcWaitTime": 300000,
    "dbStorage_writeCacheMaxSizeMb": 64,
    "dbStorage_readAheadCacheMaxSizeMb": 32,
}


def standalone_conf(port: int, web_port: int, changes: Mapping[str, object]) -> str:
    """Return the text of standalone.conf; `changes` override SETTINGS."""
    return properties_text({**SETTINGS, "brokerServicePort": port, "webServicePort": web_port, **changes})


def properties_text(settings: Mapping[str, object]) -> str:
    """Return settings in the format of the servers' files."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def jvm(heap_mb: int) -> list[str]:
    """Return the options of the JVM. Direct memory may be as large as the heap."""
    sizes = ["-Xms128m", f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={heap_mb}m", "-XX:+UseSerialGC"]
    opened = [word for package in OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
    return [*sizes, *opened, *(f"-D{name}={value}" for name, value in PROPERTIES.items())]
