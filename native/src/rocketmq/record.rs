//! Records of a broker's commit log: see `mqbridge/rocketmq/wire/record.py`, which describes their layout.

use crate::message::{Slice, Source, Store};
use crate::rocketmq::batch::message_at;
use crate::text::bytes_repr;
use crate::{Error, Result};

/// The magic numbers of the two layouts.
pub const V1: u32 = 0xDAA3_20A7;
pub const V2: u32 = 0xDAA3_20AB;
/// Clears the sign bit of a CRC-32.
pub const CHECKSUM_MASK: u32 = 0x7FFF_FFFF;
/// Size of a record in layout V1 with IPv4 hosts whose body, topic and properties are empty.
pub const MIN_RECORD_BYTES: usize = 91;
/// Size of the fields before the body, with IPv4 hosts.
pub const FIXED_BYTES: usize = 88;
/// Maximum number of messages in an inner batch: the broker's index counts them with a signed 16-bit number.
const MAX_INNER_MESSAGES: usize = 0x7FFF;
/// Maximum total size of the SLOW_PATH records of one response, after their bodies were unpacked.
pub const MAX_UNPACKED_BYTES: usize = 256 << 20;
/// Memory that counts for each unpacked record in addition to its body: a message of an inner batch may have only 22 bytes.
const OBJECT_BYTES: usize = 512;

// Bits of the system flag, see `SysFlag` in record.py.
const COMPRESSED: u32 = 1;
pub const BORN_IPV6: u32 = 16;
pub const STORE_IPV6: u32 = 32;
const INNER_BATCH_BITS: u32 = 64 | 128;
const COMPRESSION: u32 = 0x700;
/// Records with one of these bits go through `unpack_body`, and count against MAX_UNPACKED_BYTES.
const SLOW_PATH: u32 = COMPRESSED | BORN_IPV6 | STORE_IPV6 | INNER_BATCH_BITS;

/// Function that decompresses a body. Its arguments are the COMPRESSION bits of the system flag and the body. It returns the
/// decompressed bytes, or the text of a defect.
pub type Decompress<'a> = dyn FnMut(u32, &[u8]) -> Result<std::result::Result<Source, String>> + 'a;

/// The fields of a stored message that a `Message` is made from. Timestamps are in ms.
///
/// The body is decompressed, unless the caller asked for compressed bodies. With a `defect`, it is as stored, or decompressed if
/// the damage is inside of an inner batch.
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

impl Record {
    /// Returns true for an inner batch that cannot be split: the messages of all others are records of their own.
    pub fn is_inner_batch(&self) -> bool {
        self.sys_flag & INNER_BATCH_BITS == INNER_BATCH_BITS
    }
}

/// A record as parsed, and the results of its checks.
struct ParsedRecord {
    record: Record,
    /// Offset of the next record.
    end: usize,
    /// The computed and the stored CRC-32 of the body, if they differ.
    crc_mismatch: Option<(u32, u32)>,
    /// True if the properties are valid UTF-8.
    is_utf8: bool,
}

/// Decodes the records in a source of the store, and appends them to `records`. An inner batch gives one record per message.
///
/// With `keep_compressed`, only inner batches are decompressed, which is enough to count the messages.
pub fn decode_records(
    store: &mut Store,
    source: u32,
    decompress: &mut Decompress,
    keep_compressed: bool,
    records: &mut Vec<Record>,
) -> Result<()> {
    let mut at = 0;
    let mut last_topic = (0, 0); // start and end of the last topic: the same topic in the next record is not checked again
    let mut budget = MAX_UNPACKED_BYTES; // reduced by each record on the slow path
    while at < store.source(source).len() {
        let ParsedRecord { mut record, end, crc_mismatch, is_utf8 } =
            parse_record(store.source(source), source, at, &mut last_topic)?;
        at = end;
        if let Some((computed, stored)) = crc_mismatch {
            let text = format!("the CRC-32 of its body is {computed:08x} where {stored:08x} was stored");
            record.defect = Some(store.copy(text.as_bytes()));
        } else if !is_utf8 {
            if record.is_inner_batch() {
                return Err(Error::Unsupported); // it can be split: the Python code reads such properties
            }
            record.defect = Some(not_utf8_defect(store));
        }
        let stays_compressed = keep_compressed && record.sys_flag & INNER_BATCH_BITS != INNER_BATCH_BITS;
        if record.sys_flag & SLOW_PATH == 0 || record.defect.is_some() || stays_compressed {
            records.push(record);
        } else {
            let start = records.len();
            unpack_body(store, record, decompress, records)?;
            let unpacked_bytes: usize = records[start..].iter().map(|record| record.body.len() + OBJECT_BYTES).sum();
            budget = budget.checked_sub(unpacked_bytes).ok_or_else(|| {
                Error::Protocol(format!(
                    "the records of one response unpack to more than {MAX_UNPACKED_BYTES} bytes: request fewer"
                ))
            })?;
        }
    }
    Ok(())
}

