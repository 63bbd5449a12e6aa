//! Encodes messages into send requests: the counterpart of `encode` in `mqbridge/rocketmq/mapping/request.py`.

use std::io::Write;
use std::ops::Range;

use crate::message::Message;
use crate::rocketmq::batch_builder::{Batch, BatchBuilder, Element};
use crate::rocketmq::names::{DELAY, TIMER_DELIVER_MS, UNIQ_KEY};
use crate::rocketmq::write_block::{BlockWriter, Delay, WrittenBlock};
use crate::rocketmq::{NAME_END, PLACEHOLDER, VALUE_END};
use crate::{Error, Result};

/// The longest property string of a message, because its length is a signed 16-bit number.
const MAX_BYTES: usize = 32767;
/// Bytes kept free for the properties that brokers append.
const BROKER_BYTES: usize = 1024;
/// The longest property string that a gateway writes.
const MAX_PROPERTIES_BYTES: usize = MAX_BYTES - BROKER_BYTES;
/// Unique ids per reservation.
pub const IDS_PER_RESERVATION: u32 = 256;

/// Function that reserves IDS_PER_RESERVATION consecutive ids: returns their common prefix and the counter of the first.
///
/// An id is the prefix and its counter as four hex digits.
pub type ReserveIds<'r> = dyn FnMut() -> Result<(Vec<u8>, u32)> + 'r;

/// Limits of a send request (`max_bytes`, `max_messages`), and the broker's limits of one message.
///
/// `max_message_bytes` limits the whole element of a batch, but only the body of a single send. `max_delay_ms` is the longest delay
/// that the broker supports. `levels` are the delays (ms) of a broker that supports only delay levels, with their levels, shortest
/// first. It is empty for a broker that can deliver a message at any time.
pub struct Limits {
    pub max_bytes: i64,
    pub max_messages: i64,
    pub max_message_bytes: i64,
    pub max_delay_ms: i128,
    pub levels: Vec<(i64, i64)>,
}

/// A request with one message that is not in a batch.
///
/// `index` is the message's index among all messages passed to `encode`, `properties` the range of its property string in
/// `Encoded::property_strings`, `flag` a number that the application chose, and `born` the born timestamp (ms). `delayed`: the
/// broker delivers it later.
pub struct SingleSend<'a> {
    pub index: usize,
    pub body: &'a [u8],
    pub properties: Range<usize>,
    pub flag: i32,
    pub born: i64,
    pub delayed: bool,
}

/// The content of one send request.
pub enum Request<'a> {
    Batch(Batch),
    Single(SingleSend<'a>),
}

/// The requests, in order, and the messages that RocketMQ cannot store.
///
/// `elements` are the messages of all batches. `property_strings` contains the property strings of all messages. `failures` are
/// the index and the reason of each message that cannot be stored.
#[derive(Default)]
pub struct Encoded<'a> {
    pub requests: Vec<Request<'a>>,
    pub elements: Vec<Element<'a>>,
    pub property_strings: Vec<u8>,
    pub failures: Vec<(usize, String)>,
}

/// Encodes messages, in order, to batches and single sends.
///
/// `origin` is the prefix of the property `mqbridge.origin` (None: it is not written), and `now` is in ms since the epoch.
/// `reserve_ids` makes the UNIQ_KEY of messages without one (None: they get none).
pub fn encode<'a>(
    messages: impl Iterator<Item = Message<'a>>,
    origin: Option<&[u8]>,
    limits: &Limits,
    now: i64,
    reserve_ids: Option<&mut ReserveIds>,
) -> Result<Encoded<'a>> {
    let mut builder = RequestBuilder {
        origin,
        limits,
        now,
        ids: reserve_ids.map(|reserve_ids| IdEntries { reserve_ids, prefix: Vec::new(), next: 0, remaining: 0 }),
        batch: BatchBuilder::new(limits.max_bytes, limits.max_messages),
        writer: BlockWriter::default(),
        encoded: Encoded::default(),
    };
    for (index, message) in messages.enumerate() {
        builder.add(index, message)?;
    }
    builder.close_batch();
    Ok(builder.encoded)
}

