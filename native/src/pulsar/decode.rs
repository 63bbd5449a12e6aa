//! Decodes received entries into messages: the counterpart of `mqbridge/pulsar/mapping/stored.py`.

use crate::Result;
use crate::message::{MSG_TYPE, Pair, Position, Row, Slice, Store};
use crate::pulsar::metadata::{MESSAGE_METADATA, Metadata, SINGLE_MESSAGE_METADATA};
use crate::reserved::read_carried;

/// A received entry to decode: its decompressed payload, and the fields of its command and metadata.
///
/// Times are ms since the epoch.
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

/// The layout of an entry's payload.
#[derive(Default)]
pub enum Kind {
    /// The payload of one message; the slice is the entry's encoded MessageMetadata.
    Single(Slice),
    /// A batch. `count` is the number of messages that the metadata announces. `ack_set` is the bit set of the messages to
    /// deliver, as 64-bit words; empty for all messages.
    Batch { count: i64, ack_set: Vec<i64> },
    /// Only the default value. [`Decoder::add`] adds no message for it.
    #[default]
    Unknown,
}

/// Decodes entries and adds their messages to `store`.
#[derive(Default)]
pub struct Decoder {
    pub store: Store,
    /// The properties of the message whose metadata was read last; one vector is reused for all messages.
    pairs: Vec<Pair>,
}

/// Minimum size of a message in a batch: four bytes for the size of its metadata, at least two for the metadata.
pub const MIN_MESSAGE_BYTES: usize = 6;

/// Maximum number of messages in a batch; see `mqbridge/pulsar/wire/entry.py`.
pub const MAX_BATCH_MESSAGES: usize = 100_000;

/// Maximum size of the metadata of one message, and number of properties of all messages; see `mqbridge/pulsar/wire/batch.py`.
const MAX_METADATA_BYTES: usize = 5 << 20;
const MAX_BATCH_PROPERTIES: usize = 1_000_000;

impl Decoder {
    /// Adds the messages of an entry that are to be delivered.
    ///
    /// If the payload is not a valid batch, it adds the entry as one message with a defect, and returns the text of the defect.
    /// After the error `Unsupported`, the caller decodes the entries with the Python code.
    pub fn add(&mut self, entry: &Entry) -> Result<Option<String>> {
        let size = entry.payload.len();
        match &entry.kind {
            Kind::Unknown => Ok(None),
            Kind::Single(metadata) => {
                let Ok(metadata) = Metadata::read(&MESSAGE_METADATA, &self.store, *metadata, &mut self.pairs) else {
                    // Unexpected, because protobuf has already parsed or encoded these bytes.
                    return Err(crate::Error::Unsupported);
                };
                self.push(entry, 0, &metadata, entry.payload)?;
                Ok(None)
            }
            Kind::Batch { count, ack_set } => {
                let (row_count, pair_count, key_count) = (self.store.rows.len(), self.store.pairs.len(), self.store.keys.len());
                self.store.rows.reserve((*count).clamp(0, (size / MIN_MESSAGE_BYTES) as i64) as usize);
                let Some(defect) = self.add_batch(entry, *count, ack_set)? else { return Ok(None) };
                // Removes the messages that were read before the damage.
                self.store.rows.truncate(row_count);
                self.store.pairs.truncate(pair_count);
                self.store.keys.truncate(key_count);
                self.add_damaged(entry, &defect);
                Ok(Some(defect))
            }
        }
    }

    /// Adds one message with this defect, for an entry that cannot be decoded.
    pub fn add_damaged(&mut self, entry: &Entry, defect: &str) {
        self.push_damaged(entry, 0, entry.payload, defect);
    }

    /// Adds the messages of a batch. Returns the text of a defect if the payload does not consist of exactly `count` messages.
    fn add_batch(&mut self, entry: &Entry, count: i64, ack_set: &[i64]) -> Result<Option<String>> {
        let size = entry.payload.len();
        let mut index = 0;
        let mut properties = 0;
        let mut at = 0i64; // signed, because damaged metadata may contain a negative payload size
        while index < count {
            let metadata_at = at as usize + 4;
            if metadata_at > size {
                break;
            }
            let size_field = self.store.bytes(entry.payload.part(metadata_at - 4, metadata_at));
            let metadata_size = u32::from_be_bytes([size_field[0], size_field[1], size_field[2], size_field[3]]) as usize;
            let Some(payload_at) = metadata_at.checked_add(metadata_size).filter(|end| *end <= size) else { break };
            if metadata_size > MAX_METADATA_BYTES {
                return Ok(Some(format!("message {index} of a batch of {count} has {metadata_size} bytes of metadata")));
            }
            let Ok(metadata) = Metadata::read(
                &SINGLE_MESSAGE_METADATA,
                &self.store,
                entry.payload.part(metadata_at, payload_at),
                &mut self.pairs,
            ) else {
                let text = format!(
                    "message {index} of a batch of {count} cannot be read: its {metadata_size} bytes of metadata are no protobuf"
                );
                return Ok(Some(text));
            };
            at = payload_at as i64 + i64::from(metadata.payload_size);
            if at < payload_at as i64 || at > size as i64 {
                break;
            }
            properties += self.pairs.len();
            if properties > MAX_BATCH_PROPERTIES {
                return Ok(Some(format!("a batch of {count} has more than {MAX_BATCH_PROPERTIES} properties")));
            }
            if is_due(ack_set, index as usize) {
                self.push(entry, index, &metadata, entry.payload.part(payload_at, at as usize))?;
            }
            index += 1;
        }
        let is_whole = index == count && at == size as i64;
        Ok((!is_whole).then(|| format!("{size} bytes of a batch of {count} held {index} messages in {at}")))
    }

    /// Adds the message at this index of an entry, as damaged if its texts are not UTF-8; its properties are in `self.pairs`.
    fn push(&mut self, entry: &Entry, index: i64, metadata: &Metadata, payload: Slice) -> Result<()> {
        if !metadata.is_text() {
            self.push_damaged(entry, index, payload, "its key or its properties are not UTF-8");
            return Ok(());
        }
        let store = &mut self.store;
        let carried = read_carried(store, &mut self.pairs, payload.is_empty());
        // `Some(None)` as type and `Some(Key::None)` as key mean that the message has none.
        let msg_type = match carried.msg_type {
            Some(msg_type) => msg_type,
            None => self.pairs.iter().find(|(name, _)| store.bytes(*name) == MSG_TYPE).map(|(_, value)| *value),
        };
        let key = match carried.key {
            Some(key) => key,
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

    /// Adds the message at this index of an entry as damaged.
    fn push_damaged(&mut self, entry: &Entry, index: i64, payload: Slice, defect: &str) {
        let defect = self.store.copy(defect.as_bytes());
        let position = Position::new(&[entry.ledger, entry.entry, index]);
        self.store.rows.push(Row { payload: Some(payload), position, defect: Some(defect), ..Row::default() });
    }
}

/// Returns true if the message at this index of a batch is to be delivered, because it is not acknowledged; see `Kind::Batch`.
pub fn is_due(ack_set: &[i64], index: usize) -> bool {
    ack_set.is_empty() || ack_set.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
}
