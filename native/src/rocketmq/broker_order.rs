//! Property `mqbridge.order`: the original order of a message's properties, which brokers may change. See
//! `mqbridge/rocketmq/mapping/broker_order.py`.

use crate::message::{Pair, Slice, Store};
use crate::rocketmq::names::UNIQ_KEY;
use crate::text::{read_number, write_number};

/// Appends the value of `mqbridge.order` for properties with these names, in their order.
///
/// It lists, for each property, its index among all properties sorted by name; `-` means no properties.
pub fn write_order(names: &[&[u8]], out: &mut Vec<u8>) {
    if names.is_empty() {
        out.push(b'-');
        return;
    }
    let mut sorted: Vec<usize> = (0..names.len()).collect();
    sorted.sort_by_key(|index| names[*index]);
    let mut ranks = vec![0; names.len()];
    for (rank, index) in sorted.into_iter().enumerate() {
        ranks[index] = rank;
    }
    for (index, rank) in ranks.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_number(rank as i64, out);
    }
}

/// Parses a value of `mqbridge.order` to indexes; None if it is not a valid order, which means that no gateway wrote it.
pub fn read_order(text: &[u8]) -> Option<Vec<usize>> {
    if text == b"-" {
        return Some(Vec::new());
    }
    let count = text.iter().filter(|byte| **byte == b',').count() + 1;
    let mut order = Vec::with_capacity(count);
    let mut is_used = vec![false; count];
    for part in text.split(|byte| *byte == b',') {
        let index = usize::try_from(read_number(part)?).ok()?;
        if std::mem::replace(is_used.get_mut(index)?, true) {
            return None;
        }
        order.push(index);
    }
    Some(order)
}

/// Puts the store's pairs from `start` on into the order that `text`, a valid value of `mqbridge.order`, describes.
///
/// `names` are the names of these pairs as they are stored, that is, escaped. If there is one pair more than in the original
/// message, a UNIQ_KEY is removed, because the broker or the gateway added it. If the number still differs, another client
/// changed the properties, and the stored order stays.
pub fn restore_order(store: &mut Store, text: Slice, names: &[Slice], start: usize) {
    let order = read_order(store.bytes(text)).unwrap_or_default();
    let mut by_name: Vec<usize> = (0..names.len()).collect(); // indexes of the pairs, sorted by name
    by_name.sort_by_key(|index| store.bytes(names[*index]));
    if by_name.len() == order.len() + 1 {
        by_name.retain(|index| store.bytes(names[*index]) != UNIQ_KEY);
    }
    if by_name.len() == order.len() {
        let restored: Vec<Pair> = order.into_iter().map(|index| store.pairs[start + by_name[index]]).collect();
        store.pairs.truncate(start);
        store.pairs.extend(restored);
    }
}
