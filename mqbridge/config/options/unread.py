"""The option that says whether unread messages of a written topic may be deleted."""

from typing import Annotated, Literal

from pydantic import Field

Unread = Annotated[
    Literal["kept", "may_be_deleted"],
    Field(
        description="`kept`: the topic is not written to while its cluster deletes messages that nobody has read: in Pulsar, "
        "a topic that has neither a subscription (on each partition) nor retention, or is not persistent. `mqbridge check "
        "--connect` then reports an error. The gateway is not ready, and does not read the source partitions that it would write "
        "there, until the topic has a subscription or retention. `may_be_deleted`: write anyway, and give no warnings about the "
        "retention of the topic."
    ),
]
"""The type of the option `unread` of targets and dead-letter topics."""
