//! The Python module `mqbridge_native`: classes for decoded messages, one file of functions per system.

mod columns;
mod extract;
mod from_columns;
mod messages;
mod pulsar;
mod pulsar_entry;
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

/// The class `RemoteProtocolError`.
fn protocol_error(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "mqbridge.errors", "RemoteProtocolError")
}

/// `RemoteProtocolError` with this text; an `Unsupported` never gets here, see [`or_none`].
fn raised(py: Python<'_>, error: Error) -> PyErr {
    match (error, protocol_error(py)) {
        (Error::Protocol(text), Ok(class)) => PyErr::from_type(class.clone(), text),
        (_, Err(error)) => error,
        (Error::Unsupported, _) => PyException::new_err("not supported by the compiled module"),
    }
}

/// What a function found; None where only the plain code can tell.
pub fn or_none<T>(py: Python<'_>, result: crate::Result<T>) -> PyResult<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(Error::Unsupported) => Ok(None),
        Err(error) => Err(raised(py, error)),
    }
}

/// Runs an entry point. A panic, which is a bug of ours, becomes a `RuntimeError`: PyO3's own exception for it is no `Exception`, and
/// would pass by everybody who fails a batch or stops a route.
pub fn caught<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic_text(&panic);
        Err(PyRuntimeError::new_err(format!("bug in the compiled module: {text}; MQBRIDGE_NATIVE=0 runs without it")))
    })
}

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
    pulsar::register(module)?;
    pulsar_entry::register(module)?;
    rocketmq::register(module)?;
    tubemq::register(module)?;
    Ok(())
}