/// Encodes messages, and collects the requests for them and the failures of those that cannot be sent.
struct RequestBuilder<'r, 'i, 'a> {
    origin: Option<&'r [u8]>,
    limits: &'r Limits,
    /// ms since the epoch.
    now: i64,
    ids: Option<IdEntries<'r, 'i>>,
    batch: BatchBuilder,
    writer: BlockWriter<'a>,
    encoded: Encoded<'a>,
}

impl<'a> RequestBuilder<'_, '_, 'a> {
    /// Adds a message to the requests or to the failures.
    fn add(&mut self, index: usize, message: Message<'a>) -> Result<()> {
        if let Some(defect) = message.defect() {
            self.refuse(index, format!("it could not be read: {}", String::from_utf8_lossy(defect)));
            return Ok(());
        }
        if message.deliver_at().is_some_and(|time| time > self.now) {
            return self.add_delayed(index, message);
        }
        let start = self.encoded.property_strings.len();
        let WrittenBlock { flag, has_id } =
            self.writer.write_block(&message, self.origin, /* alone */ false, None, &mut self.encoded.property_strings);
        let length = self.encoded.property_strings.len() - start; // without the new id, which BROKER_BYTES has room for
        self.add_id(has_id)?;
        let body = body_of(&message);
        let element = Element { flag, body, properties: start..self.encoded.property_strings.len() };
        if length > MAX_PROPERTIES_BYTES {
            self.encoded.property_strings.truncate(start);
            self.refuse(index, too_many_bytes(length));
        } else if element.size() as i64 > self.limits.max_message_bytes {
            // With the framing of a batch, the message would exceed the broker's limit.
            self.encoded.property_strings.truncate(start);
            self.add_alone(index, message, None)?;
        } else if i32::try_from(element.size()).is_err() {
            return Err(Error::Unsupported); // the caller then encodes all messages in Python
        } else {
            let finished = self.batch.add(index, self.born_at(&message), element, &mut self.encoded.elements);
            self.encoded.requests.extend(finished.map(Request::Batch));
        }
        Ok(())
    }

    /// Appends a UNIQ_KEY to the property string that was just written, only if it has none, because Java reads the last of
    /// several.
    fn add_id(&mut self, has_id: bool) -> Result<()> {
        match &mut self.ids {
            Some(ids) if !has_id => ids.write_next(&mut self.encoded.property_strings),
            _ => Ok(()),
        }
    }

    /// Adds a message, whose delivery time is in the future, as a single send with a timer or a delay level.
    fn add_delayed(&mut self, index: usize, message: Message<'a>) -> Result<()> {
        match self.limits.delay_property(message.deliver_at().unwrap_or(0), self.now) {
            Ok(delay) => self.add_alone(index, message, Some(delay)),
            Err(reason) => {
                self.refuse(index, reason);
                Ok(())
            }
        }
    }

    /// Adds a message as a single send; `delay` is the property that delays it, if any.
    fn add_alone(&mut self, index: usize, message: Message<'a>, delay: Option<Delay>) -> Result<()> {
        let (body, max_bytes) = (body_of(&message), self.limits.max_message_bytes);
        if body.len() as i64 > max_bytes {
            let length = body.len();
            self.refuse(index, format!("its payload has {length} bytes, the broker takes {max_bytes} (maxMessageSize)"));
            return Ok(());
        }
        let start = self.encoded.property_strings.len();
        let WrittenBlock { flag, has_id } =
            self.writer.write_block(&message, self.origin, /* alone */ true, delay, &mut self.encoded.property_strings);
        let length = self.encoded.property_strings.len() - start;
        if length > MAX_PROPERTIES_BYTES {
            self.encoded.property_strings.truncate(start);
            self.refuse(index, too_many_bytes(length));
            return Ok(());
        }
        self.close_batch();
        self.add_id(has_id)?;
        let properties = start..self.encoded.property_strings.len();
        let (born, delayed) = (self.born_at(&message), delay.is_some());
        self.encoded.requests.push(Request::Single(SingleSend { index, body, properties, flag, born, delayed }));
        Ok(())
    }

    /// Records that the message can never be sent. The current batch ends, because its messages must be consecutive.
    fn refuse(&mut self, index: usize, reason: String) {
        self.close_batch();
        self.encoded.failures.push((index, reason));
    }

