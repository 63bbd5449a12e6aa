//! Property names that the system gives a meaning to: the sets of `mqbridge/rocketmq/mapping/table.py`.

use crate::message::RESERVED_PREFIX;
use crate::rocketmq::escapes::ESCAPE_PREFIX;

pub const UNIQ_KEY: &[u8] = b"UNIQ_KEY";
pub const TAGS: &[u8] = b"TAGS";
pub const KEYS: &[u8] = b"KEYS";
pub const SHARDING_KEY: &[u8] = b"__SHARDINGKEY";
pub const TIMER_DELIVER_MS: &[u8] = b"TIMER_DELIVER_MS";
pub const DELAY: &[u8] = b"DELAY";
const TRANSIENT_PREFIX: &[u8] = b"__RMQ.TRANSIENT.";

/// What a stored property is by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    User,
    /// Under `mqbridge.`.
    Reserved,
    UniqKey,
    Tags,
    Keys,
    ShardingKey,
    Timer,
    /// A system property that is read as a user's, and written escaped.
    Kept,
    /// A system property that is never copied.
    Ignored,
}

impl Kind {
    pub fn of(name: &[u8]) -> Kind {
        match name.first() {
            Some(b'm') if name.starts_with(RESERVED_PREFIX) => Kind::Reserved,
            Some(b'A'..=b'Z' | b'_' | b'1') => system_kind(name),
            _ => Kind::User,
        }
    }
}

/// By length first: a sequence of comparisons with all names takes ten times as long.
fn system_kind(name: &[u8]) -> Kind {
    match name.len() {
        3 if name == b"TTL" => Kind::Kept,
        4 => match name {
            TAGS => Kind::Tags,
            KEYS => Kind::Keys,
            b"WAIT" => Kind::Ignored,
            _ => Kind::User,
        },
        8 if name == UNIQ_KEY => Kind::UniqKey,
        8 if name == b"MSG_TYPE" => Kind::Kept,
        13 if name == SHARDING_KEY => Kind::ShardingKey,
        14 if name == b"CORRELATION_ID" => Kind::Kept,
        15 if name == b"REPLY_TO_CLIENT" => Kind::Kept,
        16 if name == TIMER_DELIVER_MS => Kind::Timer,
        16 if name == b"DLQ_ORIGIN_TOPIC" => Kind::Kept,
        21 if name == b"DLQ_ORIGIN_MESSAGE_ID" => Kind::Kept,
        _ if is_ignored(name) || name.starts_with(TRANSIENT_PREFIX) => Kind::Ignored,
        _ => Kind::User,
    }
}

fn is_ignored(name: &[u8]) -> bool {
    match name.len() {
        5 => name == DELAY,
        6 => matches!(name, b"PGROUP" | b"POP_CK"),
        7 => name == b"CLUSTER",
        8 => matches!(name, b"TRACE_ON" | b"DUP_INFO" | b"MQ2_FLAG" | b"REAL_QID" | b"REDIRECT" | b"TRAN_MSG" | b"__CRC32#"),
        9 => name == b"INNER_NUM",
        10 => matches!(name, b"MSG_REGION" | b"MIN_OFFSET" | b"MAX_OFFSET" | b"REAL_TOPIC" | b"INNER_BASE" | b"__BORNHOST"),
        11 => matches!(name, b"ARRIVE_TIME" | b"INSTANCE_ID" | b"RETRY_TOPIC"),
        12 => matches!(name, b"1ST_POP_TIME" | b"TIMER_OUT_MS"),
        13 => matches!(name, b"POP_CK_OFFSET" | b"TRACE_CONTEXT" | b"TRANSFER_FLAG"),
        14 => matches!(name, b"BORN_TIMESTAMP" | b"RECONSUME_TIME" | b"TIMER_DELAY_MS"),
        15 => matches!(name, b"CORRECTION_FLAG" | b"PUSH_REPLY_TIME" | b"TIMER_DELAY_SEC"),
        16 => matches!(name, b"EXTEND_UNIQ_INFO" | b"TIMER_DEQUEUE_MS" | b"TIMER_ENQUEUE_MS" | b"TIMER_ROLL_TIMES"),
        17 => matches!(name, b"ORIGIN_MESSAGE_ID" | b"TIMER_DELAY_LEVEL" | b"TIMER_DEL_UNIQKEY" | b"__transactionId__"),
        18 => name == b"CONSUME_START_TIME",
        19 => name == b"MAX_RECONSUME_TIMES",
        20 => name == b"INNER_MULTI_DISPATCH",
        23 => name == b"TRANSACTION_CHECK_TIMES",
        24 => name == b"INNER_MULTI_QUEUE_OFFSET",
        25 => name == b"PROPERTY_FORWARD_QUEUE_ID",
        26 => name == b"TRAN_PREPARED_QUEUE_OFFSET",
        30 => name == b"CHECK_IMMUNITY_TIME_IN_SECONDS",
        _ => false,
    }
}

/// Whether a user's property of this name may stand in the property string as what it is.
pub fn is_plain(name: &[u8]) -> bool {
    match Kind::of(name) {
        Kind::User | Kind::UniqKey => true,
        Kind::Reserved => !name.starts_with(ESCAPE_PREFIX),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_lengths_that_they_are_looked_up_by() {
        for name in ["WAIT", "DELAY", "CLUSTER", "INNER_NUM", "CONSUME_START_TIME", "MAX_RECONSUME_TIMES", "TRACE_ON"] {
            assert_eq!(Kind::of(name.as_bytes()), Kind::Ignored, "{name}");
        }
        assert_eq!(Kind::of(b"CHECK_IMMUNITY_TIME_IN_SECONDS"), Kind::Ignored);
        assert_eq!(Kind::of(b"__RMQ.TRANSIENT.x"), Kind::Ignored);
        assert_eq!(Kind::of(b"BUYER_ID"), Kind::User);
        assert_eq!(Kind::of(b"DLQ_ORIGIN_MESSAGE_ID"), Kind::Kept);
    }

    #[test]
    fn plain_names() {
        assert!(is_plain(b"a") && is_plain(b"UNIQ_KEY") && is_plain(b"BUYER_ID") && is_plain(b"mqbridge.zzz"));
        assert!(!is_plain(b"TAGS") && !is_plain(b"TTL") && !is_plain(b"mqbridge.x.") && !is_plain(b"WAIT"));
    }
}
