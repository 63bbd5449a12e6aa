"""How the RocketMQ servers are run: jars, Java options, configuration files, log configuration.

Version 5.3.3 is the newest published server. Most applications still use 4.9; its newest version that is complete on Maven
Central is 4.9.7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kit.maven import cached, copy_dependencies
from tests.kit.process import HOST

VERSION = "5.3.3"
OLD_VERSION = "4.9.7"
CLUSTER = "DefaultCluster"
OLD_SERVERS = str(Path(__file__).with_name("OldServers.java"))
NAME_SERVER_MAIN = {VERSION: ["org.apache.rocketmq.namesrv.NamesrvStartup"], OLD_VERSION: [OLD_SERVERS, "namesrv"]}
BROKER_MAIN = {VERSION: [str(Path(__file__).with_name("QuickBroker.java"))], OLD_VERSION: [OLD_SERVERS, "broker"]}
POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>mqbridge</groupId><artifactId>rocketmq-server</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-namesrv</artifactId><version>VERSION</version></dependency>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-broker</artifactId><version>VERSION</version></dependency>
  </dependencies>
</project>
"""
# Name of a resource on the class path. Without it, name server and broker load each other's configuration, which is on the same
# class path, and log to files in the home folder. The logger that is off logs warnings every few seconds until the
# first transaction.
LOGBACK = "server.logback.xml"
# 4.9 servers load only these files.
OLD_LOGBACKS = ("conf/logback_namesrv.xml", "conf/logback_broker.xml")
# 4.9 servers use internal classes to unmap files; newer Java versions must be told to allow this.
OLD_OPENS = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("sun.nio.ch", "java.nio", "jdk.internal.ref")]
LOGBACK_XML = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %logger{0} %m%n</pattern></encoder>
  </appender>
  <logger name="RocketmqTransaction" level="OFF"/>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
# With the default limits a broker rejects messages on a disk that is 90 % full, and deletes its files even earlier.
DISK = ("-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99", "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98")
SETTINGS: dict[str, object] = {
    "brokerClusterName": CLUSTER,
    "brokerId": 0,
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    # Otherwise the broker advertises the first external address of the machine.
    "brokerIP1": HOST,
    "brokerIP2": HOST,
    "bindAddress": HOST,
    "storePathRootDir": "store",
    "storePathCommitLog": "store/commitlog",
    # Files are sparse, but with their default sizes they fill a small disk.
    "mappedFileSizeCommitLog": 256 << 20,
    "mappedFileSizeConsumeQueue": 2_000_000,
    "mappedFileSizeTimerLog": 16 << 20,
    "maxIndexNum": 400_000,
    "maxHashSlotNum": 100_000,
    "enablePropertyFilter": "true",
    # By default, a send that waited for 200 ms is rejected with code 2, which also happens on a busy test machine.
    "waitTimeMillsInSendQueue": 5000,
    # By default, all waiting sends are rejected with code 2 if storing one message takes longer than 1000 ms.
    "osPageCacheBusyTimeOutMills": 10_000,
    # By default, a transaction is checked after 6 s, and then every 30 s.
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 3000,
    # Delay until the broker records the end of a transaction. During the default of 3 s it would still be checked.
    "transactionOpBatchInterval": 200,
    # By default, the broker compares 40 MB of its timer's table with the file once per second, which takes a tenth of a core.
    "timerFlushIntervalMs": 10_000,
    # The minimum. A restarted name server knows the broker after this time.
    "registerNameServerPeriod": 10_000,
}


def server_jars(version: str = VERSION) -> Path:
    """The folder with the jars of all servers, fetched when absent (83 MB, about 20 s)."""
    return cached(f"rocketmq-server-{version}", lambda into: copy_dependencies(POM.replace("VERSION", version), into))


def name_server_conf(port: int) -> str:
    """The text of a name server's configuration."""
    return f"listenPort={port}\nbindAddress={HOST}\n"


def broker_conf(name: str, port: int, ha_port: int, name_servers: Sequence[str], changes: Mapping[str, object]) -> str:
    """The text of a broker's configuration; the broker opens `port`, `port` - 2 and `ha_port`."""
    own = {"brokerName": name, "listenPort": port, "haListenPort": ha_port, "namesrvAddr": ";".join(name_servers)}
    return "".join(f"{key}={value}\n" for key, value in {**SETTINGS, **own, **changes}.items())


def jvm(heap_mb: int, home: Path, version: str) -> list[str]:
    """Return the options of the JVM. Direct memory may be as large as the heap."""
    opens = OLD_OPENS if version == OLD_VERSION else []
    sizes = ["-Xms64m", f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={heap_mb}m", "-XX:+UseSerialGC"]
    homes = [f"-D{name}={home}" for name in ("user.home", "rocketmq.home.dir", "java.io.tmpdir")]
    logback = f"-Drmq.logback.configurationFile={LOGBACK}"
    return [*sizes, *homes, *DISK, *opens, logback, "-cp", f"{home}:{server_jars(version)}/*"]
