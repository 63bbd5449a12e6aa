//! Fast parser of MESSAGE frames that deliver ordinary entries. It finds metadata and payload in the frame without copying them.
//!
//! An entry is ordinary if it is not compressed, not encrypted and not a chunk, all its messages are to be delivered, and its
//! checksum is valid. For these entries, this file is the counterpart of `mqbridge/pulsar/wire/frame.py` and `entry.py`: the
//! plain code, which parses all other frames.

use crate::message::Slice;
use crate::protobuf::{Reader, Value};
use crate::pulsar::decode::{Entry, Kind, MAX_BATCH_MESSAGES, MIN_MESSAGE_BYTES};

/// Start and end offset in a frame.
type Span = (usize, usize);

/// The fields of a frame that delivers an ordinary entry. Times are ms since the epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delivered {
    pub consumer: u64,
    pub ledger: i64,
    pub entry: i64,
    pub redelivery_count: u32,
    /// Epoch of the SUBSCRIBE for which the broker read the entry; None if the broker does not send it.
    pub epoch: Option<u64>,
    pub metadata: Span,
    pub payload: Span,
    /// Number of messages in a batch; None for an entry of one message without batch framing.
    pub count: Option<i32>,
    /// Number of properties in the entry's own metadata.
    pub property_count: usize,
    pub publish_time: i64,
    pub deliver_at: Option<i64>,
}

/// The field `type` of BaseCommand with the value MESSAGE, encoded: its tag and its value.
const TYPE_MESSAGE: [u8; 2] = [0x08, 9];
/// Number of the field `message` of BaseCommand.
const MESSAGE_FIELD: u32 = 9;
const MAGIC_BROKER_METADATA: u16 = 0x0e02;
pub const MAGIC_CHECKSUM: u16 = 0x0e01;

/// Returns true if the frame's command is a MESSAGE whose first field is the type, which all brokers write first.
pub fn is_message(frame: &[u8]) -> bool {
    frame.get(8..10) == Some(&TYPE_MESSAGE)
}

/// Parses a whole frame. Returns None if the frame does not deliver an ordinary entry: then the plain code parses it.
pub fn parse_frame(frame: &[u8]) -> Option<Delivered> {
    let (total_size, command_size) = (u32_at(frame, 0)?, u32_at(frame, 4)?);
    let entry_at = 8usize.checked_add(command_size)?;
    if !is_message(frame) || total_size != frame.len() - 4 || command_size < 2 || entry_at > frame.len() {
        return None;
    }
    let mut delivered = Delivered::default();
    let mut reader = Reader::new(&frame[..entry_at]).starting_at(10); // after the sizes and TYPE_MESSAGE
    let (Some((MESSAGE_FIELD, Value::Bytes(begin, end))), None) = (reader.field().ok()?, reader.field().ok()?) else {
        return None;
    };
    delivered.read_command(reader.inner(begin, end))?;
    let (metadata_size_at, has_valid_checksum) = find_metadata_size(frame, entry_at)?;
    let metadata_at = metadata_size_at.checked_add(4)?;
    let payload_at = metadata_at.checked_add(u32_at(frame, metadata_size_at)?)?;
    delivered.metadata = (metadata_at, payload_at);
    delivered.payload = (payload_at, frame.len());
    delivered.read_metadata(frame.get(metadata_at..payload_at)?)?;
    // The checksum is computed last, because the plain code would compute it again for an entry that is not ordinary.
    has_valid_checksum().then_some(delivered)
}

impl Delivered {
    /// Returns the size of the payload in bytes.
    pub fn size(&self) -> usize {
        self.payload.1 - self.payload.0
    }

