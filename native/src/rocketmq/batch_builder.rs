//! Divides a sequence of encoded messages into batches within the limits of a send request: see
//! `mqbridge/rocketmq/mapping/batch_builder.py`.

use std::ops::Range;

/// Bytes of a message in a batch without its body and its properties: the prefix, and the length of the properties (2 bytes).
pub const OVERHEAD_BYTES: usize = 22;
/// Bytes of the fields before the body.
pub const PREFIX_BYTES: usize = 20;

/// A message of a batch. `flag` is a number that the application chose. `properties` is the range of its property string in a
/// buffer with the property strings of all elements.
pub struct Element<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: Range<usize>,
}

impl Element<'_> {
    /// Returns the size of the encoded message in bytes.
    pub fn size(&self) -> usize {
        OVERHEAD_BYTES + self.body.len() + self.properties.len()
    }
}

/// A finished batch.
pub struct Batch {
    /// Range of its messages in the list of all elements.
    pub elements: Range<usize>,
    /// Index of its first message in the encoded sequence, which also contains messages that are in no batch.
    pub first_index: usize,
    /// Born timestamp (ms since the epoch) of its request: the event time of the first message, or the time of sending.
    pub born: i64,
    /// Size of the encoded batch in bytes.
    pub size: usize,
}

/// Builds batches of at most `max_bytes` and `max_messages`. A message of more than `max_bytes` gets a batch of its own.
///
/// The other fields describe the current batch.
pub struct BatchBuilder {
    max_bytes: i64,
    max_messages: i64,
    /// Index of the current batch's first message in the list of all elements.
    start: usize,
    /// Index of the same message in the encoded sequence.
    first_index: usize,
    born: i64,
    size: usize,
}

impl BatchBuilder {
    pub fn new(max_bytes: i64, max_messages: i64) -> BatchBuilder {
        BatchBuilder { max_bytes, max_messages, start: 0, first_index: 0, born: 0, size: 0 }
    }

    /// Adds the message at this index, to a new batch if it does not fit. Returns the previous batch if it is finished by this.
    ///
    /// The born timestamp of a batch is `born` of its first message.
    pub fn add<'a>(&mut self, index: usize, born: i64, element: Element<'a>, elements: &mut Vec<Element<'a>>) -> Option<Batch> {
        let (size, count) = (element.size(), elements.len() - self.start);
        let is_full = self.size as i64 + size as i64 > self.max_bytes || count as i64 >= self.max_messages;
        let finished = if count == 0 || is_full {
            let finished = self.close(elements.len());
            (self.first_index, self.born) = (index, born);
            finished
        } else {
            None
        };
        elements.push(element);
        self.size += size;
        finished
    }

    /// Finishes the current batch and returns it, unless it is empty. `end` is the length of the list of all elements.
    pub fn close(&mut self, end: usize) -> Option<Batch> {
        let (elements, size) = (self.start..end, self.size);
        (self.start, self.size) = (end, 0);
        (!elements.is_empty()).then_some(Batch { elements, first_index: self.first_index, born: self.born, size })
    }
}

/// Writes the body of a batch; `out` has exactly its size. `all_properties` contains the property strings of the elements.
pub fn write_batch(elements: &[Element], all_properties: &[u8], out: &mut [u8]) {
    let mut rest = out;
    for element in elements {
        let properties = &all_properties[element.properties.clone()];
        let (encoded, next) = rest.split_at_mut(element.size());
        let (prefix, contents) = encoded.split_at_mut(PREFIX_BYTES);
        let (body, string) = contents.split_at_mut(element.body.len());
        prefix[..4].copy_from_slice(&(element.size() as u32).to_be_bytes());
        prefix[4..12].fill(0); // magic and crc, which brokers do not check
        prefix[12..16].copy_from_slice(&element.flag.to_be_bytes());
        prefix[16..].copy_from_slice(&(element.body.len() as u32).to_be_bytes());
        body.copy_from_slice(element.body);
        string[..2].copy_from_slice(&(properties.len() as u16).to_be_bytes());
        string[2..].copy_from_slice(properties);
        rest = next;
    }
}
