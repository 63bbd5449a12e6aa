//! `Messages`: a sequence of decoded messages without a Python object for each.

use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice, PyString};

use crate::message::{Key, Message, Store};
use crate::python::extract;
use crate::python::view::MessageView;

/// Messages of one or several stores, in order. Python gets a `MessageView` for each message that it reads.
#[pyclass(frozen, sequence, module = "mqbridge_native")]
pub struct Messages {
    stores: Vec<Arc<Store>>,
    /// For each message: the index of its store in `stores`, and its row there.
    locations: Vec<(u32, u32)>,
}

impl Messages {
    /// Makes a sequence of all messages of a store.
    pub fn all(store: Store) -> Messages {
        let locations = (0..store.len() as u32).map(|row| (0, row)).collect();
        Messages { stores: vec![Arc::new(store)], locations }
    }

    pub fn len(&self) -> usize {
        self.locations.len()
    }

    pub fn get(&self, index: usize) -> Message<'_> {
        let (store, row) = self.locations[index];
        self.stores[store as usize].message(row as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = Message<'_>> {
        self.locations.iter().map(|(store, row)| self.stores[*store as usize].message(*row as usize))
    }

    fn view(&self, index: usize) -> MessageView {
        let (store, row) = self.locations[index];
        MessageView::new(self.stores[store as usize].clone(), row)
    }

    /// Returns the messages at these indexes. Raises IndexError.
    fn pick(&self, indexes: impl Iterator<Item = usize>) -> PyResult<Messages> {
        let out_of_range = || PyIndexError::new_err("message index out of range");
        let locations =
            indexes.map(|index| self.locations.get(index).copied().ok_or_else(out_of_range)).collect::<PyResult<_>>()?;
        Ok(Messages { stores: self.stores.clone(), locations })
    }
}

#[pymethods]
impl Messages {
    /// Makes a sequence of the messages of a Python sequence: `MessageView` or `Message` objects.
    ///
    /// Returns None if a message has a value that only the plain Python code can write.
    #[staticmethod]
    pub fn of(messages: &Bound<'_, PyAny>) -> PyResult<Option<Messages>> {
        Ok(extract::collect(messages)?.map(|(stores, locations)| Messages { stores, locations }))
    }

    fn __len__(&self) -> usize {
        self.locations.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.cast::<PySlice>() {
            let range = slice.indices(self.len() as isize)?;
            let indexes = (0..range.slicelength).map(|step| (range.start + step as isize * range.step) as usize);
            return Ok(self.pick(indexes)?.into_pyobject(py)?.into_any());
        }
        let index: isize = index.extract()?;
        let at = if index < 0 { index + self.len() as isize } else { index };
        if at < 0 || at as usize >= self.len() {
            return Err(PyIndexError::new_err("message index out of range"));
        }
        Ok(self.view(at as usize).into_pyobject(py)?.into_any())
    }

    /// `pick` for Python.
    fn part(&self, indexes: Vec<usize>) -> PyResult<Messages> {
        self.pick(indexes.into_iter())
    }

    /// Returns the index of the first message whose position is not after the position of the message before it; None if all
    /// ascend.
    fn first_descent(&self) -> Option<usize> {
        (1..self.len()).find(|index| self.get(*index).position().numbers() <= self.get(*index - 1).position().numbers())
    }

    /// Returns the indexes of the messages that may be written to the target; None if no message is looped.
    ///
    /// See `LoopGuard` in `mqbridge/routing/loops.py`: a message with an origin is looped if the origin begins with one of
    /// `target_prefixes`, or if the message passed through `max_hops` gateways. Messages that no gateway wrote have no origin.
    fn outside_of_loops(&self, target_prefixes: Vec<String>, max_hops: i64) -> Option<Vec<usize>> {
        let is_looped = |message: &Message| {
            message.origin().is_some_and(|origin| {
                message.hops() >= max_hops || target_prefixes.iter().any(|prefix| origin.starts_with(prefix.as_bytes()))
            })
        };
        if !self.iter().any(|message| is_looped(&message)) {
            return None;
        }
        Some((0..self.len()).filter(|index| !is_looped(&self.get(*index))).collect())
    }

    /// Returns the type of each message, None if it has none. Consecutive messages of the same type share one Python object.
    fn msg_types<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut last: Option<(&[u8], Bound<'py, PyString>)> = None;
        let types = PyList::empty(py);
        for message in self.iter() {
            let Some(bytes) = message.msg_type() else {
                types.append(py.None())?;
                continue;
            };
            let text = match last.take() {
                Some((last_bytes, text)) if last_bytes == bytes => text,
                _ => PyString::from_bytes(py, bytes)?,
            };
            types.append(&text)?;
            last = Some((bytes, text));
        }
        Ok(types)
    }

    /// Returns the indexes of the messages with a defect: those that could not be decoded.
    fn damaged(&self) -> Vec<usize> {
        (0..self.len()).filter(|index| self.get(*index).defect().is_some()).collect()
    }

    /// Returns the key of each message for `partitions.by: key` with this name, None if the message has no value for it.
    ///
    /// The names are `key`, `ordering_key`, `keys` (the first index key) and `property:NAME`; see `mqbridge/routing/keys.py`.
    fn partition_keys<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        let property = name.strip_prefix("property:").unwrap_or(name).as_bytes();
        PyList::new(
            py,
            self.iter().map(|message| {
                let key = match name {
                    "key" => match message.key() {
                        Key::None => None,
                        Key::Text(key) | Key::Bytes(key) => Some(key),
                    },
                    "ordering_key" => message.ordering_key(),
                    "keys" => message.keys().next(),
                    _ => message.property(property),
                };
                key.map(|key| PyBytes::new(py, key))
            }),
        )
    }
}
