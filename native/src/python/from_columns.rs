//! Messages from columns of Arrow's: the way back of `columns.rs`.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;

use crate::message::{Key, Position, Row, Slice, Source, Store};
use crate::python::{Messages, caught};
use crate::text::is_utf8;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(messages_of_columns, module)?)
}

/// What only the plain code can read, or refuse: texts that are not UTF-8, numbers that fit no row, bytes that are no blob.
struct Unusual;

type Read<T> = Result<T, Unusual>;

/// The messages of `count` rows; None for what only the plain code can read, or refuse. `columns` has what is there:
///
/// texts, bytes (place of the first row, validity or None, offsets, data); numbers, times in ms and flags (place, validity, values);
/// lists (place, validity, offsets of the rows, items); properties as maps (offsets of the rows, names, values) or as blobs.
/// `text_key`: whether a key is a text where no flag says it.
#[pyfunction]
fn messages_of_columns(count: usize, columns: &Bound<'_, PyDict>, text_key: bool) -> PyResult<Option<Messages>> {
    caught(|| {
        let mut store = Store::new();
        let columns = Columns::new(&mut store, columns)?;
        for index in 0..count {
            match columns.row(&mut store, index, text_key) {
                Ok(row) => store.rows.push(row),
                Err(Unusual) => return Ok(None),
            }
        }
        Ok(Some(Messages::all(store)))
    })
}

// --- buffers ----------------------------------------------------------------------------------------------------------

/// Number `index` of little-endian integers.
fn integer<const N: usize>(data: &[u8], index: usize) -> Read<[u8; N]> {
    let start = index.checked_mul(N).ok_or(Unusual)?;
    data.get(start..).and_then(|rest| rest.first_chunk()).copied().ok_or(Unusual)
}

fn bit(data: &[u8], index: usize) -> Read<bool> {
    data.get(index / 8).map(|byte| byte >> (index % 8) & 1 == 1).ok_or(Unusual)
}

/// Where item `index` of a list begins and ends.
fn range(offsets: &[u8], index: usize) -> Read<(usize, usize)> {
    let (start, end) = (i32::from_le_bytes(integer(offsets, index)?), i32::from_le_bytes(integer(offsets, index + 1)?));
    let (start, end) = (usize::try_from(start).map_err(|_| Unusual)?, usize::try_from(end).map_err(|_| Unusual)?);
    if start <= end { Ok((start, end)) } else { Err(Unusual) }
}

struct Validity {
    place: usize,
    bits: Option<PyBackedBytes>,
}

impl Validity {
    fn has(&self, index: usize) -> Read<bool> {
        self.bits.as_ref().map_or(Ok(true), |bits| bit(bits, self.place + index))
    }
}

struct Texts {
    validity: Validity,
    offsets: PyBackedBytes,
    data: Slice,
}

impl Texts {
    fn new(store: &mut Store, column: &Bound<'_, PyAny>) -> PyResult<Texts> {
        let (place, bits, offsets, data): (usize, Option<PyBackedBytes>, PyBackedBytes, PyBackedBytes) = column.extract()?;
        let length = data.len();
        let source = store.add_source(Source::Python(data));
        Ok(Texts { validity: Validity { place, bits }, offsets, data: Slice::of(source, 0, length) })
    }

    fn get(&self, index: usize) -> Read<Option<Slice>> {
        if !self.validity.has(index)? {
            return Ok(None);
        }
        let (start, end) = range(&self.offsets, self.validity.place + index)?;
        if end > self.data.len() { Err(Unusual) } else { Ok(Some(self.data.part(start, end))) }
    }

    fn text(&self, store: &Store, index: usize) -> Read<Option<Slice>> {
        match self.get(index)? {
            Some(text) if !is_utf8(store.bytes(text)) => Err(Unusual),
            found => Ok(found),
        }
    }
}

struct Numbers {
    validity: Validity,
    values: PyBackedBytes,
}

impl Numbers {
    fn new(column: &Bound<'_, PyAny>) -> PyResult<Numbers> {
        let (place, bits, values) = column.extract()?;
        Ok(Numbers { validity: Validity { place, bits }, values })
    }

    fn get(&self, index: usize) -> Read<Option<i64>> {
        if !self.validity.has(index)? {
            return Ok(None);
        }
        Ok(Some(i64::from_le_bytes(integer(&self.values, self.validity.place + index)?)))
    }

