//! What one pull brought: see `mqbridge/rocketmq/client/pulled_records.py`.

use memchr::memmem::rfind;

use crate::message::{Source, Store};
use crate::rocketmq::record::{MIN_RECORD_BYTES, Record, i32_at};
use crate::rocketmq::{NAME_END, VALUE_END};
use crate::{Error, Result};

/// The bytes of records, and which of these are wanted: offsets from `first` up to `next`, tags that are one of `tags` if any.
pub struct Pull {
    pub body: Source,
    pub first: i64,
    pub next: i64,
    pub tags: Vec<String>,
}

const TAG: &[u8] = &[b'T', b'A', b'G', b'S', NAME_END];
const SYS_FLAG_AT: usize = 39;

/// How many records there are, and which of the lowest eight bits of the system flag one of them has.
pub fn count(body: &[u8]) -> Result<(usize, u8)> {
    let (mut at, mut count, mut flags) = (0, 0, 0);
    while at < body.len() {
        let left = body.len() - at;
        let size = if left >= MIN_RECORD_BYTES { i32_at(body, at) } else { 0 };
        let taken = usize::try_from(size).ok().filter(|size| (MIN_RECORD_BYTES..=left).contains(size)).ok_or_else(|| {
            let end = body.len();
            Error::Protocol(format!("record {count} of an answer of {end} bytes has {size} bytes where {left} are left"))
        })?;
        flags |= body[at + SYS_FLAG_AT];
        at += taken;
        count += 1;
    }
    Ok((count, flags))
}

/// Leaves the records from `first` up to `next`, with one of the tags.
pub fn keep_wanted(store: &Store, records: &mut Vec<Record>, first: i64, next: i64, tags: &[String]) {
    let wanted = first..next;
    let is_outside = |record: &Record| record.queue_offset < first;
    if records.first().is_some_and(is_outside) || records.last().is_some_and(|last| last.queue_offset >= next) {
        records.retain(|record| wanted.contains(&record.queue_offset));
    }
    if !tags.is_empty() {
        records.retain(|record| {
            let tag = tag_of(store.bytes(record.properties));
            tag.is_some_and(|tag| tags.iter().any(|wanted| wanted.as_bytes() == tag))
        });
    }
}

/// The tag in a property string. Of repeated ones the last counts.
fn tag_of(properties: &[u8]) -> Option<&[u8]> {
    let mut end = properties.len();
    while let Some(at) = rfind(&properties[..end], TAG) {
        if at == 0 || properties[at - 1] == VALUE_END {
            let rest = &properties[at + TAG.len()..];
            let value = rest.split(|byte| *byte == VALUE_END).next().unwrap_or_default();
            return (!value.is_empty()).then_some(value);
        }
        end = at;
    }
    None
}
