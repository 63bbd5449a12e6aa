//! Converts columns, the buffers of Arrow arrays, to messages. `columns.rs` is the other direction.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;

use crate::message::{Key, Position, Row, Slice, Source, Store};
use crate::python::columns::{NARROW, WIDE};
use crate::python::{Messages, catch_panic};
use crate::text::is_utf8;

/// Adds the classes and functions of this file to the Python module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(messages_of_columns, module)?)
}

/// The error for a row that only the plain Python code can read or reject: with a text that is not UTF-8, a number that does not
/// fit into a `Row`, or an invalid blob of properties.
struct Unsupported;

type Read<T> = Result<T, Unsupported>;

/// Returns the messages of `count` rows; None if only the plain Python code can read or reject a row.
///
/// `columns` contains the columns that exist, by name. A column of texts or byte strings is (first row, validity or None,
/// offsets, data); one of numbers, times (ms since the epoch) or flags is (first row, validity, values); one of lists is (first
/// row, validity, offsets, items). The first row is the index of the column's first row in its buffers. Properties are either
/// `maps`, lists whose items are (names, values), or `blobs` (see `mqbridge/spark/property_blob.py`).
///
/// `text_key`: whether a key is text if `key_is_text` has no value.
#[pyfunction]
fn messages_of_columns(count: usize, columns: &Bound<'_, PyDict>, text_key: bool) -> PyResult<Option<Messages>> {
    catch_panic(|| {
        let mut store = Store::new();
        let columns = Columns::new(&mut store, columns)?;
        for index in 0..count {
            match columns.row(&mut store, index, text_key) {
                Ok(row) => store.rows.push(row),
                Err(Unsupported) => return Ok(None),
            }
        }
        Ok(Some(Messages::all(store)))
    })
}

// --- buffers ----------------------------------------------------------------------------------------------------------

/// Returns the bytes of the integer at this index; integers have N bytes, little endian.
fn integer<const N: usize>(data: &[u8], index: usize) -> Read<[u8; N]> {
    let start = index.checked_mul(N).ok_or(Unsupported)?;
    data.get(start..).and_then(|rest| rest.first_chunk()).copied().ok_or(Unsupported)
}

/// Returns the bit at this index of a bitmap.
fn bit(data: &[u8], index: usize) -> Read<bool> {
    data.get(index / 8).map(|byte| byte >> (index % 8) & 1 == 1).ok_or(Unsupported)
}

/// Returns the start and end offset of the item at this index.
fn range(offsets: &[u8], index: usize) -> Read<(usize, usize)> {
    let (start, end) = (i32::from_le_bytes(integer(offsets, index)?), i32::from_le_bytes(integer(offsets, index + 1)?));
    let (start, end) = (usize::try_from(start).map_err(|_| Unsupported)?, usize::try_from(end).map_err(|_| Unsupported)?);
    if start <= end { Ok((start, end)) } else { Err(Unsupported) }
}

/// Tells which values of a column are not null.
struct Validity {
    /// Index of the column's first row in its buffers.
    first_row: usize,
    /// Bitmap with one bit per value; None if no value is null.
    bits: Option<PyBackedBytes>,
}

impl Validity {
    /// Returns true if the value at this index is not null.
    fn has(&self, index: usize) -> Read<bool> {
        self.bits.as_ref().map_or(Ok(true), |bits| bit(bits, self.first_row + index))
    }
}

/// A column of texts or byte strings.
struct Texts {
    validity: Validity,
    offsets: PyBackedBytes,
    data: Slice,
}

impl Texts {
    fn new(store: &mut Store, column: &Bound<'_, PyAny>) -> PyResult<Texts> {
        let (first_row, bits, offsets, data): (usize, Option<PyBackedBytes>, PyBackedBytes, PyBackedBytes) = column.extract()?;
        let length = data.len();
        let source = store.add_source(Source::Python(data));
        Ok(Texts { validity: Validity { first_row, bits }, offsets, data: Slice::of(source, 0, length) })
    }

    /// Returns the bytes at this index; None if null.
    fn get(&self, index: usize) -> Read<Option<Slice>> {
        if !self.validity.has(index)? {
            return Ok(None);
        }
        let (start, end) = range(&self.offsets, self.validity.first_row + index)?;
        if end > self.data.len() { Err(Unsupported) } else { Ok(Some(self.data.part(start, end))) }
    }

