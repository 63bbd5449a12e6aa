//! Functions for `mqbridge/pulsar/mapping`: decode entries into messages, encode messages into entries.

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyList};

use crate::message::{Source, Store};
use crate::pulsar::decode::{Decoder, Entry, Kind};
use crate::pulsar::encode::{Limits, encode};
use crate::pulsar::frames::{Content, Delivery, Ids, encode_frames};
use crate::python::extract::collect;
use crate::python::pulsar_entry::PulsarEntry;
use crate::python::{Messages, catch_panic, or_none};

/// The fields of an entry as a tuple: payload; encoded metadata, None for a batch; number of messages and `ack_set` of a batch
/// (bit set of the messages to deliver, empty for all); ledger, entry; redelivery count; publish time and delivery time (ms);
/// defect.
type EntryFields = (PyBackedBytes, Option<PyBackedBytes>, i64, Vec<i64>, i64, i64, i64, i64, Option<i64>, Option<String>);

/// Returns the entry with these fields, and its defect, if any. The store keeps the payload and the metadata.
fn entry_of_fields(fields: EntryFields, store: &mut Store) -> (Entry, Option<String>) {
    let (payload, metadata, count, ack_set, ledger, entry, redelivery_count, publish_time, deliver_at, defect) = fields;
    let mut keep = |bytes| {
        let source = store.add_source(Source::Python(bytes));
        store.slice_of_source(source)
    };
    let payload = keep(payload);
    let kind = metadata.map_or(Kind::Batch { count, ack_set }, |metadata| Kind::Single(keep(metadata)));
    (Entry { payload, kind, ledger, entry, redelivery_count, publish_time, deliver_at }, defect)
}

/// Decodes entries. Each is a `PulsarEntry`, or a tuple with the fields of an entry that Python parsed.
///
/// Returns the messages, and (index, defect) of each entry whose payload turned out to be no valid batch. Each of these
/// entries becomes one message with the defect, like an entry that came with a defect. Returns None if only the pure Python code
/// can decode the entries.
#[pyfunction]
fn pulsar_decode(py: Python<'_>, entries: &Bound<'_, PyList>) -> PyResult<Option<(Messages, Defects)>> {
    catch_panic(|| {
        let mut decoder = Decoder::default();
        let mut defects = Vec::new();
        for (index, item) in entries.iter().enumerate() {
            let (entry, defect) = match item.cast::<PulsarEntry>() {
                Ok(entry) => entry.borrow().entry_to_decode(py, &mut decoder.store),
                Err(_) => match item.extract() {
                    Ok(fields) => entry_of_fields(fields, &mut decoder.store),
                    Err(error) if error.is_instance_of::<PyOverflowError>(py) => return Ok(None), // a number beyond 64 bits
                    Err(error) => return Err(error),
                },
            };
            if let Some(defect) = defect {
                decoder.add_damaged(&entry, &defect);
                continue;
            }
            match or_none(py, decoder.add(&entry))? {
                Some(Some(defect)) => defects.push((index, defect)),
                Some(None) => {}
                None => return Ok(None),
            }
        }
        if decoder.store.has_raw_bytes {
            return Ok(None);
        }
        Ok(Some((Messages::all(decoder.store), defects)))
    })
}

/// The index of each damaged entry or message, and its defect.
type Defects = Vec<(usize, String)>;
/// Payload, encoded metadata, and the start and the exclusive end of the messages' indexes.
type EncodedEntry<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize, usize);

