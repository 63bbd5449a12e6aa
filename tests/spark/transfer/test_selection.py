"""A selection is stored as text, and a repeated batch stores only what the earlier and the current selection have in common."""

from mqbridge.config.options.filter import FilterRules
from mqbridge.message import Batch, Message
from mqbridge.spark.transfer.selection import Selection

RULES = FilterRules.model_validate(
    {
        "include": [
            {"msg_type": {"one_of": ["a", "b"]}, "key": {"pattern": "k.*"}},
            {"properties": {"x": {"present": False}, "y": {"equals": "|"}}},
        ],
        "exclude": {"key": {"equals": "k9"}},
    }
)


def test_a_selection_is_the_same_after_it_was_stored_as_text() -> None:
    for selection in (Selection(), Selection(frozenset({"b", "ä"})), Selection(frozenset({"a"}), RULES)):
        assert Selection.from_json(selection.as_json()) == selection


def test_a_message_must_pass_the_earlier_and_the_current_selection() -> None:
    batch = Batch.of([Message(b"", msg_type=kind, key=f"k{number}") for number, kind in enumerate("abcabcabca")])
    types, rules, everything = Selection(frozenset("ac")), Selection(rules=RULES), Selection()

    def kept(current: Selection, earlier: Selection | None) -> tuple[list[int], int]:
        excluded: list[int] = []
        chosen = current.make_filter(excluded.append, earlier)
        assert chosen is not None
        return list(chosen.keep(batch).batch_indexes), sum(excluded)

    assert kept(types, None) == kept(types, everything) == kept(everything, types) == ([0, 2, 3, 5, 6, 8, 9], 3)
    assert kept(rules, types) == kept(types, rules) == ([0, 3, 6], 7)
    assert everything.make_filter(lambda _: None, everything) is None