    /// Returns the entry for the decoder. `source` is the number of the frame in the decoder's store. `ack_set` is the bit
    /// set of a batch's messages to deliver, as 64-bit words; empty for all. It is empty after parsing; the consumer sets it
    /// later, to leave out messages of the entry.
    pub fn entry_to_decode(&self, source: u32, ack_set: &[i64]) -> Entry {
        let slice = |(start, end)| Slice::of(source, start, end);
        Entry {
            payload: slice(self.payload),
            kind: match self.count {
                Some(count) => Kind::Batch { count: i64::from(count), ack_set: ack_set.to_vec() },
                None => Kind::Single(slice(self.metadata)),
            },
            ledger: self.ledger,
            entry: self.entry,
            redelivery_count: i64::from(self.redelivery_count),
            publish_time: self.publish_time,
            deliver_at: self.deliver_at,
        }
    }

    /// Reads CommandMessage; None if a required field is missing, or if another field is present.
    fn read_command(&mut self, mut reader: Reader) -> Option<()> {
        let (mut has_consumer, mut has_id) = (false, false);
        while let Some(field) = reader.field().ok()? {
            match field {
                // consumer_id, message_id, redelivery_count, consumer_epoch
                (1, Value::Varint(value)) => (self.consumer, has_consumer) = (value, true),
                (2, Value::Bytes(begin, end)) if !has_id => {
                    self.read_id(reader.inner(begin, end))?;
                    has_id = true;
                }
                (3, Value::Varint(value)) => self.redelivery_count = value as u32,
                (5, Value::Varint(value)) => self.epoch = Some(value),
                _ => return None, // `ack_set`, for example: not all messages are to be delivered
            }
        }
        (has_consumer && has_id).then_some(())
    }

    /// Reads MessageIdData; None if a required field is missing, or if an unexpected field is present.
    fn read_id(&mut self, mut reader: Reader) -> Option<()> {
        let (mut has_ledger, mut has_entry) = (false, false);
        while let Some(field) = reader.field().ok()? {
            match field {
                (1, Value::Varint(value)) => (self.ledger, has_ledger) = (value as i64, true),
                (2, Value::Varint(value)) => (self.entry, has_entry) = (value as i64, true),
                (3 | 4, Value::Varint(_)) => {} // partition and batch_index
                _ => return None,
            }
        }
        (has_ledger && has_entry).then_some(())
    }

    /// Reads the fields of MessageMetadata that tell whether the entry is ordinary; None if it is not.
    fn read_metadata(&mut self, data: &[u8]) -> Option<()> {
        let mut reader = Reader::new(data);
        let (mut has_producer, mut has_sequence, mut publish_time) = (false, false, None);
        while let Some(field) = reader.field().ok()? {
            match field {
                // producer_name, sequence_id, publish_time, properties
                (1, Value::Bytes(..)) => has_producer = true,
                (2, Value::Varint(_)) => has_sequence = true,
                (3, Value::Varint(value)) => publish_time = Some(value),
                (4, Value::Bytes(begin, end)) => {
                    check_pair(reader.inner(begin, end))?;
                    self.property_count += 1;
                }
                (8, Value::Varint(0)) => {}                                    // compression: none
                (9, Value::Varint(value)) if value <= self.size() as u64 => {} // uncompressed size
                // num_messages_in_batch, deliver_at_time
                (11, Value::Varint(value)) => self.count = Some(value as i32),
                (19, Value::Varint(value)) => self.deliver_at = Some(value as i64),
                // Compressed, or with an uncompressed size above the payload's; encrypted; a chunk.
                (8 | 9 | 13..=15 | 26..=29, _) => return None,
                _ => {}
            }
        }
        self.publish_time = publish_time.and_then(|value| i64::try_from(value).ok())?;
        // The plain code reports a count for which the payload is too small, and a count above the limit.
        let can_contain = |count: i32| count > 0 && count as usize <= MAX_BATCH_MESSAGES.min(self.size() / MIN_MESSAGE_BYTES);
        (has_producer && has_sequence && self.count.is_none_or(can_contain)).then_some(())
    }
}

