"""Edits the messages that are written to one target.

Properties are removed, then renamed, then set; templates read the original message. A message that no edit changes stays the
same object. A message that could not be decoded is not edited. TubeMQ's attributes with the type and the event time may also be
present as properties. So if the type changes, a property `$msgType$` with the old type gets the new one; if the event time is
cleared, the property `$msgTime$` is removed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mqbridge.config.options.edit import ClearableField, EditRules
from mqbridge.config.patterns import BoundedPattern, compile_name_pattern, is_pattern
from mqbridge.message import MSG_TIME, MSG_TYPE, Message, Pair, Partition, Share
from mqbridge.native import is_native
from mqbridge.routing.templates import Template

CLEARED_VALUES: Mapping[ClearableField, Any] = {
    "key": None,
    "ordering_key": None,
    "keys": (),
    "msg_type": None,
    "event_time": None,
    "deliver_at": None,
}
"""The value of each field after it is cleared."""


class Edit:
    """The edits of one target. `topic_words` has the values of the `{WORD}` placeholders that depend on the source topic only."""

    def __init__(self, rules: EditRules, topic_words: Mapping[str, str]) -> None:
        self._removed = frozenset(name for name in rules.remove if not is_pattern(name))
        self._removed_patterns = [compile_name_pattern(name) for name in rules.remove if is_pattern(name)]
        self._renamed = dict(rules.rename)
        self._set_templates = {name: Template(text, topic_words) for name, text in rules.set.items()}
        self._edits_properties = bool(rules.remove or rules.rename or rules.set)
        templates = {"msg_type": rules.msg_type, "key": rules.key, "ordering_key": rules.ordering_key}
        self._field_templates = {field: Template(text, topic_words) for field, text in templates.items() if text is not None}
        self._key_templates = [Template(text, topic_words) for text in rules.keys]
        self._cleared: dict[str, Any] = {field: CLEARED_VALUES[field] for field in rules.clear}

    def apply(self, share: Share) -> Share:
        """Return the edited share; the same object if nothing changes."""
        messages, source = share.messages, share.batch.partition
        edited: list[Message] | None = None
        for index, message in enumerate(messages):
            # Edits of properties read most fields. In a batch that the compiled module decoded, each read makes a new object:
            # copy them once.
            original = message.replace() if is_native(messages) and self._edits_properties else message
            if message.defect is None and (changes := self._changes(original, source)):
                if edited is None:
                    edited = list(messages)
                edited[index] = original.replace(**changes)
        return share if edited is None else Share(share.batch, share.indexes, edited, deliver_at=share.deliver_at)

    def _changes(self, message: Message, source: Partition) -> dict[str, Any]:
        """Return the new values of the fields that change."""
        new_values = self._cleared.copy()
        if self._edits_properties:
            new_values["properties"] = self._edited_properties(message, source)
        for field, template in self._field_templates.items():
            if (text := template.render(message, source)) is not None:
                new_values[field] = text.encode() if field == "ordering_key" else text
        if self._key_templates and (keys := tuple(self._index_keys(message, source))):
            new_values["keys"] = keys
        changes = {field: value for field, value in new_values.items() if value != getattr(message, field)}
        self._update_properties(message, changes)
        if changes and message.attributes is not None and ("properties" in changes or "msg_type" in changes):
            # The attribute string, TubeMQ's form of type and properties, still contains the old values and removed properties.
            changes["attributes"] = None
        return changes

    def _update_properties(self, message: Message, changes: dict[str, Any]) -> None:
        """Update or remove the properties with the old type and time; a property that `set` writes keeps that value."""
        if "msg_type" in changes and message.property(MSG_TYPE) == message.msg_type:
            self._update_property(MSG_TYPE, changes["msg_type"], message, changes)
        if "event_time" in changes:  # it can only be cleared
            self._update_property(MSG_TIME, None, message, changes)

    def _update_property(self, name: str, value: str | None, message: Message, changes: dict[str, Any]) -> None:
        """Set the property, if the message has it, to this value; None removes it."""
        properties: tuple[Pair, ...] = changes.get("properties", message.properties)
        if name not in self._set_templates and any(pair[0] == name for pair in properties):
            remaining = tuple(pair for pair in properties if pair[0] != name)
            changes["properties"] = remaining if value is None else _set_property(properties, name, value)

    def _index_keys(self, message: Message, source: Partition) -> Iterator[str]:
        """Yield the new index keys; a template whose words have no value gives none."""
        for template in self._key_templates:
            if (text := template.render(message, source)) is not None:
                yield text

    def _edited_properties(self, message: Message, source: Partition) -> tuple[Pair, ...]:
        """Return the properties after all edits; a template whose words have no value sets nothing."""
        properties = message.properties
        if self._removed or self._removed_patterns or self._renamed:
            properties = self._remove_and_rename(properties)
        for name, template in self._set_templates.items():
            if (text := template.render(message, source)) is not None:
                properties = _set_property(properties, name, text)
        return properties

    def _remove_and_rename(self, properties: tuple[Pair, ...]) -> tuple[Pair, ...]:
        """Return the properties after removals and renames."""
        removed = self._removed
        patterns = self._removed_patterns
        renamed = self._renamed
        return tuple(
            [
                (renamed[pair[0]], pair[1]) if pair[0] in renamed else pair
                for pair in properties
                if pair[0] not in removed and not (patterns and _matches(patterns, pair[0]))
            ]
        )


def _matches(patterns: list[BoundedPattern], name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in patterns)


def _set_property(properties: tuple[Pair, ...], name: str, value: str) -> tuple[Pair, ...]:
    """Return the properties with `name` once, with this value: in place of its first occurrence, or at the end."""
    indexes = [index for index, pair in enumerate(properties) if pair[0] == name]
    if not indexes:
        return (*properties, (name, value))
    first = indexes[0]
    return (*properties[:first], (name, value), *(pair for pair in properties[first + 1 :] if pair[0] != name))
