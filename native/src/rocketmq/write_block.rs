//! The property string of a message: `write_block` of `mqbridge/rocketmq/mapping/write_block.py`.

use crate::message::{Key, Message, RESERVED_PREFIX};
use crate::reserved::{Field, GATEWAY_MARKER, PairSink, USER_PREFIX, WITHOUT, carry_field, needs_user_prefix, origin_properties};
use crate::rocketmq::broker_order::write_order;
use crate::rocketmq::escapes::{fits, write_escaped, write_pair};
use crate::rocketmq::names::{KEYS, SHARDING_KEY, TAGS, TIMER_DELIVER_MS, UNIQ_KEY, is_plain};
use crate::rocketmq::{EMPTY, FLAG, NAME_END, ORDER, SHARDED, VALUE_END};
use crate::text::read_number;

/// The pair that makes the broker hold a message.
pub type Delay = (&'static [u8], i64);

type Pair<'a> = (&'a [u8], &'a [u8]);

/// What `BlockWriter::write` says of a string that it wrote.
pub struct Written {
    pub flag: i32,
    /// The message has a UNIQ_KEY.
    pub has_id: bool,
}

/// Writes property strings; its vectors are used again for the next.
#[derive(Default)]
pub struct BlockWriter<'a> {
    pairs: Vec<Pair<'a>>,
    /// Of each pair whether it is written as it is.
    is_plain: Vec<bool>,
    /// Where the names of the user's pairs are in the string.
    names: Vec<(usize, usize)>,
    scratch: Vec<u8>,
}

impl<'a> BlockWriter<'a> {
    /// Appends the property string. `prefix` is what a new origin begins with; `is_alone`: the message is sent by itself, so its
    /// broker reorders the properties.
    pub fn write(
        &mut self,
        message: &Message<'a>,
        prefix: Option<&[u8]>,
        is_alone: bool,
        delay: Option<Delay>,
        out: &mut Vec<u8>,
    ) -> Written {
        self.pairs.clear();
        self.pairs.extend(message.properties());
        let (flag, is_sharded) = self.take_synthetic(message);
        self.find_plain();
        let start = out.len();
        let (escapes, has_id) = self.write_users(start, out);
        self.write_native(message, delay, is_sharded, out);
        self.write_ours(message, prefix, delay, escapes, out);
        if is_alone {
            self.write_order(start, out);
        }
        Written { flag, has_id }
    }

    /// Takes off the properties that a reader adds again: gives the flag, and whether __SHARDINGKEY stands beside KEYS.
    fn take_synthetic(&mut self, message: &Message) -> (i32, bool) {
        let mut flag = 0;
        if let Some(value) = self.last_value(FLAG) {
            flag = read_flag(value);
            if flag != 0 {
                self.pairs.pop();
            }
        }
        let is_sharded =
            self.last_value(SHARDED) == Some(b"1") && matches!(message.key(), Key::Text(key) if fits(key)) && is_derived(message);
        if is_sharded {
            self.pairs.pop();
        }
        (flag, is_sharded)
    }