/// Returns the text of the defect of a record whose properties are not UTF-8.
fn not_utf8_defect(store: &mut Store) -> Slice {
    store.copy(b"its properties are not UTF-8")
}

/// Parses the record at offset `at` of `body`, which is the source with this number; nothing is decompressed.
///
/// `last_topic` is where the last topic is in `body`, start and end; a record with another topic replaces it.
fn parse_record(body: &[u8], source: u32, at: usize, last_topic: &mut (usize, usize)) -> Result<ParsedRecord> {
    let left = body.len() - at;
    let malformed =
        |problem: String| Error::Protocol(format!("the record at byte {at} of {} cannot be read: {problem}", body.len()));
    if left < MIN_RECORD_BYTES {
        return Err(malformed(format!("{left} bytes are left, and a record has {MIN_RECORD_BYTES} at least")));
    }
    let fixed: &[u8; FIXED_BYTES] = body[at..].first_chunk().expect("the size was checked above");
    let size = u32_at(fixed, 0);
    let magic = u32_at(fixed, 4);
    let stored_crc = u32_at(fixed, 8);
    let sys_flag = u32_at(fixed, 36);
    // The offsets of the fields after the born host depend on the sizes of the hosts.
    let born_host_size = if sys_flag & BORN_IPV6 == 0 { 8 } else { 20 };
    let store_host_size = if sys_flag & STORE_IPV6 == 0 { 8 } else { 20 };
    let store_timestamp_at = at + 48 + born_host_size;
    let reconsume_times_at = store_timestamp_at + 8 + store_host_size;
    let body_at = reconsume_times_at + 16;
    if body.len() < body_at {
        return Err(malformed(format!("{left} bytes are left for a record with IPv6 hosts")));
    }
    let body_size = i32_at(body, body_at - 4);
    let end = at + size as usize;
    let topic_at = usize::try_from(body_size).ok().map(|body_size| body_at + body_size);
    let Some(topic_at) = topic_at.filter(|topic_at| end <= body.len() && topic_at + 3 <= end) else {
        return Err(malformed(format!("{size} bytes with a body of {body_size}, and {left} are left")));
    };
    let (name_at, properties_at) = match magic {
        V1 => (topic_at + 1, topic_at + 3 + body[topic_at] as usize),
        V2 => (topic_at + 2, topic_at + 4 + u16_at(body, topic_at)),
        _ => return Err(malformed(format!("the magic {magic:08X} is neither {V1:08X} nor {V2:08X}"))),
    };
    if properties_at > end || u16_at(body, properties_at - 2) != end - properties_at {
        return Err(malformed(format!("the lengths inside do not add up to its {size} bytes")));
    }
    let name = &body[name_at..properties_at - 2];
    if *name != body[last_topic.0..last_topic.1] {
        if std::str::from_utf8(name).is_err() {
            return Err(malformed(format!("its topic is not UTF-8: {}", bytes_repr(&name[..name.len().min(40)]))));
        }
        *last_topic = (name_at, properties_at - 2);
    }
    // A stored CRC of 0 means that none was computed.
    let computed_crc = if stored_crc == 0 { 0 } else { crc32fast::hash(&body[body_at..topic_at]) & CHECKSUM_MASK };
    Ok(ParsedRecord {
        record: Record {
            body: Slice::of(source, body_at, topic_at),
            properties: Slice::of(source, properties_at, end),
            queue_offset: i64_at(body, at + 20),
            flag: i32_at(body, at + 16),
            sys_flag,
            born_timestamp: i64_at(body, at + 40),
            store_timestamp: i64_at(body, store_timestamp_at),
            reconsume_times: i32_at(body, reconsume_times_at),
            defect: None,
        },
        end,
        crc_mismatch: (computed_crc != stored_crc).then_some((computed_crc, stored_crc)),
        is_utf8: std::str::from_utf8(&body[properties_at..end]).is_ok(),
    })
}

