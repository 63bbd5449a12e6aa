//! Messages of Python as rows of a store: what edits made, and what other adapters read.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::message::{Key, Position, Row, Slice, Source, Store};
use crate::python::messages::Messages;
use crate::python::view::MessageView;

/// None for messages with something that only the plain code can write: lone surrogates, numbers beyond 64 bits.
pub fn collect(messages: &Bound<'_, PyAny>) -> PyResult<Option<Messages>> {
    let mut stores: Vec<Arc<Store>> = Vec::new();
    let mut places = Vec::with_capacity(messages.len()?);
    let mut made = Store::new();
    for message in messages.try_iter()? {
        let message = message?;
        if let Ok(view) = message.cast::<MessageView>() {
            let view = view.get();
            if !stores.last().is_some_and(|last| Arc::ptr_eq(last, &view.store)) {
                stores.push(view.store.clone());
            }
            places.push((stores.len() as u32, view.row));
        } else if read(&mut made, &message)?.is_some() {
            places.push((0, made.len() as u32 - 1));
        } else {
            return Ok(None);
        }
    }
    stores.insert(0, Arc::new(made)); // views count from 1
    Ok(Some(Messages::new(stores, places)))
}

/// Adds the row of a message of Python; None where it does not fit one.
fn read(store: &mut Store, message: &Bound<'_, PyAny>) -> PyResult<Option<()>> {
    let py = message.py();
    let get = |name| message.getattr::<&Bound<'_, PyString>>(name);
    let Some(pairs) = read_pairs(store, &get(intern!(py, "properties"))?)? else { return Ok(None) };
    let Some(keys) = read_keys(store, &get(intern!(py, "keys"))?)? else { return Ok(None) };
    let Some(key) = read_key(store, &get(intern!(py, "key"))?)? else { return Ok(None) };
    let Some(msg_type) = read_text(store, &get(intern!(py, "msg_type"))?)? else { return Ok(None) };
    let Some(origin) = read_text(store, &get(intern!(py, "origin"))?)? else { return Ok(None) };
    let Some(defect) = read_text(store, &get(intern!(py, "defect"))?)? else { return Ok(None) };
    let Some(position) = read_position(&get(intern!(py, "position"))?)? else { return Ok(None) };
    let Some(event_time) = read_number(&get(intern!(py, "event_time"))?) else { return Ok(None) };
    let Some(publish_time) = read_number(&get(intern!(py, "publish_time"))?) else { return Ok(None) };
    let Some(deliver_at) = read_number(&get(intern!(py, "deliver_at"))?) else { return Ok(None) };
    let Some(Some(delivery_count)) = read_number(&get(intern!(py, "delivery_count"))?) else { return Ok(None) };
    let hops = read_number(&get(intern!(py, "hops"))?).flatten().filter(|hops| *hops < i64::MAX); // one more is written
    let Some(hops) = hops else { return Ok(None) };
    let payload = read_bytes(store, &get(intern!(py, "payload"))?)?;
    let attributes = read_bytes(store, &get(intern!(py, "attributes"))?)?;
    let ordering_key = read_bytes(store, &get(intern!(py, "ordering_key"))?)?;
    store.rows.push(Row {
        payload,
        pairs,
        keys,
        key,
        ordering_key,
        msg_type,
        attributes,
        event_time,
        publish_time,
        deliver_at,
        delivery_count,
        position,
        origin,
        hops,
        defect,
    });
    Ok(Some(()))
}

/// UTF-8 of a text; None for one with lone surrogates.
fn utf8(store: &mut Store, text: &Bound<'_, PyString>) -> Option<Slice> {
    text.to_str().ok().map(|text| store.copy(text.as_bytes()))
}

fn read_text(store: &mut Store, value: &Bound<'_, PyAny>) -> PyResult<Option<Option<Slice>>> {
    if value.is_none() {
        return Ok(Some(None));
    }
    Ok(utf8(store, value.cast::<PyString>()?).map(Some))
}

fn read_bytes(store: &mut Store, value: &Bound<'_, PyAny>) -> PyResult<Option<Slice>> {
    if value.is_none() {
        return Ok(None);
    }
    let bytes: PyBackedBytes = value.cast::<PyBytes>()?.clone().into();
    let length = bytes.len();
    let number = store.add_source(Source::Python(bytes));
    Ok(Some(Slice::of(number, 0, length)))
}

fn read_key(store: &mut Store, value: &Bound<'_, PyAny>) -> PyResult<Option<Key>> {
    if value.is_none() {
        return Ok(Some(Key::None));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(utf8(store, text).map(Key::Text));
    }
    Ok(read_bytes(store, value)?.map(Key::Bytes))
}

fn read_pairs(store: &mut Store, value: &Bound<'_, PyAny>) -> PyResult<Option<(u32, u32)>> {
    let start = store.pairs.len() as u32;
    for pair in value.try_iter()? {
        let pair = pair?;
        let pair = pair.cast::<PyTuple>()?;
        let (name, value) = (pair.get_item(0)?, pair.get_item(1)?);
        let Some(name) = utf8(store, name.cast::<PyString>()?) else { return Ok(None) };
        let Some(value) = utf8(store, value.cast::<PyString>()?) else { return Ok(None) };
        store.pairs.push((name, value));
    }
    Ok(Some((start, store.pairs.len() as u32)))
}

fn read_keys(store: &mut Store, value: &Bound<'_, PyAny>) -> PyResult<Option<(u32, u32)>> {
    let start = store.keys.len() as u32;
    for key in value.try_iter()? {
        let Some(key) = utf8(store, key?.cast::<PyString>()?) else { return Ok(None) };
        store.keys.push(key);
    }
    Ok(Some((start, store.keys.len() as u32)))
}

/// None for a number beyond 64 bits; the inner one for Python's None.
fn read_number(value: &Bound<'_, PyAny>) -> Option<Option<i64>> {
    if value.is_none() { Some(None) } else { value.extract().ok().map(Some) }
}

fn read_position(value: &Bound<'_, PyAny>) -> PyResult<Option<Position>> {
    let numbers = value.cast::<PyTuple>()?;
    if numbers.len() > 3 {
        return Ok(None);
    }
    let found: Option<Vec<i64>> = numbers.iter().map(|number| number.extract().ok()).collect();
    Ok(found.map(|numbers| Position::new(&numbers)))
}
