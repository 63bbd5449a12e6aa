//! Messages into send requests: the counterpart of `mqbridge/tubemq/mapping/request.py` and the writing half of `properties.py`.

use memchr::memmem;

use crate::Result;
use crate::message::{MSG_TIME, MSG_TYPE, Message, RESERVED_PREFIX, Store};
use crate::reserved::{Field, USER_PREFIX, WITHOUT, carry_field, needs_user_prefix, origin_properties};
use crate::text::is_utf8;
use crate::tubemq::decode::{LENGTH_BYTES, Minutes, is_appended, items};
use crate::tubemq::escapes::{MARKER, escape, escape_text};

/// The fields that no native pair says, a missing payload among them; `origin_properties` writes the other two.
const ALWAYS_CARRIED: [Field; 5] = [Field::Key, Field::OrderingKey, Field::Keys, Field::DeliverAt, Field::Payload];

/// `$msgTime$` by seconds since the epoch; None for a time that it cannot express.
pub trait MinuteTexts {
    /// Appends the text; false for none.
    fn write(&mut self, second: i64, out: &mut Vec<u8>) -> Result<bool>;
}

/// The fields of a send request that come from a message, where they lie in `Encoder::bytes`; the body is the message's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// None for a message without an attribute block.
    pub block: Option<(usize, usize)>,
    pub time: Option<(usize, usize)>,
}

impl Request {
    /// How many bytes of `data` stand before the body.
    pub fn block_size(&self) -> usize {
        self.block.map_or(0, |(start, end)| LENGTH_BYTES + end - start)
    }

    /// Writes `data`, which is as long as block and body; `bytes` are the encoder's.
    pub fn write_data(&self, bytes: &[u8], body: &[u8], out: &mut [u8]) {
        let (front, rest) = out.split_at_mut(self.block_size());
        rest.copy_from_slice(body);
        if let Some((start, end)) = self.block {
            front[..LENGTH_BYTES].copy_from_slice(&((end - start) as u32).to_be_bytes());
            front[LENGTH_BYTES..].copy_from_slice(&bytes[start..end]);
        }
    }
}

/// Encodes messages one by one; their attribute strings and times lie in `bytes`.
pub struct Encoder<'a, Z> {
    pub bytes: Vec<u8>,
    prefix: Option<&'a [u8]>,
    zone: &'a mut Z,
    ours: memmem::Finder<'static>,
    scratch: Vec<u8>,
}

impl<'a, Z: Minutes + MinuteTexts> Encoder<'a, Z> {
    /// `prefix`: what the origins begin with, None for messages that keep theirs.
    pub fn new(prefix: Option<&'a [u8]>, zone: &'a mut Z) -> Self {
        Encoder { bytes: Vec::new(), prefix, zone, ours: memmem::Finder::new(RESERVED_PREFIX), scratch: Vec::new() }
    }

    /// The request of a message, which has no defect.
    pub fn add(&mut self, message: &Message) -> Result<Request> {
        let time = self.write_time(message)?;
        let start = self.bytes.len();
        let is_written = self.write_block(message, time)?;
        Ok(Request { block: is_written.then_some((start, self.bytes.len())), time })
    }

    fn write_time(&mut self, message: &Message) -> Result<Option<(usize, usize)>> {
        let Some(ms) = message.event_time() else { return Ok(None) };
        let start = self.bytes.len();
        let is_written = self.zone.write(ms.div_euclid(1000), &mut self.bytes)?;
        Ok(is_written.then_some((start, self.bytes.len())))
    }

