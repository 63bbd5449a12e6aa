//! Messages as slices of the bytes that they arrived in: the counterpart of `mqbridge/message.py`.
//!
//! A [`Store`] owns the bytes of a batch and one [`Row`] per message; a [`Message`] borrows both. Texts are UTF-8, checked when they
//! were decoded. What had to be made (unescaped texts, formatted numbers) lies in the arena of the store.

use std::ops::Deref;

/// Bytes that somebody else made and that a store keeps alive.
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

/// Bytes of a store: of a source, or of the arena (source 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Slice {
    source: u32,
    start: u32,
    end: u32,
}

impl Slice {
    pub const EMPTY: Slice = Slice { source: 0, start: 0, end: 0 };

    /// Bytes `start..end` of the source with this number (see [`Store::add_source`]).
    pub fn of(source: u32, start: usize, end: usize) -> Slice {
        Slice { source, start: start as u32, end: end as u32 }
    }

    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Its bytes, of the source that it is of.
    pub fn of_source<'a>(&self, source: &'a [u8]) -> &'a [u8] {
        &source[self.start as usize..self.end as usize]
    }

    /// Bytes `begin..end` of it.
    pub fn part(&self, begin: usize, end: usize) -> Slice {
        assert!(begin <= end && end <= self.len(), "a part outside of its slice");
        Slice { source: self.source, start: self.start + begin as u32, end: self.start + end as u32 }
    }

    /// Without its first bytes.
    pub fn without_prefix(&self, length: usize) -> Slice {
        self.part(length, self.len())
    }
}

/// Name and value of a property.
pub type Pair = (Slice, Slice);

/// A routing key: text, or bytes where the source had a binary one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Key<T = Slice> {
    #[default]
    None,
    Text(T),
    Bytes(T),
}

/// A place in a partition: one to three numbers, as in Python's `Position`. None: an empty position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    numbers: [i64; 3],
    len: u8,
}

impl Position {
    pub fn new(numbers: &[i64]) -> Position {
        let mut all = [0; 3];
        all[..numbers.len()].copy_from_slice(numbers);
        Position { numbers: all, len: numbers.len() as u8 }
    }

    pub fn numbers(&self) -> &[i64] {
        &self.numbers[..self.len as usize]
    }

    /// Appends it as `format_position` writes it: `12:3`.
    pub fn write(&self, out: &mut Vec<u8>) {
        for (index, number) in self.numbers().iter().enumerate() {
            if index > 0 {
                out.push(b':');
            }
            crate::text::write_number(*number, out);
        }
    }
}

/// A message's fields; see the class `Message` in Python for what they mean. Pairs and index keys lie in the store's lists.
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

/// The messages of a batch and the bytes that they are made of.
#[derive(Default)]
pub struct Store {
    arena: Vec<u8>,
    sources: Vec<Source>,
    pub rows: Vec<Row>,
    pub pairs: Vec<Pair>,
    pub keys: Vec<Slice>,
}

impl Store {
    pub fn new() -> Store {
        Store::default()
    }

    /// Keeps these bytes; the number is for `Slice::of`. Sources hold less than 4 GiB each.
    pub fn add_source(&mut self, source: Source) -> u32 {
        assert!(source.len() <= u32::MAX as usize, "a source of 4 GiB or more");
        self.sources.push(source);
        self.sources.len() as u32
    }

    /// The bytes of a source by its number.
    pub fn source(&self, number: u32) -> &[u8] {
        &self.sources[number as usize - 1]
    }

    /// All of a source.
    pub fn whole(&self, number: u32) -> Slice {
        Slice::of(number, 0, self.source(number).len())
    }

    pub fn bytes(&self, slice: Slice) -> &[u8] {
        let from: &[u8] = if slice.source == 0 { &self.arena } else { &self.sources[slice.source as usize - 1] };
        &from[slice.start as usize..slice.end as usize]
    }

    /// Copies bytes into the arena.
    pub fn copy(&mut self, bytes: &[u8]) -> Slice {
        self.write(|out| out.extend_from_slice(bytes))
    }

    /// What `write` appends to the arena. The arena holds less than 4 GiB.
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

    /// What it holds in memory beside its sources.
    pub fn held_bytes(&self) -> usize {
        self.arena.capacity()
            + self.rows.capacity() * size_of::<Row>()
            + self.pairs.capacity() * size_of::<Pair>()
            + self.keys.capacity() * size_of::<Slice>()
    }
}

/// A message of a store, borrowed.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    pub store: &'a Store,
    pub row: &'a Row,
}

impl<'a> Message<'a> {
    fn get(&self, slice: Option<Slice>) -> Option<&'a [u8]> {
        slice.map(|slice| self.store.bytes(slice))
    }

    /// None for a tombstone.
    pub fn payload(&self) -> Option<&'a [u8]> {
        self.get(self.row.payload)
    }

    /// Names and values, in order.
    pub fn properties(&self) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a [u8])> + ExactSizeIterator + use<'a> {
        let store = self.store;
        let (start, end) = self.row.pairs;
        store.pairs[start as usize..end as usize].iter().map(|(name, value)| (store.bytes(*name), store.bytes(*value)))
    }

    /// The first value under this name.
    pub fn property(&self, wanted: &[u8]) -> Option<&'a [u8]> {
        self.properties().find(|(name, _)| *name == wanted).map(|(_, value)| value)
    }

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
        self.get(self.row.ordering_key)
    }

    pub fn msg_type(&self) -> Option<&'a [u8]> {
        self.get(self.row.msg_type)
    }

    pub fn attributes(&self) -> Option<&'a [u8]> {
        self.get(self.row.attributes)
    }

    pub fn origin(&self) -> Option<&'a [u8]> {
        self.get(self.row.origin)
    }

    pub fn defect(&self) -> Option<&'a [u8]> {
        self.get(self.row.defect)
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

/// `$msgType$` and `$msgTime$`: see `mqbridge/message.py`.
pub const MSG_TYPE: &[u8] = b"$msgType$";
pub const MSG_TIME: &[u8] = b"$msgTime$";
pub const RESERVED_PREFIX: &[u8] = b"mqbridge.";
