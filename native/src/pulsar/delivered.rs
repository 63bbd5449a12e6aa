//! MESSAGE frames as brokers send them by the million: what they say, and where metadata and payload are, without a copy.
//!
//! The counterpart of `mqbridge/pulsar/wire/frame.py` and `entry.py` for the everyday entry: whole, not compressed, not encrypted, no
//! chunk, and all of it to be delivered. What is anything else, or cannot be read, is for them.

use crate::message::Slice;
use crate::protobuf::{Reader, Value};
use crate::pulsar::decode::{Entry, Kind};

type Span = (usize, usize);

/// What a frame brings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivered {
    pub consumer: u64,
    pub ledger: i64,
    pub entry: i64,
    pub redelivery_count: u32,
    /// The SUBSCRIBE that it was read for, where the broker says so.
    pub epoch: Option<u64>,
    pub metadata: Span,
    pub payload: Span,
    /// How many messages a batch holds; None for a single message.
    pub count: Option<i32>,
    /// Properties of the metadata.
    pub properties: usize,
    pub publish_time: i64,
    pub deliver_at: Option<i64>,
}

/// Numbers of the frame's fields.
const TYPE_MESSAGE: [u8; 2] = [0x08, 9];
const COMMAND_MESSAGE: u32 = 9;
const MAGIC_BROKER_METADATA: u16 = 0x0e02;
const MAGIC_CHECKSUM: u16 = 0x0e01;
/// Bytes of the smallest message in a batch.
const MIN_MESSAGE_BYTES: usize = 6;

/// Whether a frame's command is a MESSAGE, as everybody writes it.
pub fn is_message(frame: &[u8]) -> bool {
    frame.get(8..10) == Some(&TYPE_MESSAGE)
}

/// Reads a whole frame; None where the plain code is to read it.
pub fn read(frame: &[u8]) -> Option<Delivered> {
    let (total, size) = (number32(frame, 0)?, number32(frame, 4)?);
    let rest = 8usize.checked_add(size)?;
    if !is_message(frame) || total != frame.len() - 4 || size < 2 || rest > frame.len() {
        return None;
    }
    let mut found = Delivered::default();
    let mut reader = Reader::new(&frame[..rest]).starting_at(10);
    let (Some((COMMAND_MESSAGE, Value::Bytes(begin, end))), None) = (reader.field().ok()?, reader.field().ok()?) else {
        return None;
    };
    found.read_command(reader.inner(begin, end))?;
    let (begin, is_intact) = checksum(frame, rest)?;
    let payload = begin.checked_add(4)?.checked_add(number32(frame, begin)?)?;
    found.metadata = (begin + 4, payload);
    found.payload = (payload, frame.len());
    found.read_metadata(frame.get(begin + 4..payload)?)?;
    is_intact().then_some(found) // last: the plain code would do it again for what is refused
}

impl Delivered {
    /// Bytes of its messages.
    pub fn size(&self) -> usize {
        self.payload.1 - self.payload.0
    }

    /// The entry of a frame that is a source; `due` has the bits of a batch's messages that are to be delivered, none for all.
    pub fn stored(&self, source: u32, due: &[i64]) -> Entry {
        let slice = |(start, end)| Slice::of(source, start, end);
        Entry {
            payload: slice(self.payload),
            kind: match self.count {
                Some(count) => Kind::Batch(i64::from(count), due.to_vec()),
                None => Kind::Single(slice(self.metadata)),
            },
            ledger: self.ledger,
            entry: self.entry,
            redelivery_count: i64::from(self.redelivery_count),
            publish_time: self.publish_time,
            deliver_at: self.deliver_at,
        }
    }

    fn read_command(&mut self, mut reader: Reader) -> Option<()> {
        let (mut has_consumer, mut has_id) = (false, false);
        while let Some(field) = reader.field().ok()? {
            match field {
                (1, Value::Varint(value)) => (self.consumer, has_consumer) = (value, true),
                (2, Value::Bytes(begin, end)) if !has_id => {
                    self.read_id(reader.inner(begin, end))?;
                    has_id = true;
                }
                (3, Value::Varint(value)) => self.redelivery_count = value as u32,
                (5, Value::Varint(value)) => self.epoch = Some(value),
                _ => return None, // a mask of what is to be delivered, for example
            }
        }
        (has_consumer && has_id).then_some(())
    }

    fn read_id(&mut self, mut reader: Reader) -> Option<()> {
        let (mut has_ledger, mut has_entry) = (false, false);
        while let Some(field) = reader.field().ok()? {
            match field {
                (1, Value::Varint(value)) => (self.ledger, has_ledger) = (value as i64, true),
                (2, Value::Varint(value)) => (self.entry, has_entry) = (value as i64, true),
                (3 | 4, Value::Varint(_)) => {}
                _ => return None,
            }
        }
        (has_ledger && has_entry).then_some(())
    }

