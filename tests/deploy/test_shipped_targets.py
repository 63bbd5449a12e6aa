"""No configuration of the project writes to a Pulsar topic whose messages are deleted before anybody has read them.

Each target and each dead-letter topic in Pulsar is created with a subscription, or is not created at all and must have one.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqbridge.config.load import parse
from mqbridge.config.options.config import Config
from mqbridge.config.options.delivery import DeadLetter
from mqbridge.config.options.target import Target
from mqbridge.config.problems import ConfigErrors

ROOT = Path(__file__).resolve().parents[2]
INDENTED_MAPPING = re.compile(r"^( *)clusters:(?:.*\n)(?:(?:\1(?:[ #a-z]).*)?\n)*", re.MULTILINE)
"""Matches a configuration inside any text: it begins with `clusters:`, and ends at a line that is indented less."""
DISABLED_BLOCK = re.compile(r"^( *)# (dead_letter:\n)((?:\1#   .*\n)+)", re.MULTILINE)
"""Matches a dead-letter topic in comments, which a reader switches on."""


CODE = ("mqbridge/", "tests/", "native/", "proto/")


def shipped() -> list[Path]:
    """Return every text file of the project that users read or deploy: without its own code and its tests."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )  # fmt: skip
    names = [name for name in listed.stdout.split() if name.startswith("mqbridge/shipped/") or not name.startswith(CODE)]
    return [ROOT / name for name in names if not name.endswith(".svg")]


def configurations() -> Iterator[tuple[str, Config]]:
    """Yield each complete configuration with its file and line; comments with a dead-letter topic are switched on."""
    for path in shipped():
        text = DISABLED_BLOCK.sub(lambda match: match[1] + match[2] + re.sub("# ", "", match[3]), path.read_text())
        for match in INDENTED_MAPPING.finditer(text):
            if "routes:" not in match[0]:
                continue
            body = re.sub(rf"^{match[1]}", "", match[0], flags=re.MULTILINE)
            name = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
            try:
                yield name, parse(body, name, environ={})
            except ConfigErrors as error:
                pytest.fail(f"{name} is not a configuration: {error}")


def pulsar_topics() -> Iterator[tuple[str, Target | DeadLetter]]:
    """Yield each Pulsar topic that a configuration writes, with the name of the configuration."""
    for name, config in configurations():
        for route in config.routes:
            letters = route.delivery.dead_letter
            for written in (*route.targets, *([] if letters is None else [letters])):
                if config.clusters[written.cluster].system == "pulsar":
                    yield name, written


TOPICS = list(pulsar_topics())


def test_the_search_finds_the_shipped_configurations() -> None:
    found = {name.partition(":")[0] for name, _ in configurations()}
    assert found >= {str(path.relative_to(ROOT)) for path in (ROOT / "mqbridge" / "shipped").glob("*.yaml")}
    assert found >= {"README.md", "docs/how-to/tubemq-to-pulsar.md", "docs/how-to/two-instances.md", "docs/tutorial.md"}
    assert len([written for _, written in TOPICS if isinstance(written, DeadLetter)]) >= 3


@pytest.mark.parametrize(("name", "written"), TOPICS, ids=[f"{name}-{type(written).__name__}" for name, written in TOPICS])
def test_unread_messages_are_kept(name: str, written: Target | DeadLetter) -> None:
    assert written.unread == "kept", name
    assert written.subscriptions or not written.create, f"{name} creates {written.topic} without a subscription"


def test_no_example_of_spark_writes_to_pulsar() -> None:
    """The sink creates topics without subscriptions."""
    written = re.compile(r"--to pulsar://|--(payments-)?url pulsar://")
    found = [path for path in shipped() if path.is_relative_to(ROOT / "examples/spark") and written.search(path.read_text())]
    assert [path for path in found if "createTopics" in path.read_text()] == []
