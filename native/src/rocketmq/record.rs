//! Records of the commit log: see `mqbridge/rocketmq/wire/record.py`, which tells the layout.

use crate::message::{Slice, Source, Store};
use crate::text::bytes_repr;
use crate::{Error, Result};

const V1: u32 = 0xDAA3_20A7;
const V2: u32 = 0xDAA3_20AB;
const CHECKSUM_MASK: u32 = 0x7FFF_FFFF;
pub const MIN_RECORD_BYTES: usize = 91;
const FIXED_BYTES: usize = 88;
const MAX_INNER_MESSAGES: usize = 0x7FFF;
pub const MAX_UNPACKED_BYTES: usize = 256 << 20;
const OBJECT_BYTES: usize = 512;

const COMPRESSED: u32 = 1;
const BORN_IPV6: u32 = 16;
const STORE_IPV6: u32 = 32;
const WRAPPED: u32 = 64 | 128;
const COMPRESSION: u32 = 0x700;
const SPECIAL: u32 = COMPRESSED | BORN_IPV6 | STORE_IPV6 | WRAPPED;

/// Decompresses a body with the codec of these bits: the plain bytes, or why not.
pub type Decompress<'a> = dyn FnMut(u32, &[u8]) -> Result<std::result::Result<Source, String>> + 'a;

/// A stored message, as far as messages are made of it. The body is decompressed, or as stored when there is a defect.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub body: Slice,
    pub properties: Slice,
    pub queue_offset: i64,
    pub flag: i32,
    sys_flag: u32,
    pub born_timestamp: i64,
    pub store_timestamp: i64,
    pub reconsume_times: i32,
    pub defect: Option<Slice>,
}

/// A record whose place is known, and whether what it holds is sound.
struct Cut {
    record: Record,
    stop: usize,
    /// The checksum of the body, and the one that was stored, where they differ.
    mismatch: Option<(u32, u32)>,
    is_utf8: bool,
}

/// Appends every record of a source, inner batches unwrapped. `is_lazy` leaves bodies compressed that are no inner batch.
pub fn decode_records(
    store: &mut Store,
    source: u32,
    decompress: &mut Decompress,
    is_lazy: bool,
    records: &mut Vec<Record>,
) -> Result<()> {
    let mut at = 0;
    let mut topic = (0, 0); // the last one's place: it is mostly the same for all
    let mut room = MAX_UNPACKED_BYTES;
    while at < store.source(source).len() {
        let Cut { mut record, stop, mismatch, is_utf8 } = cut(store.source(source), source, at, &mut topic)?;
        at = stop;
        if let Some((found, told)) = mismatch {
            let text = format!("the CRC-32 of its body is {found:08x} where {told:08x} was stored");
            record.defect = Some(store.copy(text.as_bytes()));
        } else if !is_utf8 {
            record.defect = Some(not_utf8(store));
        }
        let is_left = is_lazy && record.sys_flag & WRAPPED != WRAPPED;
        if record.sys_flag & SPECIAL == 0 || record.defect.is_some() || is_left {
            records.push(record);
        } else {
            let start = records.len();
            unpack(store, record, decompress, records)?;
            let unpacked: usize = records[start..].iter().map(|record| record.body.len() + OBJECT_BYTES).sum();
            room = room.checked_sub(unpacked).ok_or_else(|| {
                Error::Protocol(format!(
                    "the records of one answer unpack to more than {MAX_UNPACKED_BYTES} bytes, ask for fewer"
                ))
            })?;
        }
    }
    Ok(())
}

fn not_utf8(store: &mut Store) -> Slice {
    store.copy(b"its properties are not UTF-8")
}

