//! Functions for `mqbridge/tubemq`: split responses, decode packs, encode the send requests of a share; and for servers, packs from
//! units.

use std::collections::HashSet;

use pyo3::exceptions::PyIndexError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PySlice, PyString, PyTuple};

use crate::message::{Message, Slice, Source, Store};
use crate::python::{Messages, catch_panic, or_none};
use crate::tubemq::decode::{Decoder, MSG_TIME_DIGITS, MsgTimes, StoredMessage};
use crate::tubemq::encode::{Encoder, MsgTimeTexts, Request};
use crate::tubemq::pack::split_response;
use crate::tubemq::served_pack::ServedPack;
use crate::{Error, Result};

/// Adds the classes and functions of this file to the Python module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Pack>()?;
    module.add_class::<PackedMessage>()?;
    module.add_class::<Requests>()?;
    module.add_function(wrap_pyfunction!(tubemq_split_answer, module)?)?;
    module.add_function(wrap_pyfunction!(tubemq_decode, module)?)?;
    module.add_function(wrap_pyfunction!(tubemq_encode, module)?)?;
    module.add_function(wrap_pyfunction!(tubemq_served_pack, module)?)?;
    Ok(())
}

// --- times ------------------------------------------------------------------------------------------------------------

/// Number of results of each kind that a `Zone` caches, in slots that the minute selects. A batch rarely has more different
/// minutes.
const SLOTS: usize = 64;

/// A cache of results by key.
type SlotCache<K, V> = [Option<(K, V)>; SLOTS];

/// The caches of one time zone, with which `$msgTime$` values are parsed and formatted.
///
/// It looks them up in the two caches of `mqbridge/tubemq/mapping/times.py`, and keeps the last results to spare calls of Python.
struct Zone<'py> {
    /// The cache `MsgTimes` of `times.py`: times by `$msgTime$` value.
    msg_times: &'py Bound<'py, PyAny>,
    /// The cache `MsgTimeTexts` of `times.py`: `$msgTime$` values by second; None for decoding.
    msg_time_texts: Option<&'py Bound<'py, PyAny>>,
    /// Times by `$msgTime$` value.
    parsed: SlotCache<[u8; MSG_TIME_DIGITS], Option<i64>>,
    /// `$msgTime$` values by minute since the epoch. A minute is cached if its first and last second have the same value, because
    /// then all seconds between them have it, too.
    formatted: SlotCache<i64, Option<Vec<u8>>>,
    /// The exception that a cache of Python raised.
    error: Option<PyErr>,
}

impl<'py> Zone<'py> {
    fn new(msg_times: &'py Bound<'py, PyAny>, msg_time_texts: Option<&'py Bound<'py, PyAny>>) -> Self {
        Zone { msg_times, msg_time_texts, parsed: [const { None }; SLOTS], formatted: [const { None }; SLOTS], error: None }
    }

    /// Raises the exception of a Python cache, if there was one. Otherwise converts the result of a batch (`or_none`): None if only
    /// the Python code can do the work, an exception for another error.
    fn into_result<T>(self, py: Python<'_>, result: Result<T>) -> PyResult<Option<T>> {
        match self.error {
            Some(error) => Err(error),
            None => or_none(py, result),
        }
    }

    /// Keeps the exception of a failed call for `into_result`, and returns an error that ends the work on the batch.
    fn keep_error<T>(&mut self, result: PyResult<T>) -> Result<T> {
        result.map_err(|error| {
            self.error = Some(error);
            Error::Unsupported
        })
    }

    /// Returns the `$msgTime$` value for a second since the epoch from Python's cache; None if `$msgTime$` cannot express it.
    fn format(&mut self, second: i64) -> Result<Option<Vec<u8>>> {
        let text = match self.msg_time_texts {
            None => Ok(None),
            Some(texts) => texts.get_item(second).and_then(|text| text.extract::<Option<String>>()),
        };
        self.keep_error(text.map(|text| text.map(String::into_bytes)))
    }
}

