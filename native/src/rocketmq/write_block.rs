//! Writes the property string of a message (the block): the counterpart of `mqbridge/rocketmq/mapping/write_block.py`, which
//! describes the order of its pairs.

use crate::message::{Key, Message, RESERVED_PREFIX};
use crate::reserved::{Field, GATEWAY_MARKER, PairSink, USER_PREFIX, WITHOUT, carry_field, needs_user_prefix, origin_properties};
use crate::rocketmq::broker_order::write_order;
use crate::rocketmq::escapes::{is_writable, write_escaped, write_pair};
use crate::rocketmq::names::{KEYS, SHARDING_KEY, TAGS, TIMER_DELIVER_MS, UNIQ_KEY, is_plain};
use crate::rocketmq::{EMPTY, FLAG, NAME_END, ORDER, SHARDED, VALUE_END};
use crate::text::read_number;

/// The property that makes the broker delay a message: TIMER_DELIVER_MS with the delivery time in ms, or DELAY with a level.
pub type Delay = (&'static [u8], i64);

type Pair<'a> = (&'a [u8], &'a [u8]);

/// Facts about a property string that `BlockWriter::write_block` wrote.
pub struct WrittenBlock {
    /// The flag to send with the message.
    pub flag: i32,
    /// True if the string contains a UNIQ_KEY.
    pub has_id: bool,
}

/// Writes property strings, one after the other, and reuses its vectors.
#[derive(Default)]
pub struct BlockWriter<'a> {
    /// The user pairs.
    pairs: Vec<Pair<'a>>,
    /// For each pair: true if it is written unescaped.
    is_unescaped: Vec<bool>,
    /// Start and length of each user pair's name in the string.
    names: Vec<(usize, usize)>,
    /// A buffer for formatted values.
    scratch: Vec<u8>,
}

impl<'a> BlockWriter<'a> {
    /// Appends the property string of a message to `out`.
    ///
    /// `origin` is the source partition as text (`cluster|topic|partition|`): followed by the message's position, it is written as
    /// the property `mqbridge.origin`. With None, the message keeps its own origin. `alone` is true for a single send, whose
    /// properties the broker reorders. `delay` is the property that makes the broker delay the message, None for no delay.
    pub fn write_block(
        &mut self,
        message: &Message<'a>,
        origin: Option<&[u8]>,
        alone: bool,
        delay: Option<Delay>,
        out: &mut Vec<u8>,
    ) -> WrittenBlock {
        self.pairs.clear();
        self.pairs.extend(message.properties());
        let (flag, sharded) = self.take_synthetic(message);
        self.find_unescaped();
        let start = out.len();
        let (escaped_count, has_id) = self.write_user_pairs(start, out);
        self.write_system(message, delay, sharded, out);
        self.write_carried(message, origin, delay, escaped_count, out);
        if alone {
            self.write_order(start, out);
        }
        WrittenBlock { flag, has_id }
    }

    /// Removes the properties FLAG and SHARDED from the end of the user pairs, where `read_block` adds them for parts of a record
    /// that no message field holds. FLAG is the flag of the record. SHARDED tells that the record had a __SHARDINGKEY that was not
    /// needed: without one, the first index key (KEYS) becomes the message's key, and both were equal. If the two properties are
    /// not at the end, or their value does not fit the message, they stay ordinary user pairs.
    ///
    /// Returns the flag, and true if SHARDED requires a __SHARDINGKEY.
    fn take_synthetic(&mut self, message: &Message) -> (i32, bool) {
        let mut flag = 0;
        if let Some(value) = self.value_if_last(FLAG) {
            flag = parse_flag(value);
            if flag != 0 {
                self.pairs.pop();
            }
        }
        let sharded = self.value_if_last(SHARDED) == Some(b"1")
            && matches!(message.key(), Key::Text(key) if is_writable(key))
            && is_key_derived(message);
        if sharded {
            self.pairs.pop();
        }
        (flag, sharded)
    }

