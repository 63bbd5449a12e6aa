//! Functions for `mqbridge/rocketmq/mapping` and `mqbridge/rocketmq/client/pulled_records.py`.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

use crate::Error;
use crate::message::Source;
use crate::python::{Messages, caught, or_none};
use crate::rocketmq::batch_builder::write_batch;
use crate::rocketmq::decode;
use crate::rocketmq::encode::{self, Alone, Encoded, IDS, Limits, Request};
use crate::rocketmq::pulled::{self, Pull};

/// Body, first and next offset, tags.
type PullFields<'py> = (Bound<'py, PyBytes>, i64, i64, HashSet<String>);

/// Body, index of the first message, how many, born, whether it is a batch, properties, flag, whether it is delayed.
type RequestFields<'py> = (Bound<'py, PyBytes>, usize, usize, i64, bool, Bound<'py, PyBytes>, i32, bool);

/// Requests, and index and reason of each failure.
type EncodedFields<'py> = (Vec<RequestFields<'py>>, Vec<(usize, String)>);

/// Max bytes, messages, bytes of a message, delay; delays and their levels.
type LimitFields = (i64, i64, i64, i128, Vec<(i64, i64)>);

fn pull_of((body, first, next, tags): PullFields) -> Pull {
    Pull { body: Source::Python(PyBackedBytes::from(body)), first, next, tags: tags.into_iter().collect() }
}

/// Calls a function of Python within Rust. Its exception is kept aside, and is what `end` raises.
struct Callback<'a, 'py> {
    function: &'a Bound<'py, PyAny>,
    raised: Option<PyErr>,
}

impl<'py> Callback<'_, 'py> {
    /// The call failed: stops whoever called; the text is never seen.
    fn fail(&mut self, error: PyErr) -> Error {
        self.raised = Some(error);
        Error::Protocol(String::new())
    }

    /// `decompress(codec, data)`.
    fn decompress(&mut self, codec: u32, data: &[u8]) -> crate::Result<std::result::Result<Source, String>> {
        let py = self.function.py();
        let plain = match self.function.call1((codec, PyBytes::new(py, data))) {
            Ok(plain) => plain.cast_into::<PyBytes>().map_err(PyErr::from),
            Err(error) if is_protocol_error(py, &error) => return Ok(Err(error.value(py).to_string())),
            Err(error) => Err(error),
        };
        plain.map(|plain| Ok(Source::Python(plain.into()))).map_err(|error| self.fail(error))
    }

    /// `reserve(count)`.
    fn reserve(&mut self) -> crate::Result<(Vec<u8>, u32)> {
        let reserved = self.function.call1((IDS,)).and_then(|found| found.extract::<(String, u32)>());
        reserved.map(|(start, first)| (start.into_bytes(), first)).map_err(|error| self.fail(error))
    }

    fn end<T>(self, found: crate::Result<T>) -> PyResult<Option<T>> {
        match self.raised {
            Some(error) => Err(error),
            None => or_none(self.function.py(), found),
        }
    }
}

fn is_protocol_error(py: Python<'_>, error: &PyErr) -> bool {
    super::protocol_error(py).is_ok_and(|class| error.is_instance(py, class))
}

/// The messages of pulls in a row; None where only the plain code can tell.
#[pyfunction]
fn rocketmq_decode(pulls: Vec<PullFields>, decompress: &Bound<'_, PyAny>) -> PyResult<Option<Messages>> {
    caught(|| {
        let mut unpack = Callback { function: decompress, raised: None };
        let found = decode::decode(pulls.into_iter().map(pull_of).collect(), &mut |codec, data| unpack.decompress(codec, data));
        Ok(unpack.end(found)?.map(Messages::all))
    })
}

/// How many messages a pull has, and the offset of the first if there is one.
#[pyfunction]
fn rocketmq_count(pull: PullFields, decompress: &Bound<'_, PyAny>) -> PyResult<Option<(usize, Option<i64>)>> {
    caught(|| {
        let mut unpack = Callback { function: decompress, raised: None };
        let found = decode::count(pull_of(pull), &mut |codec, data| unpack.decompress(codec, data));
        unpack.end(found)
    })
}

/// How many records there are, and which of the lowest eight bits of the system flag one of them has.
#[pyfunction]
fn rocketmq_count_stored(py: Python<'_>, body: &[u8]) -> PyResult<Option<(usize, u8)>> {
    caught(|| or_none(py, pulled::count(body)))
}

/// The send requests of messages, and the failures: index and reason. None where only the plain code can tell.
#[pyfunction]
fn rocketmq_encode<'py>(
    py: Python<'py>,
    messages: &Bound<'py, Messages>,
    origin: Option<&Bound<'py, PyString>>,
    limits: LimitFields,
    now: i64,
    reserve_ids: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<EncodedFields<'py>>> {
    caught(|| {
        let Ok(origin) = origin.map(|origin| origin.to_str()).transpose() else { return Ok(None) };
        let (max_bytes, max_messages, max_message_bytes, max_delay_ms, levels) = limits;
        let limits = Limits { max_bytes, max_messages, max_message_bytes, max_delay_ms, levels };
        let (messages, origin) = (messages.get().iter(), origin.map(str::as_bytes));
        let found = match reserve_ids {
            None => or_none(py, encode::encode(messages, origin, &limits, now, None))?,
            Some(function) => {
                let mut ids = Callback { function, raised: None };
                let found = encode::encode(messages, origin, &limits, now, Some(&mut || ids.reserve()));
                ids.end(found)?
            }
        };
        let Some(made) = found else { return Ok(None) };
        let requests = made.requests.iter().map(|request| fields_of(py, &made, request)).collect::<PyResult<_>>()?;
        Ok(Some((requests, made.failures)))
    })
}

fn fields_of<'py>(py: Python<'py>, made: &Encoded, request: &Request) -> PyResult<RequestFields<'py>> {
    Ok(match request {
        Request::Batch(batch) => {
            let elements = &made.elements[batch.elements.clone()];
            let body = PyBytes::new_with(py, batch.size, |out| {
                write_batch(elements, &made.strings, out);
                Ok(())
            })?;
            (body, batch.begin, elements.len(), batch.born, true, PyBytes::new(py, b""), 0, false)
        }
        Request::Alone(Alone { index, body, properties, flag, born, is_delayed }) => {
            let properties = PyBytes::new(py, &made.strings[properties.clone()]);
            (PyBytes::new(py, body), *index, 1, *born, false, properties, *flag, *is_delayed)
        }
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rocketmq_decode, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_count, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_count_stored, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_encode, module)?)
}
