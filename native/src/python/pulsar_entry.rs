//! Entries as a broker delivers them, by read: the counterpart of `Entry` in `mqbridge/pulsar/wire/entry.py`.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple, PyType};

use crate::message::{Source, Store};
use crate::pulsar::decode::{Entry, is_due};
use crate::pulsar::delivered::{self, Delivered};
use crate::python::caught;

/// An everyday entry (see `delivered.rs`), with the attributes that `Entry` has; nothing of it is a Python object until it is asked for.
#[pyclass]
pub struct PulsarEntry {
    frame: PyBackedBytes,
    said: Delivered,
    #[pyo3(get, set)]
    partition: i64,
    due: Vec<i64>,
    #[pyo3(get, set)]
    defect: Option<Py<PyString>>,
}

/// What an entry takes in memory besides its frame, and each of its properties, decoded too; measured as resident memory.
const ENTRY_BYTES: usize = 1000;
const PROPERTY_BYTES: usize = 60;

impl PulsarEntry {
    fn slice(&self, (start, end): (usize, usize)) -> &[u8] {
        &self.frame[start..end]
    }

    /// For the decoder, which keeps the frame.
    pub fn stored(&self, py: Python<'_>, store: &mut Store) -> (Entry, Option<String>) {
        let source = store.add_source(Source::Python(self.frame.clone_ref(py)));
        (self.said.stored(source, &self.due), self.defect.as_ref().map(|defect| defect.to_string()))
    }

    fn charge(&self) -> usize {
        self.frame.len() + ENTRY_BYTES + PROPERTY_BYTES * self.said.properties
    }
}

#[pymethods]
impl PulsarEntry {
    #[getter]
    fn ledger(&self) -> i64 {
        self.said.ledger
    }

    #[getter]
    fn entry(&self) -> i64 {
        self.said.entry
    }

    #[getter]
    fn id(&self) -> (i64, i64) {
        (self.said.ledger, self.said.entry)
    }

    #[getter]
    fn redelivery_count(&self) -> u32 {
        self.said.redelivery_count
    }

    #[getter]
    fn publish_time(&self) -> i64 {
        self.said.publish_time
    }

    #[getter]
    fn is_batch(&self) -> bool {
        self.said.count.is_some()
    }

    #[getter]
    fn count(&self) -> i32 {
        if self.defect.is_some() { 1 } else { self.said.count.unwrap_or(1) }
    }

    #[getter]
    fn size(&self) -> usize {
        self.said.size()
    }

    #[getter]
    fn held_bytes(&self) -> usize {
        self.charge()
    }

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
        PyBytes::new(py, self.slice(self.said.payload))
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let class = CLASS.import(py, "mqbridge.pulsar.wire.pb.PulsarApi_pb2", "MessageMetadata")?;
        class.call_method1("FromString", (PyBytes::new(py, self.slice(self.said.metadata)),))
    }

    #[getter]
    fn ack_set<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.due)
    }

    #[setter]
    fn set_ack_set(&mut self, words: Vec<i64>) {
        self.due = words;
    }

    fn is_due(&self, index: usize) -> bool {
        is_due(&self.due, index)
    }

    fn unpack(&self) {}
}

/// Entries of one consumer that came in one read, each further in the topic than the one before.
#[pyclass(frozen, get_all)]
pub struct PulsarRun {
    consumer: u64,
    epoch: Option<u64>,
    entries: Py<PyList>,
    /// What each entry takes in memory.
    charges: Vec<usize>,
    /// Messages in all of them.
    messages: i64,
    first: (i64, i64),
    last: (i64, i64),
}

impl PulsarRun {
    fn begin(py: Python<'_>, said: &Delivered) -> PulsarRun {
        let id = (said.ledger, said.entry);
        PulsarRun {
            consumer: said.consumer,
            epoch: said.epoch,
            entries: PyList::empty(py).unbind(),
            charges: Vec::new(),
            messages: 0,
            first: id,
            last: id,
        }
    }

    fn takes(&self, said: &Delivered) -> bool {
        (self.consumer, self.epoch) == (said.consumer, said.epoch) && (said.ledger, said.entry) > self.last
    }

    fn add(&mut self, py: Python<'_>, entry: PulsarEntry) -> PyResult<()> {
        self.charges.push(entry.charge());
        self.messages += i64::from(entry.count());
        self.last = entry.id();
        self.entries.bind(py).append(Py::new(py, entry)?)
    }
}

/// The frames of a read: everyday entries as runs, all others as they came. Only entries of several consumers change places.
#[pyfunction]
fn pulsar_runs<'py>(py: Python<'py>, frames: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    caught(|| {
        let mut found = Vec::new();
        let mut growing: Vec<PulsarRun> = Vec::new();
        for frame in frames.iter() {
            let bytes = frame.cast::<PyBytes>()?;
            let said = delivered::read(bytes.as_bytes());
            let place = said.as_ref().and_then(|said| growing.iter().rposition(|run| run.consumer == said.consumer));
            if said.as_ref().is_none_or(|said| place.is_some_and(|at| !growing[at].takes(said))) {
                flush(py, &mut growing, &mut found)?;
            }
            let Some(said) = said else {
                found.push(frame);
                continue;
            };
            let at = place.filter(|_| !growing.is_empty()).unwrap_or_else(|| {
                growing.push(PulsarRun::begin(py, &said));
                growing.len() - 1
            });
            let frame = PyBackedBytes::from(bytes.clone());
            growing[at].add(py, PulsarEntry { frame, said, partition: -1, due: Vec::new(), defect: None })?;
        }
        flush(py, &mut growing, &mut found)?;
        Ok(found)
    })
}

fn flush<'py>(py: Python<'py>, growing: &mut Vec<PulsarRun>, found: &mut Vec<Bound<'py, PyAny>>) -> PyResult<()> {
    for run in growing.drain(..) {
        found.push(Bound::new(py, run)?.into_any());
    }
    Ok(())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PulsarEntry>()?;
    module.add_class::<PulsarRun>()?;
    module.add_function(wrap_pyfunction!(pulsar_runs, module)?)
}
