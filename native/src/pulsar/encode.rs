//! Encodes messages into entries for a producer to send: the counterpart of `mqbridge/pulsar/mapping/request.py`.

use std::ops::Range;

use crate::message::{Key, MSG_TYPE, Message};
use crate::protobuf::{varint_size, write_bytes, write_varint};
use crate::reserved::{EVENT_TIME, Field, TYPE, USER_PREFIX, WITHOUT, carry_field, needs_user_prefix, origin_properties};
use crate::text::base64_encode;

/// Limits of an entry before compression. A message larger than `max_bytes` becomes an entry of its own.
pub struct Limits {
    pub max_messages: usize,
    pub max_bytes: usize,
}

/// The entries of a sequence of messages, and the parts that their payloads are written from.
#[derive(Default)]
pub struct Encoded<'a> {
    /// The prefixes of all messages in batches, back to back. A prefix is the size of a message's metadata and the metadata.
    prefixes: Vec<u8>,
    /// For each message: the end of its prefix in `prefixes`, and its payload. The prefix of a single message is empty.
    parts: Vec<(usize, &'a [u8])>,
    pub entries: Vec<EncodedEntry>,
    /// Index and defect (why it could not be decoded) of each message with a defect; none of them is in an entry.
    pub failures: Vec<(usize, &'a [u8])>,
}

/// An uncompressed entry to send.
pub struct EncodedEntry {
    /// Encoded MessageMetadata without the fields that the producer adds: its name, sequence id, publish time.
    pub metadata: Vec<u8>,
    /// The indexes of its messages among all messages to encode.
    pub indexes: Range<usize>,
    /// Size of the payload in bytes.
    pub size: usize,
    is_batch: bool,
    /// Range of its messages in `Encoded::parts`.
    parts: Range<usize>,
    /// Start of its messages in `Encoded::prefixes`.
    prefixes_at: usize,
}

impl Encoded<'_> {
    /// Writes the payload of an entry; `out` has exactly the entry's size.
    pub fn write_payload(&self, entry: &EncodedEntry, out: &mut [u8]) {
        let (mut at, mut prefix_at) = (0, entry.prefixes_at);
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        for (prefix_end, payload) in &self.parts[entry.parts.clone()] {
            put(&self.prefixes[prefix_at..*prefix_end]);
            put(payload);
            prefix_at = *prefix_end;
        }
    }
}

/// Encodes all messages without a defect, in order. A message with a delivery time gets an entry of its own, as Pulsar requires.
///
/// `origin` is the prefix of the origin property, to which the position of each message is appended; None keeps the origin that a
/// message already has.
pub fn encode<'a>(messages: impl Iterator<Item = Message<'a>>, origin: Option<&[u8]>, limits: &Limits) -> Encoded<'a> {
    let mut encoded = Encoded::default();
    let mut scratch = Vec::new();
    let mut batch: Option<EncodedEntry> = None;
    for (index, message) in messages.enumerate() {
        let payload = message.payload().unwrap_or_default();
        let (part_index, prefix_at) = (encoded.parts.len(), encoded.prefixes.len());
        if message.defect().is_some() || message.deliver_at().is_some() {
            encoded.entries.extend(batch.take()); // the batch ends here, because the indexes of an entry are consecutive
            if let Some(defect) = message.defect() {
                encoded.failures.push((index, defect));
            } else {
                let metadata = single_metadata(&message, origin, &mut scratch);
                encoded.parts.push((prefix_at, payload));
                let (parts, indexes) = (part_index..part_index + 1, index..index + 1);
                encoded.entries.push(EncodedEntry {
                    metadata,
                    indexes,
                    size: payload.len(),
                    is_batch: false,
                    parts,
                    prefixes_at: prefix_at,
                });
            }
            continue;
        }
        encoded.prefixes.extend_from_slice(&[0; 4]); // the size of the metadata, which is written below
        write_single(&message, origin, &mut scratch, &mut encoded.prefixes);
        let metadata_size = encoded.prefixes.len() - prefix_at - 4;
        encoded.prefixes[prefix_at..prefix_at + 4].copy_from_slice(&(metadata_size as u32).to_be_bytes());
        encoded.parts.push((encoded.prefixes.len(), payload));
        let size_in_batch = 4 + metadata_size + payload.len();
        match &mut batch {
            Some(current) if current.indexes.len() < limits.max_messages && current.size + size_in_batch <= limits.max_bytes => {
                current.indexes.end += 1;
                current.parts.end += 1;
                current.size += size_in_batch;
            }
            _ => {
                encoded.entries.extend(batch.take());
                let metadata = batch_metadata(&message, &mut scratch);
                batch = Some(EncodedEntry {
                    metadata,
                    indexes: index..index + 1,
                    size: size_in_batch,
                    is_batch: true,
                    parts: part_index..part_index + 1,
                    prefixes_at: prefix_at,
                });
            }
        }
    }
    encoded.entries.extend(batch);
    for entry in &mut encoded.entries {
        if entry.is_batch {
            entry.metadata.push(0x58); // num_messages_in_batch, written last, because the number is known only now
            write_varint(entry.indexes.len() as u64, &mut entry.metadata);
        }
    }
    encoded
}