impl MsgTimes for Zone<'_> {
    fn parse(&mut self, value: &[u8]) -> Result<Option<i64>> {
        let Ok(digits) = <[u8; MSG_TIME_DIGITS]>::try_from(value) else { return Ok(None) };
        // A hash of the minute, the last two characters; they may be no digits.
        let slot = digits[MSG_TIME_DIGITS - 2..].iter().fold(0, |sum, digit| sum * 10 + usize::from(*digit)) % SLOTS;
        match &self.parsed[slot] {
            Some((cached, time)) if *cached == digits => return Ok(*time),
            _ => {}
        }
        let key = PyBytes::new(self.msg_times.py(), value);
        let time = self.msg_times.get_item(key).and_then(|time| time.extract::<Option<i64>>());
        let time = self.keep_error(time)?;
        self.parsed[slot] = Some((digits, time));
        Ok(time)
    }
}

impl MsgTimeTexts for Zone<'_> {
    fn write(&mut self, second: i64, out: &mut Vec<u8>) -> Result<bool> {
        let minute = second.div_euclid(60);
        let slot = minute.rem_euclid(SLOTS as i64) as usize;
        if self.formatted[slot].as_ref().is_none_or(|(cached, _)| *cached != minute) {
            let (first, last) = (self.format(minute * 60)?, self.format(minute * 60 + 59)?);
            if first != last {
                let text = self.format(second)?;
                out.extend_from_slice(text.as_deref().unwrap_or_default());
                return Ok(text.is_some());
            }
            self.formatted[slot] = Some((minute, first));
        }
        let Some((_, Some(text))) = &self.formatted[slot] else { return Ok(false) };
        out.extend_from_slice(text);
        Ok(true)
    }
}

// --- packs ------------------------------------------------------------------------------------------------------------

/// The messages of a Broker's response to a get. Their bytes are not copied until Python reads `payLoadData`.
#[pyclass(frozen, sequence, module = "mqbridge_native")]
struct Pack {
    data: Py<PyBytes>,
    /// Their slices refer to source 1, which is `data`.
    messages: Vec<StoredMessage>,
}

/// A message of a pack, with the attributes of protobuf's `TransferedMessage`.
#[pyclass(frozen, get_all, module = "mqbridge_native")]
#[allow(non_snake_case)]
struct PackedMessage {
    messageId: i64,
    checkSum: i32,
    payLoadData: Py<PyBytes>,
    flag: i32,
}

#[pymethods]
impl Pack {
    fn __len__(&self) -> usize {
        self.messages.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.cast::<PySlice>() {
            let range = slice.indices(self.messages.len() as isize)?;
            let message_at = |step: usize| self.messages[(range.start + step as isize * range.step) as usize];
            let messages = (0..range.slicelength).map(message_at).collect();
            return Ok(Pack { data: self.data.clone_ref(py), messages }.into_pyobject(py)?.into_any());
        }
        let index: isize = index.extract()?;
        let at = if index < 0 { index + self.messages.len() as isize } else { index };
        let out_of_range = || PyIndexError::new_err("message index out of range");
        let stored = usize::try_from(at).ok().and_then(|at| self.messages.get(at)).ok_or_else(out_of_range)?;
        let message = PackedMessage {
            messageId: stored.id,
            checkSum: stored.check_sum,
            payLoadData: PyBytes::new(py, stored.data.bytes_in(self.data.as_bytes(py))).unbind(),
            flag: stored.flag,
        };
        Ok(message.into_pyobject(py)?.into_any())
    }
}

/// Splits an encoded `GetMessageResponseB2C` into its messages and its other fields, still encoded; see `partition_calls.py`.
///
/// Returns None if only protobuf can tell whether the response is valid.
#[pyfunction]
fn tubemq_split_answer<'py>(py: Python<'py>, data: Bound<'py, PyBytes>) -> PyResult<Option<(Pack, Bound<'py, PyBytes>)>> {
    catch_panic(|| {
        let Some((messages, other_fields)) = split_response(data.as_bytes(), 1) else { return Ok(None) };
        Ok(Some((Pack { data: data.unbind(), messages }, PyBytes::new(py, &other_fields))))
    })
}

