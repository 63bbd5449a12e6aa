"""How the RocketMQ servers are run: jars, Java options, configuration files, log configuration.

Version 5.3.3 is the newest published server. Of the line before, which most applications still have, 4.9.7 is the newest that
Maven Central has whole.
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
# The name is a resource looked up on the class path. Without it each server takes the other's file, which lies on the same
# class path, and writes into files below the home folder. The logger that is off complains every few seconds until
# the first transaction.
LOGBACK = "server.logback.xml"
# Servers of the old line look here, and nowhere else.
OLD_LOGBACKS = ("conf/logback_namesrv.xml", "conf/logback_broker.xml")
# They unmap files by ways that Java has closed since.
OLD_OPENS = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("sun.nio.ch", "java.nio", "jdk.internal.ref")]
LOGBACK_XML = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %logger{0} %m%n</pattern></encoder>
  </appender>
  <logger name="RocketmqTransaction" level="OFF"/>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
# On a disk that is nine tenths full the broker would refuse messages, and delete its files even sooner.
DISK = ("-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99", "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98")
SETTINGS: dict[str, object] = {
    "brokerClusterName": CLUSTER,
    "brokerId": 0,
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    # Otherwise it advertises the machine's first outside address.
    "brokerIP1": HOST,
    "brokerIP2": HOST,
    "bindAddress": HOST,
    "storePathRootDir": "store",
    "storePathCommitLog": "store/commitlog",
    # Sparse files, the shipped sizes of which fill a small disk.
    "mappedFileSizeCommitLog": 256 << 20,
    "mappedFileSizeConsumeQueue": 2_000_000,
    "mappedFileSizeTimerLog": 16 << 20,
    "maxIndexNum": 400_000,
    "maxHashSlotNum": 100_000,
    "enablePropertyFilter": "true",
    # As shipped, a send that waited 200 ms is refused with code 2, which a busy test machine brings about by itself.
    "waitTimeMillsInSendQueue": 5000,
    # As shipped, all sends that wait are refused with code 2 while one message takes longer than 1000 ms to be stored.
    "osPageCacheBusyTimeOutMills": 10_000,
    # As shipped, checks come after 6 s and every 30 s.
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 3000,
    # How late the broker notes that a transaction ended: 3 s as shipped, in which it would be checked all the same.
    "transactionOpBatchInterval": 200,
    # The least it takes: a name server that is back knows the broker again after this.
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
    """Options of the Java machine; direct memory may grow as large as the heap."""
    opens = OLD_OPENS if version == OLD_VERSION else []
    sizes = ["-Xms64m", f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={heap_mb}m", "-XX:+UseSerialGC"]
    homes = [f"-D{name}={home}" for name in ("user.home", "rocketmq.home.dir", "java.io.tmpdir")]
    logback = f"-Drmq.logback.configurationFile={LOGBACK}"
    return [*sizes, *homes, *DISK, *opens, logback, "-cp", f"{home}:{server_jars(version)}/*"]
