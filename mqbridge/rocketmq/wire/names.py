"""Names of topics that have a meaning for brokers, and the lengths of names that they accept."""

MAX_TOPIC_CHARS = 127
"""Maximum length of a topic's name that brokers accept."""
MAX_GROUP_CHARS = 255
"""Maximum length of a group's name that brokers accept from an administrator.

5.x brokers create a group automatically only if its name has at most 120 characters. Clients do not check this, because the group
may exist already.
"""
FORBIDDEN_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""System topics to which clients must not send."""