/// Decodes a `Pack`, or a sequence of protobuf's `TransferedMessage`; see `decode` in stored.py, also for the arguments.
///
/// Returns None if only the plain Python code can decode it.
#[pyfunction]
fn tubemq_decode<'py>(
    py: Python<'py>,
    pack: &Bound<'py, PyAny>,
    offset: i64,
    first: i64,
    msg_times: &Bound<'py, PyAny>,
) -> PyResult<Option<Messages>> {
    catch_panic(|| {
        let mut store = Store::new();
        let stored_messages = match pack.cast::<Pack>() {
            Ok(pack) => {
                store.add_source(Source::Python(pack.get().data.bind(py).clone().into()));
                pack.get().messages.clone()
            }
            Err(_) => pack.try_iter()?.map(|item| read_stored_message(&mut store, &item?)).collect::<PyResult<_>>()?,
        };
        let mut zone = Zone::new(msg_times, None);
        let result = decode_all(&mut store, &stored_messages, offset, first, &mut zone);
        Ok(zone.into_result(py, result)?.filter(|()| !store.has_raw_bytes).map(|()| Messages::all(store)))
    })
}

/// Decodes messages into the store. Their positions are (`offset`, index), with indexes from `first` on.
fn decode_all(store: &mut Store, stored_messages: &[StoredMessage], offset: i64, first: i64, zone: &mut Zone) -> Result<()> {
    store.rows.reserve_exact(stored_messages.len());
    let mut decoder = Decoder::new(offset, zone);
    stored_messages.iter().zip(first..).try_for_each(|(stored, index)| decoder.add(store, *stored, index))
}

/// Reads a `TransferedMessage` of Python. The id is not needed, and stays 0.
fn read_stored_message(store: &mut Store, item: &Bound<'_, PyAny>) -> PyResult<StoredMessage> {
    let py = item.py();
    let data = PyBackedBytes::from(item.getattr(intern!(py, "payLoadData"))?.cast_into::<PyBytes>()?);
    let length = data.len();
    let source = store.add_source(Source::Python(data));
    Ok(StoredMessage {
        id: 0,
        data: Slice::of(source, 0, length),
        flag: item.getattr(intern!(py, "flag"))?.extract()?,
        check_sum: item.getattr(intern!(py, "checkSum"))?.extract()?,
    })
}

// --- send requests ----------------------------------------------------------------------------------------------------

/// The fields of the send requests of a share, by message index: Python's protocol `Requests` in share.py.
///
/// Attribute strings and times are encoded at once; a body is copied when Python reads its request.
#[pyclass(frozen, sequence, module = "mqbridge_native")]
struct Requests {
    messages: Py<Messages>,
    /// `Encoder::bytes`.
    bytes: Vec<u8>,
    /// The request of each message; None for a message that could not be encoded.
    requests: Vec<Option<Request>>,
    /// (index, reason) of each message that could not be encoded, sorted by index.
    #[pyo3(get)]
    failures: Vec<(usize, String)>,
}

#[pymethods]
impl Requests {
    fn __len__(&self) -> usize {
        self.requests.len()
    }

    /// Returns data, flag, message type and `$msgTime$` value. Raises IndexError for a message that could not be encoded.
    fn __getitem__<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyTuple>> {
        let missing = || PyIndexError::new_err(format!("there is no request with index {index}"));
        let request = self.requests.get(index).copied().flatten().ok_or_else(missing)?;
        let message = self.messages.get().get(index);
        let body = message.payload().unwrap_or_default();
        let data = PyBytes::new_with(py, request.block_size() + body.len(), |out| {
            request.write_data(&self.bytes, body, out);
            Ok(())
        })?;
        let text = |text: Option<&[u8]>| text.map(|text| PyString::from_bytes(py, text)).transpose();
        let msg_time = request.msg_time.map(|(start, end)| &self.bytes[start..end]);
        (data, u8::from(request.attributes.is_some()), text(message.msg_type())?, text(msg_time)?).into_pyobject(py)
    }
}

