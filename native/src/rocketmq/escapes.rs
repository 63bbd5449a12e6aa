//! Properties that the property string cannot hold as they are: see `mqbridge/rocketmq/mapping/escapes.py`.

use memchr::memchr2;

use crate::message::{Pair, Slice, Store};
use crate::rocketmq::{NAME_END, VALUE_END};
use crate::text::{write_number, write_percent};

pub const ESCAPE_PREFIX: &[u8] = b"mqbridge.x.";
/// Stands for an empty text; what is escaped otherwise never is a lone percent sign.
const NOTHING: &[u8] = b"%";

/// Whether a text can stand in the property string, as a name or as a value.
pub fn fits(text: &[u8]) -> bool {
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

/// Appends a pair as `mqbridge.x.N.NAME`. The name comes in two parts.
pub fn write_escaped(number: i64, prefix: &[u8], name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(ESCAPE_PREFIX);
    write_number(number, out);
    out.push(b'.');
    if prefix.is_empty() && name.is_empty() {
        out.extend_from_slice(NOTHING);
    } else {
        escape(prefix, out);
        escape(name, out);
    }
    out.push(NAME_END);
    if value.is_empty() {
        out.extend_from_slice(NOTHING);
    } else {
        escape(value, out);
    }
    out.push(VALUE_END);
}

fn escape(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        if matches!(byte, b'%' | NAME_END | VALUE_END) {
            write_percent(byte, out);
        } else {
            out.push(byte);
        }
    }
}

/// The pair as it was; one that is not escaped is itself.
pub fn unescape(store: &mut Store, pair: Pair) -> Pair {
    let (name, value) = pair;
    let text = store.bytes(name);
    let Some(rest) = text.strip_prefix(ESCAPE_PREFIX) else { return pair };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || rest.get(digits) != Some(&b'.') || rest.len() == digits + 1 {
        return pair;
    }
    let escaped = name.without_prefix(ESCAPE_PREFIX.len() + digits + 1);
    (unescaped(store, escaped), unescaped(store, value))
}

fn unescaped(store: &mut Store, text: Slice) -> Slice {
    if store.bytes(text) == NOTHING { Slice::EMPTY } else { store.unquote(text) }
}