    /// Finishes the current batch and adds its request.
    fn close_batch(&mut self) {
        let finished = self.batch.close(self.encoded.elements.len());
        self.encoded.requests.extend(finished.map(Request::Batch));
    }

    /// Returns the born timestamp (ms) of a request that begins with this message: its event time, or `now` if it has none
    /// that is positive: brokers refuse others.
    fn born_at(&self, message: &Message) -> i64 {
        message.event_time().filter(|time| *time > 0).unwrap_or(self.now)
    }
}

/// Returns the body to send: the payload, or PLACEHOLDER for a missing or empty payload.
fn body_of<'a>(message: &Message<'a>) -> &'a [u8] {
    message.payload().filter(|payload| !payload.is_empty()).unwrap_or(PLACEHOLDER)
}

/// Returns the reason for refusing a property string of this length, which is more than MAX_PROPERTIES_BYTES.
fn too_many_bytes(length: usize) -> String {
    format!(
        "it has {length} bytes of properties, RocketMQ holds {MAX_BYTES} \
         and {BROKER_BYTES} of these are left to what the broker adds"
    )
}

impl Limits {
    /// Returns the property that makes the broker delay a message until `deliver_at`; times are in ms.
    ///
    /// With delay levels, the level is the shortest that is long enough. If the delay is longer than the broker supports, it
    /// returns the reason for refusing the message.
    fn delay_property(&self, deliver_at: i64, now: i64) -> std::result::Result<Delay, String> {
        let (wait_ms, max_delay_ms) = (i128::from(deliver_at) - i128::from(now), self.max_delay_ms);
        if wait_ms > max_delay_ms {
            let setting = if self.levels.is_empty() { "timerMaxDelaySec" } else { "messageDelayLevel" };
            return Err(format!(
                "it is due in {wait_ms} ms, the broker holds messages for {max_delay_ms} ms at most ({setting})"
            ));
        }
        // The last level is never too short, because `max_delay_ms` is its delay.
        let index = self.levels.partition_point(|(delay, _)| i128::from(*delay) < wait_ms);
        Ok(match self.levels.get(index).or(self.levels.last()) {
            None => (TIMER_DELIVER_MS, deliver_at),
            Some((_, level)) => (DELAY, *level),
        })
    }
}

/// Writes entries for property strings, each with a new UNIQ_KEY.
struct IdEntries<'r, 'i> {
    reserve_ids: &'r mut ReserveIds<'i>,
    /// The name UNIQ_KEY, NAME_END, and the common prefix of the reserved ids.
    prefix: Vec<u8>,
    /// Counter of the next id.
    next: u32,
    /// Number of reserved ids that are not used yet.
    remaining: u32,
}

impl IdEntries<'_, '_> {
    /// Appends an entry with the next id.
    fn write_next(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if self.remaining == 0 {
            let (id_prefix, first) = (self.reserve_ids)()?;
            self.prefix.clear();
            self.prefix.extend_from_slice(UNIQ_KEY);
            self.prefix.push(NAME_END);
            self.prefix.extend_from_slice(&id_prefix);
            (self.next, self.remaining) = (first, IDS_PER_RESERVATION);
        }
        out.extend_from_slice(&self.prefix);
        write_hex(self.next, out);
        out.push(VALUE_END);
        (self.next, self.remaining) = (self.next.checked_add(1).ok_or(Error::Unsupported)?, self.remaining - 1);
        Ok(())
    }
}