    /// Returns the text at this index, which must be UTF-8; None if null.
    fn text(&self, store: &Store, index: usize) -> Read<Option<Slice>> {
        match self.get(index)? {
            Some(text) if !is_utf8(store.bytes(text)) => Err(Unsupported),
            text => Ok(text),
        }
    }
}

/// A column of 64-bit numbers or of flags.
struct Numbers {
    validity: Validity,
    values: PyBackedBytes,
}

impl Numbers {
    fn new(column: &Bound<'_, PyAny>) -> PyResult<Numbers> {
        let (first_row, bits, values) = column.extract()?;
        Ok(Numbers { validity: Validity { first_row, bits }, values })
    }

    /// Returns the number at this index; None if null.
    fn get(&self, index: usize) -> Read<Option<i64>> {
        if !self.validity.has(index)? {
            return Ok(None);
        }
        Ok(Some(i64::from_le_bytes(integer(&self.values, self.validity.first_row + index)?)))
    }

    /// Returns the flag at this index; None if null.
    fn flag(&self, index: usize) -> Read<Option<bool>> {
        if !self.validity.has(index)? {
            return Ok(None);
        }
        bit(&self.values, self.validity.first_row + index).map(Some)
    }
}

// --- columns ----------------------------------------------------------------------------------------------------------

/// A column of lists; `items` are the columns with the items of all rows.
struct List<T> {
    validity: Validity,
    offsets: PyBackedBytes,
    items: T,
}

impl<T> List<T> {
    /// Returns the range of the items of the list at this index; an empty range if null.
    fn range(&self, index: usize) -> Read<(usize, usize)> {
        if self.validity.has(index)? { range(&self.offsets, index) } else { Ok((0, 0)) }
    }
}

/// The column of properties, in one of its two formats.
enum Properties {
    /// The items are names and values.
    Maps(List<(Texts, Texts)>),
    /// Each value is a blob, which contains all properties of a message.
    Blobs(Texts),
}

/// All columns; None for a column that does not exist.
struct Columns {
    payload: Option<Texts>,
    key: Option<Texts>,
    key_is_text: Option<Numbers>,
    ordering_key: Option<Texts>,
    keys: Option<List<Texts>>,
    msg_type: Option<Texts>,
    attributes: Option<Texts>,
    properties: Option<Properties>,
    /// event_time, publish_time, deliver_at; in ms.
    times: [Option<Numbers>; 3],
    /// delivery_count, hops.
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

