//! Reads the property string of a record (the block): the counterpart of `mqbridge/rocketmq/mapping/read_block.py`.

use memchr::{memchr, memchr_iter};

use crate::message::{Key, Pair, Row, Slice, Store};
use crate::reserved::{CarriedFields, GATEWAY_MARKER, HOPS, NULL_PAYLOAD, USER_PREFIX, is_carried_name};
use crate::rocketmq::broker_order::{read_order, restore_order};
use crate::rocketmq::escapes::unescape;
use crate::rocketmq::names::PropertyKind;
use crate::rocketmq::{EMPTY, FLAG, NAME_END, ORDER, SHARDED, VALUE_END};
use crate::text::write_number;

/// The number of decimal digits of the largest 64-bit number.
const MAX_TIME_DIGITS: usize = 19;

/// A pair of a property string, as stored.
#[derive(Clone, Copy)]
struct StoredPair {
    kind: PropertyKind,
    name: Slice,
    value: Slice,
}

/// Reads property strings, one after the other. It holds the parts of the current one, and reuses the vectors for the next.
#[derive(Default)]
pub struct BlockReader {
    stored_pairs: Vec<StoredPair>,
    /// The names of the user pairs as they are stored, that is, escaped.
    names: Vec<Slice>,
    /// `mqbridge.hops` pairs with an invalid value. They are user properties, and follow the others.
    invalid_hops: Vec<Pair>,
    carried: CarriedFields,
    /// True if a pair that only gateways write was read.
    from_gateway: bool,
    /// True if the pair EMPTY marks the payload as empty: PLACEHOLDER is stored for it, because brokers refuse an empty body.
    is_empty: bool,
    // Values of ORDER (the order in which the properties were sent) and of the system properties that are message fields:
    order: Option<Slice>,
    tag: Option<Slice>,
    keys: Option<Slice>,
    sharding_key: Option<Slice>,
    timer: Option<Slice>,
    /// The index of the first UNIQ_KEY among the user pairs. The flag is true if the broker or the gateway added it: then it
    /// follows a pair that only gateways write.
    unique_key: Option<(usize, bool)>,
}

impl BlockReader {
    /// Reads a property string: adds its properties to the store, and sets the fields of `row`. Returns true if a gateway wrote
    /// it.
    ///
    /// `flag` is the record's flag; `blank` is true if the record's body is PLACEHOLDER, which is stored for a missing or empty
    /// payload.
    pub fn read_block(&mut self, store: &mut Store, block: Slice, flag: i32, blank: bool, row: &mut Row) -> bool {
        self.stored_pairs.clear();
        split(store.bytes(block), block, &mut self.stored_pairs);
        let start = store.pairs.len();
        self.read_pairs(store, blank);
        self.finish_user_pairs(store, start);
        self.set_fields(store, row);
        self.add_synthetic(store, start, flag, row);
        row.pairs = (start as u32, store.pairs.len() as u32);
        self.from_gateway
    }

    /// Divides the stored pairs by kind: adds the user pairs to the store, and sets the other parts of `self`.
    fn read_pairs(&mut self, store: &mut Store, blank: bool) {
        self.names.clear();
        self.invalid_hops.clear();
        (self.carried, self.from_gateway, self.is_empty) = (CarriedFields::default(), false, false);
        (self.order, self.tag, self.keys, self.sharding_key, self.timer, self.unique_key) = (None, None, None, None, None, None);
        for index in 0..self.stored_pairs.len() {
            let StoredPair { kind, name, value } = self.stored_pairs[index];
            match kind {
                // Kept pairs are system properties that become user properties.
                PropertyKind::User | PropertyKind::Kept => self.add_user_pair(store, name, (name, value)),
                PropertyKind::Ignored => {}
                PropertyKind::Tags => self.tag = Some(value),
                PropertyKind::Keys => self.keys = Some(value),
                PropertyKind::ShardingKey => self.sharding_key = Some(value),
                PropertyKind::Timer => self.timer = Some(value),
                PropertyKind::UniqKey => {
                    if self.unique_key.is_none() {
                        self.unique_key = Some((self.names.len(), self.from_gateway));
                        self.add_user_pair(store, name, (name, value));
                    }
                }
                PropertyKind::Reserved => self.read_reserved(store, name, value, blank),
            }
        }
    }

    /// Adds a user pair to the store; `stored_name` is its name before unescaping.
    fn add_user_pair(&mut self, store: &mut Store, stored_name: Slice, pair: Pair) {
        self.names.push(stored_name);
        store.pairs.push(pair);
    }

    /// Reads a pair whose name begins with `mqbridge.`: a marker, a user pair, or a carried field.
    ///
    /// EMPTY and NULL_PAYLOAD explain a `blank` body; with any other body they are user pairs.
    fn read_reserved(&mut self, store: &mut Store, stored_name: Slice, stored_value: Slice, blank: bool) {
        let mut pair = unescape(store, (stored_name, stored_value));
        let (name, value) = (store.bytes(pair.0), store.bytes(pair.1));
        if name == ORDER && read_order(value).is_some() {
            self.order = Some(stored_value);
            self.from_gateway = true;
        } else if name == GATEWAY_MARKER && value == b"1" {
            self.from_gateway = true;
        } else if name == EMPTY && value == b"1" && blank {
            (self.is_empty, self.from_gateway) = (true, true);
        } else if name.starts_with(USER_PREFIX) {
            pair.0 = pair.0.without_prefix(USER_PREFIX.len());
            self.add_user_pair(store, stored_name, pair);
        } else if is_carried_name(name) && (blank || name != NULL_PAYLOAD) {
            let is_hops = name == HOPS;
            if self.carried.read(store, pair) {
                self.from_gateway = true;
            } else if is_hops {
                self.from_gateway = true;
                self.invalid_hops.push(pair);
            } else {
                self.add_user_pair(store, stored_name, pair);
            }
        } else {
            self.add_user_pair(store, stored_name, pair);
        }
    }

