"""Writes the tables of docs/spark.md from the options that the data source takes.

python -m mqbridge.spark.options_page --check     exits 1 when the page is not current
python -m mqbridge.spark.options_page --write

What stands outside of the two marks is written by people and kept.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from mqbridge.config.generated_page import check_or_write
from mqbridge.spark.options import OPTIONS, Option, Where

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BEGIN = "<!-- Written by `python -m mqbridge.spark.options_page --write` from the data source's own table. Do not edit. -->"
END = "<!-- end -->"

_PARTS = {"Reading and writing": (True, True), "Reading": (True, False), "Writing": (False, True)}
"""Titles of tables, and whether their options hold for reads and for writes."""


def generated() -> str:
    """Everything between the marks."""
    lines: list[str] = []
    for title, part in _PARTS.items():
        options = [option for option in OPTIONS if part == (bool(option.where & Where.READ), bool(option.where & Where.WRITE))]
        if options:
            lines += [f"### {title}", "", "| option | value | default | meaning |", "|---|---|---|---|", *map(_row, options), ""]
    return "\n".join(lines).rstrip()


def _row(option: Option) -> str:
    default = "" if option.default is None else f"`{option.default}`"
    meaning = option.meaning
    if option.where in (Where.BATCH, Where.STREAM):
        meaning = f"({option.holds_for}) {meaning}"
    cells = (f"`{option.name}`", option.form, default, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page(text: str) -> str:
    """The page with its tables renewed."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{generated()}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or write the page; the exit code."""
    return check_or_write("mqbridge.spark.options_page", PAGE, page(PAGE.read_text(encoding="utf-8")), arguments)


if __name__ == "__main__":
    sys.exit(main())