/// Appends the record with its body decompressed, or the messages of its inner batch. Damage becomes the record's defect.
fn unpack_body(store: &mut Store, mut record: Record, decompress: &mut Decompress, records: &mut Vec<Record>) -> Result<()> {
    if record.sys_flag & COMPRESSED != 0 {
        match decompress(record.sys_flag & COMPRESSION, store.bytes(record.body))? {
            Ok(decompressed) => {
                let size = decompressed.len();
                let source = store.add_source(decompressed);
                record.body = Slice::of(source, 0, size);
            }
            Err(problem) => record.defect = Some(store.copy(problem.as_bytes())),
        }
    }
    if record.sys_flag & INNER_BATCH_BITS == INNER_BATCH_BITS && record.defect.is_none() {
        let start = records.len();
        match split_inner_batch(store, record, records) {
            Err(Error::Protocol(problem)) => {
                records.truncate(start);
                record.defect = Some(store.copy(problem.as_bytes()));
            }
            result => return result,
        }
    }
    records.push(record);
    Ok(())
}

/// Appends the messages of an inner batch, see `mqbridge/rocketmq/wire/batch.py`.
///
/// Their queue offsets are consecutive; the first one is that of the batch's record.
fn split_inner_batch(store: &mut Store, record: Record, records: &mut Vec<Record>) -> Result<()> {
    let batch_size = record.body.len();
    let (mut at, mut count) = (0, 0);
    while at < batch_size {
        let data = store.bytes(record.body);
        let message = message_at(data, at)?;
        if count == MAX_INNER_MESSAGES {
            return Err(Error::Protocol(format!("a batch of {batch_size} bytes with more than {MAX_INNER_MESSAGES} messages")));
        }
        let is_utf8 = std::str::from_utf8(&data[message.properties.clone()]).is_ok();
        at = message.properties.end;
        // An offset beyond 64 bits is left to the Python code: Unsupported.
        records.push(Record {
            body: record.body.part(message.body.start, message.body.end),
            properties: record.body.part(message.properties.start, message.properties.end),
            queue_offset: record.queue_offset.checked_add(count as i64).ok_or(Error::Unsupported)?,
            flag: message.flag,
            sys_flag: record.sys_flag & !INNER_BATCH_BITS,
            defect: if is_utf8 { None } else { Some(not_utf8_defect(store)) },
            ..record
        });
        count += 1;
    }
    Ok(())
}

/// Reads a big-endian number at this offset. Panics if the data end before it.
pub fn u16_at(data: &[u8], at: usize) -> usize {
    usize::from(data[at]) << 8 | usize::from(data[at + 1])
}

/// Reads a big-endian number at this offset. Panics if the data end before it.
pub fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*data[at..].first_chunk().expect("the caller has checked the size"))
}

/// Reads a big-endian number at this offset. Panics if the data end before it.
pub fn i32_at(data: &[u8], at: usize) -> i32 {
    u32_at(data, at) as i32
}

/// Reads a big-endian number at this offset. Panics if the data end before it.
pub fn i64_at(data: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(*data[at..].first_chunk().expect("the caller has checked the size"))
}
