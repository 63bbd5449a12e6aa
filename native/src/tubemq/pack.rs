//! The messages of a Broker's answer to a get (`GetMessageResponseB2C`), cut out of its bytes.
//!
//! The rest of the answer is a few numbers, which protobuf reads in Python. What is damaged or unusual is left to protobuf as a
//! whole, so that it is read, or refused, as protobuf does.

use crate::message::Slice;
use crate::protobuf::{Reader, Value};
use crate::tubemq::decode::Transfered;

const MESSAGES: u32 = 4;

/// The messages of an answer, whose bytes are the source with this number, and its other fields; None for what is unusual.
pub fn split_answer(data: &[u8], source: u32) -> Option<(Vec<Transfered>, Vec<u8>)> {
    let mut reader = Reader::new(data);
    let (mut messages, mut rest) = (Vec::new(), Vec::new());
    loop {
        let begin = reader.offset();
        match reader.field().ok()? {
            None => return Some((messages, rest)),
            Some((MESSAGES, Value::Bytes(start, end))) => messages.push(read_message(reader.inner(start, end), source)?),
            Some((MESSAGES, _) | (_, Value::Skipped)) => return None,
            Some(_) => rest.extend_from_slice(&data[begin..reader.offset()]),
        }
    }
}

/// A `TransferedMessage`; None where a field is missing, repeated or unknown.
fn read_message(mut reader: Reader, source: u32) -> Option<Transfered> {
    let (mut id, mut check_sum, mut payload, mut flag) = (None, None, None, None);
    while let Some(field) = reader.field().ok()? {
        let was = match field {
            (1, Value::Varint(value)) => id.replace(value as i64).is_some(),
            (2, Value::Varint(value)) => check_sum.replace(value as i32).is_some(), // protobuf cuts int32 as well
            (3, Value::Bytes(start, end)) => payload.replace(Slice::of(source, start, end)).is_some(),
            (4, Value::Varint(value)) => flag.replace(value as i32).is_some(),
            _ => return None,
        };
        if was {
            return None;
        }
    }
    Some(Transfered { id: id?, data: payload?, flag: flag?, check_sum: check_sum? })
}
