//! Converts a sequence of Python messages to rows of stores, so that encoders can read them.
//!
//! The messages are views (`MessageView`), or `Message` objects that a route's edits or another adapter created.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::message::{Key, Position, Row, Slice, Source, Store};
use crate::python::view::MessageView;

/// Stores, and for each message the index of its store and its row there.
type Collected = (Vec<Arc<Store>>, Vec<(u32, u32)>);

/// Collects the stores of views, and copies `Message` objects to a new store, which is the first.
///
/// Returns None if a message has a value that only the plain Python code can write: lone surrogates, a number beyond 64 bits, a
/// wrong type.
pub fn collect(messages: &Bound<'_, PyAny>) -> PyResult<Option<Collected>> {
    let mut stores: Vec<Arc<Store>> = Vec::new();
    let mut locations = Vec::with_capacity(messages.len()?);
    let mut new_store = Store::new();
    for message in messages.try_iter()? {
        let message = message?;
        if let Ok(view) = message.cast::<MessageView>() {
            let view = view.get();
            // Consecutive views of the same store share one entry in `stores`.
            if !stores.last().is_some_and(|last| Arc::ptr_eq(last, &view.store)) {
                stores.push(view.store.clone());
            }
            locations.push((stores.len() as u32, view.row));
        } else if read_message(&mut new_store, &message).is_some() {
            locations.push((0, new_store.len() as u32 - 1));
        } else {
            return Ok(None);
        }
    }
    stores.insert(0, Arc::new(new_store)); // so the stores of views have indexes from 1 on
    Ok(Some((stores, locations)))
}

/// Adds a `Message` object to the store as a row; returns None if a value does not fit into a row.
fn read_message(store: &mut Store, message: &Bound<'_, PyAny>) -> Option<()> {
    let py = message.py();
    let get = |name| message.getattr::<&Bound<'_, PyString>>(name).ok();
    let row = Row {
        pairs: read_pairs(store, &get(intern!(py, "properties"))?)?,
        keys: read_keys(store, &get(intern!(py, "keys"))?)?,
        key: read_key(store, &get(intern!(py, "key"))?)?,
        msg_type: optional(&get(intern!(py, "msg_type"))?, |text| read_text(store, text))?,
        origin: optional(&get(intern!(py, "origin"))?, |text| read_text(store, text))?,
        defect: optional(&get(intern!(py, "defect"))?, |text| read_text(store, text))?,
        payload: optional(&get(intern!(py, "payload"))?, |bytes| read_bytes(store, bytes))?,
        attributes: optional(&get(intern!(py, "attributes"))?, |bytes| read_bytes(store, bytes))?,
        ordering_key: optional(&get(intern!(py, "ordering_key"))?, |bytes| read_bytes(store, bytes))?,
        position: read_position(&get(intern!(py, "position"))?)?,
        event_time: optional(&get(intern!(py, "event_time"))?, read_number)?,
        publish_time: optional(&get(intern!(py, "publish_time"))?, read_number)?,
        deliver_at: optional(&get(intern!(py, "deliver_at"))?, read_number)?,
        delivery_count: read_number(&get(intern!(py, "delivery_count"))?)?,
        hops: read_number(&get(intern!(py, "hops"))?).filter(|hops| *hops < i64::MAX)?, // the encoder writes one more
    };
    store.rows.push(row);
    Some(())
}

/// Reads a value that may be Python's None, which gives the inner None. Returns the outer None if `read` cannot read the value.
fn optional<T>(value: &Bound<'_, PyAny>, read: impl FnOnce(&Bound<'_, PyAny>) -> Option<T>) -> Option<Option<T>> {
    if value.is_none() { Some(None) } else { read(value).map(Some) }
}

/// Copies a text to the store, in UTF-8; None for a text with lone surrogates, and for another type.
fn read_text(store: &mut Store, value: &Bound<'_, PyAny>) -> Option<Slice> {
    let text = value.cast::<PyString>().ok()?;
    Some(store.copy(text.to_str().ok()?.as_bytes()))
}

/// Adds a `bytes` object to the store, without copying it; None for another type.
fn read_bytes(store: &mut Store, value: &Bound<'_, PyAny>) -> Option<Slice> {
    let bytes: PyBackedBytes = value.cast::<PyBytes>().ok()?.clone().into();
    let length = bytes.len();
    let number = store.add_source(Source::Python(bytes));
    Some(Slice::of(number, 0, length))
}

/// Reads a routing key: None, text or bytes.
fn read_key(store: &mut Store, value: &Bound<'_, PyAny>) -> Option<Key> {
    if value.is_none() {
        Some(Key::None)
    } else if value.is_instance_of::<PyString>() {
        read_text(store, value).map(Key::Text)
    } else {
        read_bytes(store, value).map(Key::Bytes)
    }
}

/// Adds the properties to the store's pairs; returns their range there.
fn read_pairs(store: &mut Store, value: &Bound<'_, PyAny>) -> Option<(u32, u32)> {
    let start = store.pairs.len() as u32;
    for pair in value.try_iter().ok()? {
        let pair = pair.ok()?;
        let pair = pair.cast::<PyTuple>().ok()?;
        let name = read_text(store, &pair.get_item(0).ok()?)?;
        let value = read_text(store, &pair.get_item(1).ok()?)?;
        store.pairs.push((name, value));
    }
    Some((start, store.pairs.len() as u32))
}

/// Adds the index keys to the store's keys; returns their range there.
fn read_keys(store: &mut Store, value: &Bound<'_, PyAny>) -> Option<(u32, u32)> {
    let start = store.keys.len() as u32;
    for key in value.try_iter().ok()? {
        let key = read_text(store, &key.ok()?)?;
        store.keys.push(key);
    }
    Some((start, store.keys.len() as u32))
}

/// Reads an integer; None for one beyond 64 bits, and for another type.
fn read_number(value: &Bound<'_, PyAny>) -> Option<i64> {
    value.extract().ok()
}

/// Reads a position; None for one of more than three numbers.
fn read_position(value: &Bound<'_, PyAny>) -> Option<Position> {
    let numbers = value.cast::<PyTuple>().ok()?;
    // A fourth number shows that there are too many.
    let components: Vec<i64> = numbers.iter().take(4).map(|number| read_number(&number)).collect::<Option<_>>()?;
    (components.len() <= 3).then(|| Position::new(&components))
}
