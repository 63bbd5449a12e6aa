//! Writes records in neutral form: see `mqbridge/rocketmq/wire/neutral_record.py`.

use memchr::memchr;

use crate::rocketmq::VALUE_END;
use crate::rocketmq::record::{CHECKSUM_MASK, FIXED_BYTES, V1};
use crate::{Error, Result};

/// The bits of the system flag that a record in neutral form may have: those of a compressed body.
pub const KEPT_BITS: u32 = 0x701;

/// The properties that brokers add when they store a message: their names with the end of a name, as in a property string.
const ADDED_PREFIXES: [&[u8]; 5] =
    [b"CLUSTER\x01", b"MSG_REGION\x01", b"TRACE_ON\x01", b"__CRC32#\x01", b"INNER_MULTI_QUEUE_OFFSET\x01"];

/// Appends a record in neutral form with a body that is not compressed, and was not delivered before.
pub fn write_neutral(flag: i32, born: i64, body: &[u8], properties: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    let mut fixed = [0; FIXED_BYTES]; // the fields without a value here are those of where a record is stored
    fixed[4..8].copy_from_slice(&V1.to_be_bytes());
    fixed[8..12].copy_from_slice(&(crc32fast::hash(body) & CHECKSUM_MASK).to_be_bytes());
    fixed[16..20].copy_from_slice(&flag.to_be_bytes());
    fixed[40..48].copy_from_slice(&born.to_be_bytes());
    fixed[84..88].copy_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(&fixed);
    out.extend_from_slice(body);
    out.extend_from_slice(&[0; 3]); // the empty topic, and the size of the properties, which is written below
    let properties_at = out.len();
    strip_added(properties, out);
    let properties_size = out.len() - properties_at;
    let Ok(size_field) = u16::try_from(properties_size) else {
        return Err(Error::Protocol(format!("a record cannot hold {properties_size} bytes of properties")));
    };
    out[properties_at - 2..properties_at].copy_from_slice(&size_field.to_be_bytes());
    let size = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
    Ok(())
}

/// Appends a property string without the entries that brokers add, and with a separator after each entry.
fn strip_added(properties: &[u8], out: &mut Vec<u8>) {
    let mut rest = properties;
    while !rest.is_empty() {
        let (entry, after) = rest.split_at(memchr(VALUE_END, rest).unwrap_or(rest.len()));
        if !ADDED_PREFIXES.iter().any(|prefix| entry.starts_with(prefix)) {
            out.extend_from_slice(entry);
            out.push(VALUE_END);
        }
        rest = after.get(1..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_entries_that_brokers_add_are_stripped() {
        let stripped = |properties: &[u8]| {
            let mut out = Vec::new();
            strip_added(properties, &mut out);
            out
        };
        assert_eq!(
            stripped(b"TRACE_ON\x01true\x02CLUSTERS\x01a\x02a\x01CLUSTER\x02CLUSTER\x01c"),
            b"CLUSTERS\x01a\x02a\x01CLUSTER\x02"
        );
        assert_eq!(stripped(b"a\x011"), b"a\x011\x02"); // the last separator may be missing
        assert_eq!(stripped(b"\x02\x02"), b"\x02\x02");
        assert_eq!(stripped(b""), b"");
    }
}