/// Appends a number as hex digits, at least four.
fn write_hex(number: u32, out: &mut Vec<u8>) {
    if number > 0xFFFF {
        write!(out, "{number:X}").expect("a vector takes everything");
        return;
    }
    let digits = [12, 8, 4, 0].map(|shift| b"0123456789ABCDEF"[(number >> shift & 15) as usize]);
    out.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Row, Slice, Source, Store};
    use crate::rocketmq::batch_builder::write_batch;

    const NOW: i64 = 1_800_000_000_000;

    /// Messages with these payloads and times of delivery, all with the property `a=1`.
    fn store(messages: &[(&[u8], Option<i64>)]) -> Store {
        let mut store = Store::new();
        let source = store.add_source(Source::Owned(b"a1".to_vec()));
        store.pairs.push((Slice::of(source, 0, 1), Slice::of(source, 1, 2)));
        for (payload, deliver_at) in messages {
            let payload = Some(store.copy(payload));
            store.rows.push(Row { payload, pairs: (0, 1), deliver_at: *deliver_at, event_time: Some(7), ..Row::default() });
        }
        store
    }

    fn limits() -> Limits {
        Limits { max_bytes: 1000, max_messages: 2, max_message_bytes: 200, max_delay_ms: 50, levels: Vec::new() }
    }

    fn batch_body(encoded: &Encoded, index: usize) -> Vec<u8> {
        let Request::Batch(batch) = &encoded.requests[index] else { panic!("no batch") };
        let mut out = vec![0; batch.size];
        write_batch(&encoded.elements[batch.elements.clone()], &encoded.property_strings, &mut out);
        out
    }

    #[test]
    fn a_batch_has_the_bytes_of_the_protocol() {
        let store = store(&[(b"", None)]);
        let mut reserve_ids = || Ok((b"ID".to_vec(), 0xA));
        let encoded = encode(store.messages(), Some(b"c|t|p|"), &limits(), NOW, Some(&mut reserve_ids)).unwrap();
        let properties: &[u8] =
            b"a\x011\x02mqbridge.event_time\x017\x02mqbridge.empty\x011\x02mqbridge.origin\x01c|t|p|\x02UNIQ_KEY\x01ID000A\x02";
        let mut expected = Vec::new();
        for number in [23 + properties.len() as u32, 0, 0, 0, 1] {
            expected.extend_from_slice(&number.to_be_bytes());
        }
        expected.push(0);
        expected.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        expected.extend_from_slice(properties);
        assert_eq!(batch_body(&encoded, 0), expected);
    }

    #[test]
    fn messages_are_divided_into_batches_single_sends_and_failures() {
        let large = [0; 190];
        let store =
            store(&[(b"1", None), (b"2", None), (b"3", None), (&large, None), (b"5", Some(NOW + 50)), (b"6", Some(NOW + 51))]);
        let encoded = encode(store.messages(), None, &limits(), NOW, None).unwrap();
        let contents = encoded.requests.iter().map(|request| match request {
            Request::Batch(batch) => (batch.first_index, batch.elements.len(), false),
            Request::Single(single) => (single.index, 1, single.delayed),
        });
        assert_eq!(contents.collect::<Vec<_>>(), [(0, 2, false), (2, 1, false), (3, 1, false), (4, 1, true)]);
        let reason = "it is due in 51 ms, the broker holds messages for 50 ms at most (timerMaxDelaySec)";
        assert_eq!(encoded.failures, [(5, reason.to_string())]);
    }

    #[test]
    fn the_shortest_level_that_is_long_enough_is_used() {
        let limits = Limits { max_delay_ms: 100, levels: vec![(10, 1), (50, 3), (100, 2)], ..limits() };
        let levels = [1, 10, 11, 50, 99, 100].map(|wait| limits.delay_property(NOW + wait, NOW).unwrap());
        assert_eq!(levels, [1, 1, 3, 3, 2, 2].map(|level| (DELAY, level)));
        assert!(limits.delay_property(NOW + 101, NOW).is_err());
    }

    #[test]
    fn ids_are_reserved_again_when_all_are_used() {
        let mut reservations = [(b"A".to_vec(), 0xFFFE), (b"B".to_vec(), 0)].into_iter();
        let mut reserve_ids = || Ok(reservations.next().expect("two reservations are enough"));
        let mut ids = IdEntries { reserve_ids: &mut reserve_ids, prefix: Vec::new(), next: 0, remaining: 0 };
        let mut entry = Vec::new();
        for _ in 0..=IDS_PER_RESERVATION {
            entry.clear();
            ids.write_next(&mut entry).unwrap();
        }
        assert_eq!(entry, b"UNIQ_KEY\x01B0000\x02");
        let mut digits = Vec::new();
        write_hex(0x1_0000, &mut digits);
        assert_eq!(digits, b"10000");
    }
}
