//! Encodes messages into send requests: the counterpart of `mqbridge/tubemq/mapping/request.py` and of the writing half of
//! `properties.py`.
//!
//! An attribute string has one of two forms: the user's own string with reserved pairs appended, or a string built from the
//! properties, in which the item MARKER follows the user's pairs, and all other pairs follow MARKER.

use memchr::memmem;

use crate::Result;
use crate::message::{MSG_TIME, MSG_TYPE, Message, RESERVED_PREFIX, Store};
use crate::reserved::{Field, USER_PREFIX, WITHOUT, carry_field, needs_user_prefix, origin_properties};
use crate::text::is_utf8;
use crate::tubemq::decode::{LENGTH_BYTES, MsgTimes, is_appended, items};
use crate::tubemq::escapes::{MARKER, escape_text, format_item};

/// Fields that both forms write as reserved pairs; Payload writes one only for a tombstone. `origin_properties` writes origin
/// and hops.
const ALWAYS_CARRIED: [Field; 5] = [Field::Key, Field::OrderingKey, Field::Keys, Field::DeliverAt, Field::Payload];

/// Formatter of `$msgTime$` values in the cluster's time zone.
pub trait MsgTimeTexts {
    /// Appends the value for a second since the epoch. Returns false if `$msgTime$` cannot express this time.
    fn write(&mut self, second: i64, out: &mut Vec<u8>) -> Result<bool>;
}

/// The encoded parts of a send request: start and end offsets in `Encoder::bytes`. The body is not copied until `write_data`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// The attribute string; None if the request has none.
    pub attributes: Option<(usize, usize)>,
    /// The `$msgTime$` value; None if the message has no event time, or one that `$msgTime$` cannot express.
    pub msg_time: Option<(usize, usize)>,
}

impl Request {
    /// Returns the size of the attribute block: the attribute string with its length field, before the body; 0 if there is none.
    pub fn block_size(&self) -> usize {
        self.attributes.map_or(0, |(start, end)| LENGTH_BYTES + end - start)
    }

    /// Writes the data field of the request; `out` has exactly the size of the attribute block and the body.
    ///
    /// `bytes` is `Encoder::bytes`.
    pub fn write_data(&self, bytes: &[u8], body: &[u8], out: &mut [u8]) {
        let (block, body_out) = out.split_at_mut(self.block_size());
        body_out.copy_from_slice(body);
        if let Some((start, end)) = self.attributes {
            block[..LENGTH_BYTES].copy_from_slice(&((end - start) as u32).to_be_bytes());
            block[LENGTH_BYTES..].copy_from_slice(&bytes[start..end]);
        }
    }
}

/// Encodes messages one after the other. `bytes` contains their attribute strings and `$msgTime$` values.
pub struct Encoder<'a, Z> {
    pub bytes: Vec<u8>,
    origin_prefix: Option<&'a [u8]>,
    /// Parses and formats `$msgTime$` values.
    zone: &'a mut Z,
    /// Finds RESERVED_PREFIX.
    prefix_finder: memmem::Finder<'static>,
    /// A buffer for formatted values.
    scratch: Vec<u8>,
}

impl<'a, Z: MsgTimes + MsgTimeTexts> Encoder<'a, Z> {
    /// An origin is `origin_prefix` and the message's position; with None, messages keep their own origin.
    pub fn new(origin_prefix: Option<&'a [u8]>, zone: &'a mut Z) -> Self {
        Encoder {
            bytes: Vec::new(),
            origin_prefix,
            zone,
            prefix_finder: memmem::Finder::new(RESERVED_PREFIX),
            scratch: Vec::new(),
        }
    }

    /// Encodes a message, which must have no defect.
    pub fn add(&mut self, message: &Message) -> Result<Request> {
        let msg_time = self.write_msg_time(message)?;
        let start = self.bytes.len();
        let has_attributes = self.write_attributes(message, msg_time)?;
        Ok(Request { attributes: has_attributes.then_some((start, self.bytes.len())), msg_time })
    }

    /// Appends the `$msgTime$` value of a message; returns its start and end offset in `bytes`, None if there is none.
    fn write_msg_time(&mut self, message: &Message) -> Result<Option<(usize, usize)>> {
        let Some(ms) = message.event_time() else { return Ok(None) };
        let start = self.bytes.len();
        let is_written = self.zone.write(ms.div_euclid(1000), &mut self.bytes)?;
        Ok(is_written.then_some((start, self.bytes.len())))
    }

