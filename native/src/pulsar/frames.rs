//! Encodes the MESSAGE frames in which a server delivers entries, and messages that were stored without units: the counterpart of
//! `message_frames.py` and `entries.py` in `mqbridge/pulsar/server`. Such a message becomes an entry of its own, without batch
//! framing.

use crc32c::{crc32c, crc32c_append};

use crate::message::{Message, Row};
use crate::protobuf::{write_bytes, write_varint};
use crate::pulsar::encode::write_alone;

/// What is the same for all messages that a consumer gets at once.
pub struct Delivery<'a> {
    pub consumer: u64,
    /// Index of the partition; -1 if the topic is not partitioned.
    pub partition: i32,
    /// The number that the consumer gave with its last request to deliver everything again.
    pub epoch: Option<u64>,
    /// The producer that the entries name.
    pub producer: &'a [u8],
    /// The beginning of origins that are not delivered, because the gateway has stamped them itself.
    pub own_origin: &'a [u8],
    /// Name and value of the property of a message whose payload is an entry already.
    pub raw_property: (&'a [u8], &'a [u8]),
}

/// What a frame delivers: an entry as it was stored, or a message.
pub enum Content<'a> {
    Entry(&'a [u8]),
    Message(Message<'a>),
}

/// The ids under which it is delivered.
#[derive(Clone, Copy)]
pub struct Ids {
    /// The number of the message, which is the sequence id of its entry.
    pub number: u64,
    pub ledger: u64,
    pub entry: u64,
    pub redelivery_count: u32,
}

const MAGIC_CHECKSUM: [u8; 2] = [0x0e, 0x01];

/// Appends the frames of all contents. Returns the number of bytes of their entries.
pub fn encode_frames<'a>(contents: impl Iterator<Item = (Content<'a>, Ids)>, delivery: &Delivery, out: &mut Vec<u8>) -> usize {
    let (mut scratch, mut metadata, mut message_id, mut command) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut entry_bytes = 0;
    for (content, ids) in contents {
        metadata.clear();
        let payload = match content {
            Content::Entry(entry) => entry,
            Content::Message(message) => {
                if message.property(delivery.raw_property.0) != Some(delivery.raw_property.1) {
                    write_metadata(&message, ids.number, delivery, &mut scratch, &mut metadata);
                }
                message.payload().unwrap_or_default()
            }
        };
        let is_entry = metadata.is_empty(); // as it is; otherwise the metadata has the producer's name, at least
        let entry_size = if is_entry { payload.len() } else { 10 + metadata.len() + payload.len() };
        write_command(ids, delivery, &mut message_id, &mut command);
        out.reserve(8 + command.len() + entry_size);
        out.extend_from_slice(&((4 + command.len() + entry_size) as u32).to_be_bytes());
        out.extend_from_slice(&(command.len() as u32).to_be_bytes());
        out.extend_from_slice(&command);
        if !is_entry {
            let size = (metadata.len() as u32).to_be_bytes();
            let checksum = crc32c_append(crc32c_append(crc32c(&size), &metadata), payload);
            out.extend_from_slice(&MAGIC_CHECKSUM);
            out.extend_from_slice(&checksum.to_be_bytes());
            out.extend_from_slice(&size);
            out.extend_from_slice(&metadata);
        }
        out.extend_from_slice(payload);
        entry_bytes += entry_size;
    }
    entry_bytes
}

/// Appends the metadata of an entry.
fn write_metadata(message: &Message, number: u64, delivery: &Delivery, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
    write_bytes(0x0a, delivery.producer, out); // producer_name
    out.push(0x10); // sequence_id
    write_varint(number, out);
    out.push(0x18); // publish_time
    write_varint(message.row.publish_time.unwrap_or(0).max(0) as u64, out);
    if message.origin().is_some_and(|origin| origin.starts_with(delivery.own_origin)) {
        let row = Row { origin: None, ..*message.row };
        write_alone(&Message { store: message.store, row: &row }, None, scratch, out);
    } else {
        write_alone(message, None, scratch, out);
    }
}

/// Replaces `command` by the command of a frame; `message_id` is reused.
fn write_command(ids: Ids, delivery: &Delivery, message_id: &mut Vec<u8>, command: &mut Vec<u8>) {
    message_id.clear();
    message_id.push(0x08); // ledgerId
    write_varint(ids.ledger, message_id);
    message_id.push(0x10); // entryId
    write_varint(ids.entry, message_id);
    message_id.push(0x18); // partition
    write_varint(i64::from(delivery.partition) as u64, message_id);
    // The size of CommandMessage has to be known before it is written: it is written behind its place, and moved there.
    command.clear();
    command.extend_from_slice(&[0x08, 9, 0x4a]); // type: MESSAGE; message
    let start = command.len();
    command.push(0x08); // consumer_id
    write_varint(delivery.consumer, command);
    write_bytes(0x12, message_id, command); // message_id
    if ids.redelivery_count > 0 {
        command.push(0x18); // redelivery_count
        write_varint(u64::from(ids.redelivery_count), command);
    }
    if let Some(epoch) = delivery.epoch {
        command.push(0x28); // consumer_epoch
        write_varint(epoch, command);
    }
    let size = command.len() - start; // at most 64, which is one byte as varint
    command.insert(start, size as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Store;
    use crate::pulsar::delivered::is_message;

    const DELIVERY: Delivery = Delivery {
        consumer: 3,
        partition: -1,
        epoch: Some(2),
        producer: b"p",
        own_origin: b"own|",
        raw_property: (b"raw", b"1"),
    };

    #[test]
    fn a_frame_has_its_sizes_and_its_command() {
        let mut store = Store::new();
        let payload = Some(store.copy(b"abc"));
        store.rows.push(Row { payload, ..Row::default() });
        let mut out = Vec::new();
        let ids = Ids { number: 7, ledger: 1, entry: 7, redelivery_count: 0 };
        let size = encode_frames(store.messages().map(|message| (Content::Message(message), ids)), &DELIVERY, &mut out);
        assert!(is_message(&out));
        assert_eq!(u32::from_be_bytes(out[..4].try_into().unwrap()) as usize, out.len() - 4);
        let command = u32::from_be_bytes(out[4..8].try_into().unwrap()) as usize;
        assert_eq!(out.len(), 8 + command + size);
        assert!(out.ends_with(b"abc"));
    }

    #[test]
    fn the_largest_command_has_a_size_of_one_byte() {
        let ids = Ids { number: 0, ledger: u64::MAX, entry: u64::MAX, redelivery_count: u32::MAX };
        let delivery = Delivery { consumer: u64::MAX, epoch: Some(u64::MAX), ..DELIVERY };
        let (mut message_id, mut command) = (Vec::new(), Vec::new());
        write_command(ids, &delivery, &mut message_id, &mut command);
        assert_eq!(usize::from(command[3]), command.len() - 4);
        assert!(command[3] < 0x80);
    }
}
