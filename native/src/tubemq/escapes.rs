//! Escapes in the attribute strings that a gateway writes: the counterpart of `mqbridge/tubemq/mapping/escapes.py`.

use crate::message::{MSG_TIME, MSG_TYPE, Pair, Slice, Store};
use crate::reserved::is_carried_name;
use crate::text::{is_space, quote};

/// The item that marks an attribute string as built by a gateway.
pub const MARKER: &[u8] = b"mqbridge.v=1";

/// Appends the item for a pair: `name=value`, both escaped. Python's name is `format_item`.
pub fn format_item(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    if is_plain_name(name) {
        out.extend_from_slice(name)
    } else {
        escape_text(name, out)
    }
    out.push(b'=');
    escape_text(value, out);
}

/// Returns true for a name that the gateway itself writes, which contains nothing to escape.
fn is_plain_name(name: &[u8]) -> bool {
    name == MSG_TYPE || name == MSG_TIME || is_carried_name(name) || name == b"mqbridge.v"
}

/// Appends a name or a value as it is written in an attribute string, with commas, `=` and `%` percent-encoded.
///
/// The empty text is written as a single percent sign. A text of white space only is percent-encoded, because Java SDKs fail on
/// blank names and values.
pub fn escape_text(text: &[u8], out: &mut Vec<u8>) {
    if text.is_empty() {
        out.push(b'%');
    } else if is_space(text) {
        quote(text, b"/", out);
    } else {
        let mut rest = text;
        while let Some(at) = memchr::memchr3(b',', b'=', b'%', rest) {
            out.extend_from_slice(&rest[..at]);
            crate::text::write_percent(rest[at], out);
            rest = &rest[at + 1..];
        }
        out.extend_from_slice(rest);
    }
}

/// Returns the original pair for an escaped pair of an attribute string.
pub fn unescape_pair(store: &mut Store, pair: Pair) -> Pair {
    (unescape_text(store, pair.0), unescape_text(store, pair.1))
}

/// Returns the original text of an escaped name or value.
fn unescape_text(store: &mut Store, text: Slice) -> Slice {
    if store.bytes(text) == b"%" { Slice::EMPTY } else { store.unquote(text) }
}