    /// Appends the attribute string of a message, in the appended or in the built form. Returns false if it needs none.
    ///
    /// `msg_time` is where its `$msgTime$` value is in `bytes`.
    fn write_attributes(&mut self, message: &Message, msg_time: Option<(usize, usize)>) -> Result<bool> {
        let start = self.bytes.len();
        if let Some(attributes) = message.attributes()
            && self.is_unchanged(message, attributes)?
        {
            self.bytes.extend_from_slice(attributes);
            self.append_missing_fields(message, start)?;
            return Ok(true);
        }
        for (name, value) in message.properties() {
            write_user_pair(name, value, &mut self.bytes);
            self.bytes.push(b',');
        }
        self.bytes.extend_from_slice(MARKER);
        let marker_end = self.bytes.len();
        self.append_reserved_pairs(message, msg_time, start);
        let is_only_marker = self.bytes.len() == marker_end && marker_end - start == MARKER.len();
        // The Broker refuses a message of zero bytes; if the body is empty, at least the marker is written.
        if is_only_marker && message.payload().is_some_and(|body| !body.is_empty()) {
            self.bytes.truncate(start);
            return Ok(false);
        }
        Ok(true)
    }

    /// Returns true if the attribute string agrees with the message's properties and type, and would be read back the same.
    ///
    /// It does not agree if a route has edited the properties or the type. It would be read differently if it has the marker or
    /// ends with a pair that looks appended.
    fn is_unchanged(&self, message: &Message, attributes: &[u8]) -> Result<bool> {
        if self.prefix_finder.find(attributes).is_some() && looks_written_by_gateway(message, attributes) {
            return Ok(false);
        }
        let all_utf8 = is_utf8(attributes);
        let mut pairs = message.properties();
        let mut msg_type = None;
        for (begin, end) in items(attributes) {
            let item = &attributes[begin..end];
            // An item without a name and `=`, or not in UTF-8, is not a property.
            let Some(at) = memchr::memchr(b'=', item).filter(|at| *at > 0 && (all_utf8 || is_utf8(item))) else { continue };
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

    /// Appends reserved pairs for the fields that TubeMQ has no pair for, and for the event time if `$msgTime$` differs from it.
    ///
    /// `start` is where the attribute string begins in `bytes`.
    fn append_missing_fields(&mut self, message: &Message, start: usize) -> Result<()> {
        // True if the string needs no pair for the event time.
        let is_time_expressed = match (message.event_time(), message.property(MSG_TIME)) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(time), Some(msg_time)) => self.zone.parse(msg_time)? == Some(time),
        };
        let (bytes, scratch) = (&mut self.bytes, &mut self.scratch);
        let mut append = |name: &[u8], value: &[u8]| append_pair(bytes, start, name, value);
        for field in ALWAYS_CARRIED {
            carry_field(message, field, scratch, &mut append);
        }
        if !is_time_expressed {
            carry_field(message, Field::EventTime, scratch, &mut append);
        }
        origin_properties(message, self.origin_prefix, scratch, &mut append);
        Ok(())
    }

    /// Appends the pairs that follow the marker of a built string. `start` is where the string begins in `bytes`.
    fn append_reserved_pairs(&mut self, message: &Message, msg_time: Option<(usize, usize)>, start: usize) {
        let type_property = message.property(MSG_TYPE);
        let needs_msg_time = match msg_time {
            Some((begin, end)) if message.property(MSG_TIME).is_none() => {
                self.scratch.clear();
                self.scratch.extend_from_slice(&self.bytes[begin..end]);
                true
            }
            _ => false,
        };
        let (bytes, scratch) = (&mut self.bytes, &mut self.scratch);
        let mut append = |name: &[u8], value: &[u8]| append_pair(bytes, start, name, value);
        match message.msg_type() {
            None if type_property.is_some() => append(WITHOUT, b"msg_type"), // else the property would be read as the type
            Some(msg_type) if type_property != Some(msg_type) => append(MSG_TYPE, msg_type),
            _ => {}
        }
        if needs_msg_time {
            append(MSG_TIME, scratch);
        }
        for field in ALWAYS_CARRIED.into_iter().chain([Field::EventTime, Field::Attributes]) {
            carry_field(message, field, scratch, &mut append);
        }
        origin_properties(message, self.origin_prefix, scratch, &mut append);
    }
}

/// Appends an escaped pair to the attribute string that begins at `start`, after a comma if it is not the first.
fn append_pair(bytes: &mut Vec<u8>, start: usize, name: &[u8], value: &[u8]) {
    if bytes.len() > start {
        bytes.push(b',');
    }
    format_item(name, value, bytes);
}

/// Appends the item of a user's pair, renamed if its name is reserved.
fn write_user_pair(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    if !needs_user_prefix(name) {
        return format_item(name, value, out);
    }
    out.extend_from_slice(USER_PREFIX);
    escape_text(name, out);
    out.push(b'=');
    escape_text(value, out);
}

/// Returns true if the decoder would take a user's attribute string for one that a gateway wrote, in either of its two forms.
fn looks_written_by_gateway(message: &Message, attributes: &[u8]) -> bool {
    if items(attributes).any(|(begin, end)| &attributes[begin..end] == MARKER) {
        return true;
    }
    let begin = memchr::memrchr(b',', attributes).map_or(0, |comma| comma + 1);
    let mut store = Store::new();
    let last = store.copy(&attributes[begin..]);
    is_appended(&mut store, last, message.payload().is_none_or(|body| body.is_empty()))
}
