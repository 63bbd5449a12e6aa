//! `Messages`: a sequence of messages of which nothing is a Python object until somebody asks.

use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice, PyString};

use crate::message::{Key, Message, Store};
use crate::python::extract;
use crate::python::view::MessageView;

/// Messages of one store or several: which ones, in order.
#[pyclass(frozen, sequence, module = "mqbridge_native")]
pub struct Messages {
    stores: Vec<Arc<Store>>,
    places: Vec<(u32, u32)>,
}

impl Messages {
    /// All messages of a store.
    pub fn all(store: Store) -> Messages {
        let places = (0..store.len() as u32).map(|row| (0, row)).collect();
        Messages { stores: vec![Arc::new(store)], places }
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn get(&self, index: usize) -> Message<'_> {
        let (store, row) = self.places[index];
        self.stores[store as usize].message(row as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = Message<'_>> {
        self.places.iter().map(|(store, row)| self.stores[*store as usize].message(*row as usize))
    }

    fn view(&self, index: usize) -> MessageView {
        let (store, row) = self.places[index];
        MessageView::new(self.stores[store as usize].clone(), row)
    }

    fn picked(&self, indexes: impl Iterator<Item = usize>) -> PyResult<Messages> {
        let missing = || PyIndexError::new_err("message index out of range");
        let places = indexes.map(|index| self.places.get(index).copied().ok_or_else(missing)).collect::<PyResult<_>>()?;
        Ok(Messages { stores: self.stores.clone(), places })
    }
}

#[pymethods]
impl Messages {
    /// The messages of a list: views of other `Messages`, or `Message`s of Python. None for what only the plain code can write.
    #[staticmethod]
    pub fn of(messages: &Bound<'_, PyAny>) -> PyResult<Option<Messages>> {
        Ok(extract::collect(messages)?.map(|(stores, places)| Messages { stores, places }))
    }

    fn __len__(&self) -> usize {
        self.places.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.cast::<PySlice>() {
            let found = slice.indices(self.len() as isize)?;
            let indexes = (0..found.slicelength).map(|step| (found.start + step as isize * found.step) as usize);
            return Ok(self.picked(indexes)?.into_pyobject(py)?.into_any());
        }
        let index: isize = index.extract()?;
        let at = if index < 0 { index + self.len() as isize } else { index };
        if at < 0 || at as usize >= self.len() {
            return Err(PyIndexError::new_err("message index out of range"));
        }
        Ok(self.view(at as usize).into_pyobject(py)?.into_any())
    }

    /// The messages at these indexes.
    fn part(&self, indexes: Vec<usize>) -> PyResult<Messages> {
        self.picked(indexes.into_iter())
    }

    /// The index of the first message whose position is not behind that of the message before it.
    fn first_descent(&self) -> Option<usize> {
        (1..self.len()).find(|index| self.get(*index).position().numbers() <= self.get(*index - 1).position().numbers())
    }

    /// The indexes of the messages that do not go round, None if that is all of them: see `LoopGuard`.
    fn outside_of_loops(&self, homes: Vec<String>, max_hops: i64) -> Option<Vec<usize>> {
        let goes_round = |message: &Message| {
            message
                .origin()
                .is_some_and(|origin| message.hops() >= max_hops || homes.iter().any(|home| origin.starts_with(home.as_bytes())))
        };
        if !self.iter().any(|message| goes_round(&message)) {
            return None;
        }
        Some((0..self.len()).filter(|index| !goes_round(&self.get(*index))).collect())
    }

    /// The type of each message. Equal types in a row are one Python object.
    fn msg_types<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut last: Option<(&[u8], Bound<'py, PyString>)> = None;
        let types = PyList::empty(py);
        for message in self.iter() {
            let Some(bytes) = message.msg_type() else {
                types.append(py.None())?;
                continue;
            };
            let text = match last.take() {
                Some((known, text)) if known == bytes => text,
                _ => PyString::from_bytes(py, bytes)?,
            };
            types.append(&text)?;
            last = Some((bytes, text));
        }
        Ok(types)
    }

    /// The indexes of the messages that could not be read.
    fn damaged(&self) -> Vec<usize> {
        (0..self.len()).filter(|index| self.get(*index).defect().is_some()).collect()
    }

    /// Of each message what a picker of this name finds, see `mqbridge/routing/keys.py`.
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
