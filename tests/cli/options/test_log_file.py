"""The file of a log as a path or a URL."""

from pathlib import Path

import pytest

from mqbridge.cli.options.log_file import parse_log_file


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("log.db", "log.db"),
        ("/var/lib/log.db", "/var/lib/log.db"),
        ("log:///var/lib/log.db", "/var/lib/log.db"),
        ("log://log.db?retention=1d", "log.db"),
        ("what?.db", "what?.db"),
    ],
)
def test_a_url_names_the_same_file_as_its_path(text: str, path: str) -> None:
    assert parse_log_file(text) == Path(path)
