//! Reserved properties, `mqbridge.*`: the counterpart of `mqbridge/mapping/reserved_properties.py`, which explains each name.

use crate::message::{Key, Message, Pair, RESERVED_PREFIX, Slice, Store};
use crate::text::{base64_decode, base64_encode, is_utf8, quote, read_number, unquote, write_number};

pub const ORIGIN: &[u8] = b"mqbridge.origin";
pub const HOPS: &[u8] = b"mqbridge.hops";
pub const ATTRIBUTES: &[u8] = b"mqbridge.attributes";
pub const KEY: &[u8] = b"mqbridge.key";
pub const KEYS: &[u8] = b"mqbridge.keys";
pub const TYPE: &[u8] = b"mqbridge.msg_type";
pub const EVENT_TIME: &[u8] = b"mqbridge.event_time";
pub const DELIVER_AT: &[u8] = b"mqbridge.deliver_at";
pub const ORDERING_KEY: &[u8] = b"mqbridge.ordering_key";
pub const WITHOUT: &[u8] = b"mqbridge.without";
/// A pair with this name and the value `1` marks a tombstone.
pub const NULL_PAYLOAD: &[u8] = b"mqbridge.null";
/// Marks a message that a gateway wrote, if no other reserved property does; the value is `1`.
pub const GATEWAY_MARKER: &[u8] = b"mqbridge.v";
/// Prefix given to user properties whose own name is reserved.
pub const USER_PREFIX: &[u8] = b"mqbridge.u.";

/// Returns true for the names of properties that carry message fields: Python's `CARRIED_NAMES`.
pub fn is_carried_name(name: &[u8]) -> bool {
    name.strip_prefix(RESERVED_PREFIX).is_some_and(|field| {
        matches!(
            field,
            b"key"
                | b"key.b64"
                | b"ordering_key"
                | b"keys"
                | b"msg_type"
                | b"attributes"
                | b"attributes.b64"
                | b"event_time"
                | b"deliver_at"
                | b"null"
                | b"without"
                | b"origin"
                | b"hops"
        )
    })
}

/// Returns true for Python's `RESERVED_NAMES`. User properties with these names are written with USER_PREFIX.
pub fn is_reserved_name(name: &[u8]) -> bool {
    is_carried_name(name) || matches!(name, b"mqbridge.v" | b"mqbridge.empty" | b"mqbridge.order")
}

/// Returns true if a user property with this name is written with USER_PREFIX, like Python's `escape_user_property` does.
pub fn needs_user_prefix(name: &[u8]) -> bool {
    is_reserved_name(name) || name.starts_with(USER_PREFIX)
}

// --- write ------------------------------------------------------------------------------------------------------------

/// Destination of the reserved pairs that an encoder writes.
pub trait PairSink {
    /// Writes one pair, whose name and value are not escaped yet.
    fn add(&mut self, name: &[u8], value: &[u8]);
}

impl<F: FnMut(&[u8], &[u8])> PairSink for F {
    fn add(&mut self, name: &[u8], value: &[u8]) {
        self(name, value);
    }
}

/// A message field that can be carried by a reserved property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Key,
    OrderingKey,
    Keys,
    MsgType,
    Attributes,
    EventTime,
    DeliverAt,
    /// Only the missing payload of a tombstone is carried.
    Payload,
}