    fn flag(&self, index: usize) -> Read<Option<bool>> {
        if !self.validity.has(index)? {
            return Ok(None);
        }
        bit(&self.values, self.validity.place + index).map(Some)
    }
}

// --- columns ----------------------------------------------------------------------------------------------------------

struct List<T> {
    validity: Validity,
    offsets: PyBackedBytes,
    items: T,
}

impl<T> List<T> {
    fn range(&self, index: usize) -> Read<(usize, usize)> {
        if self.validity.has(index)? { range(&self.offsets, index) } else { Ok((0, 0)) }
    }
}

enum Properties {
    Maps(List<(Texts, Texts)>),
    Blobs(Texts),
}

struct Columns {
    payload: Option<Texts>,
    key: Option<Texts>,
    key_is_text: Option<Numbers>,
    ordering_key: Option<Texts>,
    keys: Option<List<Texts>>,
    msg_type: Option<Texts>,
    attributes: Option<Texts>,
    properties: Option<Properties>,
    times: [Option<Numbers>; 3],
    counts: [Option<Numbers>; 2],
    position: Option<List<Numbers>>,
    origin: Option<Texts>,
    defect: Option<Texts>,
}

impl Columns {
    fn new(store: &mut Store, columns: &Bound<'_, PyDict>) -> PyResult<Columns> {
        let numbers = |name| columns.get_item(name)?.map(|column| Numbers::new(&column)).transpose();
        let mut texts = |name| columns.get_item(name)?.map(|column| Texts::new(store, &column)).transpose();
        Ok(Columns {
            payload: texts("payload")?,
            key: texts("key")?,
            ordering_key: texts("ordering_key")?,
            msg_type: texts("msg_type")?,
            attributes: texts("attributes")?,
            origin: texts("origin")?,
            defect: texts("defect")?,
            key_is_text: numbers("key_is_text")?,
            times: [numbers("event_time")?, numbers("publish_time")?, numbers("deliver_at")?],
            counts: [numbers("delivery_count")?, numbers("hops")?],
            keys: match columns.get_item("keys")? {
                None => None,
                Some(column) => Some(read_list(&column, |items| Texts::new(store, items))?),
            },
            position: match columns.get_item("position")? {
                None => None,
                Some(column) => Some(read_list(&column, Numbers::new)?),
            },
            properties: match (columns.get_item("maps")?, columns.get_item("blobs")?) {
                (Some(column), _) => Some(Properties::Maps(read_list(&column, |items| {
                    Ok((Texts::new(store, &items.get_item(0)?)?, Texts::new(store, &items.get_item(1)?)?))
                })?)),
                (None, Some(column)) => Some(Properties::Blobs(Texts::new(store, &column)?)),
                (None, None) => None,
            },
        })
    }

    fn row(&self, store: &mut Store, index: usize, text_key: bool) -> Read<Row> {
        let bytes = |column: &Option<Texts>| column.as_ref().map_or(Ok(None), |column| column.get(index));
        let number = |column: &Option<Numbers>| column.as_ref().map_or(Ok(None), |column| column.get(index));
        let pairs = self.pairs(store, index)?;
        let keys = self.keys(store, index)?;
        let text = |column: &Option<Texts>| column.as_ref().map_or(Ok(None), |column| column.text(store, index));
        let flag = self.key_is_text.as_ref().map_or(Ok(None), |column| column.flag(index))?;
        let key = match (flag.unwrap_or(text_key), &self.key) {
            (true, key) => text(key)?.map_or(Key::None, Key::Text),
            (false, key) => bytes(key)?.map_or(Key::None, Key::Bytes),
        };
        let hops = number(&self.counts[1])?.unwrap_or(0);
        Ok(Row {
            payload: bytes(&self.payload)?,
            pairs,
            keys,
            key,
            ordering_key: bytes(&self.ordering_key)?,
            msg_type: text(&self.msg_type)?,
            attributes: bytes(&self.attributes)?,
            event_time: number(&self.times[0])?,
            publish_time: number(&self.times[1])?,
            deliver_at: number(&self.times[2])?,
            delivery_count: number(&self.counts[0])?.unwrap_or(0),
            position: self.position(index)?,
            origin: text(&self.origin)?,
            hops: if hops == i64::MAX { return Err(Unusual) } else { hops }, // one more is written
            defect: text(&self.defect)?,
        })
    }

