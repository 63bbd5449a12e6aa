//! `PulsarEntry` and `PulsarRun`: the counterparts of `Entry` in `mqbridge/pulsar/wire/entry.py` and of `EntryRun` in
//! `mqbridge/pulsar/client/connection/entry_runs.py`.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple, PyType};

use crate::message::{Source, Store};
use crate::pulsar::decode::{Entry, is_due};
use crate::pulsar::delivered::{self, Delivered};
use crate::python::catch_panic;

/// An ordinary entry, with the attributes of `Entry`: it is valid, not compressed, not encrypted and not a chunk. A Python
/// object for an attribute is made when Python reads the attribute.
#[pyclass]
pub struct PulsarEntry {
    frame: PyBackedBytes,
    fields: Delivered,
    /// Partition index, set by the consumer; -1 for an unpartitioned topic.
    #[pyo3(get, set)]
    partition: i64,
    /// Bit set of the messages to deliver, as 64-bit words; empty for all messages.
    ack_set: Vec<i64>,
    /// The reason why the entry cannot be decoded, set by the caller of the decoder; None if it can.
    #[pyo3(get, set)]
    defect: Option<Py<PyString>>,
}

/// Bytes of memory that an entry and its decoded messages take besides the frame, and that each property in the metadata of the
/// entry, not of a message in its batch, adds. They were measured as growth of the process's resident memory.
const ENTRY_BYTES: usize = 1000;
const PROPERTY_BYTES: usize = 60;
/// Bytes of memory that a message in a batch takes at least; see `mqbridge/pulsar/wire/entry.py`.
const MESSAGE_BYTES: usize = 64;

impl PulsarEntry {
    /// Returns the bytes of the frame between two offsets.
    fn slice(&self, (start, end): (usize, usize)) -> &[u8] {
        &self.frame[start..end]
    }

    /// Returns the entry for the decoder, and its defect, if any. The decoder's store keeps the frame.
    pub fn entry_to_decode(&self, py: Python<'_>, store: &mut Store) -> (Entry, Option<String>) {
        let source = store.add_source(Source::Python(self.frame.clone_ref(py)));
        (self.fields.entry_to_decode(source, &self.ack_set), self.defect.as_ref().map(|defect| defect.to_string()))
    }

    /// Returns the bytes of memory that `FlowPermits` counts for the entry.
    fn charge(&self) -> usize {
        // A single message has no minimum, like in the plain code.
        let min_bytes = if self.count() > 1 { self.count() as usize * MESSAGE_BYTES } else { 0 };
        self.frame.len().max(min_bytes) + ENTRY_BYTES + PROPERTY_BYTES * self.fields.property_count
    }
}

#[pymethods]
impl PulsarEntry {
    #[getter]
    fn ledger(&self) -> i64 {
        self.fields.ledger
    }

    #[getter]
    fn entry(&self) -> i64 {
        self.fields.entry
    }

    #[getter]
    fn id(&self) -> (i64, i64) {
        (self.fields.ledger, self.fields.entry)
    }

    #[getter]
    fn redelivery_count(&self) -> u32 {
        self.fields.redelivery_count
    }

    #[getter]
    fn publish_time(&self) -> i64 {
        self.fields.publish_time
    }

    #[getter]
    fn is_batch(&self) -> bool {
        self.fields.count.is_some()
    }

    /// Number of messages; an entry with a defect counts as one damaged message.
    #[getter]
    fn count(&self) -> i32 {
        if self.defect.is_some() { 1 } else { self.fields.count.unwrap_or(1) }
    }

    /// Size of the payload in bytes.
    #[getter]
    fn size(&self) -> usize {
        self.fields.size()
    }

    #[getter]
    fn held_bytes(&self) -> usize {
        self.charge()
    }

    // An ordinary entry is never a chunk.
    #[getter]
    fn is_chunk(&self) -> bool {
        false
    }

    #[getter]
    fn first_chunk(&self) -> Option<(i64, i64)> {
        None
    }

