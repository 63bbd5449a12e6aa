//! Converts messages to columns for `mqbridge/spark/arrow`. A column consists of the buffers of an Arrow array.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::message::{Key, Message};
use crate::python::{Messages, catch_panic};

/// Adds the classes and functions of this file to the Python module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(message_columns, module)?)
}

/// The times in ms that fit into 64 bits as microseconds; times outside this range become NULL.
const MIN_MS: i64 = -((1i128 << 63) / 1000) as i64;
const MAX_MS: i64 = i64::MAX / 1000;

/// A column of texts or byte strings: number of nulls, validity bitmap, offsets (int32), data.
type Texts<'py> = (usize, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);
/// A column of numbers or flags: number of nulls, validity bitmap, values.
type Numbers<'py> = (usize, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Returns the columns of messages, by name. Raises OverflowError if a column has more than 2 GiB.
///
/// A column of texts or byte strings is (nulls, validity, offsets, data), one of numbers, times or flags
/// (nulls, validity, values).
/// Times are in microseconds since the epoch, counters are int32. A column of lists is (offsets, items), one of maps (offsets,
/// names, values). With `binary_properties`, the properties are blobs (see `mqbridge/spark/property_blob.py`) instead of maps.
#[pyfunction]
fn message_columns<'py>(py: Python<'py>, messages: &Messages, binary_properties: bool) -> PyResult<Bound<'py, PyDict>> {
    catch_panic(|| {
        let all = || messages.iter();
        let columns = PyDict::new(py);
        columns.set_item("payload", texts(py, || all().map(|message| message.payload()))?)?;
        columns.set_item("key", texts(py, || all().map(|message| key_bytes(&message)))?)?;
        let key_is_text = all().map(|message| match message.key() {
            Key::None => None,
            Key::Text(_) => Some(true),
            Key::Bytes(_) => Some(false),
        });
        columns.set_item("key_is_text", flags(py, key_is_text))?;
        columns.set_item("ordering_key", texts(py, || all().map(|message| message.ordering_key()))?)?;
        let list_offsets = offsets(py, all().map(|message| message.keys().len()))?;
        columns.set_item("keys", (list_offsets, texts(py, || all().flat_map(|message| message.keys().map(Some)))?))?;
        columns.set_item("msg_type", texts(py, || all().map(|message| message.msg_type()))?)?;
        columns.set_item("attributes", texts(py, || all().map(|message| message.attributes()))?)?;
        if binary_properties {
            columns.set_item("properties", blobs(py, messages)?)?;
        } else {
            let list_offsets = offsets(py, all().map(|message| message.properties().len()))?;
            let names = texts(py, || all().flat_map(|message| message.properties().map(|(name, _)| Some(name))))?;
            let values = texts(py, || all().flat_map(|message| message.properties().map(|(_, value)| Some(value))))?;
            columns.set_item("properties", (list_offsets, names, values))?;
        }
        let time = |ms: Option<i64>| ms.filter(|ms| (MIN_MS..=MAX_MS).contains(ms)).map(|ms| ms * 1000);
        columns.set_item("event_time", numbers(py, all().map(|message| time(message.row.event_time))))?;
        columns.set_item("publish_time", numbers(py, all().map(|message| time(message.row.publish_time))))?;
        columns.set_item("deliver_at", numbers(py, all().map(|message| time(message.row.deliver_at))))?;
        columns.set_item("delivery_count", counters(py, all().map(|message| message.row.delivery_count)))?;
        let list_offsets = offsets(py, all().map(|message| message.position().numbers().len()))?;
        let components: Vec<i64> = all().flat_map(|message| message.position().numbers().to_vec()).collect();
        columns.set_item("position", (list_offsets, numbers(py, components.into_iter().map(Some))))?;
        columns.set_item("origin", texts(py, || all().map(|message| message.origin()))?)?;
        columns.set_item("hops", counters(py, all().map(|message| message.row.hops)))?;
        columns.set_item("defect", texts(py, || all().map(|message| message.defect()))?)?;
        Ok(columns)
    })
}

/// Returns the bytes of the key, also of a key that is text.
fn key_bytes<'a>(message: &Message<'a>) -> Option<&'a [u8]> {
    match message.key() {
        Key::None => None,
        Key::Text(key) | Key::Bytes(key) => Some(key),
    }
}

/// Returns the number of nulls, and a bitmap with one bit per value: 1 if it is not null.
fn validity<'py>(py: Python<'py>, are_valid: impl Iterator<Item = bool>) -> (usize, Bound<'py, PyBytes>) {
    let (mut bits, mut nulls) = (Vec::new(), 0);
    for (index, is_valid) in are_valid.enumerate() {
        if index % 8 == 0 {
            bits.push(0);
        }
        if is_valid {
            bits[index / 8] |= 1 << (index % 8);
        } else {
            nulls += 1;
        }
    }
    (nulls, PyBytes::new(py, &bits))
}

