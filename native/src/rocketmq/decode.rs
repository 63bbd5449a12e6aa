//! Pulls into messages: `decode` of `mqbridge/rocketmq/mapping/stored.py`.

use crate::Result;
use crate::message::{Position, Row, Store};
use crate::rocketmq::PLACEHOLDER;
use crate::rocketmq::pulled::{Pull, keep_wanted};
use crate::rocketmq::read_block::BlockReader;
use crate::rocketmq::record::{Decompress, Record, decode_records};

/// The messages of pulls in a row; a damaged record becomes one with its `defect`.
pub fn decode(pulls: Vec<Pull>, decompress: &mut Decompress) -> Result<Store> {
    let mut store = Store::new();
    let (mut records, mut reader) = (Vec::new(), BlockReader::default());
    for Pull { body, first, next, tags } in pulls {
        records.clear();
        let source = store.add_source(body);
        decode_records(&mut store, source, decompress, false, &mut records)?;
        keep_wanted(&store, &mut records, first, next, &tags);
        store.rows.reserve(records.len());
        for record in &records {
            let row = read(&mut store, record, &mut reader)?;
            store.rows.push(row);
        }
    }
    Ok(store)
}

/// How many messages `decode` gives of a pull, and the offset of the first. Bodies are left compressed.
pub fn count(pull: Pull, decompress: &mut Decompress) -> Result<(usize, Option<i64>)> {
    let Pull { body, first, next, tags } = pull;
    let (mut store, mut records) = (Store::new(), Vec::new());
    let source = store.add_source(body);
    decode_records(&mut store, source, decompress, true, &mut records)?;
    keep_wanted(&store, &mut records, first, next, &tags);
    Ok((records.len(), records.first().map(|record| record.queue_offset)))
}

fn read(store: &mut Store, record: &Record, reader: &mut BlockReader) -> Result<Row> {
    let mut row = Row {
        payload: Some(record.body),
        publish_time: Some(record.store_timestamp),
        position: Position::new(&[record.queue_offset]),
        defect: record.defect,
        ..Row::default()
    };
    if record.defect.is_some() {
        return Ok(row);
    }
    row.delivery_count = i64::from(record.reconsume_times);
    let blank = store.bytes(record.body) == PLACEHOLDER;
    if !reader.read(store, record.properties, record.flag, blank, &mut row)? {
        row.event_time = Some(record.born_timestamp);
    }
    Ok(row)
}