    /// Appends the attribute string; false for a message without one.
    fn write_block(&mut self, message: &Message, time: Option<(usize, usize)>) -> Result<bool> {
        let start = self.bytes.len();
        if let Some(attributes) = message.attributes()
            && self.is_unchanged(message, attributes)?
        {
            self.bytes.extend_from_slice(attributes);
            self.write_unsaid(message, start)?;
            return Ok(true);
        }
        for (name, value) in message.properties() {
            write_user_pair(name, value, &mut self.bytes);
            self.bytes.push(b',');
        }
        self.bytes.extend_from_slice(MARKER);
        let marked = self.bytes.len();
        self.write_ours(message, time, start);
        // The broker refuses a message of no bytes at all; the marker alone makes an empty body one with bytes.
        let is_bare = self.bytes.len() == marked && marked - start == MARKER.len();
        if is_bare && message.payload().is_some_and(|body| !body.is_empty()) {
            self.bytes.truncate(start);
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether the attribute string still says what the message says, and would be read as the user's.
    ///
    /// A route may have edited properties or type.
    fn is_unchanged(&self, message: &Message, attributes: &[u8]) -> Result<bool> {
        if self.ours.find(attributes).is_some() && is_ours(message, attributes) {
            return Ok(false);
        }
        let known = is_utf8(attributes);
        let mut pairs = message.properties();
        let mut msg_type = None;
        for (begin, end) in items(attributes) {
            let item = &attributes[begin..end];
            let Some(at) = memchr::memchr(b'=', item).filter(|at| *at > 0 && (known || is_utf8(item))) else { continue };
            let (name, value) = (&item[..at], &item[at + 1..]);
            if pairs.next() != Some((name, value)) {
                return Ok(false);
            }
            if msg_type.is_none() && name == MSG_TYPE {
                msg_type = Some(value);
            }
        }
        Ok(pairs.next().is_none() && msg_type == message.msg_type())
    }

    /// Appends the fields that the attribute string does not say. A time that it alone says is the message's, exact as it is.
    fn write_unsaid(&mut self, message: &Message, start: usize) -> Result<()> {
        let is_said = match (message.event_time(), message.property(MSG_TIME)) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(time), Some(minute)) => self.zone.read(minute)? == Some(time),
        };
        let (bytes, scratch) = (&mut self.bytes, &mut self.scratch);
        let mut append = |name: &[u8], value: &[u8]| append(bytes, start, name, value);
        for field in ALWAYS_CARRIED {
            carry_field(message, field, scratch, &mut append);
        }
        if !is_said {
            carry_field(message, Field::EventTime, scratch, &mut append);
        }
        origin_properties(message, self.prefix, scratch, &mut append);
        Ok(())
    }

    /// Appends the pairs that follow the marker.
    fn write_ours(&mut self, message: &Message, time: Option<(usize, usize)>, start: usize) {
        let said_type = message.property(MSG_TYPE);
        let time = match time {
            Some((begin, end)) if message.property(MSG_TIME).is_none() => {
                self.scratch.clear();
                self.scratch.extend_from_slice(&self.bytes[begin..end]);
                true
            }
            _ => false,
        };
        let (bytes, scratch) = (&mut self.bytes, &mut self.scratch);
        let mut append = |name: &[u8], value: &[u8]| append(bytes, start, name, value);
        match message.msg_type() {
            None if said_type.is_some() => append(WITHOUT, b"msg_type"),
            Some(msg_type) if said_type != Some(msg_type) => append(MSG_TYPE, msg_type),
            _ => {}
        }
        if time {
            append(MSG_TIME, scratch);
        }
        for field in ALWAYS_CARRIED.into_iter().chain([Field::EventTime, Field::Attributes]) {
            carry_field(message, field, scratch, &mut append);
        }
        origin_properties(message, self.prefix, scratch, &mut append);
    }
}

/// Appends an escaped pair to the attribute string that begins at `start`.
fn append(bytes: &mut Vec<u8>, start: usize, name: &[u8], value: &[u8]) {
    if bytes.len() > start {
        bytes.push(b',');
    }
    escape(name, value, bytes);
}

/// Appends the item of a user's pair, renamed where its name is reserved.
fn write_user_pair(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    if !needs_user_prefix(name) {
        return escape(name, value, out);
    }
    out.extend_from_slice(USER_PREFIX);
    escape_text(name, out);
    out.push(b'=');
    escape_text(value, out);
}

/// Whether a string with our names in it would be read as a gateway's.
fn is_ours(message: &Message, attributes: &[u8]) -> bool {
    if items(attributes).any(|(begin, end)| &attributes[begin..end] == MARKER) {
        return true;
    }
    let begin = memchr::memrchr(b',', attributes).map_or(0, |comma| comma + 1);
    let mut store = Store::new();
    let last = store.copy(&attributes[begin..]);
    is_appended(&mut store, last, message.payload().is_none_or(|body| body.is_empty()))
}