/// Writes the pair that carries this field, unless the field has no value. `scratch` is a buffer for formatted and encoded
/// values.
pub fn carry_field(message: &Message, field: Field, scratch: &mut Vec<u8>, out: &mut impl PairSink) {
    scratch.clear();
    match field {
        Field::Key => match message.key() {
            Key::None => {}
            Key::Text(text) => out.add(KEY, text),
            Key::Bytes(bytes) => {
                base64_encode(bytes, scratch);
                out.add(b"mqbridge.key.b64", scratch);
            }
        },
        Field::OrderingKey => {
            if let Some(bytes) = message.ordering_key() {
                base64_encode(bytes, scratch);
                out.add(ORDERING_KEY, scratch);
            }
        }
        Field::Keys => {
            if message.keys().len() > 0 {
                join_keys(message, scratch);
                out.add(KEYS, scratch);
            }
        }
        Field::MsgType => {
            if let Some(text) = message.msg_type() {
                out.add(TYPE, text);
            }
        }
        Field::Attributes => match message.attributes() {
            None => {}
            Some(bytes) if is_utf8(bytes) => out.add(ATTRIBUTES, bytes),
            Some(bytes) => {
                base64_encode(bytes, scratch);
                out.add(b"mqbridge.attributes.b64", scratch);
            }
        },
        Field::EventTime => carry_number(EVENT_TIME, message.event_time(), scratch, out),
        Field::DeliverAt => carry_number(DELIVER_AT, message.deliver_at(), scratch, out),
        Field::Payload => {
            if message.payload().is_none() {
                out.add(NULL_PAYLOAD, b"1");
            }
        }
    }
}

/// Writes the pair that carries a number, in decimal; None writes nothing.
fn carry_number(name: &[u8], number: Option<i64>, scratch: &mut Vec<u8>, out: &mut impl PairSink) {
    if let Some(number) = number {
        write_number(number, scratch);
        out.add(name, scratch);
    }
}

/// Appends the value of `mqbridge.keys`: the index keys, percent-encoded and joined by commas.
pub fn join_keys(message: &Message, out: &mut Vec<u8>) {
    for (index, key) in message.keys().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        quote(key, b" ", out);
    }
}

/// Writes the pairs of origin and hops; one hop needs no pair, because an origin implies it.
///
/// With a prefix (`cluster|topic|partition|` of the source), the origin is the prefix followed by the message's position, and
/// adds one hop unless the message has this origin already. Without a prefix, the message keeps its origin and hops.
pub fn origin_properties(message: &Message, prefix: Option<&[u8]>, scratch: &mut Vec<u8>, out: &mut impl PairSink) {
    let hops = match (prefix, message.origin()) {
        (None, None) => return,
        (None, Some(origin)) => {
            out.add(ORIGIN, origin);
            message.hops()
        }
        (Some(prefix), own) => {
            scratch.clear();
            scratch.extend_from_slice(prefix);
            message.position().format(scratch);
            out.add(ORIGIN, scratch);
            message.hops() + i64::from(own != Some(scratch))
        }
    };
    if hops > 1 {
        scratch.clear();
        write_number(hops, scratch);
        out.add(HOPS, scratch);
    }
}

// --- read -------------------------------------------------------------------------------------------------------------

/// The message fields that reserved properties carried; None for a field that no property carried.
///
/// `keys` is a range in the store's list of keys. `Some(Key::None)` as key and `Some(None)` as message type mean that the message
/// has none (`mqbridge.without`).
#[derive(Clone, Copy, Debug, Default)]
pub struct CarriedFields {
    /// True for a tombstone, a message without payload.
    pub is_null: bool,
    pub key: Option<Key>,
    pub ordering_key: Option<Slice>,
    pub keys: Option<(u32, u32)>,
    pub msg_type: Option<Option<Slice>>,
    pub attributes: Option<Slice>,
    pub event_time: Option<i64>,
    pub deliver_at: Option<i64>,
    pub origin: Option<Slice>,
    pub hops: Option<i64>,
}

