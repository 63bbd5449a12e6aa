//! A function for `mqbridge/log/store/append.py`.

use crc32c::crc32c_append;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyTuple};

use crate::python::catch_panic;

/// Returns the values of new rows, one after the other: base, count, number of bytes, checksum and records of each; and the offset
/// after them.
///
/// A row begins with its count and its records. `stamp` are partition, first base, and the two times at which the rows are appended;
/// `text` is what the checksum covers of the other columns. Records of up to `copied_bytes` bytes are copied into a bytearray.
#[pyfunction]
fn log_values<'py>(
    py: Python<'py>,
    stamp: (i64, i64, i64, i64),
    text: &[u8],
    rows: &Bound<'py, PyList>,
    copied_bytes: usize,
) -> PyResult<(Bound<'py, PyList>, i64)> {
    catch_panic(|| {
        let (partition, mut base, appended_ms, age_ms) = stamp;
        let mut values: Vec<Bound<'py, PyAny>> = Vec::with_capacity(5 * rows.len());
        for row in rows.iter() {
            let row = row.cast_into::<PyTuple>()?;
            let (count, records) = (row.get_item(0)?, row.get_item(1)?.cast_into::<PyBytes>()?);
            let number: i64 = count.extract()?;
            let mut crc = 0;
            for value in [partition, base, number, appended_ms, age_ms] {
                crc = crc32c_append(crc, &value.to_le_bytes());
            }
            let bytes = records.as_bytes();
            crc = crc32c_append(crc32c_append(crc, text), bytes);
            values.push(base.into_pyobject(py)?.into_any());
            values.push(count);
            values.push(bytes.len().into_pyobject(py)?.into_any());
            values.push(crc.into_pyobject(py)?.into_any());
            let is_copied = bytes.len() <= copied_bytes;
            values.push(if is_copied { PyByteArray::new(py, bytes).into_any() } else { records.into_any() });
            base += number;
        }
        Ok((PyList::new(py, values)?, base))
    })
}

/// Adds the function of this file to the Python module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(log_values, module)?)
}
