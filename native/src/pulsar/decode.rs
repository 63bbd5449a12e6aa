//! Entries as a consumer receives them -> messages: the counterpart of `mqbridge/pulsar/mapping/stored.py`.

use crate::Result;
use crate::message::{MSG_TYPE, Pair, Position, Row, Slice, Store};
use crate::pulsar::metadata::{ENTRY, Metadata, SINGLE};
use crate::reserved::read_carried;

/// What is said of an entry; its payload is unpacked.
#[derive(Default)]
pub struct Entry {
    pub payload: Slice,
    pub kind: Kind,
    pub ledger: i64,
    pub entry: i64,
    pub redelivery_count: i64,
    pub publish_time: i64,
    pub deliver_at: Option<i64>,
}

#[derive(Default)]
pub enum Kind {
    /// No batch: its metadata.
    Single(Slice),
    /// How many messages it says it has, and the bits of those that are to be delivered; none for all.
    Batch(i64, Vec<i64>),
    /// Why it cannot be read.
    #[default]
    Damaged,
}

/// Reads entries into a store; what it needs for each message is made once.
#[derive(Default)]
pub struct Decoder {
    pub store: Store,
    pairs: Vec<Pair>,
}

/// Bytes of the smallest message in a batch.
const MIN_MESSAGE_BYTES: usize = 6;

impl Decoder {
    /// Adds the messages of an entry that are to be delivered. A text is why its bytes are no batch; then it is one message that
    /// has this defect.
    pub fn add(&mut self, entry: &Entry) -> Result<Option<String>> {
        let size = entry.payload.len();
        match &entry.kind {
            Kind::Damaged => Ok(None),
            Kind::Single(metadata) => {
                let Ok(metadata) = Metadata::read(&ENTRY, &self.store, *metadata, &mut self.pairs) else {
                    return Err(crate::Error::Unsupported); // protobuf has read or written these bytes
                };
                self.push(entry, 0, &metadata, entry.payload)?;
                Ok(None)
            }
            Kind::Batch(count, due) => {
                let before = (self.store.rows.len(), self.store.pairs.len(), self.store.keys.len());
                self.store.rows.reserve((*count).clamp(0, (size / MIN_MESSAGE_BYTES) as i64) as usize);
                let Some(defect) = self.add_batch(entry, *count, due)? else { return Ok(None) };
                self.store.rows.truncate(before.0);
                self.store.pairs.truncate(before.1);
                self.store.keys.truncate(before.2);
                self.add_damaged(entry, &defect);
                Ok(Some(defect))
            }
        }
    }

    /// Adds an entry that cannot be read as the one message that it counts as.
    pub fn add_damaged(&mut self, entry: &Entry, defect: &str) {
        self.push_damaged(entry, 0, entry.payload, defect);
    }

    /// The text of a defect where the bytes do not hold exactly the messages.
    fn add_batch(&mut self, entry: &Entry, count: i64, due: &[i64]) -> Result<Option<String>> {
        let size = entry.payload.len();
        let mut read = 0;
        let mut at = 0i64; // a message may say that its payload has a negative size
        while read < count {
            let begin = at as usize + 4;
            if begin > size {
                break;
            }
            let length = self.store.bytes(entry.payload.part(begin - 4, begin));
            let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
            let Some(end) = begin.checked_add(length).filter(|end| *end <= size) else { break };
            let Ok(metadata) = Metadata::read(&SINGLE, &self.store, entry.payload.part(begin, end), &mut self.pairs) else {
                let text = format!(
                    "message {read} of a batch of {count} cannot be read: its {length} bytes of metadata are no protobuf"
                );
                return Ok(Some(text));
            };
            at = end as i64 + i64::from(metadata.payload_size);
            if at < end as i64 || at > size as i64 {
                break;
            }
            if is_due(due, read as usize) {
                self.push(entry, read, &metadata, entry.payload.part(end, at as usize))?;
            }
            read += 1;
        }
        let is_whole = read == count && at == size as i64;
        Ok((!is_whole).then(|| format!("{size} bytes of a batch of {count} held {read} messages in {at}")))
    }

    /// Adds a message with the properties that were read last.
    fn push(&mut self, entry: &Entry, index: i64, metadata: &Metadata, payload: Slice) -> Result<()> {
        if !metadata.is_text() {
            self.push_damaged(entry, index, payload, "its key or its properties are not UTF-8");
            return Ok(());
        }
        let store = &mut self.store;
        let carried = read_carried(store, &mut self.pairs, payload.is_empty());
        let msg_type = match carried.msg_type {
            Some(carried) => carried,
            None => self.pairs.iter().find(|(name, _)| store.bytes(*name) == MSG_TYPE).map(|(_, value)| *value),
        };
        let key = match carried.key {
            Some(carried) => carried,
            None => metadata.key(store),
        };
        let start = store.pairs.len() as u32;
        store.pairs.extend_from_slice(&self.pairs);
        store.rows.push(Row {
            payload: if carried.is_null || metadata.null_value { None } else { Some(payload) },
            pairs: (start, store.pairs.len() as u32),
            keys: carried.keys.unwrap_or_default(),
            key,
            ordering_key: carried.ordering_key.or(metadata.ordering_key),
            msg_type,
            attributes: carried.attributes,
            event_time: carried.event_time.or(metadata.event_time()),
            publish_time: Some(entry.publish_time),
            deliver_at: carried.deliver_at.or(entry.deliver_at),
            delivery_count: entry.redelivery_count,
            position: Position::new(&[entry.ledger, entry.entry, index]),
            origin: carried.origin,
            hops: carried.hops.unwrap_or(0),
            defect: None,
        });
        Ok(())
    }

    fn push_damaged(&mut self, entry: &Entry, index: i64, payload: Slice, defect: &str) {
        let defect = self.store.copy(defect.as_bytes());
        let position = Position::new(&[entry.ledger, entry.entry, index]);
        self.store.rows.push(Row { payload: Some(payload), position, defect: Some(defect), ..Row::default() });
    }
}

/// Whether a message of a batch is not acknowledged yet.
pub fn is_due(words: &[i64], index: usize) -> bool {
    words.is_empty() || words.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
}
