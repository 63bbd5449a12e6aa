"""Values are substituted from the environment and from files; problems do not show them."""

from pathlib import Path
from typing import Any

import pytest

from mqbridge.config.document import MAX_VALUE_BYTES, compose
from mqbridge.config.load import parse
from mqbridge.config.problems import ConfigErrors
from tests.config.fakes import ADAPTERS

CANARY = "canary-3d77"


def read(text: str, **environ: str) -> Any:
    document = compose(text, "f.yaml", environ)
    assert document.errors == []
    return document.data


def test_files_and_variables_are_substituted(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from a file: {not, structure}\n\n")
    assert read(f"a: 'x ${{file:{file}}} y ${{env:NAME}} ${{NAME}}'", NAME="n") == {"a": "x from a file: {not, structure} y n n"}


def test_missing_values_get_their_default(tmp_path: Path) -> None:
    assert read(f"a: ${{file:{tmp_path}/none:-plain}} ${{env:NAME:-}} $${{file:x}}") == {"a": "plain  ${file:x}"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot be read: No such file"), (b"\xff", "is not UTF-8"), (b"x" * (MAX_VALUE_BYTES + 1), "is larger than 64 KiB")],
)
def test_an_unreadable_file_is_reported_with_the_line(content: bytes | None, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    (error,) = compose(f"\na: ${{file:{file}}}", "f.yaml", {}).errors
    assert str(error).startswith(f"f.yaml:2: a: the file {file} {problem}")
    assert f"Create or correct it, or give a default: ${{file:{file}:-default}}" in error.hint


@pytest.mark.parametrize("body", ["system: %s", "system: fake, masters: [x], port: %s", "system: fake, masters: [x], %s: 1"])
def test_problems_do_not_show_substituted_values(body: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{CANARY} 'quoted'")
    for source, environ in ((f"${{file:{file}}}", {}), ("${TOKEN}", {"TOKEN": CANARY})):
        with pytest.raises(ConfigErrors) as raised:
            parse(f"clusters:\n  a: {{{body % repr(source)}}}\n", "f.yaml", environ=environ, adapters=ADAPTERS)
        assert CANARY not in str(raised.value)
        if "%s: 1" not in body:  # variables in keys are not substituted
            assert source in str(raised.value)
