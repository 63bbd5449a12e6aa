//! Functions for `mqbridge/rocketmq/mapping` and `mqbridge/rocketmq/client/consumer/pulled_records.py`: decode, count and encode.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

use crate::Error;
use crate::message::Source;
use crate::python::{Messages, catch_panic, or_none};
use crate::rocketmq::batch_builder::write_batch;
use crate::rocketmq::decode;
use crate::rocketmq::encode::{self, Encoded, IDS_PER_RESERVATION, Limits, Request, SingleSend};
use crate::rocketmq::pulled::{self, Pull};

/// Arguments that describe a pull: the bytes of its records, the first offset, the offset after the last, the subscribed tags
/// (none means all).
type PullFields<'py> = (Bound<'py, PyBytes>, i64, i64, HashSet<String>);

/// A request as `_request_of` in `mqbridge/rocketmq/mapping/request.py` takes it: body, index of the first message, number of
/// messages, born timestamp (ms), whether it is a batch, properties, flag, whether it is delayed.
type RequestFields<'py> = (Bound<'py, PyBytes>, usize, usize, i64, bool, Bound<'py, PyBytes>, i32, bool);

/// The requests, and (index, reason) of each message that RocketMQ cannot store.
type EncodedFields<'py> = (Vec<RequestFields<'py>>, Vec<(usize, String)>);

/// Python's `Limits.compiled_arguments`: bytes and messages of a batch, bytes and delay (ms) of a message, delays (ms) with their
/// levels.
type LimitFields = (i64, i64, i64, i128, Vec<(i64, i64)>);

/// Returns the pull with these fields.
fn pull_of((body, first, next, tags): PullFields) -> Pull {
    Pull { body: Source::Python(PyBackedBytes::from(body)), first, next, tags: tags.into_iter().collect() }
}

/// A function of Python that the pure Rust code calls. If it raises an exception, `into_result` raises it again.
struct Callback<'a, 'py> {
    function: &'a Bound<'py, PyAny>,
    raised: Option<PyErr>,
}

impl<'py> Callback<'_, 'py> {
    /// Keeps the exception, and returns an error that ends the work of the caller. The text of this error is never shown.
    fn keep(&mut self, error: PyErr) -> Error {
        self.raised = Some(error);
        Error::Protocol(String::new())
    }

    /// Calls the function as `decompress(codec, data)`; a RemoteProtocolError becomes the text of a defect.
    fn decompress(&mut self, codec: u32, data: &[u8]) -> crate::Result<std::result::Result<Source, String>> {
        let py = self.function.py();
        let decompressed = match self.function.call1((codec, PyBytes::new(py, data))) {
            Ok(decompressed) => decompressed.cast_into::<PyBytes>().map_err(PyErr::from),
            Err(error) if is_protocol_error(py, &error) => return Ok(Err(error.value(py).to_string())),
            Err(error) => Err(error),
        };
        decompressed.map(|bytes| Ok(Source::Python(bytes.into()))).map_err(|error| self.keep(error))
    }

    /// Calls the function as `reserve_ids(count)`; returns the common prefix of the ids, and the counter of the first.
    fn reserve_ids(&mut self) -> crate::Result<(Vec<u8>, u32)> {
        let reserved = self.function.call1((IDS_PER_RESERVATION,)).and_then(|ids| ids.extract::<(String, u32)>());
        reserved.map(|(prefix, first)| (prefix.into_bytes(), first)).map_err(|error| self.keep(error))
    }

    /// Converts the result of the Rust code for Python. Raises the exception of the function, if there was one.
    fn into_result<T>(self, result: crate::Result<T>) -> PyResult<Option<T>> {
        match self.raised {
            Some(error) => Err(error),
            None => or_none(self.function.py(), result),
        }
    }
}

fn is_protocol_error(py: Python<'_>, error: &PyErr) -> bool {
    super::protocol_error(py).is_ok_and(|class| error.is_instance(py, class))
}