    /// Reads the row at this index.
    fn row(&self, store: &mut Store, index: usize, text_key: bool) -> Read<Row> {
        let bytes = |column: &Option<Texts>| column.as_ref().map_or(Ok(None), |column| column.get(index));
        let number = |column: &Option<Numbers>| column.as_ref().map_or(Ok(None), |column| column.get(index));
        let pairs = self.pairs(store, index)?;
        let keys = self.keys(store, index)?;
        let text = |column: &Option<Texts>| column.as_ref().map_or(Ok(None), |column| column.text(store, index));
        let key_is_text = self.key_is_text.as_ref().map_or(Ok(None), |column| column.flag(index))?;
        let key = match (key_is_text.unwrap_or(text_key), &self.key) {
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
            hops: if hops == i64::MAX { return Err(Unsupported) } else { hops }, // the encoder may write hops + 1
            defect: text(&self.defect)?,
        })
    }

    /// Adds the index keys of a row to the store's keys; returns their range there.
    fn keys(&self, store: &mut Store, index: usize) -> Read<(u32, u32)> {
        let start = store.keys.len() as u32;
        if let Some(list) = &self.keys {
            let (begin, end) = list.range(index)?;
            for item_index in begin..end {
                if let Some(key) = list.items.text(store, item_index)? {
                    store.keys.push(key);
                }
            }
        }
        Ok((start, store.keys.len() as u32))
    }

    /// Returns the position of a row; a position without numbers if the row has none.
    fn position(&self, index: usize) -> Read<Position> {
        let Some(list) = &self.position else { return Ok(Position::default()) };
        let (begin, end) = list.range(index)?;
        let mut numbers = [0; 3];
        for (item_index, component) in (begin..end).zip(0..) {
            *numbers.get_mut(component).ok_or(Unsupported)? = list.items.get(item_index)?.ok_or(Unsupported)?;
        }
        Ok(Position::new(&numbers[..end - begin]))
    }

    /// Adds the properties of a row to the store's pairs; returns their range there.
    fn pairs(&self, store: &mut Store, index: usize) -> Read<(u32, u32)> {
        let start = store.pairs.len() as u32;
        match &self.properties {
            None => {}
            Some(Properties::Maps(list)) => {
                let (begin, end) = list.range(index)?;
                for item_index in begin..end {
                    let name = list.items.0.text(store, item_index)?.ok_or(Unsupported)?;
                    if let Some(value) = list.items.1.text(store, item_index)? {
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

/// Reads a column of lists; `read` reads the columns of its items.
fn read_list<T>(column: &Bound<'_, PyAny>, read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> PyResult<List<T>> {
    let (first_row, bits, offsets, items): (usize, Option<PyBackedBytes>, PyBackedBytes, Bound<'_, PyAny>) = column.extract()?;
    Ok(List { validity: Validity { first_row, bits }, offsets, items: read(&items)? })
}

// --- properties as one binary value, see mqbridge/spark/property_blob.py ------------------------------------------------

/// Appends the pairs of a blob to the store's.
///
/// A blob consists of its kind, the names, the lengths of the values, and the values. NARROW blobs have one byte per length, WIDE
/// ones four.
fn read_blob(store: &mut Store, blob: Slice) -> Read<()> {
    let data = store.bytes(blob);
    let is_wide = match data.first() {
        Some(&NARROW) => false,
        Some(&WIDE) => true,
        _ => return Err(Unsupported),
    };
    let (names_size, names_at) = varint(data, 1)?;
    let names_end = names_at.checked_add(names_size).filter(|end| *end <= data.len()).ok_or(Unsupported)?;
    let (count, mut at) = varint(data, names_at)?;
    if count > names_end - names_at {
        return Err(Unsupported); // each name takes at least the byte of its length
    }
    let start = store.pairs.len();
    for _ in 0..count {
        let (length, next) = varint(store.bytes(blob), at)?;
        at = next;
        store.pairs.push((Slice::of(0, 0, length), Slice::EMPTY)); // keeps the length of the name, and is replaced below
    }
    let lengths_size = count * if is_wide { 4 } else { 1 };
    let mut value_at = names_end.checked_add(lengths_size).ok_or(Unsupported)?;
    for index in 0..count {
        let data = store.bytes(blob);
        let length = if is_wide {
            u32::from_le_bytes(data.get(names_end + 4 * index..).and_then(|rest| rest.first_chunk()).copied().ok_or(Unsupported)?)
        } else {
            u32::from(*data.get(names_end + index).ok_or(Unsupported)?)
        } as usize;
        let name_end = at.checked_add(store.pairs[start + index].0.len()).filter(|end| *end <= names_end).ok_or(Unsupported)?;
        let value_end = value_at.checked_add(length).filter(|end| *end <= data.len()).ok_or(Unsupported)?;
        if !is_utf8(&data[at..name_end]) || !is_utf8(&data[value_at..value_end]) {
            return Err(Unsupported);
        }
        store.pairs[start + index] = (blob.part(at, name_end), blob.part(value_at, value_end));
        (at, value_at) = (name_end, value_end);
    }
    if at == names_end && value_at == blob.len() { Ok(()) } else { Err(Unsupported) }
}

/// Reads a varint at offset `at`; returns its value and the offset after it. The value must fit into a signed 32-bit number.
fn varint(data: &[u8], at: usize) -> Read<(usize, usize)> {
    let mut value = 0u64;
    for (byte_at, shift) in (at..).zip((0..35).step_by(7)) {
        let byte = *data.get(byte_at).ok_or(Unsupported)?;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return if value <= i32::MAX as u64 { Ok((value as usize, byte_at + 1)) } else { Err(Unsupported) };
        }
    }
    Err(Unsupported)
}
