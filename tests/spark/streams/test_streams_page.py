"""docs/how-to/spark-streams.md: every test that the page names exists, and the page names every operator."""

import ast
import re
from pathlib import Path

from mqbridge.spark.streams import GroupedStream, JoinedStream, RStream, StreamJob, WindowStream

FOLDER = Path(__file__).parent
PAGE = (FOLDER.parents[2] / "docs" / "how-to" / "spark-streams.md").read_text()
JOIN_METHODS = {"where", "equalTo", "apply"}
"""Methods of joins. The page describes them with the operator `join`, and the examples show them."""


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_test_that_the_page_names_exists() -> None:
    tests = re.findall(r"`((?:\w+/)*test_\w+\.py)::(test_\w+)`", PAGE)
    assert len(tests) > 20
    assert [f"{file}::{test}" for file, test in tests if test not in functions_of(FOLDER / file)] == []


def test_every_line_of_the_table_names_a_test() -> None:
    table = PAGE.split("## RIP-58, element by element")[1].split("Not available:")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert [line for line in lines if "::test_" not in line] == []


def test_every_operator_is_on_the_page() -> None:
    operators = {
        name for kind in (RStream, GroupedStream, WindowStream, JoinedStream, StreamJob) for name in vars(kind) if name[0] != "_"
    }
    missing = {
        operator
        for operator in operators - JOIN_METHODS - {"isRunning", "awaitTermination", "apply"}
        if not re.search(rf"\b{operator}\b", PAGE)
    }
    assert missing == set()
