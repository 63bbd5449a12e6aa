"""What becomes of each field of a system's messages, as rules that code, tests, the command line and the published page share.

A system's rules are in its `mapping.table`, and registered with its adapter. A rule says which field of `Message` a native field
becomes, and what happens to that field when a message is written to the system:

    native      a field of the system's own says it
    carried     it travels as a property or pair of the gateway's, and becomes native again in a system that can say it
    recomputed  whoever stores the message makes the value anew; it is read at most
    dropped     it means nothing outside of where it was made; `why` tells the reason
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class Fate(Enum):
    """What becomes of a field."""

    NATIVE = "native"
    CARRIED = "carried"
    RECOMPUTED = "recomputed"
    DROPPED = "dropped"


NATIVE, CARRIED, RECOMPUTED, DROPPED = Fate


class FieldRule(NamedTuple):
    """One native field (or property of the gateway's), the message field that it is, its fate, and why in one line.

    `own`: it stands for something of this system's alone; what other systems say in that field is not written to it.
    """

    native: str
    field: str | None
    fate: Fate
    why: str
    own: bool = False


class FieldTable(NamedTuple):
    """All rules of a system. `title` is its name in print."""

    system: str
    title: str
    rules: tuple[FieldRule, ...]

    def rules_of(self, field: str) -> list[FieldRule]:
        """The rules of a message field: where it is written to or read from."""
        return [rule for rule in self.rules if rule.field == field]

    def carried_fields(self) -> tuple[str, ...]:
        """The message fields that the system has no field of its own for, in the order of the rules."""
        native = {rule.field for rule in self.rules if rule.fate is NATIVE}
        carried = (rule.field for rule in self.rules if rule.fate is CARRIED)
        return tuple(dict.fromkeys(field for field in carried if field is not None and field not in native))

    def native_names(self, *fates: Fate) -> frozenset[str]:
        """The native names that have one of these fates."""
        return frozenset(rule.native for rule in self.rules if rule.fate in fates)


class MappedField(NamedTuple):
    """What becomes of one native field of a source in a target; `target` is empty where it ends."""

    source: str
    field: str | None
    target: str
    fate: Fate
    why: str


def map_fields(source: FieldTable, target: FieldTable) -> list[MappedField]:
    """Every native field of the source and what becomes of it in the target."""
    return [mapped for rule in source.rules for mapped in _map_field(rule, target)]


def _map_field(rule: FieldRule, target: FieldTable) -> Iterable[MappedField]:
    if not rule.native or (rule.native.startswith("mqbridge.") and rule.field is not None):
        return  # what was carried is its own field again: the rule of that field says what becomes of it
    if rule.field is None or rule.fate is DROPPED:
        yield MappedField(rule.native, rule.field, "", rule.fate, rule.why)
        return
    taken = [found for found in target.rules_of(rule.field) if not found.own]
    written = [found for found in taken if found.fate in {NATIVE, CARRIED}]
    names = ", ".join(dict.fromkeys(found.native for found in written))
    best = min(taken, key=lambda found: list(Fate).index(found.fate))
    yield MappedField(rule.native, rule.field, names, best.fate, rule.why if rule.why == best.why else f"{rule.why}; {best.why}")
