//! The messages of a Broker's answer to a get (`GetMessageResponseB2C`), cut out of its bytes.
//!
//! The rest of the answer is a few numbers, which protobuf reads in Python. What is damaged or unusual is left to protobuf as a
//! whole, so that it is read, or refused, as protobuf does.

use crate::message::Slice;
use crate::tubemq::decode::Transfered;
use crate::tubemq::protobuf::{Field, Fields};

const MESSAGES: u32 = 4;

/// The messages of an answer, whose bytes are the source with this number, and its other fields; None for what is unusual.
pub fn split_answer(data: &[u8], source: u32) -> Option<(Vec<Transfered>, Vec<u8>)> {
    let mut fields = Fields::new(data, 0, data.len());
    let (mut messages, mut rest) = (Vec::new(), Vec::new());
    while !fields.is_at_end() {
        let begin = fields.at();
        match fields.read()? {
            (MESSAGES, Field::Bytes(start, end)) => messages.push(read_message(data, start, end, source)?),
            (MESSAGES, _) => return None,
            _ => rest.extend_from_slice(&data[begin..fields.at()]),
        }
    }
    Some((messages, rest))
}

/// A `TransferedMessage`; None where a field is missing, repeated or unknown.
fn read_message(data: &[u8], start: usize, end: usize, source: u32) -> Option<Transfered> {
    let mut fields = Fields::new(data, start, end);
    let (mut id, mut check_sum, mut payload, mut flag) = (None, None, None, None);
    while !fields.is_at_end() {
        let was = match fields.read()? {
            (1, Field::Varint(value)) => id.replace(value as i64).is_some(),
            (2, Field::Varint(value)) => check_sum.replace(value as i32).is_some(), // protobuf cuts int32 as well
            (3, Field::Bytes(start, end)) => payload.replace(Slice::of(source, start, end)).is_some(),
            (4, Field::Varint(value)) => flag.replace(value as i32).is_some(),
            _ => return None,
        };
        if was {
            return None;
        }
    }
    Some(Transfered { id: id?, data: payload?, flag: flag?, check_sum: check_sum? })
}