    /// Restores the order of the user pairs, which begin at `start` in the store, and removes a UNIQ_KEY that was added later.
    ///
    /// Hops without an origin, and invalid ones, are appended as user pairs. An origin without hops counts as one hop.
    fn finish_user_pairs(&mut self, store: &mut Store, start: usize) {
        if let Some(order) = self.order {
            restore_order(store, order, &self.names, start); // also removes an added UNIQ_KEY
        } else if let Some((index, true)) = self.unique_key {
            store.pairs.remove(start + index);
        }
        store.pairs.extend_from_slice(&self.invalid_hops);
        if self.carried.origin.is_some() {
            self.carried.hops = self.carried.hops.or(Some(1));
        } else if let Some(hops) = self.carried.hops.take() {
            let (name, value) = (store.copy(HOPS), store.write(|out| write_number(hops, out)));
            store.pairs.push((name, value));
        }
    }

    /// Sets the message fields from the carried fields and the system properties; a carried field takes precedence.
    fn set_fields(&self, store: &mut Store, row: &mut Row) {
        let carried = &self.carried;
        row.msg_type = carried.msg_type.unwrap_or(self.tag);
        row.keys = match (carried.keys, self.keys) {
            (Some(keys), _) => keys,
            (None, Some(keys)) => split_keys(store, keys),
            (None, None) => (0, 0),
        };
        row.key = match (carried.key, self.sharding_key) {
            (Some(key), _) => key,
            (None, Some(key)) => Key::Text(key),
            (None, None) => first_key(store, row).map_or(Key::None, Key::Text),
        };
        row.deliver_at = carried.deliver_at.or_else(|| read_time(store.bytes(self.timer?)));
        row.ordering_key = carried.ordering_key;
        row.attributes = carried.attributes;
        row.event_time = carried.event_time;
        row.origin = carried.origin;
        row.hops = carried.hops.unwrap_or(0);
        if carried.is_null {
            row.payload = None;
        } else if self.is_empty {
            row.payload = Some(Slice::EMPTY);
        }
    }

    /// Adds the properties FLAG and SHARDED, for values of the record that no field of a message can hold.
    ///
    /// SHARDED tells that the record has a __SHARDINGKEY, although it equals the first index key, which would be the message's
    /// key without it. If the record has a property with one of these names, none is added.
    fn add_synthetic(&self, store: &mut Store, start: usize, flag: i32, row: &Row) {
        let user_end = store.pairs.len();
        let has = |store: &Store, name: &[u8]| store.pairs[start..user_end].iter().any(|pair| store.bytes(pair.0) == name);
        if let Some(key) = self.sharding_key {
            let equals_first_key = first_key(store, row).is_some_and(|first| store.bytes(first) == store.bytes(key));
            if equals_first_key && !has(store, SHARDED) {
                let pair = (store.copy(SHARDED), store.copy(b"1"));
                store.pairs.push(pair);
            }
        }
        if flag != 0 && !has(store, FLAG) {
            let pair = (store.copy(FLAG), store.write(|out| write_number(i64::from(flag), out)));
            store.pairs.push(pair);
        }
    }
}

/// Splits a property string, which is the slice `block` with these bytes, into its pairs, in the stored order.
///
/// Repeated names are kept. Pairs without a name or a value are ignored.
fn split(bytes: &[u8], block: Slice, pairs: &mut Vec<StoredPair>) {
    let mut begin = 0;
    for end in memchr_iter(VALUE_END, bytes).chain([bytes.len()]) {
        let pair = &bytes[begin..end];
        if let Some(name_size) = memchr(NAME_END, pair).filter(|size| *size > 0 && size + 1 < pair.len()) {
            pairs.push(StoredPair {
                kind: PropertyKind::of(&pair[..name_size]),
                name: block.part(begin, begin + name_size),
                value: block.part(begin + name_size + 1, end),
            });
        }
        begin = end + 1;
    }
}

/// Adds the index keys in the value of KEYS, which are joined by blanks, to the store's keys; returns their range there.
fn split_keys(store: &mut Store, text: Slice) -> (u32, u32) {
    let start = store.keys.len();
    let mut begin = 0;
    for end in 0..=text.len() {
        if end == text.len() || store.bytes(text)[end] == b' ' {
            store.keys.push(text.part(begin, end));
            begin = end + 1;
        }
    }
    (start as u32, store.keys.len() as u32)
}

/// Returns the first index key that is not empty, which is the key of a message without __SHARDINGKEY.
///
/// There are empty index keys if KEYS contains adjacent blanks.
fn first_key(store: &Store, row: &Row) -> Option<Slice> {
    store.keys[row.keys.0 as usize..row.keys.1 as usize].iter().copied().find(|key| !key.is_empty())
}

/// Parses the value of TIMER_DELIVER_MS (ms since the epoch); None for a text that is not a time.
fn read_time(text: &[u8]) -> Option<i64> {
    if text.len() > MAX_TIME_DIGITS || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
