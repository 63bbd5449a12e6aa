//! The system properties, to which RocketMQ gives a meaning: the sets of names in `mqbridge/rocketmq/mapping/table.py`.

use crate::message::RESERVED_PREFIX;
use crate::rocketmq::escapes::ESCAPE_PREFIX;

pub const UNIQ_KEY: &[u8] = b"UNIQ_KEY";
pub const TAGS: &[u8] = b"TAGS";
pub const KEYS: &[u8] = b"KEYS";
pub const SHARDING_KEY: &[u8] = b"__SHARDINGKEY";
pub const TIMER_DELIVER_MS: &[u8] = b"TIMER_DELIVER_MS";
pub const DELAY: &[u8] = b"DELAY";
const TRANSIENT_PREFIX: &[u8] = b"__RMQ.TRANSIENT.";

/// The kind of a stored property, which its name determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyKind {
    User,
    /// A name that begins with `mqbridge.`.
    Reserved,
    UniqKey,
    Tags,
    Keys,
    ShardingKey,
    Timer,
    /// A system property that becomes a user property; it is written escaped, so that it has no effect in the target cluster.
    Kept,
    /// A system property that is neither read nor copied.
    Ignored,
}

impl PropertyKind {
    /// Returns the kind of a property with this name.
    pub fn of(name: &[u8]) -> PropertyKind {
        match name.first() {
            Some(b'm') if name.starts_with(RESERVED_PREFIX) => PropertyKind::Reserved,
            // All system names begin like this (1: 1ST_POP_TIME), so most user properties need no comparison.
            Some(b'A'..=b'Z' | b'_' | b'1') => system_kind(name),
            _ => PropertyKind::User,
        }
    }
}

/// Compares only with the names of the same length, because comparing with all names takes ten times as long.
fn system_kind(name: &[u8]) -> PropertyKind {
    match name.len() {
        3 if name == b"TTL" => PropertyKind::Kept,
        4 => match name {
            TAGS => PropertyKind::Tags,
            KEYS => PropertyKind::Keys,
            b"WAIT" => PropertyKind::Ignored,
            _ => PropertyKind::User,
        },
        8 if name == UNIQ_KEY => PropertyKind::UniqKey,
        8 if name == b"MSG_TYPE" => PropertyKind::Kept,
        13 if name == SHARDING_KEY => PropertyKind::ShardingKey,
        14 if name == b"CORRELATION_ID" => PropertyKind::Kept,
        15 if name == b"REPLY_TO_CLIENT" => PropertyKind::Kept,
        16 if name == TIMER_DELIVER_MS => PropertyKind::Timer,
        16 if name == b"DLQ_ORIGIN_TOPIC" => PropertyKind::Kept,
        21 if name == b"DLQ_ORIGIN_MESSAGE_ID" => PropertyKind::Kept,
        _ if is_allowed(name) || name.starts_with(TRANSIENT_PREFIX) => PropertyKind::Kept,
        _ if is_ignored(name) => PropertyKind::Ignored,
        _ => PropertyKind::User,
    }
}

/// Returns true for the names that Java clients let applications set.
fn is_allowed(name: &[u8]) -> bool {
    match name.len() {
        8 => name == b"REDIRECT",
        9 => name == b"INNER_NUM",
        10 => name == b"INNER_BASE",
        13 => name == b"TRACE_CONTEXT",
        17 => name == b"__transactionId__",
        20 => name == b"INNER_MULTI_DISPATCH",
        23 => name == b"TRANSACTION_CHECK_TIMES",
        25 => name == b"PROPERTY_FORWARD_QUEUE_ID",
        30 => name == b"CHECK_IMMUNITY_TIME_IN_SECONDS",
        _ => false,
    }
}

/// Returns true for the names in Python's `IGNORED_NAMES`, except WAIT, which `system_kind` finds.
fn is_ignored(name: &[u8]) -> bool {
    match name.len() {
        5 => name == DELAY,
        6 => matches!(name, b"PGROUP" | b"POP_CK"),
        7 => name == b"CLUSTER",
        8 => matches!(name, b"TRACE_ON" | b"DUP_INFO" | b"MQ2_FLAG" | b"REAL_QID" | b"TRAN_MSG" | b"__CRC32#"),
        10 => matches!(name, b"MSG_REGION" | b"MIN_OFFSET" | b"MAX_OFFSET" | b"REAL_TOPIC" | b"__BORNHOST"),
        11 => matches!(name, b"ARRIVE_TIME" | b"INSTANCE_ID" | b"RETRY_TOPIC"),
        12 => matches!(name, b"1ST_POP_TIME" | b"TIMER_OUT_MS"),
        13 => matches!(name, b"POP_CK_OFFSET" | b"TRANSFER_FLAG"),
        14 => matches!(name, b"BORN_TIMESTAMP" | b"RECONSUME_TIME" | b"TIMER_DELAY_MS"),
        15 => matches!(name, b"CORRECTION_FLAG" | b"PUSH_REPLY_TIME" | b"TIMER_DELAY_SEC"),
        16 => matches!(name, b"EXTEND_UNIQ_INFO" | b"TIMER_DEQUEUE_MS" | b"TIMER_ENQUEUE_MS" | b"TIMER_ROLL_TIMES"),
        17 => matches!(name, b"ORIGIN_MESSAGE_ID" | b"TIMER_DELAY_LEVEL" | b"TIMER_DEL_UNIQKEY"),
        18 => name == b"CONSUME_START_TIME",
        19 => name == b"MAX_RECONSUME_TIMES",
        24 => name == b"INNER_MULTI_QUEUE_OFFSET",
        26 => name == b"TRAN_PREPARED_QUEUE_OFFSET",
        _ => false,
    }
}

/// Returns true if a user property with this name is written unescaped. UNIQ_KEY is: it is copied as a user property.
/// Reserved names are, unless they look escaped: the writer adds USER_PREFIX to those that need it.
pub fn is_plain(name: &[u8]) -> bool {
    match PropertyKind::of(name) {
        PropertyKind::User | PropertyKind::UniqKey => true,
        PropertyKind::Reserved => !name.starts_with(ESCAPE_PREFIX),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_names_are_listed_under_their_length() {
        for name in ["WAIT", "DELAY", "CLUSTER", "MIN_OFFSET", "CONSUME_START_TIME", "MAX_RECONSUME_TIMES", "TRACE_ON"] {
            assert_eq!(PropertyKind::of(name.as_bytes()), PropertyKind::Ignored, "{name}");
        }
        assert_eq!(PropertyKind::of(b"CHECK_IMMUNITY_TIME_IN_SECONDS"), PropertyKind::Kept);
        assert_eq!(PropertyKind::of(b"REDIRECT"), PropertyKind::Kept);
        assert_eq!(PropertyKind::of(b"__RMQ.TRANSIENT.x"), PropertyKind::Kept);
        assert_eq!(PropertyKind::of(b"BUYER_ID"), PropertyKind::User);
        assert_eq!(PropertyKind::of(b"DLQ_ORIGIN_MESSAGE_ID"), PropertyKind::Kept);
    }

    #[test]
    fn plain_names_are_written_unescaped() {
        assert!(is_plain(b"a") && is_plain(b"UNIQ_KEY") && is_plain(b"BUYER_ID") && is_plain(b"mqbridge.zzz"));
        assert!(!is_plain(b"TAGS") && !is_plain(b"TTL") && !is_plain(b"mqbridge.x.") && !is_plain(b"WAIT"));
    }
}
