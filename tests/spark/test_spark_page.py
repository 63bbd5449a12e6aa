"""docs/how-to/spark.md: its Python code runs from top to bottom, and the options that it names exist."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "spark.md"
FOLDER = "/tmp/mqbridge-tour"
EXPECTED_OUTPUT = [
    ["|ann|2026-01-31 12:00:10|    paid|    eu|orders|"],
    ['|paid|{"start":"2026-01-31T12:00:00.000Z","orders":2}|', '|open|{"start":"2026-01-31T12:01:00.000Z","orders":1}|'],
    ['|{"item": "book", "price": 12} paid 12|'],
    ["3 messages"],
    ["3 messages, as before"],
    ["3 messages, copied twice"],
    [f"mqbridge.errors.ClusterError: there is no topic 'ordres' in cluster 'log://{FOLDER}/shop.db'"],
]


def test_the_tour_runs_from_top_to_bottom(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
    assert FOLDER in code
    folder = str(tmp_path / "tour")
    Path(folder).mkdir()
    exec(compile(code.replace(FOLDER, folder), PAGE.name, "exec"), {})
    output = capsys.readouterr().out.replace(folder, FOLDER)
    offset = 0
    for lines in EXPECTED_OUTPUT:
        for line in lines:
            assert line in output[offset:], f"{line} is not printed where the page says so:\n{output}"
        offset = max(output.index(line, offset) for line in lines)
    assert "desk" not in output


def test_options_that_the_page_names_exist() -> None:
    from mqbridge.spark.options import OPTIONS

    text = PAGE.read_text()
    named = set(re.findall(r'\.option\("(\w+)"', text)) | set(
        re.findall(r"[(,] ?(\w+)=", "".join(re.findall(r"\.options\((.*?)\)", text)))
    )
    assert named <= {option.name for option in OPTIONS}
