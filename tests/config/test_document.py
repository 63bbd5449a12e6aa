"""Values are substituted from the environment and from files; problems do not show them."""

import sys
from pathlib import Path
from typing import Any

import pytest

from mqbridge.config import document
from mqbridge.config.document import MAX_VALUE_BYTES, compose
from mqbridge.config.load import parse
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import ConfigError
from tests.config.fakes import ADAPTERS

CANARY = "canary-3d77"


def read(text: str, **environ: str) -> Any:
    found = compose(text, "f.yaml", environ)
    assert found.errors == []
    return found.data


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


LEVELS = range(1, 12)
LISTS = "\n".join(["a: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in LEVELS)])
MERGES = "\n".join(["a: &a0 {x: 1, y: 2}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in LEVELS)])


@pytest.mark.parametrize(
    ("text", "problem"),
    [(LISTS, "more than 1000 values"), (MERGES, "more than 1000 values"), ("a: " + "[" * 2000, "nested too deeply")],
    ids=["lists", "merges", "nesting"],
)
def test_a_file_that_expands_to_billions_of_values_is_refused(text: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alias stands for all that its anchor contains, also for other aliases."""
    monkeypatch.setattr(document, "MAX_VALUES", 1000)
    with pytest.raises(ConfigError, match=problem) as raised:
        compose(text, "f.yaml", {})
    assert raised.value.location.startswith("f.yaml")


@pytest.mark.parametrize("recursion_limit", [1000, 100_000])
def test_nesting_is_limited_whatever_limit_the_process_has(recursion_limit: int) -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(recursion_limit)
    try:
        assert read("a: " + "[" * 50 + "]" * 50)["a"] != []
        with pytest.raises(ConfigError, match=r"f\.yaml:1: .*nested too deeply, above 50 levels"):
            compose("a: " + "[" * 2000, "f.yaml", {})
    finally:
        sys.setrecursionlimit(before)


def test_merges_and_aliases_within_the_limit_are_read() -> None:
    text = "a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: [*b, *a], z: *b}"
    assert read(text)["c"] == {"x": 1, "y": 2, "z": {"x": 1, "y": 2}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (r'a: "x\uD800"', "f.yaml:1: a: this text has half of a character"),
        (r'"a\uDC80": 1', "this text has half of a character"),
        ("a: ${ODD}", "f.yaml:1: a: the environment variable ODD is not UTF-8 text"),
    ],
    ids=["value", "key", "variable"],
)
def test_texts_that_cannot_be_encoded_are_refused(text: str, problem: str) -> None:
    (error,) = compose(text, "f.yaml", {"ODD": "x\udcb4"}).errors
    assert problem in str(error)
