"""The jars of the TubeMQ server from Maven Central.

Version 2.4.0 is the newest published server. Its parent POM is not published, so a substitute of five lines is written into a
file:// repository. Not all of its declared dependencies can be resolved, so they are listed here. tubemq-client and tubemq-core
1.13.0 are the newest versions and work with the server.
"""

from __future__ import annotations

from pathlib import Path

from tests.kit.maven import cached, copy_dependencies

VERSION = "2.4.0"
# The order matters: if an older servlet-api comes first, the Master's web server fails with an AbstractMethodError.
DEPENDENCIES = [
    "javax.servlet:javax.servlet-api:4.0.1",
    "org.apache.inlong:tubemq-server:2.4.0",
    "org.apache.inlong:tubemq-client:1.13.0",
    "com.sleepycat:je:18.3.12",
    "commons-cli:commons-cli:1.4",
    "commons-collections:commons-collections:3.2.2",
    "commons-io:commons-io:2.11.0",
    "com.google.guava:guava:32.1.2-jre",
    "io.prometheus:simpleclient_httpserver:0.14.1",
    "org.apache.logging.log4j:log4j-1.2-api:2.17.2",
    "org.apache.velocity:velocity-engine-core:2.3",
    "org.apache.velocity.tools:velocity-tools-generic:3.1",
    "org.eclipse.jetty:jetty-servlet:9.4.51.v20230217",
    "org.ini4j:ini4j:0.5.4",
    "org.springframework:spring-context:5.3.27",
    "javax.annotation:javax.annotation-api:1.3.2",
]
# 15 MB that tubemq-client depends on, but that are not used.
EXCLUDED = """
<exclusions><exclusion><groupId>io.opentelemetry.javaagent</groupId><artifactId>*</artifactId></exclusion></exclusions>
"""

PARENT_POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.apache.inlong</groupId><artifactId>inlong-tubemq</artifactId><version>{VERSION}</version>
  <packaging>pom</packaging>
</project>
"""


def server_jars() -> Path:
    """Return the folder with the server's jars; download them if they are missing (26 MB, about 15 s)."""
    return cached(f"tubemq-server-{VERSION}", _fetch)


def _fetch(into: Path) -> None:
    repository = into.with_name("stand-in")
    parent = repository / f"org/apache/inlong/inlong-tubemq/{VERSION}/inlong-tubemq-{VERSION}.pom"
    parent.parent.mkdir(parents=True)
    parent.write_text(PARENT_POM)
    dependencies = "".join(_dependency(*coordinates.split(":")) for coordinates in DEPENDENCIES)
    copy_dependencies(
        f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>mqbridge</groupId><artifactId>tubemq-server-jars</artifactId><version>1</version><packaging>pom</packaging>
  <repositories><repository><id>stand-in</id><url>{repository.as_uri()}</url></repository></repositories>
  <dependencies>{dependencies}</dependencies>
</project>
""",
        into,
    )


def _dependency(group: str, artifact: str, version: str) -> str:
    names = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    return f"<dependency>{names}{EXCLUDED if artifact == 'tubemq-client' else ''}</dependency>\n"
