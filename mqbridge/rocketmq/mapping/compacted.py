"""Messages for compacted topics (cleanup.policy=COMPACTION), of which brokers keep only the newest message of each KEYS text.

A broker refuses a single message without KEYS, but accepts it in a batch, acknowledges it and never shows it to a consumer. So a
message gets its key as KEYS if it has no index keys, and is refused if it has no key either.
"""

import base64

from mqbridge.message import Message
from mqbridge.rocketmq.wire.properties import NAME_END, VALUE_END
from mqbridge.wire.text import encode_text

NO_KEY = (
    "it has no key, and the topic is compacted (cleanup.policy=COMPACTION): brokers keep the newest message of each key there, "
    "and none without a key"
)
"""The reason for refusing a message without any key."""


def with_index_key(message: Message) -> Message | None:
    """Return the message with index keys: its own, or its key. None if it has no key.

    A binary key, and a text that KEYS cannot hold, is written in base64.
    """
    if " ".join(message.keys).strip():  # a broker ignores KEYS that consist of blanks only
        return message
    key = message.key
    if not key:
        return None
    if isinstance(key, bytes) or not key.strip() or NAME_END in key or VALUE_END in key:
        key = base64.b64encode(key if isinstance(key, bytes) else encode_text(key)).decode()
    return message.replace(keys=(key,))
