"""Builds and runs the programs of tests/java, which use the official Java clients.

A program prints JSON lines; the last one is its summary. On failure it exits with 1 and prints the reason to stderr. Both streams
go to files, so a program never waits for a reader. The functions here block: asyncio tests call them with asyncio.to_thread.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from tests.kit.guard import guard
from tests.kit.maven import COPY_DEPENDENCIES, java, locked, mvn
from tests.kit.process import LESS_COMPILING

PROJECT = Path(__file__).resolve().parent.parent / "java"
TARGET = PROJECT / "target"
PACKAGE = "mqbridge.tests"
# The RocketMQ programs can run with both client versions: the newest one, and 4.9, which most applications still use.
ROCKETMQ_CLIENTS = ("5.3.3", "4.9.8")
# PulsarFeatures can run with both: the newest one, and the first of the previous long-term line.
PULSAR_CLIENTS = ("4.2.4", "3.0.0")
# The programs keep a limited number of messages in memory. The serial collector is the cheapest for short programs, and the first
# compiler alone: a program that sends or receives 300 messages of Pulsar takes 2.4 s of CPU time instead of 4.0 s.
FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", *LESS_COMPILING)
# JVM options for JavaBridge. The large young generation helps because objects of a batch become garbage soon. Measured on two
# cores, CPU seconds per million messages of 1 KiB after warm-up, and resident MB: these options 6.1-6.4 and 335; default young
# generation 6.5-7.0 and 250; parallel collector with 512 MB 6.0-7.0 and 345; -Xmx512m -Xmn384m 6.4-6.7 and 505; G1 10 % more CPU.
BRIDGE_FLAGS = ("-Xmx256m", "-Xmn192m", "-XX:+UseSerialGC")
DEADLINE_S = 120.0
STDERR_TAIL_BYTES = 6000

Line = dict[str, Any]
Value = str | int | float | bool | Sequence[object] | Mapping[str, object] | None


class JavaError(Exception):
    """A program failed or did not end in time. The text has the program, its arguments and the end of its stderr."""


def build() -> Path:
    """Return the folder of the compiled programs; compile them if their sources have changed."""
    files = sorted(path for path in (PROJECT / "src").rglob("*") if path.is_file())
    _made("sources", [PROJECT / "pom.xml", *files], ["package"])
    return TARGET / "classes"


def classpath(name: str, arguments: Mapping[str, Value], client: str) -> str:
    """Return the class path of a program. RocketMQ's client, which has many dependencies, is included only if it is used.

    `client` is the version of the client of RocketMQ, or of Pulsar for PulsarFeatures.
    """
    classes = build()
    if name.startswith("Rocket"):
        folder = f"rocketmq-{client}"
        _copied(folder, "rocketmq.xml", f"-Drocketmq.version={client}")
    elif name == "PulsarFeatures":
        folder = f"pulsar-{client}"
        _copied(folder, "pulsar.xml", f"-Dpulsar.version={client}")
    elif "rocketmq" in (arguments.get("source"), arguments.get("sink")):
        folder = "bridge"
        _copied(folder, "pom.xml", "--activate-profiles=bridge")
    else:
        folder = "lib"
    return f"{classes}:{TARGET / folder}/*"


def _copied(folder: str, pom: str, option: str) -> None:
    copy = [f"--file={pom}", option, COPY_DEPENDENCIES, f"-DoutputDirectory={TARGET / folder}", "-DincludeScope=runtime"]
    _made(folder, [PROJECT / pom], copy)


def _made(what: str, files: Sequence[Path], goals: Sequence[str]) -> None:
    """Run Maven if the content of the files has changed since the last run for `what`."""
    stamp = TARGET / f"{what}.sha256"
    with locked("java-programs"):
        digest = _digest(files)
        if not stamp.exists() or stamp.read_text() != digest:
            mvn(goals, PROJECT)
            stamp.write_text(digest)


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(PROJECT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


class JavaProgram:
    """One running program. As a context manager it is killed at the end if it still runs."""

    def __init__(self, argv: Sequence[str], name: str) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix=f"mqbridge-{name}-")
        self._out = Path(self._folder.name, "stdout")
        self._err = Path(self._folder.name, "stderr")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        self._taken_bytes = 0
        """Bytes of the output that `new_lines` has returned."""
        guard().process(self._process.pid)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if the program runs."""
        return self._process.poll() is None

    def lines(self) -> list[Line]:
        """Return the complete lines printed so far."""
        complete = self._out.read_bytes().rpartition(b"\n")[0]
        return [orjson.loads(line) for line in complete.splitlines()]

    def new_lines(self) -> list[Line]:
        """Return the complete lines printed since the last call."""
        with self._out.open("rb") as out:
            out.seek(self._taken_bytes)
            complete, end, _ = out.read().rpartition(b"\n")
        self._taken_bytes += len(complete) + len(end)
        return [orjson.loads(line) for line in complete.splitlines()]

    def stderr(self) -> str:
        """Return the end of stderr, with warnings of the clients and the reason of a failure."""
        return self._err.read_bytes()[-STDERR_TAIL_BYTES:].decode(errors="replace")

    def wait(self, deadline_s: float = DEADLINE_S) -> list[Line]:
        """Wait for the end and return all lines. Raises JavaError if the program fails, or exceeds the deadline and is killed."""
        try:
            status = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise JavaError(f"{self} had not ended after {deadline_s:.0f} s:\n{self.stderr()}") from None
        if status != 0:
            raise JavaError(f"{self} ended with status {status}:\n{self.stderr()}")
        return self.lines()

    def kill(self) -> None:
        """Send SIGKILL: the client unregisters nowhere, as after a crash. Do nothing if the program has ended."""
        self._process.kill()
        self._process.wait()

    def __str__(self) -> str:
        assert isinstance(self._process.args, list)
        return f"{self.name} {' '.join(self._process.args[self._process.args.index(f'{PACKAGE}.{self.name}') + 1 :])}".rstrip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self._folder.cleanup()


def spawn(name: str, /, *, flags: Sequence[str] = FLAGS, client: str = ROCKETMQ_CLIENTS[0], **arguments: Value) -> JavaProgram:
    """Start a program of tests/java by its class name; use the result in a `with` statement.

    `event_time=5` becomes `--event-time 5`. A sequence becomes a comma-separated list, a mapping becomes JSON, None is omitted.
    For repeated keys pass a sequence of `k=v`. `client` is the version of the RocketMQ client, for programs named Rocket….
    """
    argv = command(name, arguments, flags=flags, client=client)
    for key, value in arguments.items():
        if value is not None:
            argv += [f"--{key.replace('_', '-')}", _text(value)]
    return JavaProgram(argv, name)


def command(
    name: str, arguments: Mapping[str, Value], *, flags: Sequence[str] = FLAGS, client: str = ROCKETMQ_CLIENTS[0]
) -> list[str]:
    """Return the command that starts a program, without the arguments, which only decide about its class path."""
    return [str(java()), *flags, "-cp", classpath(name, arguments, client), f"{PACKAGE}.{name}"]


def run(
    name: str,
    /,
    *,
    flags: Sequence[str] = FLAGS,
    client: str = ROCKETMQ_CLIENTS[0],
    deadline_s: float = DEADLINE_S,
    **arguments: Value,
) -> list[Line]:
    """Run a program and return its lines; the last one is the summary. Raises JavaError if it fails."""
    with spawn(name, flags=flags, client=client, **arguments) as program:
        return program.wait(deadline_s)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return orjson.dumps({key: _text(each) for key, each in value.items()}).decode()
    if isinstance(value, Sequence):
        return ",".join(map(_text, value))
    return str(value)
