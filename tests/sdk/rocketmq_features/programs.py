"""Runs the program of a feature in a language."""

from __future__ import annotations

import asyncio
import functools
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.kit import java
from tests.kit.maven import cached
from tests.kit.process import LESS_COMPILING
from tests.patience import SERVER_PATIENCE_S
from tests.sdk.features.programs import AT_ONCE, FeatureError, go_program, run_program
from tests.sdk.rocketmq_features.expected import FEATURES, Outcome, expected_outcome

JAVA = tuple(f"java-{version}" for version in java.ROCKETMQ_CLIENTS)
LANGUAGES = (*JAVA, "go", "cpp")
CPP = Path(__file__).with_name("cpp.py")
CPP_PACKAGE = "rocketmq==0.4.4"
"""The newest release on PyPI that has the C++ library in it, as a wheel for Linux on x86-64."""
QUEUES = 4
FLAGS = ("-Xmx96m", "-XX:+UseSerialGC", *LESS_COMPILING)
INSTALL_TIMEOUT_S = 300.0
ENDS_EARLIER_S = 5.0
"""A program ends itself before the harness kills it, because it can say what it waits for."""

CreateTopic = Callable[[str, int], Awaitable[None]]
CreateGroup = Callable[[str], Awaitable[None]]


def missing(language: str) -> str | None:
    """Return why programs of this language cannot run here; None if they can."""
    if language == "go" and shutil.which("go") is None:
        return "go is not installed: https://go.dev/doc/install"
    if language == "cpp" and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "the C++ library is on PyPI only for Linux on x86-64"
    return None


async def outcome_of(
    feature: str,
    language: str,
    name_servers: str,
    *,
    create_topic: CreateTopic,
    create_group: CreateGroup | None = None,
    deadline_s: float = SERVER_PATIENCE_S,
) -> Outcome:
    """Run the program of a feature against a server and return its outcome. Raises FeatureError if there is none.

    `create_topic(topic, queues)` creates the topics of a feature, and `create_group(group)` a group and its retry topic.
    """
    known = FEATURES[feature]
    name = f"{feature}_{language.replace('.', '-')}_{uuid4().hex[:8]}"
    for suffix in known.suffixes:
        await create_topic(f"{name}{suffix}", QUEUES)
    if known.retries and create_group is not None:
        await create_group(f"g_{name}")
    command = await asyncio.to_thread(command_of, language)
    with tempfile.TemporaryDirectory(prefix="mqbridge-feature-") as folder:
        options = {
            "name-servers": name_servers, "feature": feature, "topic": name, "group": f"g_{name}", "folder": folder,
            "deadline": f"{deadline_s - ENDS_EARLIER_S:.0f}",
        }  # fmt: skip
        # Go and C++ take folders from their environment: for offsets of broadcast consumers, and for logs.
        folders = (f"rocketmq.client.localOffsetStoreDir={folder}", f"HOME={folder}")
        return await run_program(("env", *folders, *command), options, Path(folder), deadline_s)


async def wrong_outcomes(features: Iterable[str], language: str, name_servers: str, **settings: Any) -> dict[str, Outcome | str]:
    """Run the programs of several features, some at a time; return the outcomes that are not the expected ones, and errors.

    The settings are those of `outcome_of`.
    """
    wrong: dict[str, Outcome | str] = {}
    slots = asyncio.Semaphore(AT_ONCE)

    async def judge(feature: str) -> None:
        async with slots:
            try:
                outcome = await outcome_of(feature, language, name_servers, **settings)
            except FeatureError as error:
                wrong[feature] = str(error)
                return
        if outcome != expected_outcome(feature, language):
            wrong[feature] = outcome

    await asyncio.gather(*map(judge, features))
    return wrong


@functools.cache
def command_of(language: str) -> Sequence[str]:
    """Return the command that runs the programs of a language; build them if that is necessary."""
    if reason := missing(language):
        raise FeatureError(reason)
    if language in JAVA:
        return java.command("RocketFeatures", {}, flags=FLAGS, client=language.removeprefix("java-"))
    if language == "go":
        return (str(go_program("./rocketmq", "rocketmq-features")),)
    return ("env", f"PYTHONPATH={cached('rocketmq-cpp-0.4.4', _install_cpp)}", sys.executable, "-P", str(CPP))


def _install_cpp(folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), CPP_PACKAGE],
        check=True, timeout=INSTALL_TIMEOUT_S,
    )  # fmt: skip