    /// The value of the last property if it and no other has this name.
    fn last_value(&self, name: &[u8]) -> Option<&'a [u8]> {
        let ((found, value), others) = self.pairs.split_last()?;
        (*found == name && others.iter().all(|(other, _)| *other != name)).then_some(value)
    }

    /// Notes which pairs are written as they are: of those with one name the last that can be, as it is what readers find.
    fn find_plain(&mut self) {
        const FEW: usize = 24;
        self.is_plain.clear();
        self.is_plain.extend(self.pairs.iter().map(|(name, value)| fits(name) && fits(value) && is_plain(name)));
        let (pairs, is_plain) = (&self.pairs, &mut self.is_plain);
        if pairs.len() <= FEW {
            for index in 0..pairs.len() {
                let name = pairs[index].0;
                let again = (index + 1..pairs.len()).any(|later| pairs[later].0 == name && is_plain[later]);
                is_plain[index] &= !again;
            }
        } else {
            let mut sorted: Vec<usize> = (0..pairs.len()).filter(|index| is_plain[*index]).collect();
            sorted.sort_by_key(|index| pairs[*index].0); // stable: of one name the last stays last
            for two in sorted.windows(2) {
                is_plain[two[0]] = pairs[two[0]].0 != pairs[two[1]].0;
            }
        }
    }

    /// Writes the user's pairs; gives how many were escaped, and whether a UNIQ_KEY is among the others.
    fn write_users(&mut self, start: usize, out: &mut Vec<u8>) -> (i64, bool) {
        let (mut escapes, mut has_id) = (0, false);
        self.names.clear();
        for (&(name, value), &is_plain) in self.pairs.iter().zip(&self.is_plain) {
            let at = out.len();
            let is_reserved = name.starts_with(RESERVED_PREFIX) && needs_user_prefix(name);
            let prefix = if is_reserved { USER_PREFIX } else { b"" };
            let mut length = prefix.len() + name.len();
            if is_plain {
                out.extend_from_slice(prefix);
                write_pair(name, value, out);
                has_id |= name == UNIQ_KEY;
            } else {
                write_escaped(escapes, prefix, name, value, out);
                escapes += 1;
                length = out[at..].iter().position(|byte| *byte == NAME_END).expect("a name ends");
            }
            self.names.push((at - start, length));
        }
        (escapes, has_id)
    }

    /// Writes the system's own properties.
    fn write_native(&mut self, message: &Message, delay: Option<Delay>, is_sharded: bool, out: &mut Vec<u8>) {
        if let Some((name, number)) = delay {
            self.scratch.clear();
            crate::text::write_number(number, &mut self.scratch);
            write_pair(name, &self.scratch, out);
        }
        if let Some(tag) = message.msg_type().filter(|tag| fits(tag)) {
            write_pair(TAGS, tag, out);
        }
        if is_joinable(message) {
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
            && fits(key)
            && (is_sharded || !is_derived(message))
        {
            write_pair(SHARDING_KEY, key, out);
        }
    }

    /// Writes what only gateways write: the fields that no property of the system says, or not exactly, and the origin.
    fn write_ours(&mut self, message: &Message, prefix: Option<&[u8]>, delay: Option<Delay>, escapes: i64, out: &mut Vec<u8>) {
        let start = out.len();
        let scratch = &mut self.scratch;
        let mut sink = ReservedPairSink { escapes, out };
        carry_field(message, Field::OrderingKey, scratch, &mut sink);
        carry_field(message, Field::Attributes, scratch, &mut sink);
        carry_field(message, Field::EventTime, scratch, &mut sink);
        carry_field(message, Field::Payload, scratch, &mut sink);
        if message.msg_type().is_some_and(|tag| !fits(tag)) {
            carry_field(message, Field::MsgType, scratch, &mut sink);
        }
        if message.keys().len() > 0 && !(is_joinable(message) && message.keys().all(|key| !key.contains(&b' '))) {
            carry_field(message, Field::Keys, scratch, &mut sink);
        }
        let key = message.key();
        if !(matches!(key, Key::Text(text) if fits(text)) || is_derived(message)) {
            carry_field(message, Field::Key, scratch, &mut sink);
        }
        if !matches!(delay, Some((TIMER_DELIVER_MS, _))) {
            carry_field(message, Field::DeliverAt, scratch, &mut sink);
        }
        if message.payload().is_some_and(<[u8]>::is_empty) {
            sink.add(EMPTY, b"1");
        }
        if key == Key::None && !is_derived(message) {
            sink.add(WITHOUT, b"key");
        }
        origin_properties(message, prefix, scratch, &mut sink);
        if out.len() == start {
            write_pair(GATEWAY_MARKER, b"1", out);
        }
    }

    fn write_order(&mut self, start: usize, out: &mut Vec<u8>) {
        let string = &out[start..];
        let names: Vec<&[u8]> = self.names.iter().map(|(at, length)| &string[*at..at + length]).collect();
        self.scratch.clear();
        write_order(&names, &mut self.scratch);
        write_pair(ORDER, &self.scratch, out);
    }
}

/// Writes pairs of the gateway's, escaped where need be.
struct ReservedPairSink<'o> {
    escapes: i64,
    out: &'o mut Vec<u8>,
}

impl PairSink for ReservedPairSink<'_> {
    fn add(&mut self, name: &[u8], value: &[u8]) {
        if fits(value) {
            write_pair(name, value, self.out);
        } else {
            write_escaped(self.escapes, b"", name, value, self.out);
            self.escapes += 1;
        }
    }
}

fn read_flag(text: &[u8]) -> i32 {
    read_number(text).and_then(|flag| i32::try_from(flag).ok()).unwrap_or(0)
}

/// Whether a reader takes the key from the index keys.
fn is_derived(message: &Message) -> bool {
    let first = message.keys().find(|key| !key.is_empty());
    match message.key() {
        Key::None => first.is_none(),
        Key::Text(key) => first == Some(key),
        Key::Bytes(_) => false,
    }
}

/// Whether KEYS can hold the keys joined by blanks.
fn is_joinable(message: &Message) -> bool {
    let mut keys = message.keys();
    match keys.len() {
        0 => false,
        1 => keys.all(fits),
        _ => keys.all(|key| key.is_empty() || fits(key)),
    }
}
