//! Metadata of a message: of one in a batch (SingleMessageMetadata), or of an entry that is no batch (MessageMetadata).
//!
//! Both name the same fields and number them differently.

use crate::message::{Key, Pair, Slice, Store};
use crate::protobuf::{Corrupt, Reader, Value};
use crate::text::{base64_decode, is_utf8};

/// Numbers of the fields; 0 for one that this kind does not have.
pub struct Numbers {
    pub properties: u32,
    pub partition_key: u32,
    pub payload_size: u32,
    pub event_time: u32,
    pub key_is_base64: u32,
    pub ordering_key: u32,
    pub null_value: u32,
}

pub const SINGLE: Numbers =
    Numbers { properties: 1, partition_key: 2, payload_size: 3, event_time: 5, key_is_base64: 6, ordering_key: 7, null_value: 9 };

pub const ENTRY: Numbers = Numbers {
    properties: 4,
    partition_key: 6,
    payload_size: 0,
    event_time: 12,
    key_is_base64: 17,
    ordering_key: 18,
    null_value: 25,
};

/// The fields of one message; of a field that is there twice the last one counts. Properties go to a list beside it.
#[derive(Default)]
pub struct Metadata {
    pub payload_size: i32,
    pub null_value: bool,
    pub event_time: u64,
    pub ordering_key: Option<Slice>,
    partition_key: Option<Slice>,
    key_is_base64: bool,
    is_not_utf8: bool,
}

impl Metadata {
    /// Reads a slice; its properties replace those in `pairs`.
    pub fn read(numbers: &Numbers, store: &Store, whole: Slice, pairs: &mut Vec<Pair>) -> Result<Metadata, Corrupt> {
        let data = store.bytes(whole);
        let slice = |begin, end| whole.part(begin, end);
        let mut reader = Reader::new(data);
        let mut found = Metadata::default();
        pairs.clear();
        while let Some((number, value)) = reader.field()? {
            match value {
                Value::Bytes(begin, end) if number == numbers.properties => {
                    let (name, value) = read_pair(reader.inner(begin, end))?;
                    if !data[begin..end].is_ascii() {
                        found.is_not_utf8 |= !is_utf8(&data[name.0..name.1]) || !is_utf8(&data[value.0..value.1]);
                    }
                    pairs.push((slice(name.0, name.1), slice(value.0, value.1)));
                }
                Value::Bytes(begin, end) if number == numbers.partition_key => found.partition_key = Some(slice(begin, end)),
                Value::Bytes(begin, end) if number == numbers.ordering_key => found.ordering_key = Some(slice(begin, end)),
                Value::Varint(value) if number == numbers.payload_size => found.payload_size = value as i32,
                Value::Varint(value) if number == numbers.event_time => found.event_time = value,
                Value::Varint(value) if number == numbers.key_is_base64 => found.key_is_base64 = value != 0,
                Value::Varint(value) if number == numbers.null_value => found.null_value = value != 0,
                _ => {}
            }
        }
        found.is_not_utf8 |= found.partition_key.is_some_and(|key| !is_utf8(store.bytes(key)));
        Ok(found)
    }

    /// Whether its key and its properties are texts.
    pub fn is_text(&self) -> bool {
        !self.is_not_utf8
    }

    /// The key; one that is not the base64 that it claims to be is kept as text.
    pub fn key(&self, store: &mut Store) -> Key {
        let Some(key) = self.partition_key else { return Key::None };
        let plain = if self.key_is_base64 { base64_decode(store.bytes(key)) } else { None };
        match plain {
            Some(plain) => Key::Bytes(store.copy(&plain)),
            None => Key::Text(key),
        }
    }

    /// ms since the epoch; 0 is none on the wire.
    pub fn event_time(&self) -> Option<i64> {
        (self.event_time != 0).then_some(self.event_time as i64)
    }
}

type Span = (usize, usize);

/// Where name and value of a KeyValue are.
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
