//! Messages into send requests: `encode` of `mqbridge/rocketmq/mapping/request.py`.

use std::io::Write;
use std::ops::Range;

use crate::message::Message;
use crate::rocketmq::batch_builder::{Batch, Element, OpenBatch};
use crate::rocketmq::names::{DELAY, TIMER_DELIVER_MS, UNIQ_KEY};
use crate::rocketmq::write_block::{BlockWriter, Delay, Written};
use crate::rocketmq::{NAME_END, PLACEHOLDER, VALUE_END};
use crate::{Error, Result};

const MAX_BYTES: usize = 32767;
/// What brokers append to the properties that they store.
const BROKER_BYTES: usize = 1024;
const MAX_PROPERTIES_BYTES: usize = MAX_BYTES - BROKER_BYTES;
/// Ids that are taken at once.
pub const IDS: u32 = 256;

/// Reserves IDS ids in a row: how all begin, and the first one's counter, which are the last four hex digits.
pub type Reserve<'r> = dyn FnMut() -> Result<(Vec<u8>, u32)> + 'r;

/// What a batch may hold, and what the broker takes of one message; `levels` are its delays (ms) and their levels, sorted.
pub struct Limits {
    pub max_bytes: i64,
    pub max_messages: i64,
    pub max_message_bytes: i64,
    pub max_delay_ms: i128,
    pub levels: Vec<(i64, i64)>,
}

/// A message that is sent by itself.
pub struct Alone<'a> {
    pub index: usize,
    pub body: &'a [u8],
    pub properties: Range<usize>,
    pub flag: i32,
    pub born: i64,
    pub is_delayed: bool,
}

pub enum Request<'a> {
    Batch(Batch),
    Alone(Alone<'a>),
}

/// Requests in order, and which messages RocketMQ cannot hold and why; `strings` are the properties of all.
#[derive(Default)]
pub struct Encoded<'a> {
    pub requests: Vec<Request<'a>>,
    pub elements: Vec<Element<'a>>,
    pub strings: Vec<u8>,
    pub failures: Vec<(usize, String)>,
}

/// Batches and single sends that hold the messages in order; see Python's `encode`.
pub fn encode<'a>(
    messages: impl Iterator<Item = Message<'a>>,
    origin: Option<&[u8]>,
    limits: &Limits,
    now: i64,
    reserve: Option<&mut Reserve>,
) -> Result<Encoded<'a>> {
    let mut requests = Requests {
        origin,
        limits,
        now,
        ids: reserve.map(|reserve| Ids { reserve, start: Vec::new(), next: 0, left: 0 }),
        batch: OpenBatch::new(limits.max_bytes, limits.max_messages),
        writer: BlockWriter::default(),
        made: Encoded::default(),
    };
    for (index, message) in messages.enumerate() {
        requests.add(index, message)?;
    }
    requests.close_batch();
    Ok(requests.made)
}

/// Messages on their way into requests.
struct Requests<'r, 'i, 'a> {
    origin: Option<&'r [u8]>,
    limits: &'r Limits,
    now: i64,
    ids: Option<Ids<'r, 'i>>,
    batch: OpenBatch,
    writer: BlockWriter<'a>,
    made: Encoded<'a>,
}

impl<'a> Requests<'_, '_, 'a> {
    /// Adds a message, or refuses it.
    fn add(&mut self, index: usize, message: Message<'a>) -> Result<()> {
        if let Some(defect) = message.defect() {
            self.refuse(index, format!("it could not be read: {}", String::from_utf8_lossy(defect)));
            return Ok(());
        }
        if message.deliver_at().is_some_and(|time| time > self.now) {
            return self.add_delayed(index, message);
        }
        let start = self.made.strings.len();
        let Written { flag, has_id } = self.writer.write(&message, self.origin, false, None, &mut self.made.strings);
        let length = self.made.strings.len() - start;
        self.identify(has_id)?;
        let body = body_of(&message);
        let element = Element { flag, body, properties: start..self.made.strings.len() };
        if length > MAX_PROPERTIES_BYTES {
            self.made.strings.truncate(start);
            self.refuse(index, too_many(length));
        } else if element.size() as i64 > self.limits.max_message_bytes {
            // The broker's limit leaves no room for a batch of its own, which would keep its properties in order.
            self.made.strings.truncate(start);
            self.add_alone(index, message, None)?;
        } else if i32::try_from(element.size()).is_err() {
            return Err(Error::Unsupported);
        } else {
            let closed = self.batch.add(index, self.born_at(&message), element, &mut self.made.elements);
            self.made.requests.extend(closed.map(Request::Batch));
        }
        Ok(())
    }

