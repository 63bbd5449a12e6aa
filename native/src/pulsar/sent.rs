//! Fast parser of SEND frames with ordinary entries, and the encoder of their receipts.
//!
//! The parser returns None for everything that the plain code might treat in another way: it is the counterpart of `parse_frame` in
//! `mqbridge/pulsar/wire/frame.py` and of `receive_entry` in `mqbridge/pulsar/server/entries.py` only for SEND commands without
//! transactions and markers, and for whole entries with a valid checksum that are not encrypted.

use crate::protobuf::{Reader, Value, write_bytes, write_varint};
use crate::pulsar::decode::MAX_BATCH_MESSAGES;
use crate::pulsar::delivered::{MAGIC_CHECKSUM, check_pair, u16_at, u32_at};

/// The fields of a SEND frame with an ordinary entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sent {
    pub producer: u64,
    /// The sequence id of the first message, and the one that the producer gives for the last message; 0 if it gives none.
    pub sequence: u64,
    pub highest: u64,
    /// Number of messages.
    pub count: u32,
    /// ms since the epoch.
    pub publish_time: u64,
    /// Offset in the frame at which the entry begins; it ends with the frame.
    pub entry_at: usize,
}

/// The field `type` of BaseCommand with the value SEND, encoded: its tag and its value.
const TYPE_SEND: [u8; 2] = [0x08, 6];
/// Number of the field `send` of BaseCommand.
const SEND_FIELD: u32 = 6;

/// Parses a whole frame. Returns None if the plain code has to parse it, and for an entry of more than `max_bytes`.
pub fn parse_send(frame: &[u8], max_bytes: usize) -> Option<Sent> {
    let (total_size, command_size) = (u32_at(frame, 0)?, u32_at(frame, 4)?);
    let entry_at = 8usize.checked_add(command_size)?;
    if frame.get(8..10) != Some(&TYPE_SEND) || total_size != frame.len() - 4 || command_size < 2 || entry_at > frame.len() {
        return None;
    }
    let entry = &frame[entry_at..];
    if entry.len() > max_bytes || u16_at(entry, 0)? != MAGIC_CHECKSUM {
        return None;
    }
    let mut sent = Sent { entry_at, ..Sent::default() };
    let mut reader = Reader::new(&frame[..entry_at]).starting_at(10); // after the sizes and TYPE_SEND
    let (Some((SEND_FIELD, Value::Bytes(begin, end))), None) = (reader.field().ok()?, reader.field().ok()?) else {
        return None;
    };
    sent.read_command(reader.inner(begin, end))?;
    let (checksum, metadata_size) = (u32_at(entry, 2)?, u32_at(entry, 6)?);
    sent.read_metadata(entry.get(10..10usize.checked_add(metadata_size)?)?)?;
    // The checksum is computed last, because the plain code would compute it again for an entry that is not ordinary.
    (crc32c::crc32c(&entry[6..]) as usize == checksum).then_some(sent)
}

impl Sent {
    /// Reads CommandSend; None if a required field is missing, or if an unexpected field is present.
    fn read_command(&mut self, mut reader: Reader) -> Option<()> {
        let (mut has_producer, mut has_sequence) = (false, false);
        while let Some(field) = reader.field().ok()? {
            match field {
                // producer_id, sequence_id, num_messages, highest_sequence_id
                (1, Value::Varint(value)) => (self.producer, has_producer) = (value, true),
                (2, Value::Varint(value)) => (self.sequence, has_sequence) = (value, true),
                (3, Value::Varint(_)) => {}
                (6, Value::Varint(value)) => self.highest = value,
                _ => return None, // a transaction or a marker, for example
            }
        }
        (has_producer && has_sequence).then_some(())
    }

    /// Reads MessageMetadata; None if a required field is missing, or if an unexpected field is present.
    fn read_metadata(&mut self, data: &[u8]) -> Option<()> {
        let mut reader = Reader::new(data);
        let (mut has_producer, mut has_sequence, mut has_time, mut count) = (false, false, false, 1);
        while let Some(field) = reader.field().ok()? {
            match field {
                // producer_name, sequence_id, publish_time, properties, num_messages_in_batch
                (1, Value::Bytes(..)) => has_producer = true,
                (2, Value::Varint(_)) => has_sequence = true,
                (3, Value::Varint(value)) => (self.publish_time, has_time) = (value, true),
                (4, Value::Bytes(begin, end)) => check_pair(reader.inner(begin, end))?,
                (11, Value::Varint(value)) => count = (value as i32).max(1) as u32,
                // replicated_from, partition_key, replicate_to, schema_version, ordering_key
                (5 | 6 | 7 | 16 | 18, Value::Bytes(..)) => {}
                // compression, uncompressed_size, event_time, partition_key_b64_encoded, deliver_at_time, highest_sequence_id,
                // null_value, null_partition_key
                (8 | 9 | 12 | 17 | 19 | 24 | 25 | 30, Value::Varint(_)) => {}
                _ => return None, // encrypted, a chunk, a marker, part of a transaction, or not known here
            }
        }
        self.count = count;
        (has_producer && has_sequence && has_time && count as usize <= MAX_BATCH_MESSAGES).then_some(())
    }
}

/// A receipt: the sequence ids of the SEND, and the id of the stored entry.
pub struct StoredSend {
    pub sequence: u64,
    pub highest: u64,
    pub ledger: u64,
    pub entry: u64,
}

