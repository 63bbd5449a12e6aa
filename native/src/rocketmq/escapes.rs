//! Escaping of properties that the property string cannot hold as they are: see `mqbridge/rocketmq/mapping/escapes.py`.

use memchr::memchr2;

use crate::message::{Pair, Slice, Store};
use crate::rocketmq::{NAME_END, VALUE_END};
use crate::text::{write_number, write_percent};

pub const ESCAPE_PREFIX: &[u8] = b"mqbridge.x.";
/// The escaped form of an empty text; no other text has this escaped form.
const EMPTY_TEXT: &[u8] = b"%";

/// Returns true if the property string can hold this text as a name or a value, unescaped.
pub fn is_writable(text: &[u8]) -> bool {
    !text.is_empty() && memchr2(NAME_END, VALUE_END, text).is_none()
}

/// Appends `name \x01 value \x02`.
pub fn write_pair(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.reserve(name.len() + value.len() + 2);
    out.extend_from_slice(name);
    out.push(NAME_END);
    out.extend_from_slice(value);
    out.push(VALUE_END);
}

/// Appends a pair under the name `mqbridge.x.N.NAME`, where N is `number` and NAME is `prefix` followed by `name`, both escaped.
///
/// `number` makes the names of a message's escaped pairs differ. `prefix` is `mqbridge.u.` (USER_PREFIX) or empty.
pub fn write_escaped(number: i64, prefix: &[u8], name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(ESCAPE_PREFIX);
    write_number(number, out);
    out.push(b'.');
    if prefix.is_empty() && name.is_empty() {
        out.extend_from_slice(EMPTY_TEXT);
    } else {
        escape_text(prefix, out);
        escape_text(name, out);
    }
    out.push(NAME_END);
    if value.is_empty() {
        out.extend_from_slice(EMPTY_TEXT);
    } else {
        escape_text(value, out);
    }
    out.push(VALUE_END);
}

/// Appends a text with percent signs and separators percent-encoded.
fn escape_text(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        if matches!(byte, b'%' | NAME_END | VALUE_END) {
            write_percent(byte, out);
        } else {
            out.push(byte);
        }
    }
}

/// Returns the original pair of an escaped pair; returns any other pair unchanged.
pub fn unescape(store: &mut Store, pair: Pair) -> Pair {
    let (name, value) = pair;
    let Some(rest) = store.bytes(name).strip_prefix(ESCAPE_PREFIX) else { return pair };
    let digit_count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digit_count == 0 || rest.get(digit_count) != Some(&b'.') || rest.len() == digit_count + 1 {
        return pair;
    }
    let escaped_name = name.without_prefix(ESCAPE_PREFIX.len() + digit_count + 1);
    (unescape_text(store, escaped_name), unescape_text(store, value))
}

/// Returns the original text of an escaped name or value.
fn unescape_text(store: &mut Store, text: Slice) -> Slice {
    if store.bytes(text) == EMPTY_TEXT { Slice::EMPTY } else { store.unquote(text) }
}