/// Decodes consecutive pulls into messages; None if only the pure Python code can decode them.
#[pyfunction]
fn rocketmq_decode(pulls: Vec<PullFields>, decompress: &Bound<'_, PyAny>) -> PyResult<Option<Messages>> {
    catch_panic(|| {
        let mut callback = Callback { function: decompress, raised: None };
        let result =
            decode::decode_pulls(pulls.into_iter().map(pull_of).collect(), &mut |codec, data| callback.decompress(codec, data));
        Ok(callback.into_result(result)?.filter(|store| !store.has_raw_bytes).map(Messages::all))
    })
}

/// Returns the number of messages in a pull, and the queue offset of the first, if any; None if only the pure Python code can
/// count them.
#[pyfunction]
fn rocketmq_count(pull: PullFields, decompress: &Bound<'_, PyAny>) -> PyResult<Option<(usize, Option<i64>)>> {
    catch_panic(|| {
        let mut callback = Callback { function: decompress, raised: None };
        let result = decode::count(pull_of(pull), &mut |codec, data| callback.decompress(codec, data));
        callback.into_result(result)
    })
}

/// Returns the number of records in the bytes of a pull, and the lowest eight bits of their system flags, combined by OR: they
/// tell whether any record is compressed or an inner batch.
#[pyfunction]
fn rocketmq_count_stored(py: Python<'_>, body: &[u8]) -> PyResult<Option<(usize, u8)>> {
    catch_panic(|| or_none(py, pulled::count_stored(body)))
}

/// Encodes messages into send requests; None if only the pure Python code can encode them.
///
/// `origin` is the prefix of every origin stamp, None for no stamps. `now` is in ms since the epoch. `reserve_ids` makes ids
/// for the UNIQ_KEY of messages without one; None: no ids are made.
#[pyfunction]
fn rocketmq_encode<'py>(
    py: Python<'py>,
    messages: &Bound<'py, Messages>,
    origin: Option<&Bound<'py, PyString>>,
    limits: LimitFields,
    now: i64,
    reserve_ids: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<EncodedFields<'py>>> {
    catch_panic(|| {
        // An origin with lone surrogates is not UTF-8: only Python can encode it.
        let Ok(origin) = origin.map(|origin| origin.to_str()).transpose() else { return Ok(None) };
        let (max_bytes, max_messages, max_message_bytes, max_delay_ms, levels) = limits;
        let limits = Limits { max_bytes, max_messages, max_message_bytes, max_delay_ms, levels };
        let (messages, origin) = (messages.get().iter(), origin.map(str::as_bytes));
        let encoded = match reserve_ids {
            None => or_none(py, encode::encode(messages, origin, &limits, now, None))?,
            Some(function) => {
                let mut callback = Callback { function, raised: None };
                let result = encode::encode(messages, origin, &limits, now, Some(&mut || callback.reserve_ids()));
                callback.into_result(result)?
            }
        };
        let Some(encoded) = encoded else { return Ok(None) };
        let requests = encoded.requests.iter().map(|request| fields_of(py, &encoded, request)).collect::<PyResult<_>>()?;
        Ok(Some((requests, encoded.failures)))
    })
}

/// Returns a request as a tuple for Python.
fn fields_of<'py>(py: Python<'py>, encoded: &Encoded, request: &Request) -> PyResult<RequestFields<'py>> {
    Ok(match request {
        Request::Batch(batch) => {
            let elements = &encoded.elements[batch.elements.clone()];
            let body = PyBytes::new_with(py, batch.size, |out| {
                write_batch(elements, &encoded.property_strings, out);
                Ok(())
            })?;
            (body, batch.first_index, elements.len(), batch.born, true, PyBytes::new(py, b""), 0, false)
        }
        Request::Single(SingleSend { index, body, properties, flag, born, delayed }) => {
            let properties = PyBytes::new(py, &encoded.property_strings[properties.clone()]);
            (PyBytes::new(py, body), *index, 1, *born, false, properties, *flag, *delayed)
        }
    })
}

/// Adds the classes and functions of this file to the Python module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rocketmq_decode, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_count, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_count_stored, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_encode, module)?)
}
