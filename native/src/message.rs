//! Messages as slices of the received bytes: the counterpart of `mqbridge/message.py`.
//!
//! A [`Store`] owns the bytes of a batch and one [`Row`] per message; a [`Message`] borrows both. All texts are valid UTF-8:
//! decoders check them. Values that are not part of the received bytes, such as unescaped texts and formatted numbers, are in the
//! store's arena.

use std::ops::Deref;

/// Bytes that a store keeps alive without copying them: received bytes, or a `bytes` object of Python.
pub enum Source {
    Owned(Vec<u8>),
    #[cfg(feature = "python")]
    Python(pyo3::pybacked::PyBackedBytes),
}

impl Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Source::Owned(bytes) => bytes,
            #[cfg(feature = "python")]
            Source::Python(bytes) => bytes,
        }
    }
}

/// A range of bytes in one source of a store, or in its arena, which has the source number 0. Offsets are below 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Slice {
    source: u32,
    start: u32,
    end: u32,
}

impl Slice {
    pub const EMPTY: Slice = Slice { source: 0, start: 0, end: 0 };

    /// Returns the slice of bytes `start..end` in the source with this number (see [`Store::add_source`]).
    pub fn of(source: u32, start: usize, end: usize) -> Slice {
        Slice { source, start: start as u32, end: end as u32 }
    }

    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the bytes of this slice. `source` must be the content of the source that the slice refers to.
    pub fn bytes_in<'a>(&self, source: &'a [u8]) -> &'a [u8] {
        &source[self.start as usize..self.end as usize]
    }

    /// Returns the part `begin..end`, counted from the start of this slice.
    pub fn part(&self, begin: usize, end: usize) -> Slice {
        assert!(begin <= end && end <= self.len(), "a part outside of its slice");
        Slice { source: self.source, start: self.start + begin as u32, end: self.start + end as u32 }
    }

    /// Returns the slice without its first `length` bytes.
    pub fn without_prefix(&self, length: usize) -> Slice {
        self.part(length, self.len())
    }
}

/// Name and value of a property.
pub type Pair = (Slice, Slice);

/// A routing key: text, or bytes if the source has a binary key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Key<T = Slice> {
    #[default]
    None,
    Text(T),
    Bytes(T),
}

/// A position in a partition: up to three numbers, like Python's `Position`; none if the position is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    numbers: [i64; 3],
    len: u8,
}

impl Position {
    /// Returns the position of these numbers. Panics if there are more than three.
    pub fn new(numbers: &[i64]) -> Position {
        let mut all = [0; 3];
        all[..numbers.len()].copy_from_slice(numbers);
        Position { numbers: all, len: numbers.len() as u8 }
    }

    pub fn numbers(&self) -> &[i64] {
        &self.numbers[..self.len as usize]
    }

    /// Appends the position in the form `12:3`, like Python's `format_position`.
    pub fn format(&self, out: &mut Vec<u8>) {
        for (index, number) in self.numbers().iter().enumerate() {
            if index > 0 {
                out.push(b':');
            }
            crate::text::write_number(*number, out);
        }
    }
}

/// The fields of a message; Python's class `Message` explains them. Times are in ms since the epoch.
///
/// `pairs` (the properties) and `keys` are ranges of indexes, start and exclusive end, in the store's lists of the same names.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row {
    /// None for a tombstone.
    pub payload: Option<Slice>,
    pub pairs: (u32, u32),
    pub keys: (u32, u32),
    pub key: Key,
    pub ordering_key: Option<Slice>,
    pub msg_type: Option<Slice>,
    pub attributes: Option<Slice>,
    pub event_time: Option<i64>,
    pub publish_time: Option<i64>,
    pub deliver_at: Option<i64>,
    pub delivery_count: i64,
    pub position: Position,
    pub origin: Option<Slice>,
    pub hops: i64,
    pub defect: Option<Slice>,
}

/// The messages of a batch, and the bytes that their slices refer to.
#[derive(Default)]
pub struct Store {
    /// Bytes that decoders made, such as unescaped texts.
    arena: Vec<u8>,
    /// The source with the number N is at the index N - 1.
    sources: Vec<Source>,
    pub rows: Vec<Row>,
    pub pairs: Vec<Pair>,
    pub keys: Vec<Slice>,
    /// True if the percent-encoding of a text contained bytes that are not UTF-8, which only the Python code reads.
    pub has_raw_bytes: bool,
}

impl Store {
    pub fn new() -> Store {
        Store::default()
    }

    /// Keeps these bytes alive and returns their source number, for `Slice::of`. Panics if they have 4 GiB or more.
    pub fn add_source(&mut self, source: Source) -> u32 {
        assert!(source.len() <= u32::MAX as usize, "a source of 4 GiB or more");
        self.sources.push(source);
        self.sources.len() as u32
    }