    #[getter]
    fn chunks_before(&self) -> i64 {
        0
    }

    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.slice(self.fields.payload))
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let class = CLASS.import(py, "mqbridge.pulsar.wire.pb.PulsarApi_pb2", "MessageMetadata")?;
        class.call_method1("FromString", (PyBytes::new(py, self.slice(self.fields.metadata)),))
    }

    #[getter]
    fn ack_set<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.ack_set)
    }

    #[setter]
    fn set_ack_set(&mut self, words: Vec<i64>) {
        self.ack_set = words;
    }

    /// Returns true if the message at this index of the batch is to be delivered, because it is not acknowledged.
    fn is_due(&self, index: usize) -> bool {
        is_due(&self.ack_set, index)
    }

    /// Does nothing: an ordinary entry is not compressed. `Entry` has a method of this name.
    fn unpack(&self) {}
}

/// Ordinary entries of one consumer that arrived in one read of the socket, in ascending order.
#[pyclass(frozen, get_all)]
pub struct PulsarRun {
    consumer: u64,
    /// Epoch of the SUBSCRIBE for which the broker read the entries; None if the broker does not send it.
    epoch: Option<u64>,
    entries: Py<PyList>,
    /// Bytes of memory of each entry, for `FlowPermits`.
    charges: Vec<usize>,
    /// Number of messages in all entries.
    messages: i64,
    /// Ids of the first and the last entry.
    first: (i64, i64),
    last: (i64, i64),
}

impl PulsarRun {
    /// Makes an empty run for an entry with these fields, which is then added.
    fn starting_with(py: Python<'_>, fields: &Delivered) -> PulsarRun {
        let id = (fields.ledger, fields.entry);
        PulsarRun {
            consumer: fields.consumer,
            epoch: fields.epoch,
            entries: PyList::empty(py).unbind(),
            charges: Vec::new(),
            messages: 0,
            first: id,
            last: id,
        }
    }

    /// Returns true if an entry with these fields can follow the last entry of the run.
    fn can_append(&self, fields: &Delivered) -> bool {
        (self.consumer, self.epoch) == (fields.consumer, fields.epoch) && (fields.ledger, fields.entry) > self.last
    }

    fn add(&mut self, py: Python<'_>, entry: PulsarEntry) -> PyResult<()> {
        self.charges.push(entry.charge());
        self.messages += i64::from(entry.count());
        self.last = entry.id();
        self.entries.bind(py).append(Py::new(py, entry)?)
    }
}

/// Groups the frames of one read that contain ordinary entries into runs; returns the runs and all other frames, in the order
/// received.
///
/// Only entries of different consumers may change their order.
#[pyfunction]
fn pulsar_runs<'py>(py: Python<'py>, frames: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    catch_panic(|| {
        let mut result = Vec::new();
        let mut open_runs: Vec<PulsarRun> = Vec::new(); // at most one per consumer
        for frame in frames.iter() {
            let bytes = frame.cast::<PyBytes>()?;
            let fields = delivered::parse_frame(bytes.as_bytes());
            let run_index = fields.as_ref().and_then(|fields| open_runs.iter().rposition(|run| run.consumer == fields.consumer));
            // All open runs end at a frame of another kind, and at an entry that cannot follow the last one of its consumer.
            if fields.as_ref().is_none_or(|fields| run_index.is_some_and(|index| !open_runs[index].can_append(fields))) {
                close_runs(py, &mut open_runs, &mut result)?;
            }
            let Some(fields) = fields else {
                result.push(frame);
                continue;
            };
            // The index is stale if the runs were just closed.
            let index = run_index.filter(|_| !open_runs.is_empty()).unwrap_or_else(|| {
                open_runs.push(PulsarRun::starting_with(py, &fields));
                open_runs.len() - 1
            });
            let frame = PyBackedBytes::from(bytes.clone());
            open_runs[index].add(py, PulsarEntry { frame, fields, partition: -1, ack_set: Vec::new(), defect: None })?;
        }
        close_runs(py, &mut open_runs, &mut result)?;
        Ok(result)
    })
}

/// Moves the open runs to the end of the result.
fn close_runs<'py>(py: Python<'py>, open_runs: &mut Vec<PulsarRun>, result: &mut Vec<Bound<'py, PyAny>>) -> PyResult<()> {
    for run in open_runs.drain(..) {
        result.push(Bound::new(py, run)?.into_any());
    }
    Ok(())
}

/// Adds the classes and functions of this file to the Python module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PulsarEntry>()?;
    module.add_class::<PulsarRun>()?;
    module.add_function(wrap_pyfunction!(pulsar_runs, module)?)
}
