"""The client's page (docs/clients): the tests, modules and examples that it names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_feature_matrix_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "clients" / "tubemq.md").read_text()
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", page))
    sources = "\n".join(path.read_text() for path in (ROOT / "tests" / "tubemq").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", sources))
    assert len(named) > 40
    assert named - defined == set()


def test_the_named_modules_and_examples_exist() -> None:
    page = (ROOT / "docs" / "clients" / "tubemq.md").read_text()
    for name in re.findall(r"`([a-z_/]+\.py)`", page):
        folders = [ROOT / "mqbridge" / "tubemq", ROOT / "examples" / "tubemq"]
        assert any((folder / name).exists() for folder in folders), name
