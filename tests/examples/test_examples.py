"""The example programs without arguments; the systems' `test_real_examples.py` test what they do.

Those of Spark need none: `tests/spark/test_spark_examples.py` runs them.
"""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(
    path for path in (ROOT / "examples").glob("*/*.py") if path.parent.name != "spark" and "__main__" in path.read_text()
)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_example_without_arguments_prints_its_usage(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    output = capsys.readouterr()
    assert (ended.value.code, output.out) == (2, "")
    assert output.err.startswith(f"usage: {path.name} [-h] ")
    assert "the following arguments are required: " in output.err


def test_all_examples_are_found() -> None:
    assert len(PROGRAMS) >= 20