    fn read_metadata(&mut self, data: &[u8]) -> Option<()> {
        let mut reader = Reader::new(data);
        let (mut has_producer, mut has_sequence, mut publish_time) = (false, false, None);
        while let Some(field) = reader.field().ok()? {
            match field {
                (1, Value::Bytes(..)) => has_producer = true,
                (2, Value::Varint(_)) => has_sequence = true,
                (3, Value::Varint(value)) => publish_time = Some(value),
                (4, Value::Bytes(begin, end)) => {
                    check_pair(reader.inner(begin, end))?;
                    self.properties += 1;
                }
                (8, Value::Varint(0)) => {}
                (9, Value::Varint(value)) if value <= self.size() as u64 => {}
                (11, Value::Varint(value)) => self.count = Some(value as i32),
                (19, Value::Varint(value)) => self.deliver_at = Some(value as i64),
                // compressed, or larger than it came; encrypted; in chunks
                (8 | 9 | 13..=15 | 26..=29, _) => return None,
                _ => {}
            }
        }
        self.publish_time = publish_time.and_then(|value| i64::try_from(value).ok())?;
        let is_possible = |count: i32| count > 0 && count as usize <= self.size() / MIN_MESSAGE_BYTES;
        (has_producer && has_sequence && self.count.is_none_or(is_possible)).then_some(())
    }
}

/// Where the size of the metadata of an entry with a checksum is, and what tells whether that is right.
fn checksum(frame: &[u8], mut at: usize) -> Option<(usize, impl FnOnce() -> bool)> {
    if number16(frame, at)? == MAGIC_BROKER_METADATA {
        at = at.checked_add(6)?.checked_add(number32(frame, at + 2)?)?;
    }
    if number16(frame, at)? != MAGIC_CHECKSUM {
        return None;
    }
    let told = number32(frame, at + 2)?;
    Some((at + 6, move || crc32c::crc32c(&frame[at + 6..]) as usize == told))
}

/// A KeyValue has both.
fn check_pair(mut reader: Reader) -> Option<()> {
    let (mut has_key, mut has_value) = (false, false);
    while let Some(field) = reader.field().ok()? {
        has_key |= matches!(field, (1, Value::Bytes(..)));
        has_value |= matches!(field, (2, Value::Bytes(..)));
    }
    (has_key && has_value).then_some(())
}

fn number16(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..at.checked_add(2)?).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn number32(data: &[u8], at: usize) -> Option<usize> {
    data.get(at..at.checked_add(4)?).map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::{write_bytes, write_varint};

    fn entry(metadata: &[u8], payload: &[u8]) -> Vec<u8> {
        let body = [&(metadata.len() as u32).to_be_bytes(), metadata, payload].concat();
        [&MAGIC_CHECKSUM.to_be_bytes()[..], &crc32c::crc32c(&body).to_be_bytes(), &body].concat()
    }

    fn frame(message: &[u8], entry: &[u8]) -> Vec<u8> {
        let mut command = TYPE_MESSAGE.to_vec();
        write_bytes(0x4a, message, &mut command);
        let sizes = [(4 + command.len() + entry.len()) as u32, command.len() as u32].map(u32::to_be_bytes).concat();
        [&sizes, &command[..], entry].concat()
    }

    const MESSAGE: &[u8] = b"\x08\x07\x12\x04\x08\x05\x10\x09\x18\x02\x28\x03";
    const METADATA: &[u8] = b"\x0a\x01p\x10\x00\x18\x64";

    #[test]
    fn an_everyday_entry() {
        let data = frame(MESSAGE, &entry(&[METADATA, b"\x22\x06\x0a\x01k\x12\x01v\x98\x01\x05"].concat(), b"body"));
        let found = read(&data).unwrap();
        assert_eq!((found.consumer, found.ledger, found.entry, found.redelivery_count, found.epoch), (7, 5, 9, 2, Some(3)));
        assert_eq!((found.count, found.properties, found.publish_time, found.deliver_at), (None, 1, 100, Some(5)));
        assert_eq!(&data[found.payload.0..found.payload.1], b"body");
        for end in 0..data.len() {
            assert_eq!(read(&data[..end]), None);
        }
        for at in 0..data.len() {
            let mut damaged = data.clone();
            damaged[at] ^= 0x55;
            assert_ne!(read(&damaged).as_ref(), Some(&found), "byte {at}");
        }
    }

    #[test]
    fn a_batch_that_can_be() {
        let batch = |count: u64, size: usize| {
            let mut metadata = [METADATA, b"\x58"].concat();
            write_varint(count, &mut metadata);
            read(&frame(MESSAGE, &entry(&metadata, &vec![0; size]))).map(|found| found.count)
        };
        assert_eq!(batch(2, 12), Some(Some(2)));
        assert_eq!(batch(2, 11), None);
        assert_eq!(batch(0, 11), None);
        assert_eq!(batch(u64::MAX, 11), None);
    }

    #[test]
    fn the_rest_is_for_the_plain_code() {
        for more in [&b"\x40\x01"[..], b"\x48\x05", b"\x6a\x00", b"\xd8\x01\x02", b"\x22\x03\x0a\x01k", b"\x08"] {
            assert_eq!(read(&frame(MESSAGE, &entry(&[METADATA, more].concat(), b"body"))), None, "{more:?}");
        }
        for metadata in [&b""[..], b"\x10\x00\x18\x64", b"\x0a\x01p\x18\x64", b"\x0a\x01p\x10\x00"] {
            assert_eq!(read(&frame(MESSAGE, &entry(metadata, b"body"))), None, "{metadata:?}");
        }
        for message in
            [&b"\x08\x07"[..], b"\x12\x04\x08\x05\x10\x09", b"\x08\x07\x12\x02\x08\x05", &[MESSAGE, b"\x20\x01"].concat()]
        {
            assert_eq!(read(&frame(message, &entry(METADATA, b"body"))), None, "{message:?}");
        }
        assert_eq!(read(&frame(MESSAGE, &entry(METADATA, b"body")[6..])), None);
        assert_eq!(read(b""), None);
    }
}
