//! The batch that messages are put into: see `mqbridge/rocketmq/mapping/batch_builder.py`.

use std::ops::Range;

/// What a message takes besides its body and its properties.
pub const OVERHEAD_BYTES: usize = 22;
const HEAD_BYTES: usize = 20;

/// A message of a batch. Its properties are a range of the strings of all.
pub struct Element<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: Range<usize>,
}

impl Element<'_> {
    pub fn size(&self) -> usize {
        OVERHEAD_BYTES + self.body.len() + self.properties.len()
    }
}

/// A batch that is closed: which elements, and the timestamp (ms) of its header.
pub struct Batch {
    pub elements: Range<usize>,
    pub begin: usize,
    pub born: i64,
    pub size: usize,
}

/// Up to `max_bytes` and `max_messages`; one larger message may be in a batch of its own.
pub struct OpenBatch {
    max_bytes: i64,
    max_messages: i64,
    start: usize,
    begin: usize,
    born: i64,
    size: usize,
}

impl OpenBatch {
    pub fn new(max_bytes: i64, max_messages: i64) -> OpenBatch {
        OpenBatch { max_bytes, max_messages, start: 0, begin: 0, born: 0, size: 0 }
    }

    /// Adds a message, whose batch is another than that of those before where it does not fit: then that one is closed.
    pub fn add<'a>(&mut self, index: usize, born: i64, element: Element<'a>, elements: &mut Vec<Element<'a>>) -> Option<Batch> {
        let (size, count) = (element.size(), elements.len() - self.start);
        let is_full = self.size as i64 + size as i64 > self.max_bytes || count as i64 >= self.max_messages;
        let closed = if count == 0 || is_full {
            let closed = self.close(elements.len());
            (self.begin, self.born) = (index, born);
            closed
        } else {
            None
        };
        elements.push(element);
        self.size += size;
        closed
    }

    /// What is in it, if anything; `end` is the number of elements so far.
    pub fn close(&mut self, end: usize) -> Option<Batch> {
        let (elements, size) = (self.start..end, self.size);
        (self.start, self.size) = (end, 0);
        (!elements.is_empty()).then_some(Batch { elements, begin: self.begin, born: self.born, size })
    }
}

/// Writes the body of a batch; `out` has its size. `strings` are the properties of all.
pub fn write_batch(elements: &[Element], strings: &[u8], out: &mut [u8]) {
    let mut rest = out;
    for element in elements {
        let properties = &strings[element.properties.clone()];
        let (mine, others) = rest.split_at_mut(element.size());
        let (head, contents) = mine.split_at_mut(HEAD_BYTES);
        let (body, string) = contents.split_at_mut(element.body.len());
        head[..4].copy_from_slice(&(element.size() as u32).to_be_bytes());
        head[4..12].fill(0);
        head[12..16].copy_from_slice(&element.flag.to_be_bytes());
        head[16..].copy_from_slice(&(element.body.len() as u32).to_be_bytes());
        body.copy_from_slice(element.body);
        string[..2].copy_from_slice(&(properties.len() as u16).to_be_bytes());
        string[2..].copy_from_slice(properties);
        rest = others;
    }
}