// The tags below are encoded protobuf tags: the field number times 8, plus the wire type.

/// Appends the SingleMessageMetadata of a message in a batch. Like protobuf, it writes the fields in the order of their numbers.
fn write_single(message: &Message, origin: Option<&[u8]>, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
    write_properties(0x0a, message, origin, scratch, out); // properties
    let is_base64 = write_key(0x12, message, scratch, out); // partition_key
    out.push(0x18); // payload_size
    write_varint(message.payload().map_or(0, <[u8]>::len) as u64, out);
    write_event_time(0x28, message, out); // event_time
    if is_base64 {
        out.extend_from_slice(b"\x30\x01"); // partition_key_b64_encoded
    }
    if let Some(key) = message.ordering_key() {
        write_bytes(0x3a, key, out); // ordering_key
    }
    if message.payload().is_none() {
        out.extend_from_slice(b"\x48\x01"); // null_value
    }
}

/// Returns the MessageMetadata of an entry of one message without batch framing.
fn single_metadata(message: &Message, origin: Option<&[u8]>, scratch: &mut Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    write_alone(message, origin, scratch, &mut out);
    out
}

/// Appends the fields of the MessageMetadata of an entry of one message that come from the message.
pub fn write_alone(message: &Message, origin: Option<&[u8]>, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
    write_properties(0x22, message, origin, scratch, out); // properties
    let is_base64 = write_key(0x32, message, scratch, out); // partition_key
    write_event_time(0x60, message, out); // event_time
    write_key_bytes(message, is_base64, out);
    if let Some(time) = message.deliver_at() {
        out.extend_from_slice(b"\x98\x01"); // deliver_at_time
        write_varint(time as u64, out);
    }
    if message.payload().is_none() {
        out.extend_from_slice(b"\xc8\x01\x01"); // null_value
    }
}

/// Returns the MessageMetadata of a batch: the keys of its first message, by which brokers dispatch the whole entry.
fn batch_metadata(first: &Message, scratch: &mut Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    let is_base64 = write_key(0x32, first, scratch, &mut out); // partition_key
    write_key_bytes(first, is_base64, &mut out);
    out
}

/// Appends the fields of MessageMetadata for a binary routing key and for the ordering key.
fn write_key_bytes(message: &Message, is_base64: bool, out: &mut Vec<u8>) {
    if is_base64 {
        out.extend_from_slice(b"\x88\x01\x01"); // partition_key_b64_encoded
    }
    if let Some(key) = message.ordering_key() {
        out.push(0x92); // ordering_key: the first byte of a tag of two bytes
        write_bytes(0x01, key, out);
    }
}

/// Appends the routing key under this tag, a binary one as base64. Returns true if it is base64.
fn write_key(tag: u8, message: &Message, scratch: &mut Vec<u8>, out: &mut Vec<u8>) -> bool {
    match message.key() {
        Key::None => false,
        Key::Text(text) => {
            write_bytes(tag, text, out);
            false
        }
        Key::Bytes(bytes) => {
            scratch.clear();
            base64_encode(bytes, scratch);
            write_bytes(tag, scratch, out);
            true
        }
    }
}

/// Appends the event time under this tag. On the wire, 0 means none.
fn write_event_time(tag: u8, message: &Message, out: &mut Vec<u8>) {
    if let Some(time) = message.event_time().filter(|time| *time != 0) {
        out.push(tag);
        write_varint(time as u64, out);
    }
}