    fn keys(&self, store: &mut Store, index: usize) -> Read<(u32, u32)> {
        let start = store.keys.len() as u32;
        if let Some(list) = &self.keys {
            let (begin, end) = list.range(index)?;
            for place in begin..end {
                if let Some(key) = list.items.text(store, place)? {
                    store.keys.push(key);
                }
            }
        }
        Ok((start, store.keys.len() as u32))
    }

    fn position(&self, index: usize) -> Read<Position> {
        let Some(list) = &self.position else { return Ok(Position::default()) };
        let (begin, end) = list.range(index)?;
        let mut numbers = [0; 3];
        for (place, number) in (begin..end).zip(0..) {
            *numbers.get_mut(number).ok_or(Unusual)? = list.items.get(place)?.ok_or(Unusual)?;
        }
        Ok(Position::new(&numbers[..end - begin]))
    }

    fn pairs(&self, store: &mut Store, index: usize) -> Read<(u32, u32)> {
        let start = store.pairs.len() as u32;
        match &self.properties {
            None => {}
            Some(Properties::Maps(list)) => {
                let (begin, end) = list.range(index)?;
                for place in begin..end {
                    let name = list.items.0.text(store, place)?.ok_or(Unusual)?;
                    if let Some(value) = list.items.1.text(store, place)? {
                        store.pairs.push((name, value));
                    }
                }
            }
            Some(Properties::Blobs(blobs)) => {
                if let Some(blob) = blobs.get(index)?.filter(|blob| !blob.is_empty()) {
                    read_blob(store, blob)?;
                }
            }
        }
        Ok((start, store.pairs.len() as u32))
    }
}

fn read_list<T>(column: &Bound<'_, PyAny>, read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> PyResult<List<T>> {
    let (place, bits, offsets, items): (usize, Option<PyBackedBytes>, PyBackedBytes, Bound<'_, PyAny>) = column.extract()?;
    Ok(List { validity: Validity { place, bits }, offsets, items: read(&items)? })
}

// --- properties as one binary value, see mqbridge/spark/property_blob.py ------------------------------------------------

/// Appends the pairs of a blob to the store's.
fn read_blob(store: &mut Store, blob: Slice) -> Read<()> {
    let data = store.bytes(blob);
    let wide = match data.first() {
        Some(1) => false,
        Some(2) => true,
        _ => return Err(Unusual),
    };
    let (size, names_at) = varint(data, 1)?;
    let names_end = names_at.checked_add(size).filter(|end| *end <= data.len()).ok_or(Unusual)?;
    let (count, mut at) = varint(data, names_at)?;
    if count > names_end - names_at {
        return Err(Unusual); // each has a length at least
    }
    let start = store.pairs.len();
    for _ in 0..count {
        let (length, next) = varint(store.bytes(blob), at)?;
        at = next;
        store.pairs.push((Slice::of(0, 0, length), Slice::EMPTY)); // until it is known where names begin
    }
    let lengths_size = count * if wide { 4 } else { 1 };
    let mut value_at = names_end.checked_add(lengths_size).ok_or(Unusual)?;
    for index in 0..count {
        let data = store.bytes(blob);
        let length = if wide {
            u32::from_le_bytes(data.get(names_end + 4 * index..).and_then(|rest| rest.first_chunk()).copied().ok_or(Unusual)?)
        } else {
            u32::from(*data.get(names_end + index).ok_or(Unusual)?)
        } as usize;
        let name_end = at.checked_add(store.pairs[start + index].0.len()).filter(|end| *end <= names_end).ok_or(Unusual)?;
        let value_end = value_at.checked_add(length).filter(|end| *end <= data.len()).ok_or(Unusual)?;
        if !is_utf8(&data[at..name_end]) || !is_utf8(&data[value_at..value_end]) {
            return Err(Unusual);
        }
        store.pairs[start + index] = (blob.part(at, name_end), blob.part(value_at, value_end));
        (at, value_at) = (name_end, value_end);
    }
    if at == names_end && value_at == blob.len() { Ok(()) } else { Err(Unusual) }
}

/// A length of at most 32 bits, and where it ends.
fn varint(data: &[u8], at: usize) -> Read<(usize, usize)> {
    let mut value = 0u64;
    for (place, shift) in (at..).zip((0..35).step_by(7)) {
        let byte = *data.get(place).ok_or(Unusual)?;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return if value <= i32::MAX as u64 { Ok((value as usize, place + 1)) } else { Err(Unusual) };
        }
    }
    Err(Unusual)
}