    /// Returns the value of the last property if it, and no other, has this name.
    fn value_if_last(&self, name: &[u8]) -> Option<&'a [u8]> {
        let ((last, value), others) = self.pairs.split_last()?;
        (*last == name && others.iter().all(|(other, _)| *other != name)).then_some(value)
    }

    /// Sets `is_unescaped`. Of the pairs with the same name, only the last that needs no escaping is written unescaped, because
    /// RocketMQ clients read the last one.
    fn find_unescaped(&mut self) {
        const MAX_PAIRWISE: usize = 24; // up to this number of pairs, comparing each with each is faster than sorting
        self.is_unescaped.clear();
        // `is_writable`: the string can hold the text. `is_plain`: readers do not take the name for a system property.
        self.is_unescaped
            .extend(self.pairs.iter().map(|(name, value)| is_writable(name) && is_writable(value) && is_plain(name)));
        let (pairs, is_unescaped) = (&self.pairs, &mut self.is_unescaped);
        if pairs.len() <= MAX_PAIRWISE {
            for index in 0..pairs.len() {
                let name = pairs[index].0;
                let is_repeated = (index + 1..pairs.len()).any(|later| pairs[later].0 == name && is_unescaped[later]);
                is_unescaped[index] &= !is_repeated;
            }
        } else {
            let mut sorted: Vec<usize> = (0..pairs.len()).filter(|index| is_unescaped[*index]).collect();
            sorted.sort_by_key(|index| pairs[*index].0); // stable: of the pairs with one name, the last stays last
            for neighbors in sorted.windows(2) {
                is_unescaped[neighbors[0]] = pairs[neighbors[0]].0 != pairs[neighbors[1]].0;
            }
        }
    }

    /// Writes the user pairs. Returns the number of escaped pairs, and true if an unescaped one is a UNIQ_KEY.
    ///
    /// `start` is the offset of the property string in `out`.
    fn write_user_pairs(&mut self, start: usize, out: &mut Vec<u8>) -> (i64, bool) {
        let (mut escaped_count, mut has_id) = (0, false);
        self.names.clear();
        for (&(name, value), &is_unescaped) in self.pairs.iter().zip(&self.is_unescaped) {
            let at = out.len();
            // Readers take a property with a reserved name for a message field, so a user property gets a prefix. All names that
            // need one start with RESERVED_PREFIX; testing this first is faster.
            let is_reserved = name.starts_with(RESERVED_PREFIX) && needs_user_prefix(name);
            let prefix = if is_reserved { USER_PREFIX } else { b"" };
            let mut length = prefix.len() + name.len();
            if is_unescaped {
                out.extend_from_slice(prefix);
                write_pair(name, value, out);
                has_id |= name == UNIQ_KEY;
            } else {
                write_escaped(escaped_count, prefix, name, value, out);
                escaped_count += 1;
                length = out[at..].iter().position(|byte| *byte == NAME_END).expect("write_escaped writes NAME_END");
            }
            self.names.push((at - start, length));
        }
        (escaped_count, has_id)
    }

    /// Writes the system properties.
    fn write_system(&mut self, message: &Message, delay: Option<Delay>, sharded: bool, out: &mut Vec<u8>) {
        if let Some((name, number)) = delay {
            self.scratch.clear();
            crate::text::write_number(number, &mut self.scratch);
            write_pair(name, &self.scratch, out);
        }
        if let Some(tag) = message.msg_type().filter(|tag| is_writable(tag)) {
            write_pair(TAGS, tag, out);
        }
        if are_keys_writable(message) {
            out.extend_from_slice(KEYS);
            out.push(NAME_END);
            for (index, key) in message.keys().enumerate() {
                if index > 0 {
                    out.push(b' ');
                }
                out.extend_from_slice(key);
            }
            out.push(VALUE_END);
        }
        if let Key::Text(key) = message.key()
            && is_writable(key)
            && (sharded || !is_key_derived(message))
        {
            write_pair(SHARDING_KEY, key, out);
        }
    }

    /// Writes the pairs that only gateways write: the fields that `write_system` did not write exactly, and the origin.
    ///
    /// There is always at least one: GATEWAY_MARKER if there is no other. `escaped_count` is the number of escaped user pairs.
    fn write_carried(
        &mut self,
        message: &Message,
        origin: Option<&[u8]>,
        delay: Option<Delay>,
        escaped_count: i64,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        let scratch = &mut self.scratch;
        let mut sink = ReservedPairSink { escaped_count, out };
        carry_field(message, Field::OrderingKey, scratch, &mut sink);
        carry_field(message, Field::Attributes, scratch, &mut sink);
        carry_field(message, Field::EventTime, scratch, &mut sink);
        carry_field(message, Field::Payload, scratch, &mut sink); // writes a pair only for a tombstone, which has no payload
        if message.msg_type().is_some_and(|tag| !is_writable(tag)) {
            carry_field(message, Field::MsgType, scratch, &mut sink);
        }
        if message.keys().len() > 0 && !(are_keys_writable(message) && message.keys().all(|key| !key.contains(&b' '))) {
            carry_field(message, Field::Keys, scratch, &mut sink);
        }
        let key = message.key();
        if !(matches!(key, Key::Text(text) if is_writable(text)) || is_key_derived(message)) {
            carry_field(message, Field::Key, scratch, &mut sink);
        }
        if !matches!(delay, Some((TIMER_DELIVER_MS, _))) {
            carry_field(message, Field::DeliverAt, scratch, &mut sink);
        }
        if message.payload().is_some_and(<[u8]>::is_empty) {
            sink.add(EMPTY, b"1"); // the body is one zero byte, as for a tombstone
        }
        if key == Key::None && !is_key_derived(message) {
            sink.add(WITHOUT, b"key"); // otherwise `read_block` derives a key from the index keys
        }
        origin_properties(message, origin, scratch, &mut sink);
        if out.len() == start {
            write_pair(GATEWAY_MARKER, b"1", out);
        }
    }

    /// Writes the property ORDER, with which readers restore the order of the user pairs.
    ///
    /// `start` is the offset of the property string in `out`.
    fn write_order(&mut self, start: usize, out: &mut Vec<u8>) {
        let string = &out[start..];
        let names: Vec<&[u8]> = self.names.iter().map(|(at, length)| &string[*at..at + length]).collect();
        self.scratch.clear();
        write_order(&names, &mut self.scratch);
        write_pair(ORDER, &self.scratch, out);
    }
}