/// Divides pairs into user properties, which stay in `pairs`, and carried fields, which are returned: Python's `read_carried`.
///
/// USER_PREFIX is removed from names. Carried names with invalid values, and hops without an origin, stay user properties.
/// `blank`: the stored payload is what the system stores for a tombstone (for example, no bytes); only then is `mqbridge.null`
/// read as a field. Index keys are appended to the store's keys.
pub fn read_carried(store: &mut Store, pairs: &mut Vec<Pair>, blank: bool) -> CarriedFields {
    let mut carried = CarriedFields::default();
    pairs.retain_mut(|pair| {
        let name = store.bytes(pair.0);
        if !name.starts_with(RESERVED_PREFIX) {
            return true;
        }
        if name.starts_with(USER_PREFIX) {
            pair.0 = pair.0.without_prefix(USER_PREFIX.len());
            return true;
        }
        if !is_carried_name(name) || (name == NULL_PAYLOAD && !blank) {
            return true;
        }
        !carried.read(store, *pair)
    });
    if carried.origin.is_some() {
        carried.hops = carried.hops.or(Some(1));
    } else if let Some(hops) = carried.hops.take() {
        let (name, value) = (store.copy(HOPS), store.write(|out| write_number(hops, out)));
        pairs.push((name, value));
    }
    carried
}

/// Returns true if `read_carried` reads the pair as a field: Python's `is_carried`. It is always true for `mqbridge.hops`, because
/// the origin that hops require is in another pair. `blank` is as in `read_carried`.
pub fn is_carried(store: &mut Store, pair: Pair, blank: bool) -> bool {
    let name = store.bytes(pair.0);
    if name == HOPS {
        return true;
    }
    if !is_carried_name(name) || (name == NULL_PAYLOAD && !blank) {
        return false;
    }
    let key_count = store.keys.len();
    let is_field = CarriedFields::default().read(store, pair);
    store.keys.truncate(key_count); // removes the index keys that `read` may have added
    is_field
}

impl CarriedFields {
    /// Reads one pair, whose name is a carried one, into its field. Returns false for a value that no gateway writes.
    pub fn read(&mut self, store: &mut Store, (name, value): Pair) -> bool {
        let field = &store.bytes(name)[RESERVED_PREFIX.len()..];
        let text = store.bytes(value);
        match field {
            b"key" => self.key = Some(Key::Text(value)),
            b"key.b64" => match base64_decode(text) {
                Some(bytes) => self.key = Some(Key::Bytes(store.copy(&bytes))),
                None => return false,
            },
            b"ordering_key" => match base64_decode(text) {
                Some(bytes) => self.ordering_key = Some(store.copy(&bytes)),
                None => return false,
            },
            b"keys" => self.keys = Some(read_keys(store, value)),
            b"msg_type" => self.msg_type = Some(Some(value)),
            b"attributes" => self.attributes = Some(value),
            b"attributes.b64" => match base64_decode(text) {
                Some(bytes) => self.attributes = Some(store.copy(&bytes)),
                None => return false,
            },
            b"event_time" | b"deliver_at" => {
                let Some(number) = read_number(text) else { return false };
                if field == b"event_time" {
                    self.event_time = Some(number);
                } else {
                    self.deliver_at = Some(number);
                }
            }
            // Gateways write no hops of 1, and i64::MAX leaves no room for the hop that the next gateway adds.
            b"hops" => match read_number(text) {
                Some(hops) if (2..i64::MAX).contains(&hops) => self.hops = Some(hops),
                _ => return false,
            },
            b"null" => {
                if text != b"1" {
                    return false;
                }
                self.is_null = true;
            }
            b"without" => {
                if !text.split(|byte| *byte == b',').all(|absent| matches!(absent, b"key" | b"msg_type")) {
                    return false;
                }
                for absent in text.split(|byte| *byte == b',') {
                    if absent == b"key" {
                        self.key = Some(Key::None);
                    } else {
                        self.msg_type = Some(None);
                    }
                }
            }
            b"origin" => self.origin = Some(value),
            _ => return false,
        }
        true
    }
}

/// Appends the index keys in a value of `mqbridge.keys` to the store's keys; returns their range there.
fn read_keys(store: &mut Store, value: Slice) -> (u32, u32) {
    let start = store.keys.len() as u32;
    for part in store.split(value, b',') {
        let key = store.unquote(part);
        store.keys.push(key);
    }
    (start, store.keys.len() as u32)
}