/// Returns the offset of each item, and the end of the last one, for items of these lengths; OverflowError if that is over 2 GiB.
fn offsets<'py>(py: Python<'py>, lengths: impl Iterator<Item = usize>) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = 0i32.to_le_bytes().to_vec();
    let mut end = 0i32;
    for length in lengths {
        let next = i32::try_from(length).ok().and_then(|length| end.checked_add(length));
        end = next.ok_or_else(|| PyOverflowError::new_err("a column of more than 2 GiB"))?;
        out.extend_from_slice(&end.to_le_bytes());
    }
    Ok(PyBytes::new(py, &out))
}

/// Makes a column of texts or byte strings. `values` returns a new iterator each time that it is called.
fn texts<'a, 'py, I: Iterator<Item = Option<&'a [u8]>>>(py: Python<'py>, values: impl Fn() -> I) -> PyResult<Texts<'py>> {
    let (nulls, bits) = validity(py, values().map(|value| value.is_some()));
    let offsets = offsets(py, values().map(|value| value.map_or(0, <[u8]>::len)))?;
    let size = values().map(|value| value.map_or(0, <[u8]>::len)).sum();
    let data = PyBytes::new_with(py, size, |mut out| {
        for value in values().flatten() {
            let (front, rest) = out.split_at_mut(value.len());
            front.copy_from_slice(value);
            out = rest;
        }
        Ok(())
    })?;
    Ok((nulls, bits, offsets, data))
}

/// Makes a column of 64-bit numbers.
fn numbers<'py>(py: Python<'py>, values: impl Iterator<Item = Option<i64>>) -> Numbers<'py> {
    let values: Vec<_> = values.collect();
    let (nulls, bits) = validity(py, values.iter().map(Option::is_some));
    let data: Vec<u8> = values.iter().flat_map(|value| value.unwrap_or(0).to_le_bytes()).collect();
    (nulls, bits, PyBytes::new(py, &data))
}

/// Makes a column of int32 counters; a number beyond 32 bits becomes the nearest int32. The validity bitmap is empty,
/// because no counter is null.
fn counters<'py>(py: Python<'py>, values: impl Iterator<Item = i64>) -> Numbers<'py> {
    let data: Vec<u8> = values.flat_map(|value| (value.clamp(i32::MIN.into(), i32::MAX.into()) as i32).to_le_bytes()).collect();
    (0, PyBytes::new(py, &[]), PyBytes::new(py, &data))
}

/// Makes a column of flags, one bit each.
fn flags<'py>(py: Python<'py>, values: impl Iterator<Item = Option<bool>>) -> Numbers<'py> {
    let values: Vec<_> = values.collect();
    let (nulls, bits) = validity(py, values.iter().map(Option::is_some));
    // The values are packed into bits like a validity bitmap.
    let (_, data) = validity(py, values.iter().map(|value| value.unwrap_or(false)));
    (nulls, bits, data)
}

// --- properties as one binary value, see mqbridge/spark/property_blob.py ------------------------------------------------

/// Kinds of blobs, the first byte: the length of each value has one byte (narrow) or four bytes (wide).
pub const NARROW: u8 = 1;
pub const WIDE: u8 = 2;

/// Makes a column with one blob per message.
fn blobs<'py>(py: Python<'py>, messages: &Messages) -> PyResult<Texts<'py>> {
    let mut data = Vec::new();
    let mut names = Vec::new();
    let mut lengths = Vec::with_capacity(messages.len());
    for message in messages.iter() {
        let begin = data.len();
        write_blob(&message, &mut names, &mut data);
        lengths.push(data.len() - begin);
    }
    let (nulls, bits) = validity(py, lengths.iter().map(|_| true));
    Ok((nulls, bits, offsets(py, lengths.into_iter())?, PyBytes::new(py, &data)))
}

/// Appends the blob of a message's properties; without properties, it is empty. `names` is a buffer for the blob's
/// field `names`, which all calls reuse.
fn write_blob(message: &Message, names: &mut Vec<u8>, out: &mut Vec<u8>) {
    let count = message.properties().len();
    if count == 0 {
        return;
    }
    names.clear();
    write_varint(count, names);
    message.properties().for_each(|(name, _)| write_varint(name.len(), names));
    message.properties().for_each(|(name, _)| names.extend_from_slice(name));
    let is_narrow = message.properties().all(|(_, value)| value.len() <= 255);
    out.push(if is_narrow { NARROW } else { WIDE });
    write_varint(names.len(), out);
    out.extend_from_slice(names);
    for (_, value) in message.properties() {
        let length = (value.len() as u32).to_le_bytes();
        out.extend_from_slice(if is_narrow { &length[..1] } else { &length });
    }
    message.properties().for_each(|(_, value)| out.extend_from_slice(value));
}

/// Appends a number as a varint, as Protocol Buffers encode it.
fn write_varint(mut value: usize, out: &mut Vec<u8>) {
    while value > 0x7F {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
