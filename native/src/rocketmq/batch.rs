//! Splits batches: the bodies of SEND_BATCH_MESSAGE and of inner batches. See `mqbridge/rocketmq/wire/batch.py`.

use std::ops::Range;

use crate::rocketmq::batch_builder::{OVERHEAD_BYTES, PREFIX_BYTES};
use crate::rocketmq::record::{i32_at, u16_at};
use crate::{Error, Result};

/// A message of a batch: its flag, and where its body and its property string are. The string ends where the next message begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchMessage {
    pub flag: i32,
    pub body: Range<usize>,
    pub properties: Range<usize>,
}

/// Returns all messages of a batch.
pub fn split_batch(data: &[u8]) -> Result<Vec<BatchMessage>> {
    let mut messages = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let message = message_at(data, at)?;
        at = message.properties.end;
        messages.push(message);
    }
    Ok(messages)
}

/// Returns the message of a batch that begins at this offset.
pub fn message_at(data: &[u8], at: usize) -> Result<BatchMessage> {
    let left = data.len() - at;
    let malformed = |problem: String| {
        Error::Protocol(format!("the message at byte {at} of a batch of {} cannot be read: {problem}", data.len()))
    };
    if left < OVERHEAD_BYTES {
        return Err(malformed(format!("{left} bytes are left, and a message has {OVERHEAD_BYTES} at least")));
    }
    let (size, body_size) = (i32_at(data, at), i32_at(data, at + 16));
    let body_at = at + PREFIX_BYTES;
    let sizes = usize::try_from(size).ok().zip(usize::try_from(body_size).ok());
    let offsets = sizes.map(|(size, body_size)| (body_at + body_size + 2, at + size));
    let Some((properties_at, end)) = offsets.filter(|(properties_at, end)| properties_at <= end && *end <= data.len()) else {
        return Err(malformed(format!("{size} bytes with a body of {body_size}, and {left} are left")));
    };
    if u16_at(data, properties_at - 2) != end - properties_at {
        return Err(malformed(format!("the lengths inside do not add up to its {size} bytes")));
    }
    Ok(BatchMessage { flag: i32_at(data, at + 12), body: body_at..properties_at - 2, properties: properties_at..end })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &[u8] = b"\0\0\0\x1a\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\x01x\0\x03k\x01v";

    #[test]
    fn messages_are_back_to_back() {
        let first = BatchMessage { flag: 7, body: 20..21, properties: 23..26 };
        let second = BatchMessage { flag: 7, body: 46..47, properties: 49..52 };
        assert_eq!(split_batch(&[ONE, ONE].concat()), Ok(vec![first, second]));
        assert_eq!(split_batch(b""), Ok(vec![]));
    }

    #[test]
    fn every_truncation_is_an_error() {
        for end in 1..ONE.len() {
            assert!(matches!(split_batch(&ONE[..end]), Err(Error::Protocol(_))), "{end}");
        }
    }
}
