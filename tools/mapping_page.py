"""Writes the tables of docs/reference/mapping.md from the rows that the mappings themselves use.

python -m tools.mapping_page --check     exits 1 when the page is not current
python -m tools.mapping_page --write

The text outside of the marks BEGIN and END is written by people and kept.
"""

import sys
from collections.abc import Iterator

from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.mapping.field_table import DROPPED, RECOMPUTED, FieldRule, FieldTable
from mqbridge.message import Message
from tools.generated_page import DOCS, check_or_write

PAGE = DOCS / "reference" / "mapping.md"
BEGIN = "<!-- Written by `python -m tools.mapping_page --write` from the mappings' own tables. Do not edit. -->"
END = "<!-- end -->"
UNPUBLISHED = {"memory"}
"""Systems that only the tests use."""

_FIELD_ORDER = (
    *("payload", "properties", "key", "ordering_key", "keys", "msg_type", "attributes", "event_time", "deliver_at"),
    *("origin", "hops", "publish_time", "delivery_count", "position", "defect"),
)
"""The fields of a message in the order of the page."""


def generate_tables() -> str:
    """Return the text between the marks: an overview of all fields, and a table for each system.

    The fate of a field is how a write to that system treats it: native, carried, recomputed or dropped.
    """
    tables = [adapter.table for _, adapter in sorted(load_adapters().items()) if _is_published(adapter)]
    lines = ["## Fields of the message", "", *_overview(tables)]
    for table in tables:
        lines += ["", f"## {table.title}: every field", "", *_fields(table)]
    return "\n".join(lines)


def _fields(table: FieldTable) -> Iterator[str]:
    """Yield the lines of one system's table; with a column for listeners if one maps the fields of its SDKs' messages."""
    if table.listener:
        yield f"[Listener](#listeners): {table.listener}"
        yield ""
    has_column = any(rule.listener for rule in table.rules)
    yield "| native | message | fate | listener | |" if has_column else "| native | message | fate | |"
    yield "|---" * (5 if has_column else 4) + "|"
    for rule in table.rules:
        returned = (rule.listener.value if rule.listener else "",) if has_column else ()
        yield _line((_code(rule.native), rule.field or "", rule.fate.value, *returned, rule.why))


def _is_published(adapter: Adapter) -> bool:
    """Return True for the built-in systems that users can configure; third-party adapters have pages of their own."""
    return adapter.system not in UNPUBLISHED and adapter.cluster_model.__module__.startswith("mqbridge.")


def _overview(tables: list[FieldTable]) -> Iterator[str]:
    """Yield the lines of a table with a row for each field of a message and a column for each system."""
    yield _line(("field", *(table.title for table in tables)))
    yield "|---" * (len(tables) + 1) + "|"
    assert set(_FIELD_ORDER) == set(Message.__slots__)  # noqa: S101 - a new field needs a place in _FIELD_ORDER
    for field in _FIELD_ORDER:
        yield _line((field, *(_cell(table.rules_of(field)) for table in tables)))


def _cell(rules: list[FieldRule]) -> str:
    """Return the names of the native fields and properties that store a message field; if none do, names with their fate."""
    written = [rule for rule in rules if rule.fate not in {RECOMPUTED, DROPPED}]
    if written:
        return ", ".join(dict.fromkeys(_code(rule.native) for rule in written))
    return "; ".join(dict.fromkeys(f"{_code(rule.native)} {rule.fate.value}".strip() for rule in rules))


def _code(name: str) -> str:
    """Format a name as code; "" if it is empty."""
    return f"`{name}`" if name else ""


def _line(cells: tuple[str, ...]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def update_page(text: str) -> str:
    """Return this text of the page with new tables between its marks."""
    before, _, after_begin = text.partition(BEGIN)
    _, _, after = after_begin.partition(END)
    return f"{before}{BEGIN}\n\n{generate_tables()}\n\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Check or write the page; return the exit code."""
    return check_or_write("tools.mapping_page", PAGE, update_page(PAGE.read_text(encoding="utf-8")), arguments)


if __name__ == "__main__":
    sys.exit(main())