/// Appends the SEND_RECEIPT frame of each of a producer's sends, in the order of the fields in which protobuf writes them.
pub fn encode_receipts(producer: u64, receipts: impl Iterator<Item = StoredSend>, out: &mut Vec<u8>) {
    let (mut receipt, mut message_id) = (Vec::new(), Vec::new());
    for each in receipts {
        message_id.clear();
        write_number(0x08, each.ledger, &mut message_id); // ledgerId
        write_number(0x10, each.entry, &mut message_id); // entryId
        receipt.clear();
        write_number(0x08, producer, &mut receipt); // producer_id
        write_number(0x10, each.sequence, &mut receipt); // sequence_id
        write_bytes(0x1a, &message_id, &mut receipt); // message_id
        write_number(0x20, each.highest, &mut receipt); // highest_sequence_id
        let command_size = (2 + 1 + 1 + receipt.len()) as u32; // the type; tag and size of `send_receipt`, which is below 128 bytes
        out.extend_from_slice(&(command_size + 4).to_be_bytes());
        out.extend_from_slice(&command_size.to_be_bytes());
        out.extend_from_slice(b"\x08\x07"); // type: SEND_RECEIPT
        write_bytes(0x3a, &receipt, out); // send_receipt
    }
}

/// Appends a field with a number: its tag, which has one byte, and the value.
fn write_number(tag: u8, value: u64, out: &mut Vec<u8>) {
    out.push(tag);
    write_varint(value, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(metadata: &[u8], payload: &[u8]) -> Vec<u8> {
        let body = [&(metadata.len() as u32).to_be_bytes(), metadata, payload].concat();
        [&MAGIC_CHECKSUM.to_be_bytes()[..], &crc32c::crc32c(&body).to_be_bytes(), &body].concat()
    }

    fn frame(send: &[u8], entry: &[u8]) -> Vec<u8> {
        let mut command = TYPE_SEND.to_vec();
        write_bytes(0x32, send, &mut command);
        let sizes = [(4 + command.len() + entry.len()) as u32, command.len() as u32].map(u32::to_be_bytes).concat();
        [&sizes, &command[..], entry].concat()
    }

    fn parse(frame: &[u8]) -> Option<Sent> {
        parse_send(frame, 1 << 20)
    }

    const SEND: &[u8] = b"\x08\x07\x10\x05\x30\x06";
    const METADATA: &[u8] = b"\x0a\x01p\x10\x00\x18\x64";

    #[test]
    fn an_ordinary_entry_is_parsed() {
        let data = frame(SEND, &entry(&[METADATA, b"\x22\x06\x0a\x01k\x12\x01v\x58\x02\x98\x01\x05\x40\x01"].concat(), b"body"));
        let sent = parse(&data).unwrap();
        assert_eq!((sent.producer, sent.sequence, sent.highest, sent.count, sent.publish_time), (7, 5, 6, 2, 100));
        assert_eq!(data[sent.entry_at..][..2], [0x0e, 0x01]);
        let with_count = frame(&[SEND, b"\x18\x09"].concat(), &data[sent.entry_at..]);
        assert_eq!(parse(&with_count), Some(Sent { entry_at: sent.entry_at + 2, ..sent.clone() }));
        assert_eq!(parse_send(&data, data.len() - sent.entry_at), Some(sent.clone()));
        assert_eq!(parse_send(&data, data.len() - sent.entry_at - 1), None);
        for end in 0..data.len() {
            assert_eq!(parse(&data[..end]), None);
        }
        for at in 0..data.len() {
            let mut damaged = data.clone();
            damaged[at] ^= 0x55;
            assert_ne!(parse(&damaged).as_ref(), Some(&sent), "byte {at}");
        }
    }

    #[test]
    fn other_frames_are_left_to_the_plain_code() {
        for more in
            [&b"\x6a\x00"[..], b"\xd8\x01\x02", b"\xa0\x01\x01", b"\xb0\x01\x01", b"\x22\x03\x0a\x01k", b"\x08", b"\xfa\x07\x00"]
        {
            assert_eq!(parse(&frame(SEND, &entry(&[METADATA, more].concat(), b"body"))), None, "{more:?}");
        }
        for metadata in [&b""[..], b"\x10\x00\x18\x64", b"\x0a\x01p\x18\x64", b"\x0a\x01p\x10\x00"] {
            assert_eq!(parse(&frame(SEND, &entry(metadata, b"body"))), None, "{metadata:?}");
        }
        for send in [&b"\x08\x07"[..], b"\x10\x05", &[SEND, b"\x20\x01"].concat(), &[SEND, b"\x40\x01"].concat()] {
            assert_eq!(parse(&frame(send, &entry(METADATA, b"body"))), None, "{send:?}");
        }
        assert_eq!(parse(&frame(SEND, &entry(METADATA, b"body")[6..])), None);
        assert_eq!(parse(&frame(SEND, b"")), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn a_count_has_a_limit() {
        let count = |value: u64| {
            let mut metadata = [METADATA, b"\x58"].concat();
            write_varint(value, &mut metadata);
            parse(&frame(SEND, &entry(&metadata, b""))).map(|sent| sent.count)
        };
        assert_eq!([0, 1, 100_000, u64::MAX].map(count), [Some(1), Some(1), Some(100_000), Some(1)]);
        assert_eq!(count(100_001), None);
    }

    #[test]
    fn a_receipt_has_all_fields() {
        let mut out = Vec::new();
        let stored = |sequence, entry| StoredSend { sequence, highest: 0, ledger: 1, entry };
        encode_receipts(3, [stored(0, 0), stored(300, u64::MAX)].into_iter(), &mut out);
        assert_eq!(out[..24], *b"\0\0\0\x14\0\0\0\x10\x08\x07\x3a\x0c\x08\x03\x10\0\x1a\x04\x08\x01\x10\0\x20\0");
        assert_eq!(out[24..28], (out.len() as u32 - 28).to_be_bytes());
    }
}
