//! Functions for `mqbridge/tubemq`: packs, and the send requests of a share.

use pyo3::exceptions::PyIndexError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PySlice, PyString, PyTuple};

use crate::message::{Message, Slice, Source, Store};
use crate::python::{Messages, caught, or_none};
use crate::tubemq::decode::{DIGITS, Decoder, Minutes, Transfered};
use crate::tubemq::encode::{Encoder, MinuteTexts, Request};
use crate::tubemq::pack::split_answer;
use crate::{Error, Result};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Pack>()?;
    module.add_class::<PackedMessage>()?;
    module.add_class::<Requests>()?;
    module.add_function(wrap_pyfunction!(tubemq_split_answer, module)?)?;
    module.add_function(wrap_pyfunction!(tubemq_decode, module)?)?;
    module.add_function(wrap_pyfunction!(tubemq_encode, module)?)?;
    Ok(())
}

// --- times ------------------------------------------------------------------------------------------------------------

/// How many answers of Python's a `Zone` keeps at once, in slots by their minute: a batch mostly has few.
const SLOTS: usize = 64;

type Memo<K, V> = [Option<(K, V)>; SLOTS];

/// Times of a zone: asks the caches of `mqbridge/tubemq/mapping/times.py`, once per minute.
struct Zone<'py> {
    minutes: &'py Bound<'py, PyAny>,
    texts: Option<&'py Bound<'py, PyAny>>,
    /// By the value of `$msgTime$`.
    read: Memo<[u8; DIGITS], Option<i64>>,
    /// By the minute, if its first and last second have the same text, as all between then have.
    written: Memo<i64, Option<Vec<u8>>>,
    /// What Python raised.
    error: Option<PyErr>,
}

impl<'py> Zone<'py> {
    fn new(minutes: &'py Bound<'py, PyAny>, texts: Option<&'py Bound<'py, PyAny>>) -> Self {
        Zone { minutes, texts, read: [const { None }; SLOTS], written: [const { None }; SLOTS], error: None }
    }

    /// What became of a whole batch: an error of Python's goes before.
    fn result<T>(self, py: Python<'_>, result: Result<T>) -> PyResult<Option<T>> {
        match self.error {
            Some(error) => Err(error),
            None => or_none(py, result),
        }
    }

    fn raised<T>(&mut self, result: PyResult<T>) -> Result<T> {
        result.map_err(|error| {
            self.error = Some(error);
            Error::Unsupported
        })
    }

    fn text(&mut self, second: i64) -> Result<Option<Vec<u8>>> {
        let found = match self.texts {
            None => Ok(None),
            Some(texts) => texts.get_item(second).and_then(|text| text.extract::<Option<String>>()),
        };
        self.raised(found.map(|text| text.map(String::into_bytes)))
    }
}

impl Minutes for Zone<'_> {
    fn read(&mut self, value: &[u8]) -> Result<Option<i64>> {
        let Ok(digits) = <[u8; DIGITS]>::try_from(value) else { return Ok(None) };
        let slot = digits[DIGITS - 2..].iter().fold(0, |sum, digit| sum * 10 + usize::from(*digit)) % SLOTS;
        match &self.read[slot] {
            Some((known, time)) if *known == digits => return Ok(*time),
            _ => {}
        }
        let key = PyBytes::new(self.minutes.py(), value);
        let found = self.minutes.get_item(key).and_then(|time| time.extract::<Option<i64>>());
        let time = self.raised(found)?;
        self.read[slot] = Some((digits, time));
        Ok(time)
    }
}

impl MinuteTexts for Zone<'_> {
    fn write(&mut self, second: i64, out: &mut Vec<u8>) -> Result<bool> {
        let minute = second.div_euclid(60);
        let slot = minute.rem_euclid(SLOTS as i64) as usize;
        if self.written[slot].as_ref().is_none_or(|(known, _)| *known != minute) {
            let (first, last) = (self.text(minute * 60)?, self.text(minute * 60 + 59)?);
            if first != last {
                let text = self.text(second)?;
                out.extend_from_slice(text.as_deref().unwrap_or_default());
                return Ok(text.is_some());
            }
            self.written[slot] = Some((minute, first));
        }
        let Some((_, Some(text))) = &self.written[slot] else { return Ok(false) };
        out.extend_from_slice(text);
        Ok(true)
    }
}

// --- packs ------------------------------------------------------------------------------------------------------------

/// The messages of a Broker's answer, of which nothing is copied.
#[pyclass(frozen, sequence, module = "mqbridge_native")]
struct Pack {
    data: Py<PyBytes>,
    /// Their slices are of source 1.
    messages: Vec<Transfered>,
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
            let found = slice.indices(self.messages.len() as isize)?;
            let at = |step: usize| self.messages[(found.start + step as isize * found.step) as usize];
            let messages = (0..found.slicelength).map(at).collect();
            return Ok(Pack { data: self.data.clone_ref(py), messages }.into_pyobject(py)?.into_any());
        }
        let index: isize = index.extract()?;
        let at = if index < 0 { index + self.messages.len() as isize } else { index };
        let missing = || PyIndexError::new_err("message index out of range");
        let found = usize::try_from(at).ok().and_then(|at| self.messages.get(at)).ok_or_else(missing)?;
        let message = PackedMessage {
            messageId: found.id,
            checkSum: found.check_sum,
            payLoadData: PyBytes::new(py, found.data.bytes_in(self.data.as_bytes(py))).unbind(),
            flag: found.flag,
        };
        Ok(message.into_pyobject(py)?.into_any())
    }
}

