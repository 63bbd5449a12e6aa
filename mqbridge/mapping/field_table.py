"""The mapping of each field of a system's messages, as rules that the code, tests, command line and published page share.

The rules of a system are in its module `mapping.table`, and are registered with its adapter. A rule maps a native field (a field
of the system's own message format) to a field of `Message`, and defines the fate of the field when a message is written:

    native      a field of the system itself stores the value
    carried     a reserved property stores the value; if the message is later written to a system with a field for it, that
                field stores the value
    recomputed  the system that stores the message sets a new value; the field is only read
    dropped     the value has no meaning outside of its system; `why` gives the reason

A message that an SDK sends to a listener is not a copy: a listener stores it and gives it back to other SDKs of the same system.
`Returned` says what these get of each native field.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple


class Fate(Enum):
    """The fate of a field when a message is written."""

    NATIVE = "native"
    CARRIED = "carried"
    RECOMPUTED = "recomputed"
    DROPPED = "dropped"


NATIVE, CARRIED, RECOMPUTED, DROPPED = Fate


class Returned(Enum):
    """What an SDK gets of a native field that another SDK has sent to a listener.

    KEPT       what was sent
    ACTED_ON   what was sent, unless the listener did what it asks for before it stored the message, such as a delay
    IF_SENT    what was sent; a property of this name that a gateway or another system's client wrote is left out
    SET        a value of the listener, as a server of the system sets it
    LEFT_OUT   nothing
    """

    KEPT = "kept"
    ACTED_ON = "acted on"
    IF_SENT = "if sent"
    SET = "set"
    LEFT_OUT = "left out"


KEPT, ACTED_ON, IF_SENT, SET, LEFT_OUT = Returned


class FieldRule(NamedTuple):
    """The rule of the native field (or reserved property) named `native`: its message field, its fate, and a one-line reason.

    `native` is empty if the system's format has no field for the message field. `field` is None if no field of `Message` has the
    value.

    `own` means that the value is specific to this system: values from other systems in the same message field are not written to
    the native field. `listener` is what SDKs get from a listener that stores messages field by field; None if there is none for
    the system.
    """

    native: str
    field: str | None
    fate: Fate
    why: str
    own: bool = False
    listener: Returned | None = None


class FieldTable(NamedTuple):
    """All rules of a system. `title` is the name of the system in documents.

    `listener` says what a listener for SDKs of the system gives back of what they sent; empty if there is no listener.
    """

    system: str
    title: str
    rules: tuple[FieldRule, ...]
    listener: str = ""

    def rules_of(self, field: str) -> list[FieldRule]:
        """Return all rules of a message field."""
        return [rule for rule in self.rules if rule.field == field]

    def carried_fields(self) -> tuple[str, ...]:
        """Return the message fields that the system stores only in a reserved property, in the order of the rules."""
        native = {rule.field for rule in self.rules if rule.fate is NATIVE}
        carried = (rule.field for rule in self.rules if rule.fate is CARRIED)
        return tuple(dict.fromkeys(field for field in carried if field is not None and field not in native))

    def native_names(self, *fates: Fate) -> frozenset[str]:
        """Return the names of the native fields (and reserved properties) that have one of these fates."""
        return frozenset(rule.native for rule in self.rules if rule.fate in fates)


class MappedField(NamedTuple):
    """The mapping of one native field of a source to a target.

    `source` is the name of the native field, `field` that of the message field (None if there is none), and `target` has the
    names of the target's native fields and reserved properties that store the value, joined by commas; it is empty if none does.
    `fate` is the fate in the target, or in the source if the value does not reach the target. `listener` is that of the source's
    rule.
    """

    source: str
    field: str | None
    target: str
    fate: Fate
    why: str
    listener: Returned | None = None


def map_fields(source: FieldTable, target: FieldTable) -> list[MappedField]:
    """Map every native field of the source to the target."""
    return [mapped for rule in source.rules for mapped in _map_field(rule, target)]


def _map_field(rule: FieldRule, target: FieldTable) -> Iterable[MappedField]:
    """Yield the mapping of one rule's native field; nothing without one, or for a reserved property that has a message field."""
    if not rule.native or (rule.native.startswith("mqbridge.") and rule.field is not None):
        return  # a carried field: the rule of the message field itself covers it
    if rule.field is None or rule.fate is DROPPED:
        yield MappedField(rule.native, rule.field, "", rule.fate, rule.why, rule.listener)
        return
    # `own` fields take no values of other systems. Every system has another rule for each message field.
    target_rules = [target_rule for target_rule in target.rules_of(rule.field) if not target_rule.own]
    written = [target_rule for target_rule in target_rules if target_rule.fate in {NATIVE, CARRIED}]
    names = ", ".join(dict.fromkeys(target_rule.native for target_rule in written))
    best = min(target_rules, key=lambda target_rule: list(Fate).index(target_rule.fate))  # `Fate` has the best fate first
    why = rule.why if rule.why == best.why else f"{rule.why}; {best.why}"
    yield MappedField(rule.native, rule.field, names, best.fate, why, rule.listener)
