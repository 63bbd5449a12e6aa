//! Messages -> entries for a producer to send: the counterpart of `mqbridge/pulsar/mapping/request.py`.

use std::ops::Range;

use crate::message::{Key, MSG_TYPE, Message};
use crate::protobuf::{varint_size, write_bytes, write_varint};
use crate::reserved::{EVENT_TIME, Field, TYPE, USER_PREFIX, WITHOUT, carry_field, needs_user_prefix, origin_properties};
use crate::text::base64_encode;

/// What an entry may hold. A message beyond `max_bytes` makes an entry by itself.
pub struct Limits {
    pub max_messages: usize,
    pub max_bytes: usize,
}

/// Entries of messages: the bytes of all their metadata, and for each message which of these and which payload.
#[derive(Default)]
pub struct Encoded<'a> {
    heads: Vec<u8>,
    /// Where the bytes of a message in `heads` end, and its payload.
    parts: Vec<(usize, &'a [u8])>,
    pub entries: Vec<Entry>,
    /// Index and defect of the messages that could not be read.
    pub failures: Vec<(usize, &'a [u8])>,
}

/// An entry to send.
pub struct Entry {
    /// Of MessageMetadata the fields that the messages decide.
    pub metadata: Vec<u8>,
    /// The indexes of its messages.
    pub indexes: Range<usize>,
    /// Bytes of its payload.
    pub size: usize,
    is_batch: bool,
    parts: Range<usize>,
    heads: usize,
}

impl Encoded<'_> {
    /// Writes the payload of an entry into exactly its size.
    pub fn write(&self, entry: &Entry, out: &mut [u8]) {
        let (mut at, mut head) = (0, entry.heads);
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        for (end, payload) in &self.parts[entry.parts.clone()] {
            put(&self.heads[head..*end]);
            put(payload);
            head = *end;
        }
    }
}

/// Entries that hold all readable messages in order. A message that must be delivered later travels alone, as Pulsar demands.
///
/// `origin` is the prefix of every message's origin, None for no stamps.
pub fn encode<'a>(messages: impl Iterator<Item = Message<'a>>, origin: Option<&[u8]>, limits: &Limits) -> Encoded<'a> {
    let mut out = Encoded::default();
    let mut scratch = Vec::new();
    let mut batch: Option<Entry> = None;
    for (index, message) in messages.enumerate() {
        let payload = message.payload().unwrap_or_default();
        let (part, head) = (out.parts.len(), out.heads.len());
        if message.defect().is_some() || message.deliver_at().is_some() {
            out.entries.extend(batch.take());
            if let Some(defect) = message.defect() {
                out.failures.push((index, defect));
            } else {
                let metadata = metadata_alone(&message, origin, &mut scratch);
                out.parts.push((head, payload));
                let (parts, indexes) = (part..part + 1, index..index + 1);
                out.entries.push(Entry { metadata, indexes, size: payload.len(), is_batch: false, parts, heads: head });
            }
            continue;
        }
        out.heads.extend_from_slice(&[0; 4]);
        write_single(&message, origin, &mut scratch, &mut out.heads);
        let length = out.heads.len() - head - 4;
        out.heads[head..head + 4].copy_from_slice(&(length as u32).to_be_bytes());
        out.parts.push((out.heads.len(), payload));
        let cost = 4 + length + payload.len();
        match &mut batch {
            Some(open) if open.indexes.len() < limits.max_messages && open.size + cost <= limits.max_bytes => {
                open.indexes.end += 1;
                open.parts.end += 1;
                open.size += cost;
            }
            _ => {
                out.entries.extend(batch.take());
                let metadata = keys_of_batch(&message, &mut scratch);
                batch = Some(Entry {
                    metadata,
                    indexes: index..index + 1,
                    size: cost,
                    is_batch: true,
                    parts: part..part + 1,
                    heads: head,
                });
            }
        }
    }
    out.entries.extend(batch);
    for entry in &mut out.entries {
        if entry.is_batch {
            entry.metadata.push(0x58);
            write_varint(entry.indexes.len() as u64, &mut entry.metadata);
        }
    }
    out
}

/// SingleMessageMetadata, its fields in the order of their numbers.
fn write_single(message: &Message, origin: Option<&[u8]>, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
    write_properties(0x0a, message, origin, scratch, out);
    let is_base64 = write_key(0x12, message, scratch, out);
    out.push(0x18);
    write_varint(message.payload().map_or(0, <[u8]>::len) as u64, out);
    write_event_time(0x28, message, out);
    if is_base64 {
        out.extend_from_slice(b"\x30\x01");
    }
    if let Some(key) = message.ordering_key() {
        write_bytes(0x3a, key, out);
    }
    if message.payload().is_none() {
        out.extend_from_slice(b"\x48\x01");
    }
}

/// MessageMetadata of a message that is an entry by itself.
fn metadata_alone(message: &Message, origin: Option<&[u8]>, scratch: &mut Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    write_properties(0x22, message, origin, scratch, &mut out);
    let is_base64 = write_key(0x32, message, scratch, &mut out);
    write_event_time(0x60, message, &mut out);
    write_key_bytes(message, is_base64, &mut out);
    if let Some(time) = message.deliver_at() {
        out.extend_from_slice(b"\x98\x01");
        write_varint(time as u64, &mut out);
    }
    if message.payload().is_none() {
        out.extend_from_slice(b"\xc8\x01\x01");
    }
    out
}