/// Encodes messages as send requests; see `encode_share` in share.py. None if only the plain Python code can encode them.
#[pyfunction]
fn tubemq_encode<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyAny>,
    origin_prefix: Option<Bound<'py, PyString>>,
    msg_times: &Bound<'py, PyAny>,
    msg_time_texts: &Bound<'py, PyAny>,
) -> PyResult<Option<Requests>> {
    catch_panic(|| {
        let origin_prefix = match &origin_prefix {
            None => None,
            Some(prefix) => match prefix.to_str() {
                Ok(prefix) => Some(prefix.as_bytes()),
                Err(_) => return Ok(None),
            },
        };
        let messages = match messages.cast::<Messages>() {
            Ok(messages) => messages.clone().unbind(),
            Err(_) => match Messages::of(messages)? {
                Some(messages) => Py::new(py, messages)?,
                None => return Ok(None),
            },
        };
        let mut zone = Zone::new(msg_times, Some(msg_time_texts));
        let result = encode_all(messages.get(), origin_prefix, &mut zone);
        let encoded = zone.into_result(py, result)?;
        Ok(encoded.map(|(bytes, requests, failures)| Requests { messages, bytes, requests, failures }))
    })
}

/// The encoder's bytes, the request of each message (None for a failed one), and (index, reason) of each failure.
type Encoded = (Vec<u8>, Vec<Option<Request>>, Vec<(usize, String)>);

/// Encodes all messages; one with a defect becomes a failure.
fn encode_all(messages: &Messages, origin_prefix: Option<&[u8]>, zone: &mut Zone) -> Result<Encoded> {
    let mut encoder = Encoder::new(origin_prefix, zone);
    let mut requests = Vec::with_capacity(messages.len());
    let mut failures = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        match message.defect() {
            None => requests.push(Some(encoder.add(&message)?)),
            Some(defect) => {
                requests.push(None);
                failures.push((index, failure_text(&message, defect)));
            }
        }
    }
    Ok((encoder.bytes, requests, failures))
}

/// Returns the reason for a message with a defect, with the position formatted like a tuple of Python.
fn failure_text(message: &Message, defect: &[u8]) -> String {
    let position = match message.position().numbers() {
        [] => "()".to_string(),
        [number] => format!("({number},)"),
        numbers => format!("({})", numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")),
    };
    format!("the message at {position} could not be read: {}", String::from_utf8_lossy(defect))
}

// --- packs of a server ------------------------------------------------------------------------------------------------

/// Returns the fields `messages` of a response with those units that have one of `types` (none means all), and how many they are;
/// None if only the pure Python code can make them. A unit has the values of a `Unit`; `ids` are their message ids.
#[pyfunction]
fn tubemq_served_pack<'py>(
    py: Python<'py>,
    units: Vec<Bound<'py, PyTuple>>,
    ids: Vec<i64>,
    types: HashSet<Vec<u8>>,
) -> PyResult<Option<(Bound<'py, PyBytes>, usize)>> {
    catch_panic(|| {
        if units.len() != ids.len() {
            return Ok(None);
        }
        let contents = units.iter().map(|unit| Ok(unit.get_item(0)?.cast_into::<PyBytes>()?)).collect::<PyResult<Vec<_>>>()?;
        let types: Vec<_> = types.into_iter().collect();
        let selected = ServedPack::select(contents.iter().map(|data| data.as_bytes()).zip(ids), &types);
        let Some(pack) = or_none(py, selected)? else { return Ok(None) };
        let data = PyBytes::new_with(py, pack.size, |out| {
            pack.write(out);
            Ok(())
        })?;
        Ok(Some((data, pack.count())))
    })
}
