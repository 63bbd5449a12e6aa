//! Functions for `mqbridge/rocketmq/mapping` and `mqbridge/rocketmq/client/consumer/pulled_records.py`: decode, count and encode;
//! and for servers, units of what producers send, and records from units.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::Error;
use crate::message::Source;
use crate::python::{Messages, catch_panic, or_none};
use crate::rocketmq::batch::split_batch;
use crate::rocketmq::batch_builder::write_batch;
use crate::rocketmq::decode;
use crate::rocketmq::encode::{self, Encoded, IDS_PER_RESERVATION, Limits, Request, SingleSend};
use crate::rocketmq::neutral_record::write_neutral;
use crate::rocketmq::pulled::{self, Pull};
use crate::rocketmq::served_records::{Place, ServedRecords, StoredUnit};

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

/// Python's `RecordPlace`: topic, queue id, store host, physical base, added properties.
type PlaceFields<'py> = (Bound<'py, PyBytes>, i32, Bound<'py, PyBytes>, i64, Bound<'py, PyBytes>);

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

/// Splits the body of SEND_BATCH_MESSAGE. Returns for each message the values of a `Unit`: a record in neutral form, born at `born`
/// (ms), one message, no publish time, the position (), and no messages that are left out.
#[pyfunction]
fn rocketmq_batch_units<'py>(py: Python<'py>, body: &[u8], born: i64) -> PyResult<Vec<Bound<'py, PyTuple>>> {
    catch_panic(|| {
        let mut data = Vec::new();
        let messages = split_batch(body).map_err(|error| super::to_exception(py, error))?;
        let units = messages.into_iter().map(|message| {
            data.clear();
            write_neutral(message.flag, born, &body[message.body], &body[message.properties], &mut data)
                .map_err(|error| super::to_exception(py, error))?;
            (PyBytes::new(py, &data), 1, None::<i64>, (), 0).into_pyobject(py)
        });
        units.collect()
    })
}

/// Returns the records of those units that have one of `tags` (none means all), and how many they are; None if only the pure Python
/// code can make them. A unit has the values of a `Unit`; `numbers` are their queue offsets.
#[pyfunction]
fn rocketmq_served_records<'py>(
    py: Python<'py>,
    units: Vec<Bound<'py, PyTuple>>,
    numbers: Vec<i64>,
    place: PlaceFields<'py>,
    tags: HashSet<Vec<u8>>,
) -> PyResult<Option<(Bound<'py, PyBytes>, usize)>> {
    catch_panic(|| {
        if units.len() != numbers.len() {
            return Ok(None);
        }
        let contents = units.iter().map(unit_fields).collect::<PyResult<Vec<_>>>()?;
        let (topic, queue_id, store_host, physical_base, added) = &place;
        let place = Place {
            topic: topic.as_bytes(),
            queue_id: *queue_id,
            store_host: store_host.as_bytes(),
            physical_base: *physical_base,
            added: added.as_bytes(),
        };
        let units = contents.iter().zip(numbers).map(|((data, published_ms), number)| StoredUnit {
            data: data.as_bytes(),
            number,
            published_ms: *published_ms,
        });
        let tags: Vec<_> = tags.into_iter().collect();
        let Some(served) = or_none(py, ServedRecords::select(units, &place, &tags))? else { return Ok(None) };
        let count = served.count();
        let data = PyBytes::new_with(py, served.size, |out| {
            served.write(out);
            Ok(())
        })?;
        Ok(Some((data, count)))
    })
}

/// Returns the bytes of a unit and its publish time, 0 if it is unknown.
fn unit_fields<'py>(unit: &Bound<'py, PyTuple>) -> PyResult<(Bound<'py, PyBytes>, i64)> {
    let published_ms: Option<i64> = unit.get_item(2)?.extract()?;
    Ok((unit.get_item(0)?.cast_into()?, published_ms.unwrap_or(0)))
}

/// Adds the classes and functions of this file to the Python module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rocketmq_decode, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_count, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_count_stored, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_encode, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_batch_units, module)?)?;
    module.add_function(wrap_pyfunction!(rocketmq_served_records, module)?)
}
