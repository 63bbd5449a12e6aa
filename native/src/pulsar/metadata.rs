//! Metadata of a message: SingleMessageMetadata for a message of a batch, MessageMetadata for an entry of one message.
//!
//! The two have the same fields under different numbers.

use crate::message::{Key, Pair, Slice, Store};
use crate::protobuf::{Corrupt, Reader, Value};
use crate::text::{base64_decode, is_utf8};

/// The numbers of the fields in one of the two kinds of metadata; 0, which no encoded field has, if the kind lacks the field.
pub struct FieldNumbers {
    pub properties: u32,
    pub partition_key: u32,
    pub payload_size: u32,
    pub event_time: u32,
    pub key_is_base64: u32,
    pub ordering_key: u32,
    pub null_value: u32,
}

pub const SINGLE_MESSAGE_METADATA: FieldNumbers = FieldNumbers {
    properties: 1,
    partition_key: 2,
    payload_size: 3,
    event_time: 5,
    key_is_base64: 6,
    ordering_key: 7,
    null_value: 9,
};

pub const MESSAGE_METADATA: FieldNumbers = FieldNumbers {
    properties: 4,
    partition_key: 6,
    payload_size: 0,
    event_time: 12,
    key_is_base64: 17,
    ordering_key: 18,
    null_value: 25,
};

/// The fields of one message's metadata, without the properties. If a field is repeated, the last value counts.
#[derive(Default)]
pub struct Metadata {
    /// Length in bytes of this message's payload in its batch; 0 in the metadata of an entry.
    pub payload_size: i32,
    pub null_value: bool,
    /// ms since the epoch; 0 if the message has none.
    event_time: u64,
    pub ordering_key: Option<Slice>,
    /// As stored: text, or base64 of bytes if `key_is_base64`.
    partition_key: Option<Slice>,
    key_is_base64: bool,
    /// The key or a property is not valid UTF-8.
    is_not_utf8: bool,
}

impl Metadata {
    /// Parses encoded metadata. Replaces the content of `pairs` by the properties in the metadata.
    pub fn read(numbers: &FieldNumbers, store: &Store, encoded: Slice, pairs: &mut Vec<Pair>) -> Result<Metadata, Corrupt> {
        let data = store.bytes(encoded);
        let slice = |begin, end| encoded.part(begin, end);
        let mut reader = Reader::new(data);
        let mut metadata = Metadata::default();
        pairs.clear();
        while let Some((number, value)) = reader.field()? {
            match value {
                Value::Bytes(begin, end) if number == numbers.properties => {
                    let (name, value) = read_pair(reader.inner(begin, end))?;
                    if !data[begin..end].is_ascii() {
                        metadata.is_not_utf8 |= !is_utf8(&data[name.0..name.1]) || !is_utf8(&data[value.0..value.1]);
                    }
                    pairs.push((slice(name.0, name.1), slice(value.0, value.1)));
                }
                Value::Bytes(begin, end) if number == numbers.partition_key => metadata.partition_key = Some(slice(begin, end)),
                Value::Bytes(begin, end) if number == numbers.ordering_key => metadata.ordering_key = Some(slice(begin, end)),
                Value::Varint(value) if number == numbers.payload_size => metadata.payload_size = value as i32,
                Value::Varint(value) if number == numbers.event_time => metadata.event_time = value,
                Value::Varint(value) if number == numbers.key_is_base64 => metadata.key_is_base64 = value != 0,
                Value::Varint(value) if number == numbers.null_value => metadata.null_value = value != 0,
                _ => {}
            }
        }
        metadata.is_not_utf8 |= metadata.partition_key.is_some_and(|key| !is_utf8(store.bytes(key)));
        Ok(metadata)
    }

    /// Returns true if the key and the properties are valid UTF-8; otherwise the message counts as damaged.
    pub fn is_text(&self) -> bool {
        !self.is_not_utf8
    }

    /// Returns the routing key. If the metadata says that it is base64, but it is not valid base64, it is a text key.
    pub fn key(&self, store: &mut Store) -> Key {
        let Some(key) = self.partition_key else { return Key::None };
        let decoded = if self.key_is_base64 { base64_decode(store.bytes(key)) } else { None };
        match decoded {
            Some(bytes) => Key::Bytes(store.copy(&bytes)),
            None => Key::Text(key),
        }
    }

    /// Returns the event time in ms since the epoch; None if the metadata has 0, which means none.
    pub fn event_time(&self) -> Option<i64> {
        (self.event_time != 0).then_some(self.event_time as i64)
    }
}

/// Start and end offset of bytes.
type Span = (usize, usize);

/// Returns where the name and the value of a KeyValue are in the reader's data; an absent one is empty.
fn read_pair(mut reader: Reader) -> Result<(Span, Span), Corrupt> {
    let (mut name, mut value) = ((0, 0), (0, 0));
    while let Some(field) = reader.field()? {
        match field {
            (1, Value::Bytes(begin, end)) => name = (begin, end),
            (2, Value::Bytes(begin, end)) => value = (begin, end),
            _ => {}
        }
    }
    Ok((name, value))
}
