//! The Python module `mqbridge_native`: classes for decoded messages, one file of functions per system.

mod columns;
mod extract;
mod from_columns;
mod messages;
mod pulsar;
mod rocketmq;
mod tubemq;
mod view;

use pyo3::exceptions::PyException;
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

#[pymodule]
fn mqbridge_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Messages>()?;
    module.add_class::<MessageView>()?;
    columns::register(module)?;
    from_columns::register(module)?;
    pulsar::register(module)?;
    rocketmq::register(module)?;
    tubemq::register(module)?;
    Ok(())
}
