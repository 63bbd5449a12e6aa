//! Functions for `mqbridge/pulsar/mapping`.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};

use crate::message::{Source, Store};
use crate::pulsar::decode::{Decoder, Entry, Kind};
use crate::pulsar::encode::{Limits, encode};
use crate::python::pulsar_entry::PulsarEntry;
use crate::python::{Messages, caught, or_none};

/// Payload; metadata of an entry that is no batch; count and mask of a batch; ledger, entry, redelivery count, publish time,
/// delivery time; defect.
type EntryFields = (PyBackedBytes, Option<PyBackedBytes>, i64, Vec<i64>, i64, i64, i64, i64, Option<i64>, Option<String>);

/// An entry of which these fields are told, and its defect.
fn of_fields(fields: EntryFields, store: &mut Store) -> (Entry, Option<String>) {
    let (payload, metadata, count, due, ledger, entry, redelivery_count, publish_time, deliver_at, defect) = fields;
    let mut whole = |bytes| {
        let source = store.add_source(Source::Python(bytes));
        store.slice_of_source(source)
    };
    let payload = whole(payload);
    let kind = metadata.map_or(Kind::Batch(count, due), |metadata| Kind::Single(whole(metadata)));
    (Entry { payload, kind, ledger, entry, redelivery_count, publish_time, deliver_at }, defect)
}

/// The messages of entries, each a `PulsarEntry` or the fields of another one, and index and defect of each batch that is none;
/// None where only the plain code can tell.
#[pyfunction]
fn pulsar_decode(py: Python<'_>, entries: &Bound<'_, PyList>) -> PyResult<Option<(Messages, Defects)>> {
    caught(|| {
        let mut decoder = Decoder::default();
        let mut damaged = Vec::new();
        for (index, item) in entries.iter().enumerate() {
            let (entry, defect) = match item.cast::<PulsarEntry>() {
                Ok(entry) => entry.borrow().stored(py, &mut decoder.store),
                Err(_) => match item.extract() {
                    Ok(fields) => of_fields(fields, &mut decoder.store),
                    Err(error) if error.is_instance_of::<PyOverflowError>(py) => return Ok(None),
                    Err(error) => return Err(error),
                },
            };
            if let Some(defect) = defect {
                decoder.add_damaged(&entry, &defect);
                continue;
            }
            match or_none(py, decoder.add(&entry))? {
                Some(Some(defect)) => damaged.push((index, defect)),
                Some(None) => {}
                None => return Ok(None),
            }
        }
        Ok(Some((Messages::all(decoder.store), damaged)))
    })
}

/// Index of an entry or a message, and why it cannot be read.
type Defects = Vec<(usize, String)>;
/// Payload, metadata, first index and the one behind the last.
type EncodedEntry<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize, usize);

/// Entries that hold all readable messages in order, and index and defect of the others.
#[pyfunction]
fn pulsar_encode<'py>(
    py: Python<'py>,
    messages: &Messages,
    origin: Option<&str>,
    max_messages: usize,
    max_bytes: usize,
) -> PyResult<(Vec<EncodedEntry<'py>>, Defects)> {
    caught(|| {
        let encoded = encode(messages.iter(), origin.map(str::as_bytes), &Limits { max_messages, max_bytes });
        let mut entries = Vec::with_capacity(encoded.entries.len());
        for entry in &encoded.entries {
            let payload = PyBytes::new_with(py, entry.size, |out| {
                encoded.write(entry, out);
                Ok(())
            })?;
            entries.push((payload, PyBytes::new(py, &entry.metadata), entry.indexes.start, entry.indexes.end));
        }
        let failures = encoded.failures.iter().map(|(index, defect)| (*index, String::from_utf8_lossy(defect).into_owned()));
        Ok((entries, failures.collect()))
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pulsar_decode, module)?)?;
    module.add_function(wrap_pyfunction!(pulsar_encode, module)?)
}
