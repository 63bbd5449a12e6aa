//! `MessageView`: one message of a `Messages` sequence, with the attributes and methods of Python's `Message`.
//!
//! The Python object for an attribute is made each time that Python reads the attribute.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple, PyType};

use crate::message::{Key, Message, Store};

#[pyclass(frozen, module = "mqbridge_native")]
pub struct MessageView {
    /// The store that contains the message.
    pub store: Arc<Store>,
    /// The index of the message in `store.rows`.
    pub row: u32,
}

impl MessageView {
    pub fn new(store: Arc<Store>, row: u32) -> MessageView {
        MessageView { store, row }
    }

    fn message(&self) -> Message<'_> {
        self.store.message(self.row as usize)
    }
}

/// Returns a text of a store as a string of Python. Raises UnicodeDecodeError if it is not UTF-8, which would be a bug of a
/// decoder.
fn text<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    PyString::from_bytes(py, bytes)
}

/// Returns Python's class `Message`. Some of its methods are also used for views.
fn message_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "mqbridge.message", "Message")
}

#[pymethods]
impl MessageView {
    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.message().payload().map(|payload| PyBytes::new(py, payload))
    }

    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let pairs = self.message().properties().map(|(name, value)| Ok((text(py, name)?, text(py, value)?)));
        PyTuple::new(py, pairs.collect::<PyResult<Vec<_>>>()?)
    }

    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(match self.message().key() {
            Key::None => None,
            Key::Text(key) => Some(text(py, key)?.into_any()),
            Key::Bytes(key) => Some(PyBytes::new(py, key).into_any()),
        })
    }

    #[getter]
    fn ordering_key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.message().ordering_key().map(|key| PyBytes::new(py, key))
    }

    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.message().keys().map(|key| text(py, key)).collect::<PyResult<Vec<_>>>()?)
    }

    #[getter]
    fn msg_type<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        self.message().msg_type().map(|msg_type| text(py, msg_type)).transpose()
    }

    #[getter]
    fn attributes<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.message().attributes().map(|attributes| PyBytes::new(py, attributes))
    }

    #[getter]
    fn event_time(&self) -> Option<i64> {
        self.message().row.event_time
    }

    #[getter]
    fn publish_time(&self) -> Option<i64> {
        self.message().row.publish_time
    }

    #[getter]
    fn deliver_at(&self) -> Option<i64> {
        self.message().row.deliver_at
    }

    #[getter]
    fn delivery_count(&self) -> i64 {
        self.message().row.delivery_count
    }

    #[getter]
    fn position<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.message().position().numbers())
    }

    #[getter]
    fn origin<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        self.message().origin().map(|origin| text(py, origin)).transpose()
    }

    #[getter]
    fn hops(&self) -> i64 {
        self.message().hops()
    }

    #[getter]
    fn defect<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        self.message().defect().map(|defect| text(py, defect)).transpose()
    }

    /// Returns the first value of this property, None if there is none.
    fn property<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Option<Bound<'py, PyString>>> {
        self.message().property(key.as_bytes()).map(|value| text(py, value)).transpose()
    }

    /// Returns all values of this property.
    fn property_values<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Vec<Bound<'py, PyString>>> {
        let matching = self.message().properties().filter(|(name, _)| *name == key.as_bytes());
        matching.map(|(_, value)| text(py, value)).collect()
    }

    /// Returns every field by name.
    fn as_dict<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        message_class(slf.py())?.call_method1("as_dict", (slf,))
    }

    /// Returns a copy as a `Message` object of Python, with some fields changed.
    #[pyo3(signature = (**changes))]
    fn replace<'py>(slf: &Bound<'py, Self>, changes: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        message_class(slf.py())?.call_method("replace", (slf,), changes)
    }

    fn __repr__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        message_class(slf.py())?.call_method1("__repr__", (slf,))
    }
}
