"""Downloads Java artifacts with Maven into a cache that several test runs share.

A cache entry is a folder that is either complete or absent: it is filled under another name and then renamed. A lock file
serializes runs that need the same entry. Another one serializes all runs of Maven, because two of them must not write to its
local repository at the same time.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.kit.process import ClusterError

OLDEST_JAVA = 17
INSTALL = "install it with: apt-get install openjdk-17-jdk-headless maven"
# Enough for the largest download, Pulsar's archive of 234 MiB, on a slow line.
MVN_TIMEOUT_S = 1800.0
ERROR_TAIL_LINES = 30
COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def say(text: str) -> None:
    """Print a line of progress to standard error."""
    print(f"kit: {text}", file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """Return the folder of the cache: MQBRIDGE_CACHE, else ~/.cache/mqbridge."""
    folder = Path(os.environ.get("MQBRIDGE_CACHE") or Path.home() / ".cache" / "mqbridge")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


@cache
def java() -> Path:
    """Return the `java` of JAVA_HOME, else the first in PATH. It must belong to a JDK of version 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        raise ClusterError(f"no java in {'JAVA_HOME=' + home if home else 'PATH'}; {INSTALL}")
    if not Path(found).resolve().with_name("javac").exists():
        raise ClusterError(f"{found} belongs to a runtime without compiler; {INSTALL}")
    banner = subprocess.run([found, "-version"], capture_output=True, text=True, check=True).stderr
    version = re.search(r'version "(\d+)', banner)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise ClusterError(f"{found} is too old, version {OLDEST_JAVA} or newer is needed: {banner.splitlines()[0]}; {INSTALL}")
    return Path(found)


def mvn(args: Sequence[str], cwd: Path) -> None:
    """Run Maven in `cwd`. Raises ClusterError, with the end of its output, if it fails."""
    found = shutil.which("mvn")
    if found is None:
        raise ClusterError(f"no mvn in PATH; {INSTALL}")
    environment = {**os.environ, "JAVA_HOME": str(java().resolve().parent.parent)}
    with locked("mvn"):
        run = subprocess.run(
            [found, "--batch-mode", "--no-transfer-progress", "--quiet", *args],
            cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=MVN_TIMEOUT_S, check=False,
        )  # fmt: skip
    if run.returncode != 0:
        tail = "\n".join(run.stdout.splitlines()[-ERROR_TAIL_LINES:])
        raise ClusterError(f"mvn {' '.join(args)} failed in {cwd} with status {run.returncode}:\n{tail}")


def copy_dependencies(pom: str, into: Path) -> None:
    """Resolve the dependencies of a POM and copy them into a folder."""
    with tempfile.TemporaryDirectory(prefix="mqbridge-mvn-") as project:
        Path(project, "pom.xml").write_text(pom)
        mvn([COPY_DEPENDENCIES, f"-DoutputDirectory={into}"], Path(project))


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder `name` of the cache; if it is absent, `make` fills a temporary folder that is then renamed to it."""
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    with locked(name):
        if not folder.is_dir():  # another run may have created it while this one waited for the lock
            say(f"downloading {name} into {folder} (only once)")
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as temporary:
                new_folder = Path(temporary, name)
                new_folder.mkdir()
                make(new_folder)
                new_folder.rename(folder)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock file NAME.lock of the cache. The kernel releases the lock when the process ends."""
    with (cache_folder() / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another test run that holds {file.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