    /// Adds a UNIQ_KEY to the property string that was just written, unless the message has one: of several the last is what
    /// Java shows, so there must not be two.
    fn identify(&mut self, has_id: bool) -> Result<()> {
        match &mut self.ids {
            Some(ids) if !has_id => ids.write_next(&mut self.made.strings),
            _ => Ok(()),
        }
    }

    /// Adds it alone, with a timer or a level.
    fn add_delayed(&mut self, index: usize, message: Message<'a>) -> Result<()> {
        match self.limits.delay(message.deliver_at().unwrap_or(0), self.now) {
            Ok(delay) => self.add_alone(index, message, Some(delay)),
            Err(reason) => {
                self.refuse(index, reason);
                Ok(())
            }
        }
    }

    fn add_alone(&mut self, index: usize, message: Message<'a>, delay: Option<Delay>) -> Result<()> {
        let (body, most) = (body_of(&message), self.limits.max_message_bytes);
        if body.len() as i64 > most {
            let length = body.len();
            self.refuse(index, format!("its payload has {length} bytes, the broker takes {most} (maxMessageSize)"));
            return Ok(());
        }
        let start = self.made.strings.len();
        let Written { flag, has_id } = self.writer.write(&message, self.origin, true, delay, &mut self.made.strings);
        let length = self.made.strings.len() - start;
        if length > MAX_PROPERTIES_BYTES {
            self.made.strings.truncate(start);
            self.refuse(index, too_many(length));
            return Ok(());
        }
        self.close_batch();
        self.identify(has_id)?;
        let properties = start..self.made.strings.len();
        let (born, is_delayed) = (self.born_at(&message), delay.is_some());
        self.made.requests.push(Request::Alone(Alone { index, body, properties, flag, born, is_delayed }));
        Ok(())
    }

    /// Not to be sent, ever.
    fn refuse(&mut self, index: usize, reason: String) {
        self.close_batch();
        self.made.failures.push((index, reason));
    }

    fn close_batch(&mut self) {
        let closed = self.batch.close(self.made.elements.len());
        self.made.requests.extend(closed.map(Request::Batch));
    }

    /// The timestamp (ms) of a header whose first message this is: its time if that is one which brokers take.
    fn born_at(&self, message: &Message) -> i64 {
        message.event_time().filter(|time| *time > 0).unwrap_or(self.now)
    }
}

fn body_of<'a>(message: &Message<'a>) -> &'a [u8] {
    message.payload().filter(|payload| !payload.is_empty()).unwrap_or(PLACEHOLDER)
}

/// Why a property string beyond MAX_PROPERTIES_BYTES is refused.
fn too_many(length: usize) -> String {
    format!(
        "it has {length} bytes of properties, RocketMQ holds {MAX_BYTES} \
         and {BROKER_BYTES} of these are left to what the broker adds"
    )
}

impl Limits {
    /// The property that has the broker hold a message until then, or somewhat longer; or why it does not.
    fn delay(&self, deliver_at: i64, now: i64) -> std::result::Result<Delay, String> {
        let (wait, most) = (i128::from(deliver_at) - i128::from(now), self.max_delay_ms);
        if wait > most {
            let setting = if self.levels.is_empty() { "timerMaxDelaySec" } else { "messageDelayLevel" };
            return Err(format!("it is due in {wait} ms, the broker holds messages for {most} ms at most ({setting})"));
        }
        let at = self.levels.partition_point(|(delay, _)| i128::from(*delay) < wait);
        Ok(match self.levels.get(at).or(self.levels.last()) {
            None => (TIMER_DELIVER_MS, deliver_at),
            Some((_, level)) => (DELAY, *level),
        })
    }
}

