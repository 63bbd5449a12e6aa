//! Splits a Broker's response to a get (`GetMessageResponseB2C`) into its messages and its other fields.
//!
//! The other fields are a few numbers, which Python parses with protobuf. A response that is damaged or has unexpected fields is
//! not split: Python parses all of it with protobuf, which then decides whether it is valid.

use crate::message::Slice;
use crate::protobuf::{Reader, Value};
use crate::tubemq::decode::StoredMessage;

/// Number of the field `messages`.
const MESSAGES: u32 = 4;

/// Returns the messages of a response, and its other fields, still encoded. None if it is damaged or has unexpected fields.
///
/// The slices of the messages are ranges of `data`; `source` is the number that `Store::add_source` gave to `data`.
pub fn split_response(data: &[u8], source: u32) -> Option<(Vec<StoredMessage>, Vec<u8>)> {
    let mut reader = Reader::new(data);
    let (mut messages, mut other_fields) = (Vec::new(), Vec::new());
    loop {
        let begin = reader.offset();
        match reader.field().ok()? {
            None => return Some((messages, other_fields)),
            Some((MESSAGES, Value::Bytes(start, end))) => messages.push(read_message(reader.inner(start, end), source)?),
            // Skipped: a wire type that no known field of a response has.
            Some((MESSAGES, _) | (_, Value::Skipped)) => return None,
            Some(_) => other_fields.extend_from_slice(&data[begin..reader.offset()]),
        }
    }
}

/// Reads a `TransferedMessage`; None if a field is missing, repeated or unknown.
fn read_message(mut reader: Reader, source: u32) -> Option<StoredMessage> {
    let (mut id, mut check_sum, mut payload, mut flag) = (None, None, None, None);
    while let Some(field) = reader.field().ok()? {
        let is_repeated = match field {
            (1, Value::Varint(value)) => id.replace(value as i64).is_some(),
            (2, Value::Varint(value)) => check_sum.replace(value as i32).is_some(), // protobuf also keeps only the lower 32 bits
            (3, Value::Bytes(start, end)) => payload.replace(Slice::of(source, start, end)).is_some(),
            (4, Value::Varint(value)) => flag.replace(value as i32).is_some(),
            _ => return None,
        };
        if is_repeated {
            return None;
        }
    }
    Some(StoredMessage { id: id?, data: payload?, flag: flag?, check_sum: check_sum? })
}
