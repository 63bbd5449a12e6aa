//! The Python module `mqbridge_native`: classes for decoded messages, functions for each system, and columns for Spark.

mod columns;
mod extract;
mod from_columns;
mod log;
mod messages;
mod pulsar;
mod pulsar_entry;
mod pulsar_sends;
mod rocketmq;
mod tubemq;
mod view;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::Error;

pub use messages::Messages;
pub use view::MessageView;

/// Returns Python's class `RemoteProtocolError`.
fn protocol_error(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "mqbridge.errors", "RemoteProtocolError")
}

/// Converts an error to the exception that Python raises. `Unsupported` does not occur here, because [`or_none`] handles it.
fn to_exception(py: Python<'_>, error: Error) -> PyErr {
    match (error, protocol_error(py)) {
        (Error::Protocol(text), Ok(class)) => PyErr::from_type(class.clone(), text),
        (_, Err(error)) => error,
        (Error::Unsupported, _) => PyException::new_err("not supported by the compiled module"),
    }
}

/// Converts a result for Python: None if only the implementation in Python can do the work (`Unsupported`), an exception for
/// another error.
pub fn or_none<T>(py: Python<'_>, result: crate::Result<T>) -> PyResult<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Unsupported) => Ok(None),
        Err(error) => Err(to_exception(py, error)),
    }
}

/// Runs the body of a function that Python calls, and converts a panic, which is a bug in this module, to a `RuntimeError`.
///
/// PyO3's own exception for a panic is not a subclass of `Exception`, so the handlers that fail a batch or stop a route would
/// miss it.
pub fn catch_panic<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic_text(&panic);
        Err(PyRuntimeError::new_err(format!("bug in the compiled module: {text}; MQBRIDGE_NATIVE=0 runs without it")))
    })
}

/// Returns the message of a panic.
fn panic_text(panic: &Box<dyn Any + Send>) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

#[pymodule]
fn mqbridge_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Messages>()?;
    module.add_class::<MessageView>()?;
    columns::register(module)?;
    from_columns::register(module)?;
    log::register(module)?;
    pulsar::register(module)?;
    pulsar_entry::register(module)?;
    pulsar_sends::register(module)?;
    rocketmq::register(module)?;
    tubemq::register(module)?;
    Ok(())
}
