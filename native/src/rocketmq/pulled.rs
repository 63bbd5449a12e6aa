//! The records that one pull returned: see `mqbridge/rocketmq/client/consumer/pulled_records.py`.

use memchr::memmem::rfind;

use crate::message::{Source, Store};
use crate::rocketmq::record::{MIN_RECORD_BYTES, Record, i32_at};
use crate::rocketmq::{NAME_END, VALUE_END};
use crate::{Error, Result};

/// The response to a pull: the bytes of its records, and the filter for them.
///
/// The wanted records have offsets from `first` up to, but not including, `next`, and one of `tags`; no tags means all.
/// Inner batches that cannot be split are wanted, too.
pub struct Pull {
    pub body: Source,
    pub first: i64,
    pub next: i64,
    pub tags: Vec<String>,
}

/// The name of the tag's property with its end, as in a property string.
const TAG_NAME: &[u8] = &[b'T', b'A', b'G', b'S', NAME_END];
/// Index in a record of the byte with the lowest eight bits of the system flag.
const SYS_FLAG_AT: usize = 39;

/// Returns the number of records, and the lowest eight bits of their system flags, combined by OR: a bit is set if any record
/// has it.
pub fn count_stored(body: &[u8]) -> Result<(usize, u8)> {
    let (mut at, mut count, mut flags) = (0, 0, 0);
    while at < body.len() {
        let left = body.len() - at;
        let size = if left >= MIN_RECORD_BYTES { i32_at(body, at) } else { 0 };
        let valid_size = usize::try_from(size).ok().filter(|size| (MIN_RECORD_BYTES..=left).contains(size)).ok_or_else(|| {
            let end = body.len();
            Error::Protocol(format!("record {count} of a response of {end} bytes has {size} bytes where {left} are left"))
        })?;
        flags |= body[at + SYS_FLAG_AT];
        at += valid_size;
        count += 1;
    }
    Ok((count, flags))
}

/// Removes the records that are not wanted: those outside of the offsets or with other tags; see [`Pull`].
pub fn keep_wanted(store: &Store, records: &mut Vec<Record>, first: i64, next: i64, tags: &[String]) {
    let wanted = first..next;
    // Offsets ascend, so the first and the last record tell whether one is outside.
    if records.first().is_some_and(|record| record.queue_offset < first)
        || records.last().is_some_and(|last| last.queue_offset >= next)
    {
        records.retain(|record| wanted.contains(&record.queue_offset));
    }
    if !tags.is_empty() {
        records.retain(|record| {
            let tag = tag_of(store.bytes(record.properties));
            // An inner batch that cannot be split passes: the tags of its messages are unknown.
            record.is_inner_batch() || tag.is_some_and(|tag| tags.iter().any(|wanted_tag| wanted_tag.as_bytes() == tag))
        });
    }
}

/// Returns the tag in a property string; None if it is missing or empty. If it is repeated, the last value counts.
pub fn tag_of(properties: &[u8]) -> Option<&[u8]> {
    let mut end = properties.len();
    while let Some(at) = rfind(&properties[..end], TAG_NAME) {
        if at == 0 || properties[at - 1] == VALUE_END {
            let rest = &properties[at + TAG_NAME.len()..];
            let value = rest.split(|byte| *byte == VALUE_END).next().unwrap_or_default();
            return (!value.is_empty()).then_some(value);
        }
        end = at;
    }
    None
}
