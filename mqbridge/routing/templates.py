"""Renders the templates in the edits of a target. `mqbridge.config.templates` defines the grammar and the words (`{WORD}`).

If a message has no value for a word of the template, the result is None, and the field is not changed.
"""

from collections.abc import Callable, Mapping

from mqbridge.config.templates import parse_message_template
from mqbridge.message import Message, Partition, format_position

GetWordValue = Callable[[Message, Partition], str | None]
"""Function that returns the value of a template word for a message and its source partition; None if it has no value."""


def _key(message: Message, _: Partition) -> str | None:
    """Return the key as text; bytes of a binary key that are not UTF-8 become U+FFFD."""
    if isinstance(message.key, bytes):
        return message.key.decode(errors="replace")
    return message.key


_MESSAGE_WORDS: dict[str, GetWordValue] = {
    "key": _key,
    "msg_type": lambda message, _: message.msg_type,
    "event_time": lambda message, _: None if message.event_time is None else str(message.event_time),  # ms
    "position": lambda message, _: format_position(message.position),
    "cluster": lambda _, source: source.cluster,
    "topic": lambda _, source: source.topic,
    "partition": lambda _, source: source.name,
}


class Template:
    """A parsed template. `topic_words` has the values that come from the source topic, by word (see `mqbridge.routing.topics`).

    A word in both `_MESSAGE_WORDS` and `topic_words` takes its value from the message.
    """

    def __init__(self, template: str, topic_words: Mapping[str, str]) -> None:
        self._parts: list[str | GetWordValue] = []
        for literal, word, property_name in parse_message_template(template):  # the name is "" except in {property:NAME}
            if literal:
                self._parts.append(literal)
            if word is not None:
                self._parts.append(
                    _property_word(property_name) if property_name else _MESSAGE_WORDS.get(word) or topic_words[word]
                )

        # A template without words gives the same text for every message.
        self._constant = "".join(map(str, self._parts)) if all(isinstance(part, str) for part in self._parts) else None

    def render(self, message: Message, source: Partition) -> str | None:
        """Return the text, or None if the message has no value for a word."""
        if self._constant is not None:
            return self._constant
        texts: list[str] = []
        for part in self._parts:
            text = part if isinstance(part, str) else part(message, source)
            if text is None:
                return None
            texts.append(text)
        return "".join(texts)


def _property_word(name: str) -> GetWordValue:
    return lambda message, _: message.property(name)