/// Encodes messages into entries. Returns the entries, and (index, defect) of each message with a defect.
///
/// `origin` is the prefix of every origin stamp, to which the position of the message is appended; None for no stamps.
/// `max_messages` and `max_bytes` limit a batch.
#[pyfunction]
fn pulsar_encode<'py>(
    py: Python<'py>,
    messages: &Messages,
    origin: Option<&str>,
    max_messages: usize,
    max_bytes: usize,
) -> PyResult<(Vec<EncodedEntry<'py>>, Defects)> {
    catch_panic(|| {
        let encoded = encode(messages.iter(), origin.map(str::as_bytes), &Limits { max_messages, max_bytes });
        let mut entries = Vec::with_capacity(encoded.entries.len());
        for entry in &encoded.entries {
            let payload = PyBytes::new_with(py, entry.size, |out| {
                encoded.write_payload(entry, out);
                Ok(())
            })?;
            entries.push((payload, PyBytes::new(py, &entry.metadata), entry.indexes.start, entry.indexes.end));
        }
        let failures = encoded.failures.iter().map(|(index, defect)| (*index, String::from_utf8_lossy(defect).into_owned()));
        Ok((entries, failures.collect()))
    })
}

/// The ids under which a message is delivered: number, ledger, entry, redelivery count.
type DeliveredIds = (u64, u64, u64, u32);

/// Encodes MESSAGE frames for one consumer; returns them, and the number of bytes of their entries. Returns None if only the pure
/// Python code can encode them.
///
/// `contents` are entries, as bytes, and messages that were stored without units: views, or `Message` objects. `ids` are the ids of
/// each. `consumer` is (consumer id, index of the partition or -1,
/// epoch or None), `texts` are the producer's name, the beginning of origins that are left out, and name and value of the property
/// of a message whose payload is an entry.
#[pyfunction]
fn pulsar_frames<'py>(
    py: Python<'py>,
    contents: &Bound<'py, PyList>,
    ids: &Bound<'py, PyList>,
    consumer: (u64, i32, Option<u64>),
    texts: (PyBackedStr, PyBackedStr, PyBackedStr, PyBackedStr),
) -> PyResult<Option<(Bound<'py, PyBytes>, usize)>> {
    catch_panic(|| {
        let ids: Vec<DeliveredIds> = match ids.extract() {
            Ok(ids) => ids,
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => return Ok(None), // a number beyond 64 bits
            Err(error) => return Err(error),
        };
        if contents.len() != ids.len() {
            return Err(PyValueError::new_err("each content needs its ids"));
        }
        let messages = PyList::empty(py);
        let mut entries: Vec<Option<PyBackedBytes>> = Vec::with_capacity(ids.len()); // None: the next one of `messages`
        for content in contents.iter() {
            if let Ok(bytes) = content.cast::<PyBytes>() {
                entries.push(Some(bytes.clone().into()));
            } else {
                messages.append(content)?;
                entries.push(None);
            }
        }
        let Some((stores, locations)) = collect(messages.as_any())? else { return Ok(None) };
        let (consumer, partition, epoch) = consumer;
        let (producer, own_origin, raw_name, raw_value) = &texts;
        let delivery = Delivery {
            consumer,
            partition,
            epoch,
            producer: producer.as_bytes(),
            own_origin: own_origin.as_bytes(),
            raw_property: (raw_name.as_bytes(), raw_value.as_bytes()),
        };
        let mut locations = locations.iter();
        let mut next_message = || {
            let (store, row) = locations.next().expect("a location of each message");
            stores[*store as usize].message(*row as usize)
        };
        let all = entries.iter().map(|entry| match entry {
            Some(bytes) => Content::Entry(bytes),
            None => Content::Message(next_message()),
        });
        let ids =
            ids.into_iter().map(|(number, ledger, entry, redelivery_count)| Ids { number, ledger, entry, redelivery_count });
        let mut out = Vec::new();
        let entry_bytes = encode_frames(all.zip(ids), &delivery, &mut out);
        Ok(Some((PyBytes::new(py, &out), entry_bytes)))
    })
}

/// Adds the classes and functions of this file to the Python module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pulsar_decode, module)?)?;
    module.add_function(wrap_pyfunction!(pulsar_frames, module)?)?;
    module.add_function(wrap_pyfunction!(pulsar_encode, module)?)
}
