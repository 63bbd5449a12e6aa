//! The order of a message's properties, which brokers mix up: see `mqbridge/rocketmq/mapping/broker_order.py`.

use crate::message::{Pair, Slice, Store};
use crate::rocketmq::names::UNIQ_KEY;
use crate::text::{read_number, write_number};

/// Appends the value of `mqbridge.order` for properties of these names.
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

/// The indexes of a value; None for a text that no gateway wrote.
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

/// Puts the pairs from `start` on in their first order, without the UNIQ_KEY that the broker added; `names` are their names as
/// stored. Where somebody added or removed others the stored order stays.
pub fn restore_order(store: &mut Store, text: Slice, names: &[Slice], start: usize) {
    let order = read_order(store.bytes(text)).unwrap_or_default();
    let mut found: Vec<usize> = (0..names.len()).collect();
    found.sort_by_key(|index| store.bytes(names[*index]));
    if found.len() == order.len() + 1 {
        found.retain(|index| store.bytes(names[*index]) != UNIQ_KEY);
    }
    if found.len() == order.len() {
        let restored: Vec<Pair> = order.into_iter().map(|index| store.pairs[start + found[index]]).collect();
        store.pairs.truncate(start);
        store.pairs.extend(restored);
    }
}
