"""Runs the program of a feature in a language, and breaks its connections when it asks for it."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.kit import java
from tests.kit.guard import guard
from tests.kit.maven import locked
from tests.kit.tcp_proxy import CHUNK_BYTES, Link
from tests.patience import SERVER_PATIENCE_S
from tests.sdk.features.expected import FEATURES, Feature, Outcome, expected_outcome

ROOT = Path(__file__).resolve().parents[3]
GO = ROOT / "tests" / "go"
JAVA = tuple(f"java-{version}" for version in java.PULSAR_CLIENTS)
LANGUAGES = ("python", *JAVA, "go")
NAMESPACE = "persistent://public/default"
LINE_BYTES = 1 << 20
AT_ONCE = 3
"""Programs that run concurrently; they mostly wait."""
KEY_BITS = 2048
STDERR_TAIL_BYTES = 6000
BUILD_TIMEOUT_S = 540.0
POLL_S = 0.01
CONNECTED_S = 25.0
"""A program that asks for a cut has a connection in this time, also if it has just lost one."""

CreatePartitioned = Callable[[str, int], Awaitable[None]]


class FeatureError(Exception):
    """A program did not reach an outcome. The text has the feature, the language and the end of stderr."""


def missing(language: str) -> str | None:
    """Return why programs of this language cannot run here; None if they can."""
    if language == "python" and importlib.util.find_spec("pulsar") is None:
        return "pulsar-client is not installed: pip install pulsar-client (there are no wheels for every platform)"
    if language == "go" and shutil.which("go") is None:
        return "go is not installed: https://go.dev/doc/install"
    return None


async def outcome_of(
    feature: str,
    language: str,
    service_url: str,
    *,
    namespace: str = NAMESPACE,
    create_partitioned: CreatePartitioned | None = None,
    listener_name: str = "",
    proxied_port: int = 0,
    deadline_s: float = SERVER_PATIENCE_S,
) -> Outcome:
    """Run the program of a feature against a server and return its outcome. Raises FeatureError if there is none.

    `create_partitioned(topic, partitions)` creates the topic of a feature with partitions; it is not needed if topics get three
    partitions when they are used. `listener_name` and `proxied_port` are for features that cut connections, see the package.
    """
    topic = f"{namespace}/{feature}-{language.replace('.', '-')}-{uuid4().hex[:8]}"
    known = FEATURES[feature]
    if known.partitions and create_partitioned is not None:
        await create_partitioned(topic, known.partitions)
    command = await asyncio.to_thread(_command, language)
    with tempfile.TemporaryDirectory(prefix="mqbridge-feature-") as folder:
        options = {"feature": feature, "topic": topic}
        if known.encrypted:
            _write_keys(Path(folder))
            options["keys"] = folder
        if not known.cuts:
            return await run_program(command, {**options, "url": service_url}, Path(folder), deadline_s, None)
        async with _proxied(service_url, proxied_port) as (url, link):
            if listener_name:
                options["listener"] = listener_name
            return await run_program(command, {**options, "url": url}, Path(folder), deadline_s, link)


async def wrong_outcomes(
    features: Iterable[str],
    language: str,
    service_url: str,
    *,
    namespace_of: Callable[[Feature], str] = lambda _: NAMESPACE,
    **settings: Any,
) -> dict[str, Outcome | str]:
    """Run the programs of several features, some at a time; return the outcomes that are not the expected ones, and errors.

    `namespace_of` returns the namespace for a feature. The other settings are those of `outcome_of`.
    """
    wrong: dict[str, Outcome | str] = {}
    slots = asyncio.Semaphore(AT_ONCE)

    async def judge(feature: str) -> None:
        async with slots:
            try:
                namespace = namespace_of(FEATURES[feature])
                outcome = await outcome_of(feature, language, service_url, namespace=namespace, **settings)
            except FeatureError as error:
                wrong[feature] = str(error)
                return
        if outcome != expected_outcome(feature, language):
            wrong[feature] = outcome

    await asyncio.gather(*map(judge, features))
    return wrong


async def run_program(
    command: Sequence[str], options: dict[str, str], folder: Path, deadline_s: float, link: Link | None = None
) -> Outcome:
    """Run a command with options until it ends, and return its outcome; `folder` gets its stderr."""
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    stderr = folder / "stderr"
    with stderr.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, limit=LINE_BYTES, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
    guard().process(process.pid)
    shown = f"{' '.join(command[-2:])} {' '.join(arguments)}"
    try:
        async with asyncio.timeout(deadline_s):
            outcome = await _talk(process, link)
            status = await process.wait()
    except TimeoutError:
        raise FeatureError(f"{shown} had not ended after {deadline_s:.0f} s:\n{_tail(stderr)}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if outcome is None or status:
        raise FeatureError(f"{shown} ended with status {status} and outcome {outcome}:\n{_tail(stderr)}")
    return outcome


async def _talk(process: asyncio.subprocess.Process, link: Link | None) -> Outcome | None:
    """Do what the program asks for; return its outcome, None if it ends without one."""
    assert process.stdout is not None
    assert process.stdin is not None
    outcome: Outcome | None = None
    async for line in process.stdout:
        try:
            fields: dict[str, Any] = orjson.loads(line)
        except ValueError:
            raise FeatureError(f"a program prints a line that is not JSON: {line!r}") from None
        if "outcome" in fields:
            outcome = fields["outcome"]
        elif fields == {"do": "cut"} and link is not None:
            await _cut(link)
            process.stdin.write(b"done\n")
            await process.stdin.drain()
        else:
            raise FeatureError(f"a program asks for something unknown: {line!r}")
    return outcome


async def _cut(link: Link) -> None:
    """Break the connections of a program, after it has one: it may still be connecting again after the previous cut."""
    try:
        async with asyncio.timeout(CONNECTED_S):
            while not link.cut():
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise FeatureError("the program has no connection through the proxy: the server told it another address") from None


def _tail(file: Path) -> str:
    return file.read_bytes()[-STDERR_TAIL_BYTES:].decode(errors="replace")


@asynccontextmanager
async def _proxied(service_url: str, port: int) -> AsyncIterator[tuple[str, Link]]:
    """Yield the service URL of a proxy before the server, and the link whose connections it forwards."""
    server = urlsplit(service_url)
    assert server.hostname is not None
    assert server.port is not None
    link = Link((server.hostname, server.port))
    listening = await asyncio.start_server(link.serve, "127.0.0.1", port, limit=CHUNK_BYTES)
    try:
        link.port = listening.sockets[0].getsockname()[1]
        yield f"{server.scheme}://127.0.0.1:{link.port}", link
    finally:
        listening.close()
        link.cut()
        await listening.wait_closed()
        while link.connections:
            await asyncio.sleep(0)


def _write_keys(folder: Path) -> None:
    """Write a new pair of RSA keys, which encrypt the keys of messages; the Go client reads no other format."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "private.pem").write_bytes(private)
    (folder / "public.pem").write_bytes(public)


# --- commands ------------------------------------------------------------------------------------------------------------


@functools.cache
def _command(language: str) -> Sequence[str]:
    """Return the command that runs the programs of a language; build them if that is necessary."""
    if reason := missing(language):
        raise FeatureError(reason)
    if language == "python":
        return (sys.executable, "-m", "tests.sdk.features.python")
    if language in JAVA:
        return java.command("PulsarFeatures", {}, client=language.removeprefix("java-"))
    return (str(go_program(".", "features")),)


def go_program(package: str, name: str) -> Path:
    """Compile the programs of a Go package, which downloads modules when it is done for the first time; return the executable."""
    program = GO / "target" / name
    with locked("go-programs"):
        run = subprocess.run(
            ["go", "build", "-o", str(program), package], cwd=GO, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S,
            check=False, env={**os.environ, "GOFLAGS": "-buildvcs=false -mod=readonly"},
        )  # fmt: skip
    if run.returncode:
        raise FeatureError(f"go build failed in {GO}:\n{run.stderr[-STDERR_TAIL_BYTES:]}")
    return program