/// The messages of a serialized `GetMessageResponseB2C`, and its other fields serialized. None for what only protobuf can read.
#[pyfunction]
fn tubemq_split_answer<'py>(py: Python<'py>, data: Bound<'py, PyBytes>) -> PyResult<Option<(Pack, Bound<'py, PyBytes>)>> {
    caught(|| {
        let Some((messages, rest)) = split_answer(data.as_bytes(), 1) else { return Ok(None) };
        Ok(Some((Pack { data: data.unbind(), messages }, PyBytes::new(py, &rest))))
    })
}

/// The messages of a pack, or of a sequence of `TransferedMessage`s: see `stored.decode`. None for what only the plain code can.
#[pyfunction]
fn tubemq_decode<'py>(
    py: Python<'py>,
    pack: &Bound<'py, PyAny>,
    offset: i64,
    first: i64,
    minutes: &Bound<'py, PyAny>,
) -> PyResult<Option<Messages>> {
    caught(|| {
        let mut store = Store::new();
        let items = match pack.cast::<Pack>() {
            Ok(pack) => {
                store.add_source(Source::Python(pack.get().data.bind(py).clone().into()));
                pack.get().messages.clone()
            }
            Err(_) => pack.try_iter()?.map(|item| read_item(&mut store, &item?)).collect::<PyResult<_>>()?,
        };
        let mut zone = Zone::new(minutes, None);
        let result = decode_all(&mut store, &items, offset, first, &mut zone);
        Ok(zone.result(py, result)?.map(|()| Messages::all(store)))
    })
}

fn decode_all(store: &mut Store, items: &[Transfered], offset: i64, first: i64, zone: &mut Zone) -> Result<()> {
    store.rows.reserve_exact(items.len());
    let mut decoder = Decoder::new(offset, zone);
    items.iter().zip(first..).try_for_each(|(item, index)| decoder.add(store, *item, index))
}

fn read_item(store: &mut Store, item: &Bound<'_, PyAny>) -> PyResult<Transfered> {
    let py = item.py();
    let data = PyBackedBytes::from(item.getattr(intern!(py, "payLoadData"))?.cast_into::<PyBytes>()?);
    let length = data.len();
    let source = store.add_source(Source::Python(data));
    Ok(Transfered {
        id: 0,
        data: Slice::of(source, 0, length),
        flag: item.getattr(intern!(py, "flag"))?.extract()?,
        check_sum: item.getattr(intern!(py, "checkSum"))?.extract()?,
    })
}

// --- send requests ----------------------------------------------------------------------------------------------------

/// The send requests of a share. Attribute strings and times are written; a body stays where it arrived until its request is asked for.
#[pyclass(frozen, sequence, module = "mqbridge_native")]
struct Requests {
    messages: Py<Messages>,
    bytes: Vec<u8>,
    /// None for a message that failed.
    requests: Vec<Option<Request>>,
    /// Which messages have no request, and why.
    #[pyo3(get)]
    failures: Vec<(usize, String)>,
}

#[pymethods]
impl Requests {
    fn __len__(&self) -> usize {
        self.requests.len()
    }

    /// Data, flag, type and time of a request. Raises IndexError for a message that failed.
    fn __getitem__<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyTuple>> {
        let missing = || PyIndexError::new_err("there is no request of this index");
        let request = self.requests.get(index).copied().flatten().ok_or_else(missing)?;
        let message = self.messages.get().get(index);
        let body = message.payload().unwrap_or_default();
        let data = PyBytes::new_with(py, request.block_size() + body.len(), |out| {
            request.write_data(&self.bytes, body, out);
            Ok(())
        })?;
        let text = |text: Option<&[u8]>| text.map(|text| PyString::from_bytes(py, text)).transpose();
        let time = request.time.map(|(start, end)| &self.bytes[start..end]);
        (data, u8::from(request.block.is_some()), text(message.msg_type())?, text(time)?).into_pyobject(py)
    }
}

/// The send requests of messages, see `share.encode_share`. None for what only the plain code can write.
#[pyfunction]
fn tubemq_encode<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyAny>,
    prefix: Option<Bound<'py, PyString>>,
    minutes: &Bound<'py, PyAny>,
    texts: &Bound<'py, PyAny>,
) -> PyResult<Option<Requests>> {
    caught(|| {
        let prefix = match &prefix {
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
        let mut zone = Zone::new(minutes, Some(texts));
        let result = encode_all(messages.get(), prefix, &mut zone);
        let found = zone.result(py, result)?;
        Ok(found.map(|(bytes, requests, failures)| Requests { messages, bytes, requests, failures }))
    })
}

type Encoded = (Vec<u8>, Vec<Option<Request>>, Vec<(usize, String)>);

fn encode_all(messages: &Messages, prefix: Option<&[u8]>, zone: &mut Zone) -> Result<Encoded> {
    let mut encoder = Encoder::new(prefix, zone);
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

fn failure_text(message: &Message, defect: &[u8]) -> String {
    let position = match message.position().numbers() {
        [] => "()".to_string(),
        [number] => format!("({number},)"),
        numbers => format!("({})", numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")),
    };
    format!("the message at {position} could not be read: {}", String::from_utf8_lossy(defect))
}