/// Appends the user properties, the carried fields (those that Pulsar has no field for), and the origin, each under this tag.
fn write_properties(tag: u8, message: &Message, origin: Option<&[u8]>, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
    let mut type_property = None;
    for (name, value) in message.properties() {
        if name == MSG_TYPE && type_property.is_none() {
            type_property = Some(value);
        }
        write_property(tag, if needs_user_prefix(name) { USER_PREFIX } else { b"" }, name, value, out);
    }
    let mut add = |name: &[u8], value: &[u8]| write_property(tag, b"", name, value, out);
    carry_field(message, Field::Attributes, scratch, &mut add);
    carry_field(message, Field::Keys, scratch, &mut add);
    // A gateway that reads the message takes the property MSG_TYPE as its type, unless TYPE or WITHOUT says otherwise.
    if type_property != message.msg_type() {
        match message.msg_type() {
            Some(msg_type) => add(TYPE, msg_type),
            None => add(WITHOUT, b"msg_type"),
        }
    }
    if message.event_time() == Some(0) {
        add(EVENT_TIME, b"0"); // the metadata cannot express the time 0, because 0 means none there
    }
    origin_properties(message, origin, scratch, &mut add);
}

/// Appends a KeyValue under this tag; its key is `prefix` followed by `name`.
#[inline]
fn write_property(tag: u8, prefix: &[u8], name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let name_size = prefix.len() + name.len();
    let size = 2 + varint_size(name_size as u64) + name_size + varint_size(value.len() as u64) + value.len();
    out.reserve(size + 11); // the tag and the longest varint
    out.push(tag);
    write_varint(size as u64, out);
    out.push(0x0a); // key
    write_varint(name_size as u64, out);
    out.extend_from_slice(prefix);
    out.extend_from_slice(name);
    out.push(0x12); // value
    write_varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Row, Source, Store};
    use crate::pulsar::decode::{Decoder, Entry, Kind};

    fn store(payloads: &[&str]) -> Store {
        let mut store = Store::new();
        for payload in payloads {
            let payload = Some(store.copy(payload.as_bytes()));
            store.rows.push(Row { payload, ..Row::default() });
        }
        store
    }

    #[test]
    fn encoded_messages_are_decoded_unchanged() {
        let mut store = store(&["a", "", "ccc"]);
        let pair = (store.copy("straße".as_bytes()), store.copy(b"1"));
        store.pairs.push(pair);
        (store.rows[1].pairs, store.rows[1].hops) = ((0, 1), 2);
        let encoded = encode(store.messages(), Some(b"c|t|0|"), &Limits { max_messages: 9, max_bytes: 1000 });
        let [entry] = &encoded.entries[..] else { panic!("{} entries", encoded.entries.len()) };
        let mut payload = vec![0; entry.size];
        encoded.write_payload(entry, &mut payload);
        let mut decoder = Decoder::default();
        let source = decoder.store.add_source(Source::Owned(payload));
        let payload = decoder.store.slice_of_source(source);
        assert_eq!(
            decoder.add(&Entry { payload, kind: Kind::Batch { count: 3, ack_set: vec![] }, ..Entry::default() }),
            Ok(None)
        );
        let payloads: Vec<_> = decoder.store.messages().map(|message| message.payload().unwrap()).collect();
        assert_eq!(payloads, [&b"a"[..], b"", b"ccc"]);
        let second = decoder.store.message(1);
        assert_eq!(second.properties().collect::<Vec<_>>(), [("straße".as_bytes(), &b"1"[..])]);
        assert_eq!((second.origin(), second.hops()), (Some(&b"c|t|0|"[..]), 3));
    }

    #[test]
    fn entries_stay_within_the_limits() {
        let mut store = store(&["a", "b", "c", "d", "e", "f"]);
        store.rows[2].deliver_at = Some(5);
        store.rows[4].defect = Some(store.copy(b"bad"));
        let ranges = |max_messages, max_bytes| {
            let encoded = encode(store.messages(), None, &Limits { max_messages, max_bytes });
            assert_eq!(encoded.failures, [(4, &b"bad"[..])]);
            encoded.entries.iter().map(|entry| (entry.indexes.clone(), entry.is_batch)).collect::<Vec<_>>()
        };
        let full_batches = [(0..2, true), (2..3, false), (3..4, true), (5..6, true)];
        assert_eq!(ranges(9, 1000), full_batches);
        assert_eq!(ranges(2, 14), full_batches); // a message takes seven bytes
        let batches_of_one = [(0..1, true), (1..2, true), (2..3, false), (3..4, true), (5..6, true)];
        assert_eq!(ranges(1, 1000), batches_of_one);
        assert_eq!(ranges(9, 13), batches_of_one);
        assert_eq!(ranges(9, 1), batches_of_one);
    }
}