/// MessageMetadata of a batch: brokers dispatch a whole entry by the keys of its first message.
fn keys_of_batch(first: &Message, scratch: &mut Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    let is_base64 = write_key(0x32, first, scratch, &mut out);
    write_key_bytes(first, is_base64, &mut out);
    out
}

/// The part of MessageMetadata about keys that are bytes.
fn write_key_bytes(message: &Message, is_base64: bool, out: &mut Vec<u8>) {
    if is_base64 {
        out.extend_from_slice(b"\x88\x01\x01");
    }
    if let Some(key) = message.ordering_key() {
        out.push(0x92);
        write_bytes(0x01, key, out);
    }
}

/// The key as text; whether it is base64 of bytes.
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

fn write_event_time(tag: u8, message: &Message, out: &mut Vec<u8>) {
    if let Some(time) = message.event_time().filter(|time| *time != 0) {
        out.push(tag);
        write_varint(time as u64, out);
    }
}

/// The user's properties, the fields that Pulsar has none for, and the origin.
fn write_properties(tag: u8, message: &Message, origin: Option<&[u8]>, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
    let mut said = None;
    for (name, value) in message.properties() {
        if name == MSG_TYPE && said.is_none() {
            said = Some(value);
        }
        write_property(tag, if needs_user_prefix(name) { USER_PREFIX } else { b"" }, name, value, out);
    }
    let mut pair = |name: &[u8], value: &[u8]| write_property(tag, b"", name, value, out);
    carry_field(message, Field::Attributes, scratch, &mut pair);
    carry_field(message, Field::Keys, scratch, &mut pair);
    if said != message.msg_type() {
        match message.msg_type() {
            Some(kind) => pair(TYPE, kind),
            None => pair(WITHOUT, b"msg_type"),
        }
    }
    if message.event_time() == Some(0) {
        pair(EVENT_TIME, b"0"); // on the wire 0 means none, so the first millisecond of all is carried
    }
    origin_properties(message, origin, scratch, &mut pair);
}

/// A KeyValue: name and value, each with its length.
#[inline]
fn write_property(tag: u8, prefix: &[u8], name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let name_size = prefix.len() + name.len();
    let size = 2 + varint_size(name_size as u64) + name_size + varint_size(value.len() as u64) + value.len();
    out.reserve(size + 11);
    out.push(tag);
    write_varint(size as u64, out);
    out.push(0x0a);
    write_varint(name_size as u64, out);
    out.extend_from_slice(prefix);
    out.extend_from_slice(name);
    out.push(0x12);
    write_varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Row, Source, Store};
    use crate::pulsar::decode::{Decoder, Entry as Stored, Kind};

    fn store(payloads: &[&str]) -> Store {
        let mut store = Store::new();
        for payload in payloads {
            let payload = Some(store.copy(payload.as_bytes()));
            store.rows.push(Row { payload, ..Row::default() });
        }
        store
    }

    #[test]
    fn what_is_written_is_read() {
        let mut store = store(&["a", "", "ccc"]);
        let pair = (store.copy("straße".as_bytes()), store.copy(b"1"));
        store.pairs.push(pair);
        (store.rows[1].pairs, store.rows[1].hops) = ((0, 1), 2);
        let encoded = encode(store.messages(), Some(b"c|t|0|"), &Limits { max_messages: 9, max_bytes: 1000 });
        let [entry] = &encoded.entries[..] else { panic!("{} entries", encoded.entries.len()) };
        let mut payload = vec![0; entry.size];
        encoded.write(entry, &mut payload);
        let mut decoder = Decoder::default();
        let source = decoder.store.add_source(Source::Owned(payload));
        let payload = decoder.store.slice_of_source(source);
        assert_eq!(decoder.add(&Stored { payload, kind: Kind::Batch(3, vec![]), ..Stored::default() }), Ok(None));
        let payloads: Vec<_> = decoder.store.messages().map(|message| message.payload().unwrap()).collect();
        assert_eq!(payloads, [&b"a"[..], b"", b"ccc"]);
        let second = decoder.store.message(1);
        assert_eq!(second.properties().collect::<Vec<_>>(), [("straße".as_bytes(), &b"1"[..])]);
        assert_eq!((second.origin(), second.hops()), (Some(&b"c|t|0|"[..]), 3));
    }

    #[test]
    fn entries_keep_the_limits() {
        let mut store = store(&["a", "b", "c", "d", "e", "f"]);
        store.rows[2].deliver_at = Some(5);
        store.rows[4].defect = Some(store.copy(b"bad"));
        let counts = |max_messages, max_bytes| {
            let encoded = encode(store.messages(), None, &Limits { max_messages, max_bytes });
            assert_eq!(encoded.failures, [(4, &b"bad"[..])]);
            encoded.entries.iter().map(|entry| (entry.indexes.clone(), entry.is_batch)).collect::<Vec<_>>()
        };
        let whole = [(0..2, true), (2..3, false), (3..4, true), (5..6, true)];
        assert_eq!(counts(9, 1000), whole);
        assert_eq!(counts(2, 14), whole); // a message takes seven bytes
        let single = [(0..1, true), (1..2, true), (2..3, false), (3..4, true), (5..6, true)];
        assert_eq!(counts(1, 1000), single);
        assert_eq!(counts(9, 13), single);
        assert_eq!(counts(9, 1), single);
    }
}