/// Appends reserved pairs to a property string, and escapes those that it cannot hold otherwise.
struct ReservedPairSink<'o> {
    /// The number of pairs escaped before; each escaped name has a number of its own.
    escaped_count: i64,
    out: &'o mut Vec<u8>,
}

impl PairSink for ReservedPairSink<'_> {
    fn add(&mut self, name: &[u8], value: &[u8]) {
        if is_writable(value) {
            write_pair(name, value, self.out);
        } else {
            write_escaped(self.escaped_count, b"", name, value, self.out);
            self.escaped_count += 1;
        }
    }
}

/// Parses the value of FLAG; 0 if it is not a 32-bit number.
fn parse_flag(text: &[u8]) -> i32 {
    read_number(text).and_then(|flag| i32::try_from(flag).ok()).unwrap_or(0)
}

/// Returns true if the key is the one that `read_block` derives from the index keys, so that it needs no __SHARDINGKEY.
fn is_key_derived(message: &Message) -> bool {
    let first = message.keys().find(|key| !key.is_empty());
    match message.key() {
        Key::None => first.is_none(),
        Key::Text(key) => first == Some(key),
        Key::Bytes(_) => false,
    }
}

/// Returns true if there are index keys, and KEYS can hold them, joined by blanks.
fn are_keys_writable(message: &Message) -> bool {
    let mut keys = message.keys();
    match keys.len() {
        0 => false,
        1 => keys.all(is_writable),
        _ => keys.all(|key| key.is_empty() || is_writable(key)),
    }
}