    /// Returns the bytes of the source with this number, which is not 0.
    pub fn source(&self, number: u32) -> &[u8] {
        &self.sources[number as usize - 1]
    }

    /// Returns the slice of all bytes of the source with this number.
    pub fn slice_of_source(&self, number: u32) -> Slice {
        Slice::of(number, 0, self.source(number).len())
    }

    /// Returns the bytes of a slice of this store.
    pub fn bytes(&self, slice: Slice) -> &[u8] {
        let source: &[u8] = if slice.source == 0 { &self.arena } else { &self.sources[slice.source as usize - 1] };
        slice.bytes_in(source)
    }

    /// Copies bytes into the arena and returns their slice.
    pub fn copy(&mut self, bytes: &[u8]) -> Slice {
        self.write(|out| out.extend_from_slice(bytes))
    }

    /// Calls `write`, which appends bytes to the arena, and returns their slice. Panics if the arena reaches 4 GiB.
    pub fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Slice {
        let start = self.arena.len();
        write(&mut self.arena);
        assert!(self.arena.len() <= u32::MAX as usize, "an arena of 4 GiB or more");
        Slice::of(0, start, self.arena.len())
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn message(&self, index: usize) -> Message<'_> {
        Message { store: self, row: &self.rows[index] }
    }

    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        self.rows.iter().map(|row| Message { store: self, row })
    }

    /// Returns the allocated memory in bytes, without the sources.
    pub fn held_bytes(&self) -> usize {
        self.arena.capacity()
            + self.rows.capacity() * size_of::<Row>()
            + self.pairs.capacity() * size_of::<Pair>()
            + self.keys.capacity() * size_of::<Slice>()
    }
}

/// A borrowed message: its fields, and the store with their bytes.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    pub store: &'a Store,
    pub row: &'a Row,
}

impl<'a> Message<'a> {
    fn bytes_of(&self, slice: Option<Slice>) -> Option<&'a [u8]> {
        slice.map(|slice| self.store.bytes(slice))
    }

    /// Returns the payload; None for a tombstone.
    pub fn payload(&self) -> Option<&'a [u8]> {
        self.bytes_of(self.row.payload)
    }

    /// Returns the names and values of the properties, in order.
    pub fn properties(&self) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a [u8])> + ExactSizeIterator + use<'a> {
        let store = self.store;
        let (start, end) = self.row.pairs;
        store.pairs[start as usize..end as usize].iter().map(|(name, value)| (store.bytes(*name), store.bytes(*value)))
    }

    /// Returns the first value of the property `key`.
    pub fn property(&self, key: &[u8]) -> Option<&'a [u8]> {
        self.properties().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Returns the index keys, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &'a [u8]> + ExactSizeIterator + use<'a> {
        let store = self.store;
        let (start, end) = self.row.keys;
        store.keys[start as usize..end as usize].iter().map(|key| store.bytes(*key))
    }

    pub fn key(&self) -> Key<&'a [u8]> {
        match self.row.key {
            Key::None => Key::None,
            Key::Text(text) => Key::Text(self.store.bytes(text)),
            Key::Bytes(bytes) => Key::Bytes(self.store.bytes(bytes)),
        }
    }

    pub fn ordering_key(&self) -> Option<&'a [u8]> {
        self.bytes_of(self.row.ordering_key)
    }

    pub fn msg_type(&self) -> Option<&'a [u8]> {
        self.bytes_of(self.row.msg_type)
    }

    pub fn attributes(&self) -> Option<&'a [u8]> {
        self.bytes_of(self.row.attributes)
    }

    pub fn origin(&self) -> Option<&'a [u8]> {
        self.bytes_of(self.row.origin)
    }

    pub fn defect(&self) -> Option<&'a [u8]> {
        self.bytes_of(self.row.defect)
    }

    pub fn event_time(&self) -> Option<i64> {
        self.row.event_time
    }

    pub fn deliver_at(&self) -> Option<i64> {
        self.row.deliver_at
    }

    pub fn position(&self) -> Position {
        self.row.position
    }

    pub fn hops(&self) -> i64 {
        self.row.hops
    }
}

/// Names of the pairs of a TubeMQ attribute string that hold a message's type and time; see `mqbridge/message.py`.
pub const MSG_TYPE: &[u8] = b"$msgType$";
pub const MSG_TIME: &[u8] = b"$msgTime$";
/// Prefix of the property names that the gateway reserves for itself.
pub const RESERVED_PREFIX: &[u8] = b"mqbridge.";
