//! The property string of a record: `read_block` of `mqbridge/rocketmq/mapping/read_block.py`, which tells its order.

use memchr::{memchr, memchr_iter};

use crate::Result;
use crate::message::{Key, Pair, Row, Slice, Store};
use crate::reserved::{CarriedFields, GATEWAY_MARKER, HOPS, NULL_PAYLOAD, USER_PREFIX, is_carried_name};
use crate::rocketmq::broker_order::{read_order, restore_order};
use crate::rocketmq::escapes::unescape;
use crate::rocketmq::names::Kind;
use crate::rocketmq::{EMPTY, FLAG, NAME_END, ORDER, SHARDED, VALUE_END};
use crate::text::write_number;

/// Of a number of 64 bits.
const MAX_TIME_DIGITS: usize = 19;

/// An entry of a property string.
#[derive(Clone, Copy)]
struct Entry {
    kind: Kind,
    name: Slice,
    value: Slice,
}

/// A property string taken apart; its vectors are used again for the next.
#[derive(Default)]
pub struct BlockReader {
    entries: Vec<Entry>,
    /// The names of the user's pairs as stored.
    names: Vec<Slice>,
    /// Pairs of the gateway's that turn out to be the user's; they stand behind the others.
    late: Vec<Pair>,
    carried: CarriedFields,
    /// A pair that only gateways write was read.
    from_gateway: bool,
    is_empty: bool,
    order: Option<Slice>,
    tag: Option<Slice>,
    keys: Option<Slice>,
    sharding_key: Option<Slice>,
    timer: Option<Slice>,
    /// The index of the UNIQ_KEY among the user's pairs, and whether a broker made it if a gateway wrote the rest.
    unique: Option<(usize, bool)>,
}

impl BlockReader {
    /// Fills in what a property string says, pairs and fields. Whether a gateway wrote it. `blank`: the body is PLACEHOLDER.
    pub fn read(&mut self, store: &mut Store, block: Slice, flag: i32, blank: bool, row: &mut Row) -> Result<bool> {
        self.entries.clear();
        split(store.bytes(block), block, &mut self.entries);
        let start = store.pairs.len();
        self.divide(store, blank)?;
        self.arrange(store, start);
        self.fill(store, row);
        self.add_synthetic(store, start, flag, row);
        row.pairs = (start as u32, store.pairs.len() as u32);
        Ok(self.from_gateway)
    }

    /// Adds the user's pairs to the store, and notes everything else.
    fn divide(&mut self, store: &mut Store, blank: bool) -> Result<()> {
        self.names.clear();
        self.late.clear();
        (self.carried, self.from_gateway, self.is_empty) = (CarriedFields::default(), false, false);
        (self.order, self.tag, self.keys, self.sharding_key, self.timer, self.unique) = (None, None, None, None, None, None);
        for index in 0..self.entries.len() {
            let Entry { kind, name, value } = self.entries[index];
            match kind {
                Kind::User | Kind::Kept => self.add(store, name, (name, value)),
                Kind::Ignored => {}
                Kind::Tags => self.tag = Some(value),
                Kind::Keys => self.keys = Some(value),
                Kind::ShardingKey => self.sharding_key = Some(value),
                Kind::Timer => self.timer = Some(value),
                Kind::UniqKey => {
                    if self.unique.is_none() {
                        self.unique = Some((self.names.len(), self.from_gateway));
                        self.add(store, name, (name, value));
                    }
                }
                Kind::Reserved => self.read_reserved(store, name, value, blank)?,
            }
        }
        Ok(())
    }

    fn add(&mut self, store: &mut Store, name: Slice, pair: Pair) {
        self.names.push(name);
        store.pairs.push(pair);
    }

    fn read_reserved(&mut self, store: &mut Store, stored_name: Slice, stored_value: Slice, blank: bool) -> Result<()> {
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
            self.add(store, stored_name, pair);
        } else if is_carried_name(name) && (blank || name != NULL_PAYLOAD) {
            let is_hops = name == HOPS;
            if self.carried.read(store, pair) {
                self.from_gateway = true;
            } else if is_hops {
                self.from_gateway = true;
                self.late.push(pair);
            } else {
                self.add(store, stored_name, pair);
            }
        } else {
            self.add(store, stored_name, pair);
        }
        Ok(())
    }

    /// Restores the order of the user's pairs, without the UNIQ_KEY of a broker, and adds those that come last.
    fn arrange(&mut self, store: &mut Store, start: usize) {
        if let Some(order) = self.order {
            restore_order(store, order, &self.names, start);
        } else if let Some((index, true)) = self.unique {
            store.pairs.remove(start + index);
        }
        store.pairs.extend_from_slice(&self.late);
        if self.carried.origin.is_some() {
            self.carried.hops = self.carried.hops.or(Some(1));
        } else if let Some(hops) = self.carried.hops.take() {
            let (name, value) = (store.copy(HOPS), store.write(|out| write_number(hops, out)));
            store.pairs.push((name, value));
        }
    }

    /// The message fields: what the system's properties say, unless a carried field says otherwise.
    fn fill(&self, store: &mut Store, row: &mut Row) {
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

    /// Adds properties for what no field says, except where the message has a property of that name.
    fn add_synthetic(&self, store: &mut Store, start: usize, flag: i32, row: &Row) {
        let own = store.pairs.len();
        let has = |store: &Store, name: &[u8]| store.pairs[start..own].iter().any(|pair| store.bytes(pair.0) == name);
        if let Some(key) = self.sharding_key {
            let is_first = first_key(store, row).is_some_and(|first| store.bytes(first) == store.bytes(key));
            if is_first && !has(store, SHARDED) {
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

/// Entries in the stored order, repeats kept; those without a name or a value do not exist.
fn split(bytes: &[u8], block: Slice, entries: &mut Vec<Entry>) {
    let mut begin = 0;
    for end in memchr_iter(VALUE_END, bytes).chain([bytes.len()]) {
        let entry = &bytes[begin..end];
        if let Some(cut) = memchr(NAME_END, entry).filter(|cut| *cut > 0 && cut + 1 < entry.len()) {
            entries.push(Entry {
                kind: Kind::of(&entry[..cut]),
                name: block.part(begin, begin + cut),
                value: block.part(begin + cut + 1, end),
            });
        }
        begin = end + 1;
    }
}

/// Adds the keys of KEYS to the store.
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

/// The key of a message without __SHARDINGKEY: its first index key. KEYS with blanks side by side has empty ones.
fn first_key(store: &Store, row: &Row) -> Option<Slice> {
    store.keys[row.keys.0 as usize..row.keys.1 as usize].iter().copied().find(|key| !key.is_empty())
}

/// The time of TIMER_DELIVER_MS; other texts say nothing.
fn read_time(text: &[u8]) -> Option<i64> {
    if text.len() > MAX_TIME_DIGITS || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