/// UNIQ_KEY, another one each time.
struct Ids<'r, 'i> {
    reserve: &'r mut Reserve<'i>,
    start: Vec<u8>,
    next: u32,
    left: u32,
}

impl Ids<'_, '_> {
    fn write_next(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if self.left == 0 {
            let (start, first) = (self.reserve)()?;
            self.start.clear();
            self.start.extend_from_slice(UNIQ_KEY);
            self.start.push(NAME_END);
            self.start.extend_from_slice(&start);
            (self.next, self.left) = (first, IDS);
        }
        out.extend_from_slice(&self.start);
        write_hex(self.next, out);
        out.push(VALUE_END);
        (self.next, self.left) = (self.next.checked_add(1).ok_or(Error::Unsupported)?, self.left - 1);
        Ok(())
    }
}

/// Appends at least four hex digits.
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

    fn batch_of(made: &Encoded, index: usize) -> Vec<u8> {
        let Request::Batch(batch) = &made.requests[index] else { panic!("no batch") };
        let mut out = vec![0; batch.size];
        write_batch(&made.elements[batch.elements.clone()], &made.strings, &mut out);
        out
    }

    #[test]
    fn a_batch_byte_for_byte() {
        let store = store(&[(b"", None)]);
        let mut reserve = || Ok((b"ID".to_vec(), 0xA));
        let made = encode(store.messages(), Some(b"c|t|p|"), &limits(), NOW, Some(&mut reserve)).unwrap();
        let properties: &[u8] =
            b"a\x011\x02mqbridge.event_time\x017\x02mqbridge.empty\x011\x02mqbridge.origin\x01c|t|p|\x02UNIQ_KEY\x01ID000A\x02";
        let mut wanted = Vec::new();
        for number in [23 + properties.len() as u32, 0, 0, 0, 1] {
            wanted.extend_from_slice(&number.to_be_bytes());
        }
        wanted.push(0);
        wanted.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        wanted.extend_from_slice(properties);
        assert_eq!(batch_of(&made, 0), wanted);
    }

    #[test]
    fn full_batches_messages_alone_and_refusals() {
        let large = [0; 190];
        let store =
            store(&[(b"1", None), (b"2", None), (b"3", None), (&large, None), (b"5", Some(NOW + 50)), (b"6", Some(NOW + 51))]);
        let made = encode(store.messages(), None, &limits(), NOW, None).unwrap();
        let kinds = made.requests.iter().map(|request| match request {
            Request::Batch(batch) => (batch.begin, batch.elements.len(), false),
            Request::Alone(alone) => (alone.index, 1, alone.is_delayed),
        });
        assert_eq!(kinds.collect::<Vec<_>>(), [(0, 2, false), (2, 1, false), (3, 1, false), (4, 1, true)]);
        let reason = "it is due in 51 ms, the broker holds messages for 50 ms at most (timerMaxDelaySec)";
        assert_eq!(made.failures, [(5, reason.to_string())]);
    }

    #[test]
    fn the_next_level_that_is_long_enough() {
        let limits = Limits { max_delay_ms: 100, levels: vec![(10, 1), (50, 3), (100, 2)], ..limits() };
        let levels = [1, 10, 11, 50, 99, 100].map(|wait| limits.delay(NOW + wait, NOW).unwrap());
        assert_eq!(levels, [1, 1, 3, 3, 2, 2].map(|level| (DELAY, level)));
        assert!(limits.delay(NOW + 101, NOW).is_err());
    }

    #[test]
    fn ids_of_one_run_and_the_next() {
        let mut runs = [(b"A".to_vec(), 0xFFFE), (b"B".to_vec(), 0)].into_iter();
        let mut reserve = || Ok(runs.next().expect("two runs are enough"));
        let mut ids = Ids { reserve: &mut reserve, start: Vec::new(), next: 0, left: 0 };
        let mut all = Vec::new();
        for _ in 0..=IDS {
            all.clear();
            ids.write_next(&mut all).unwrap();
        }
        assert_eq!(all, b"UNIQ_KEY\x01B0000\x02");
        let mut digits = Vec::new();
        write_hex(0x1_0000, &mut digits);
        assert_eq!(digits, b"10000");
    }
}
