"""The harness of tests/sdk/features, with programs that are no clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kit import java
from tests.patience import SERVER_PATIENCE_S
from tests.sdk import features
from tests.sdk.features import (
    FEATURES,
    LANGUAGES,
    FeatureError,
    expected_outcome,
    features_of,
    outcome_of,
    programs,
    wrong_outcomes,
)
from tests.sdk.features.expected import LACKS, UNSEEN

NOWHERE = "pulsar://127.0.0.1:1"


def use(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Run this text instead of a client."""
    monkeypatch.setattr(programs, "_command", lambda _: (sys.executable, "-c", text))


async def test_the_last_line_is_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, """print('{"outcome": {"received": ["after"]}}')""")
    assert await outcome_of("too_large", "python", NOWHERE) == {"received": ["after"]}


async def test_wrong_outcomes_and_failures_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    use(
        monkeypatch,
        """
import sys
if "shared" not in sys.argv: sys.exit("no broker")
print('{"outcome": {"all_once": true, "both": false}}')
""",
    )
    wrong = await wrong_outcomes(["shared", "exclusive"], "python", NOWHERE)
    assert wrong.keys() == {"shared", "exclusive"}
    assert wrong["shared"] == {"all_once": True, "both": False}
    assert "no broker" in str(wrong["exclusive"])


async def test_a_program_without_outcome_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "pass")
    with pytest.raises(FeatureError, match="status 0 and outcome None"):
        await outcome_of("shared", "python", NOWHERE)


async def test_a_program_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "import time; time.sleep(1000)")
    with pytest.raises(FeatureError, match="had not ended after 0 s"):
        await outcome_of("shared", "python", NOWHERE, deadline_s=0.2)


async def test_encrypting_programs_get_a_pair_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    use(
        monkeypatch,
        """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--keys") + 1])
print(json.dumps({"outcome": {path.name: path.read_text().split("-----")[1] for path in folder.glob("*.pem")}}))
""",
    )
    keys = await outcome_of("encryption", "python", NOWHERE)
    assert keys == {"private.pem": "BEGIN RSA PRIVATE KEY", "public.pem": "BEGIN PUBLIC KEY"}


CUT = """
import json, socket, sys
host, port = sys.argv[sys.argv.index("--url") + 1].removeprefix("pulsar://").split(":")
with socket.create_connection((host, int(port))) as connection:
    connection.sendall(b"x")
    connection.recv(1)
    print(json.dumps({"do": "cut"}), flush=True)
    sys.stdin.readline()
    try:
        seen = connection.recv(1) or "end"
    except ConnectionResetError:
        seen = "reset"
print(json.dumps({"outcome": {"seen": seen}}))
"""


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    """Yield the URL of a server that answers each byte with itself."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_connections_are_cut_when_a_program_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, CUT)
    async with echo() as url, asyncio.timeout(SERVER_PATIENCE_S):
        assert await outcome_of("broken_connection", "python", url) == {"seen": "reset"}


async def test_a_cut_without_a_connection_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "CONNECTED_S", 0.1)
    use(monkeypatch, """print('{"do": "cut"}', flush=True); input()""")
    with pytest.raises(FeatureError, match="no connection through the proxy"):
        await outcome_of("broken_connection", "python", NOWHERE)


def test_the_tables_name_only_what_exists() -> None:
    assert {name for names in LACKS.values() for name in names} <= FEATURES.keys()
    for (language, feature), names in UNSEEN.items():
        assert names <= FEATURES[feature].outcome.keys()
        assert feature in features_of(language)
        assert names.isdisjoint(expected_outcome(feature, language))


def test_the_programs_in_python_have_the_features_of_the_sdk() -> None:
    pytest.importorskip("pulsar")
    from tests.sdk.features.python import positions, sending, sharing

    assert {*sending.FEATURES, *sharing.FEATURES, *positions.FEATURES} == {*features_of("python")}


@pytest.mark.parametrize("language", [name for name in LANGUAGES if name != "python"])
def test_the_sources_name_every_feature_of_the_sdk(language: str) -> None:
    folder, pattern = (programs.GO, "*.go") if language == "go" else (java.PROJECT, "**/Features*.java")
    sources = "".join(path.read_text() for path in Path(folder).glob(pattern))
    assert [name for name in features_of(language) if f'"{name}"' not in sources] == []


def test_languages_that_cannot_run_here_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "go.dev" in (features.missing("go") or "")
