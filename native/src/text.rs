//! Counterparts of text functions of Python's standard library. They take UTF-8 bytes and give the same results.

/// Appends a number in decimal, like Python's `str`.
pub fn write_number(number: i64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut remaining = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (remaining % 10) as u8;
        remaining /= 10;
        if remaining == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// Parses a 64-bit integer in the form that Python's `str` writes, like `reserved_properties.read_number`; None for other texts.
pub fn read_number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [] => false,
        [b'0'] => text.len() == 1,
        [b'0', ..] => false,
        _ => digits.iter().all(u8::is_ascii_digit),
    };
    if canonical { std::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

pub fn is_utf8(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok()
}

/// Formats bytes like Python's `repr`.
pub fn bytes_repr(bytes: &[u8]) -> String {
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { '"' } else { '\'' };
    let mut text = format!("b{quote}");
    for &byte in bytes {
        match byte {
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' if char::from(byte) == quote => text.extend(['\\', quote]),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text.push(quote);
    text
}

/// Returns true for a text that is not empty and consists of white space only, like Python's `str.isspace`.
pub fn is_space(text: &[u8]) -> bool {
    if text.first().is_some_and(u8::is_ascii_graphic) {
        return false; // the usual case
    }
    // Python counts four control characters as white space that Rust does not.
    let is_blank = |c: char| matches!(c, '\u{1c}'..='\u{1f}') || c.is_whitespace();
    std::str::from_utf8(text).is_ok_and(|text| !text.is_empty() && text.chars().all(is_blank))
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Appends the text percent-encoded, like `urllib.parse.quote(text, safe=safe)`.
pub fn quote(text: &[u8], safe: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        if byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte) || safe.contains(&byte) {
            out.push(byte);
        } else {
            write_percent(byte, out);
        }
    }
}

/// Appends the percent-encoding `%XX` of a byte.
pub fn write_percent(byte: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b'%', HEX[(byte >> 4) as usize], HEX[(byte & 15) as usize]]);
}

/// Appends the text without its percent-encoding, like `urllib.parse.unquote(text)`; returns false if that is not UTF-8.
///
/// Like Python, it decodes each run of ASCII characters by itself, and replaces decoded bytes that are not UTF-8 by U+FFFD.
pub fn unquote(text: &[u8], out: &mut Vec<u8>) -> bool {
    let mut rest = text;
    let mut is_text = true;
    while !rest.is_empty() {
        let ascii_size = rest.iter().position(|byte| !byte.is_ascii()).unwrap_or(rest.len());
        let (ascii, after) = rest.split_at(ascii_size);
        if ascii.contains(&b'%') {
            let decoded = percent_decode(ascii);
            is_text &= is_utf8(&decoded);
            out.extend_from_slice(String::from_utf8_lossy(&decoded).as_bytes());
        } else {
            out.extend_from_slice(ascii);
        }
        let other_size = after.iter().position(u8::is_ascii).unwrap_or(after.len());
        out.extend_from_slice(&after[..other_size]);
        rest = &after[other_size..];
    }
    is_text
}

/// Decodes the percent-encoding of an ASCII text. A percent sign without two hex digits after it is kept.
fn percent_decode(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match text[at..] {
            [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                out.push(hex_value(high) << 4 | hex_value(low));
                at += 3;
            }
            _ => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    out
}

/// Returns the value of a hex digit, which the caller has checked.
fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

/// The digits of base64.
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the base64 of bytes, like `base64.b64encode(bytes)`.
pub fn base64_encode(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.chunks(3) {
        let bits = u32::from(chunk[0]) << 16
            | u32::from(chunk.get(1).copied().unwrap_or(0)) << 8
            | u32::from(chunk.get(2).copied().unwrap_or(0));
        for index in 0..4 {
            let sextet = (bits >> (18 - 6 * index) & 63) as usize;
            out.push(if index <= chunk.len() { BASE64[sextet] } else { b'=' });
        }
    }
}

/// Decodes base64 like `base64.b64decode(text, validate=True)`; None if that function raises an error.
///
/// Like Python, it accepts any amount of padding after a complete group of four digits.
pub fn base64_decode(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let data = &text[..text.len() - padding];
    let required_padding = match data.len() % 4 {
        0 => None,
        2 => Some(2),
        3 => Some(1),
        _ => return None,
    };
    if required_padding.is_some_and(|required| padding != required) || (data.is_empty() && padding > 0) {
        return None;
    }
    let mut out = Vec::with_capacity(data.len() / 4 * 3 + 2);
    let (mut bits, mut bit_count) = (0u32, 0u32); // the decoded bits that do not fill a byte yet
    for byte in data {
        let sextet = BASE64.iter().position(|digit| digit == byte)? as u32;
        bits = bits << 6 | sextet;
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            out.push((bits >> bit_count) as u8);
            bits &= (1 << bit_count) - 1;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_numbers_in_the_form_of_str_are_read() {
        for (text, number) in [("0", 0), ("7", 7), ("-12", -12), ("9223372036854775807", i64::MAX)] {
            assert_eq!(read_number(text.as_bytes()), Some(number));
            assert_eq!(written(|out| write_number(number, out)), text);
        }
        for text in ["", "-", "-0", "007", "+1", "1_0", " 1", "1.0", "٣", "--1", "-01", "9223372036854775808"] {
            assert_eq!(read_number(text.as_bytes()), None, "{text}");
        }
        assert_eq!(written(|out| write_number(i64::MIN, out)), "-9223372036854775808");
    }

    #[test]
    fn percent_encoding_is_that_of_urllib() {
        assert_eq!(written(|out| quote("a b,é%~".as_bytes(), b" ", out)), "a b%2C%C3%A9%25~");
        for (text, plain) in [("a%2Cb", "a,b"), ("%", "%"), ("%4", "%4"), ("%zz%41", "%zzA"), ("%C3%A9", "é"), ("é%41", "éA")]
        {
            assert_eq!(written(|out| assert!(unquote(text.as_bytes(), out))), plain);
        }
        // Bytes that are not UTF-8 are replaced, in each run of ASCII characters by itself.
        assert_eq!(written(|out| assert!(!unquote("%C3é%A9".as_bytes(), out))), "\u{fffd}é\u{fffd}");
        assert_eq!(written(|out| assert!(!unquote(b"%F0%9F%41", out))), "\u{fffd}A");
    }

    #[test]
    fn base64_is_as_strict_as_binascii() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("\u{0}\u{ff}", "AMO/")] {
            assert_eq!(written(|out| base64_encode(bytes.as_bytes(), out)), text);
            assert_eq!(base64_decode(text.as_bytes()), Some(bytes.as_bytes().to_vec()));
        }
        for text in ["A", "AA", "AA=", "AAA", "A===", "====", "AA==AA", "A=A=", "AA=A", "=AAA", "AA===", "AA\n==", "AA-_"] {
            assert_eq!(base64_decode(text.as_bytes()), None, "{text}");
        }
        for (text, bytes) in [("AB==", &b"\0"[..]), ("AAA=", b"\0\0"), ("AAAA=", b"\0\0\0"), ("AAAA====", b"\0\0\0")] {
            assert_eq!(base64_decode(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
    }

    #[test]
    fn white_space_is_that_of_python() {
        for text in [" ", "\t\n", "\u{1c}\u{1f}", "\u{85}", "\u{a0}", "\u{3000}"] {
            assert!(is_space(text.as_bytes()), "{text:?}");
        }
        for text in ["", "a", " a", "\u{200b}", "\u{1b}"] {
            assert!(!is_space(text.as_bytes()), "{text:?}");
        }
    }
}