fn cut(body: &[u8], source: u32, at: usize, topic: &mut (usize, usize)) -> Result<Cut> {
    let left = body.len() - at;
    let torn = |problem: String| Error::Protocol(format!("the record at byte {at} of {} cannot be read: {problem}", body.len()));
    if left < MIN_RECORD_BYTES {
        return Err(torn(format!("{left} bytes are left, and a record has {MIN_RECORD_BYTES} at least")));
    }
    let fixed: &[u8; FIXED_BYTES] = body[at..].first_chunk().expect("it is long enough");
    let size = u32_at(fixed, 0);
    let magic = u32_at(fixed, 4);
    let told = u32_at(fixed, 8);
    let sys_flag = u32_at(fixed, 36);
    // What lies behind the born host moves with the sizes of the hosts.
    let born_host = if sys_flag & BORN_IPV6 == 0 { 8 } else { 20 };
    let store_host = if sys_flag & STORE_IPV6 == 0 { 8 } else { 20 };
    let stored_at = at + 48 + born_host;
    let reconsumed_at = stored_at + 8 + store_host;
    let start = reconsumed_at + 16;
    if body.len() < start {
        return Err(torn(format!("{left} bytes are left for a record with IPv6 hosts")));
    }
    let length = i32_at(body, start - 4);
    let stop = at + size as usize;
    let topic_at = usize::try_from(length).ok().map(|length| start + length);
    let Some(topic_at) = topic_at.filter(|topic_at| stop <= body.len() && topic_at + 3 <= stop) else {
        return Err(torn(format!("{size} bytes with a body of {length}, and {left} are left")));
    };
    let (name_at, properties_at) = match magic {
        V1 => (topic_at + 1, topic_at + 3 + body[topic_at] as usize),
        V2 => (topic_at + 2, topic_at + 4 + u16_at(body, topic_at)),
        _ => return Err(torn(format!("the magic {magic:08X} is neither {V1:08X} nor {V2:08X}"))),
    };
    if properties_at > stop || u16_at(body, properties_at - 2) != stop - properties_at {
        return Err(torn(format!("the lengths inside do not add up to its {size} bytes")));
    }
    let name = &body[name_at..properties_at - 2];
    if *name != body[topic.0..topic.1] {
        if std::str::from_utf8(name).is_err() {
            return Err(torn(format!("its topic is not UTF-8: {}", bytes_repr(&name[..name.len().min(40)]))));
        }
        *topic = (name_at, properties_at - 2);
    }
    let found = if told == 0 { 0 } else { crc32fast::hash(&body[start..topic_at]) & CHECKSUM_MASK };
    Ok(Cut {
        record: Record {
            body: Slice::of(source, start, topic_at),
            properties: Slice::of(source, properties_at, stop),
            queue_offset: i64_at(body, at + 20),
            flag: i32_at(body, at + 16),
            sys_flag,
            born_timestamp: i64_at(body, at + 40),
            store_timestamp: i64_at(body, stored_at),
            reconsume_times: i32_at(body, reconsumed_at),
            defect: None,
        },
        stop,
        mismatch: (found != told).then_some((found, told)),
        is_utf8: std::str::from_utf8(&body[properties_at..stop]).is_ok(),
    })
}

/// Appends the record with its body decompressed, or the messages of the inner batch that it is.
fn unpack(store: &mut Store, mut record: Record, decompress: &mut Decompress, records: &mut Vec<Record>) -> Result<()> {
    if record.sys_flag & COMPRESSED != 0 {
        match decompress(record.sys_flag & COMPRESSION, store.bytes(record.body))? {
            Ok(plain) => {
                let length = plain.len();
                let source = store.add_source(plain);
                record.body = Slice::of(source, 0, length);
            }
            Err(problem) => record.defect = Some(store.copy(problem.as_bytes())),
        }
    }
    if record.sys_flag & WRAPPED == WRAPPED && record.defect.is_none() {
        let start = records.len();
        match unwrap(store, record, records) {
            Err(Error::Protocol(problem)) => {
                records.truncate(start);
                record.defect = Some(store.copy(problem.as_bytes()));
            }
            found => return found,
        }
    }
    records.push(record);
    Ok(())
}

/// Appends the messages of an inner batch, see `mqbridge/rocketmq/wire/batch.py`; their offsets count up from the record's own.
fn unwrap(store: &mut Store, record: Record, records: &mut Vec<Record>) -> Result<()> {
    const HEAD_BYTES: usize = 20;
    let end = record.body.len();
    let (mut at, mut count) = (0, 0);
    while at < end {
        let data = store.bytes(record.body);
        let left = end - at;
        let torn =
            |problem: String| Error::Protocol(format!("the message at byte {at} of a batch of {end} cannot be read: {problem}"));
        if left < HEAD_BYTES + 2 {
            return Err(torn(format!("{left} bytes are left, and a message has {} at least", HEAD_BYTES + 2)));
        }
        let (size, length) = (i32_at(data, at), i32_at(data, at + 16));
        let start = at + HEAD_BYTES;
        let sizes = usize::try_from(size).ok().zip(usize::try_from(length).ok());
        let ends = sizes.map(|(size, length)| (start + length + 2, at + size));
        let Some((properties_at, stop)) = ends.filter(|(properties_at, stop)| properties_at <= stop && *stop <= end) else {
            return Err(torn(format!("{size} bytes with a body of {length}, and {left} are left")));
        };
        if u16_at(data, properties_at - 2) != stop - properties_at {
            return Err(torn(format!("the lengths inside do not add up to its {size} bytes")));
        }
        if count == MAX_INNER_MESSAGES {
            return Err(Error::Protocol(format!("a batch of {end} bytes with more than {MAX_INNER_MESSAGES} messages")));
        }
        let is_utf8 = std::str::from_utf8(&data[properties_at..stop]).is_ok();
        let flag = i32_at(data, at + 12);
        records.push(Record {
            body: record.body.part(start, properties_at - 2),
            properties: record.body.part(properties_at, stop),
            queue_offset: record.queue_offset.checked_add(count as i64).ok_or(Error::Unsupported)?,
            flag,
            defect: if is_utf8 { None } else { Some(not_utf8(store)) },
            ..record
        });
        at = stop;
        count += 1;
    }
    Ok(())
}

pub fn u16_at(data: &[u8], at: usize) -> usize {
    usize::from(data[at]) << 8 | usize::from(data[at + 1])
}

pub fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*data[at..].first_chunk().expect("the caller has looked"))
}

pub fn i32_at(data: &[u8], at: usize) -> i32 {
    u32_at(data, at) as i32
}

pub fn i64_at(data: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(*data[at..].first_chunk().expect("the caller has looked"))
}
