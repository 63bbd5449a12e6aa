//! `SendRun`, and the functions for what a server receives from producers: see `mqbridge/pulsar/server/send_runs.py`.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::pulsar::sent::{Sent, StoredSend, encode_receipts, parse_send};
use crate::python::catch_panic;

/// Consecutive SEND frames of one producer with ordinary entries.
#[pyclass(frozen)]
pub struct SendRun {
    /// Id of the producer.
    #[pyo3(get)]
    producer: u64,
    /// For each entry the values of a `Unit`: its bytes, the number of messages, the publish time in ms since the epoch, the
    /// position (), and no messages that are left out.
    #[pyo3(get)]
    units: Py<PyList>,
    /// For each entry: the sequence id of the SEND, and the highest one.
    #[pyo3(get)]
    sequences: Py<PyList>,
    /// Number of messages of all entries, and of bytes.
    #[pyo3(get)]
    messages: u64,
    #[pyo3(get)]
    entry_bytes: usize,
    data: Py<PyBytes>,
    /// Start and end of each frame in `data`.
    spans: Vec<(usize, usize)>,
}

#[pymethods]
impl SendRun {
    /// The whole frames, for the plain code.
    #[getter]
    fn frames<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let data = self.data.bind(py).as_bytes();
        self.spans.iter().map(|&(start, end)| PyBytes::new(py, &data[start..end])).collect()
    }
}

/// A run that is being collected.
struct OpenRun<'py> {
    producer: u64,
    units: Vec<Bound<'py, PyTuple>>,
    sequences: Vec<(u64, u64)>,
    messages: u64,
    bytes: usize,
    spans: Vec<(usize, usize)>,
}

impl<'py> OpenRun<'py> {
    fn starting_with(sent: &Sent) -> Self {
        let producer = sent.producer;
        Self { producer, units: Vec::new(), sequences: Vec::new(), messages: 0, bytes: 0, spans: Vec::new() }
    }

    fn add(&mut self, py: Python<'py>, frame: &[u8], at: usize, sent: &Sent) -> PyResult<()> {
        let entry = &frame[sent.entry_at..];
        self.units.push((PyBytes::new(py, entry), sent.count, sent.publish_time, (), 0).into_pyobject(py)?);
        self.sequences.push((sent.sequence, sent.highest));
        self.messages += u64::from(sent.count);
        self.bytes += entry.len();
        self.spans.push((at, at + frame.len()));
        Ok(())
    }

    fn close(self, py: Python<'py>, data: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyAny>> {
        let run = SendRun {
            producer: self.producer,
            units: PyList::new(py, self.units)?.unbind(),
            sequences: PyList::new(py, self.sequences)?.unbind(),
            messages: self.messages,
            entry_bytes: self.bytes,
            data: data.clone().unbind(),
            spans: self.spans,
        };
        Ok(Bound::new(py, run)?.into_any())
    }
}

/// The frames and runs, the offset after them, and the number of bytes that the next frame needs; 0 if its size is invalid.
type Split<'py> = (Vec<Bound<'py, PyAny>>, usize, usize);

/// Splits received bytes into frames. Those with ordinary entries, of at most `max_entry` bytes each, become runs of at most
/// `max_run` bytes of entries, or of one entry.
///
/// `max_frame` is the maximum of a frame's size field.
#[pyfunction]
fn pulsar_sends<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    max_frame: usize,
    max_entry: usize,
    max_run: usize,
) -> PyResult<Split<'py>> {
    catch_panic(|| {
        let bytes = data.as_bytes();
        let mut result = Vec::new();
        let mut open: Option<OpenRun<'py>> = None;
        let (mut at, mut need) = (0, 4);
        while let Some(prefix) = bytes[at..].first_chunk::<4>() {
            let size = u32::from_be_bytes(*prefix) as usize;
            need = if (4..=max_frame).contains(&size) { size + 4 } else { 0 };
            let frame = match bytes[at..].get(..need) {
                Some(frame) if need > 0 => frame,
                _ => break,
            };
            let sent = parse_send(frame, max_entry);
            let continues =
                |run: &OpenRun, sent: &Sent| run.producer == sent.producer && run.bytes + frame.len() - sent.entry_at <= max_run;
            if let Some(run) = open.take_if(|run| sent.as_ref().is_none_or(|sent| !continues(run, sent))) {
                result.push(run.close(py, data)?);
            }
            match &sent {
                Some(sent) => open.get_or_insert_with(|| OpenRun::starting_with(sent)).add(py, frame, at, sent)?,
                None => result.push(PyBytes::new(py, frame).into_any()),
            }
            at += need;
            need = 4;
        }
        if let Some(run) = open {
            result.push(run.close(py, data)?);
        }
        Ok((result, at, need))
    })
}

/// The sequence id of a SEND and the highest one.
type SequenceIds = (u64, u64);
/// Ledger and entry, -1 for none.
type EntryId = (i64, i64);

/// Encodes the SEND_RECEIPT frames of a producer. For each receipt there are the sequence id of the SEND and the highest one, and
/// ledger and entry of the stored id, -1 for none. Returns None for a number beyond 64 bits.
#[pyfunction]
fn pulsar_receipts<'py>(
    py: Python<'py>,
    producer: u64,
    sequences: &Bound<'py, PyList>,
    ids: &Bound<'py, PyList>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    catch_panic(|| {
        let (sequences, ids): (Vec<SequenceIds>, Vec<EntryId>) = match (sequences.extract(), ids.extract()) {
            (Ok(sequences), Ok(ids)) => (sequences, ids),
            (Err(error), _) | (_, Err(error)) if error.is_instance_of::<PyOverflowError>(py) => return Ok(None),
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        let mut out = Vec::with_capacity(sequences.len() * 40);
        let stored = sequences.iter().zip(&ids);
        let receipts = stored.map(|(&(sequence, highest), &(ledger, entry))| StoredSend {
            sequence,
            highest,
            ledger: ledger as u64,
            entry: entry as u64,
        });
        encode_receipts(producer, receipts, &mut out);
        Ok(Some(PyBytes::new(py, &out)))
    })
}

/// Adds the class and the functions of this file to the Python module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SendRun>()?;
    module.add_function(wrap_pyfunction!(pulsar_sends, module)?)?;
    module.add_function(wrap_pyfunction!(pulsar_receipts, module)?)
}