/// Returns the offset of the metadata's size in the entry that begins at `at`, and a function that verifies the entry's checksum.
///
/// None if the entry has no checksum, or ends before it.
fn find_metadata_size(frame: &[u8], mut at: usize) -> Option<(usize, impl FnOnce() -> bool)> {
    if u16_at(frame, at)? == MAGIC_BROKER_METADATA {
        at = at.checked_add(6)?.checked_add(u32_at(frame, at + 2)?)?;
    }
    if u16_at(frame, at)? != MAGIC_CHECKSUM {
        return None;
    }
    let stored = u32_at(frame, at + 2)?;
    Some((at + 6, move || crc32c::crc32c(&frame[at + 6..]) as usize == stored))
}

/// Returns None if a KeyValue lacks its key or its value, which are required fields.
pub fn check_pair(mut reader: Reader) -> Option<()> {
    let (mut has_key, mut has_value) = (false, false);
    while let Some(field) = reader.field().ok()? {
        has_key |= matches!(field, (1, Value::Bytes(..)));
        has_value |= matches!(field, (2, Value::Bytes(..)));
    }
    (has_key && has_value).then_some(())
}

/// Reads a big-endian number at this offset; None if the data end before it.
pub fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..at.checked_add(2)?).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Reads a big-endian number at this offset; None if the data end before it.
pub fn u32_at(data: &[u8], at: usize) -> Option<usize> {
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
    fn an_ordinary_entry_is_parsed() {
        let data = frame(MESSAGE, &entry(&[METADATA, b"\x22\x06\x0a\x01k\x12\x01v\x98\x01\x05"].concat(), b"body"));
        let delivered = parse_frame(&data).unwrap();
        assert_eq!(
            (delivered.consumer, delivered.ledger, delivered.entry, delivered.redelivery_count, delivered.epoch),
            (7, 5, 9, 2, Some(3))
        );
        assert_eq!(
            (delivered.count, delivered.property_count, delivered.publish_time, delivered.deliver_at),
            (None, 1, 100, Some(5))
        );
        assert_eq!(&data[delivered.payload.0..delivered.payload.1], b"body");
        for end in 0..data.len() {
            assert_eq!(parse_frame(&data[..end]), None);
        }
        for at in 0..data.len() {
            let mut damaged = data.clone();
            damaged[at] ^= 0x55;
            assert_ne!(parse_frame(&damaged).as_ref(), Some(&delivered), "byte {at}");
        }
    }

    #[test]
    fn a_batch_count_must_be_possible_for_the_payload_size() {
        let batch = |count: u64, size: usize| {
            let mut metadata = [METADATA, b"\x58"].concat();
            write_varint(count, &mut metadata);
            parse_frame(&frame(MESSAGE, &entry(&metadata, &vec![0; size]))).map(|delivered| delivered.count)
        };
        assert_eq!(batch(2, 12), Some(Some(2)));
        assert_eq!(batch(2, 11), None);
        assert_eq!(batch(0, 11), None);
        assert_eq!(batch(u64::MAX, 11), None);
    }

    #[test]
    fn other_entries_are_left_to_the_plain_code() {
        for more in [&b"\x40\x01"[..], b"\x48\x05", b"\x6a\x00", b"\xd8\x01\x02", b"\x22\x03\x0a\x01k", b"\x08"] {
            assert_eq!(parse_frame(&frame(MESSAGE, &entry(&[METADATA, more].concat(), b"body"))), None, "{more:?}");
        }
        for metadata in [&b""[..], b"\x10\x00\x18\x64", b"\x0a\x01p\x18\x64", b"\x0a\x01p\x10\x00"] {
            assert_eq!(parse_frame(&frame(MESSAGE, &entry(metadata, b"body"))), None, "{metadata:?}");
        }
        for message in
            [&b"\x08\x07"[..], b"\x12\x04\x08\x05\x10\x09", b"\x08\x07\x12\x02\x08\x05", &[MESSAGE, b"\x20\x01"].concat()]
        {
            assert_eq!(parse_frame(&frame(message, &entry(METADATA, b"body"))), None, "{message:?}");
        }
        assert_eq!(parse_frame(&frame(MESSAGE, &entry(METADATA, b"body")[6..])), None);
        assert_eq!(parse_frame(b""), None);
    }
}
