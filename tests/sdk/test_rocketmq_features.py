"""The harness of tests/sdk/rocketmq_features, with programs that are no clients."""

from __future__ import annotations

import sys

import pytest

from tests.kit import java
from tests.sdk import rocketmq_features
from tests.sdk.features.programs import GO
from tests.sdk.rocketmq_features import (
    FEATURES,
    LANGUAGES,
    SMOKE_TESTED,
    FeatureError,
    expected_outcome,
    features_of,
    outcome_of,
    programs,
    wrong_outcomes,
)
from tests.sdk.rocketmq_features.expected import LACKS, UNSEEN

NOWHERE = "127.0.0.1:1"
JAVA = "java-5.3.3"


class CreatedNames:
    """Notes the topics and groups that the harness creates."""

    def __init__(self) -> None:
        self.topics: list[tuple[str, int]] = []
        self.groups: list[str] = []

    async def topic(self, name: str, queues: int) -> None:
        self.topics.append((name, queues))

    async def group(self, name: str) -> None:
        self.groups.append(name)


def use(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Run this text instead of a client."""
    monkeypatch.setattr(programs, "command_of", lambda _: (sys.executable, "-c", text))


OPTIONS = """
import json, sys
print(json.dumps({"outcome": dict(zip([name[2:] for name in sys.argv[1::2]], sys.argv[2::2]))}))
"""


async def test_topics_and_groups_exist_before_a_program_gets_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, OPTIONS)
    created = CreatedNames()
    options = await outcome_of(
        "dead_letters", JAVA, NOWHERE, create_topic=created.topic, create_group=created.group, deadline_s=60
    )
    assert created.topics == [(options["topic"], programs.QUEUES)]
    assert created.groups == [options["group"]]
    assert (options["name-servers"], options["feature"], options["deadline"]) == (NOWHERE, "dead_letters", "55")


async def test_a_feature_gets_all_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, OPTIONS)
    created = CreatedNames()
    topic = (await outcome_of("trace", JAVA, NOWHERE, create_topic=created.topic))["topic"]
    assert [name for name, _ in created.topics] == [topic, f"{topic}_trace"]
    assert created.groups == []


async def test_wrong_outcomes_and_failures_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    use(
        monkeypatch,
        """
import sys
if "push" not in sys.argv: sys.exit("no broker")
print('{"outcome": {"all_once": false}}')
""",
    )
    wrong = await wrong_outcomes(["push", "retry"], JAVA, NOWHERE, create_topic=CreatedNames().topic)
    assert wrong.keys() == {"push", "retry"}
    assert wrong["push"] == {"all_once": False}
    assert "no broker" in str(wrong["retry"])


async def test_a_program_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "import time; time.sleep(1000)")
    with pytest.raises(FeatureError, match="had not ended after 0 s"):
        await outcome_of("push", JAVA, NOWHERE, create_topic=CreatedNames().topic, deadline_s=0.2)


def test_the_tables_name_only_what_exists() -> None:
    assert LACKS.keys() == {*LANGUAGES}
    assert {name for names in LACKS.values() for name in names} <= FEATURES.keys()
    assert {*SMOKE_TESTED} <= {*features_of(JAVA)}
    for (language, feature), names in UNSEEN.items():
        assert names <= FEATURES[feature].outcome.keys()
        assert feature in features_of(language)
        assert names.isdisjoint(expected_outcome(feature, language))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_sources_name_every_feature_of_the_sdk(language: str) -> None:
    folder, pattern = {"go": (GO / "rocketmq", "*.go"), "cpp": (programs.CPP.parent, "cpp.py")}.get(
        language, (java.PROJECT, "**/RocketFeaturesOf*.java")
    )
    sources = "".join(path.read_text() for path in folder.glob(pattern))
    assert [name for name in features_of(language) if f'"{name}"' not in sources] == []


def test_languages_that_cannot_run_here_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert "go.dev" in (rocketmq_features.missing("go") or "")
    assert "x86-64" in (rocketmq_features.missing("cpp") or "")