impl Store {
    /// Splits a text at each separator.
    pub fn split(&self, text: Slice, separator: u8) -> Vec<Slice> {
        let bytes = self.bytes(text);
        let mut parts = Vec::new();
        let mut begin = 0;
        for end in memchr::memchr_iter(separator, bytes).chain([bytes.len()]) {
            parts.push(text.part(begin, end));
            begin = end + 1;
        }
        parts
    }

    /// Decodes percent-encoding, like `urllib.parse.unquote`. A text without percent signs is returned as it is, not copied.
    pub fn unquote(&mut self, text: Slice) -> Slice {
        let bytes = self.bytes(text);
        if !bytes.contains(&b'%') {
            return text;
        }
        let mut plain = Vec::with_capacity(bytes.len());
        self.has_raw_bytes |= !unquote(bytes, &mut plain);
        self.copy(&plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Row;

    fn store_of(pairs: &[(&str, &str)]) -> (Store, Vec<Pair>) {
        let mut store = Store::new();
        let pairs = pairs.iter().map(|(name, value)| (store.copy(name.as_bytes()), store.copy(value.as_bytes()))).collect();
        (store, pairs)
    }

    fn texts(store: &Store, pairs: &[Pair]) -> Vec<(String, String)> {
        let text = |slice| String::from_utf8(store.bytes(slice).to_vec()).unwrap();
        pairs.iter().map(|(name, value)| (text(*name), text(*value))).collect()
    }

    #[test]
    fn carried_fields_are_removed_from_the_pairs_and_invalid_ones_stay() {
        let (mut store, mut pairs) = store_of(&[
            ("a", "1"),
            ("mqbridge.key", "k"),
            ("mqbridge.u.mqbridge.key", "own"),
            ("mqbridge.event_time", "007"),
            ("mqbridge.null", "1"),
            ("mqbridge.keys", "x%20y,z"),
            ("mqbridge.hops", "3"),
        ]);
        let carried = read_carried(&mut store, &mut pairs, false);
        let remaining = texts(&store, &pairs);
        let user_pairs =
            [("a", "1"), ("mqbridge.key", "own"), ("mqbridge.event_time", "007"), ("mqbridge.null", "1"), ("mqbridge.hops", "3")];
        assert_eq!(remaining, user_pairs.map(|(name, value)| (name.to_string(), value.to_string())));
        assert!(!carried.is_null && carried.hops.is_none() && carried.event_time.is_none());
        assert!(matches!(carried.key, Some(Key::Text(key)) if store.bytes(key) == b"k"));
        let (start, end) = carried.keys.unwrap();
        let keys: Vec<_> = store.keys[start as usize..end as usize].iter().map(|key| store.bytes(*key).to_vec()).collect();
        assert_eq!(keys, [b"x y".to_vec(), b"z".to_vec()]);
    }

    #[test]
    fn an_origin_counts_as_one_hop() {
        let (mut store, mut pairs) = store_of(&[("mqbridge.origin", "c|t|0|5")]);
        let carried = read_carried(&mut store, &mut pairs, false);
        assert_eq!((carried.hops, pairs.len()), (Some(1), 0));
        store.rows.push(Row { origin: carried.origin, hops: 1, ..Row::default() });
        let mut written = Vec::new();
        let mut sink = |name: &[u8], value: &[u8]| written.push((name.to_vec(), value.to_vec()));
        origin_properties(&store.message(0), Some(b"here|t|1|"), &mut Vec::new(), &mut sink);
        assert_eq!(written, [(ORIGIN.to_vec(), b"here|t|1|".to_vec()), (HOPS.to_vec(), b"2".to_vec())]);
    }

    #[test]
    fn a_number_beyond_64_bits_stays_a_user_property() {
        let (mut store, mut pairs) = store_of(&[("mqbridge.event_time", "9223372036854775808")]);
        assert_eq!((read_carried(&mut store, &mut pairs, false).event_time, pairs.len()), (None, 1));
    }
}
