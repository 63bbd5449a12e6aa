//! Makes the records of a pull's response from units: see `mqbridge/rocketmq/mapping/served_records.py`.

use crate::rocketmq::VALUE_END;
use crate::rocketmq::neutral_record::KEPT_BITS;
use crate::rocketmq::pulled::tag_of;
use crate::rocketmq::record::{BORN_IPV6, FIXED_BYTES, MIN_RECORD_BYTES, STORE_IPV6, V1, V2, i32_at, u16_at, u32_at};
use crate::{Error, Result};

/// The longest property string that clients can read.
const MAX_PROPERTIES_BYTES: usize = 32767;
/// The longest topic in layout V1.
const MAX_V1_TOPIC_BYTES: usize = 127;

/// A unit, its queue offset, and when it was published (ms since the epoch; 0 if unknown).
pub struct StoredUnit<'a> {
    pub data: &'a [u8],
    pub number: i64,
    pub published_ms: i64,
}

/// What the records of a queue have in common: see `RecordPlace` in the Python code.
pub struct Place<'a> {
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub store_host: &'a [u8],
    pub physical_base: i64,
    pub added: &'a [u8],
}

/// A unit that was checked, and parts of it.
struct ServedRecord<'a> {
    unit: StoredUnit<'a>,
    body: &'a [u8],
    properties: &'a [u8],
    /// The entries that are added to the properties; empty where they do not fit.
    added: &'a [u8],
    physical_offset: i64,
}

/// The records of a response.
pub struct ServedRecords<'a> {
    records: Vec<ServedRecord<'a>>,
    /// The fields before the body, with the values that all records have in common.
    fixed: Vec<u8>,
    /// The size of the topic, and the topic.
    topic: Vec<u8>,
    /// Bits of the system flag that all records have.
    host_bits: u32,
    /// Number of bytes that `write` writes.
    pub size: usize,
}

impl<'a> ServedRecords<'a> {
    /// Checks the units, and selects those with one of `tags`, or all if there are none.
    pub fn select(units: impl Iterator<Item = StoredUnit<'a>>, place: &Place<'a>, tags: &[Vec<u8>]) -> Result<Self> {
        let mut served = Self::without_records(place)?;
        for unit in units {
            let (body, properties) = split_neutral(unit.data, unit.number)?;
            if !tags.is_empty() && !tag_of(properties).is_some_and(|tag| tags.iter().any(|wanted| wanted == tag)) {
                continue;
            }
            let added = if properties.len() + place.added.len() <= MAX_PROPERTIES_BYTES { place.added } else { b"" };
            let physical_offset = place.physical_base.checked_add(unit.number).ok_or(Error::Unsupported)?;
            let record = ServedRecord { unit, body, properties, added, physical_offset };
            served.size += served.size_of(&record);
            served.records.push(record);
        }
        Ok(served)
    }

    fn without_records(place: &Place) -> Result<Self> {
        let host = place.store_host;
        let host_bits = match host.len() {
            8 => 0,
            20 => BORN_IPV6 | STORE_IPV6,
            _ => return Err(Error::Unsupported),
        };
        let topic_size = u16::try_from(place.topic.len()).map_err(|_| Error::Unsupported)?;
        let is_v2 = place.topic.len() > MAX_V1_TOPIC_BYTES;
        let mut topic = topic_size.to_be_bytes()[usize::from(!is_v2)..].to_vec();
        topic.extend_from_slice(place.topic);
        let mut fixed = vec![0; FIXED_BYTES - 16 + 2 * host.len()];
        put(&mut fixed, 4, if is_v2 { V2 } else { V1 }.to_be_bytes());
        put(&mut fixed, 12, place.queue_id.to_be_bytes());
        fixed[48..48 + host.len()].copy_from_slice(host); // born host
        fixed[56 + host.len()..56 + 2 * host.len()].copy_from_slice(host); // store host, after the store timestamp
        Ok(Self { records: Vec::new(), fixed, topic, host_bits, size: 0 })
    }

    /// Returns the number of records.
    pub fn count(&self) -> usize {
        self.records.len()
    }

    fn size_of(&self, record: &ServedRecord) -> usize {
        self.fixed.len() + record.body.len() + self.topic.len() + 2 + record.properties.len() + record.added.len()
    }

    /// Writes all records; `out` has exactly their size.
    pub fn write(mut self, out: &mut [u8]) {
        let mut rest = out;
        let mut append = |part: &[u8]| {
            let (target, after) = std::mem::take(&mut rest).split_at_mut(part.len());
            target.copy_from_slice(part);
            rest = after;
        };
        for record in std::mem::take(&mut self.records) {
            let size = self.size_of(&record);
            self.set_fixed(&record, size);
            let properties_size = (record.properties.len() + record.added.len()) as u16;
            append(&self.fixed);
            append(record.body);
            append(&self.topic);
            append(&properties_size.to_be_bytes());
            append(record.properties);
            append(record.added);
        }
    }

    /// Sets the fields before the body to those of this record.
    fn set_fixed(&mut self, record: &ServedRecord, size: usize) {
        let (data, fixed) = (record.unit.data, &mut self.fixed);
        let end = fixed.len();
        let host_size = (end - (FIXED_BYTES - 16)) / 2;
        put(fixed, 0, (size as u32).to_be_bytes());
        fixed[8..12].copy_from_slice(&data[8..12]); // checksum
        fixed[16..20].copy_from_slice(&data[16..20]); // flag
        put(fixed, 20, record.unit.number.to_be_bytes());
        put(fixed, 28, record.physical_offset.to_be_bytes());
        put(fixed, 36, (u32_at(data, 36) | self.host_bits).to_be_bytes());
        fixed[40..48].copy_from_slice(&data[40..48]); // born timestamp
        put(fixed, 48 + host_size, record.unit.published_ms.to_be_bytes());
        fixed[end - 16..end - 12].copy_from_slice(&data[72..76]); // reconsume times
        fixed[end - 4..].copy_from_slice(&data[84..88]); // size of the body
    }
}

/// Copies a number into the fields, at this offset.
fn put<const N: usize>(fields: &mut [u8], at: usize, number: [u8; N]) {
    fields[at..at + N].copy_from_slice(&number);
}

/// Returns the body and the properties of a unit. It is an error if this is no record in neutral form that can be served.
fn split_neutral(data: &[u8], number: i64) -> Result<(&[u8], &[u8])> {
    let total = data.len();
    let invalid = |problem: String| Error::Protocol(format!("the unit at offset {number} cannot be served: {problem}"));
    if total < MIN_RECORD_BYTES {
        return Err(invalid(format!("it has {total} bytes, and a record has {MIN_RECORD_BYTES} at least")));
    }
    let (size, magic, sys_flag, body_size) = (u32_at(data, 0), u32_at(data, 4), u32_at(data, 36), i32_at(data, 84));
    if size as usize != total || magic != V1 {
        return Err(invalid(format!("a record of {size} bytes with the magic {magic:08X}, in {total} bytes")));
    }
    if sys_flag & !KEPT_BITS != 0 {
        return Err(invalid(format!("its system flag is {sys_flag}")));
    }
    let topic_at = usize::try_from(body_size).ok().map(|body_size| FIXED_BYTES + body_size);
    let adds_up = |topic_at: &usize| {
        let properties_at = topic_at + 3;
        properties_at <= total && data[*topic_at] == 0 && u16_at(data, topic_at + 1) == total - properties_at
    };
    let Some(topic_at) = topic_at.filter(adds_up) else {
        return Err(invalid(format!("the lengths inside do not add up to its {size} bytes")));
    };
    let properties = &data[topic_at + 3..];
    if properties.len() > MAX_PROPERTIES_BYTES {
        let problem = format!("it has {} bytes of properties, and clients read at most {MAX_PROPERTIES_BYTES}", properties.len());
        return Err(invalid(problem));
    }
    if properties.last().is_some_and(|last| *last != VALUE_END) {
        return Err(invalid("its last property has no separator".to_string()));
    }
    Ok((&data[FIXED_BYTES..topic_at], properties))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rocketmq::neutral_record::write_neutral;

    fn place<'a>(topic: &'a [u8], store_host: &'a [u8]) -> Place<'a> {
        Place { topic, queue_id: 3, store_host, physical_base: 100, added: b"a\x01b\x02" }
    }

    fn serve(data: &[u8], place: &Place, tags: &[Vec<u8>]) -> Result<(Vec<u8>, usize)> {
        let units = [StoredUnit { data, number: 9, published_ms: 5 }];
        let served = ServedRecords::select(units.into_iter(), place, tags)?;
        let (mut out, count) = (vec![0; served.size], served.count());
        served.write(&mut out);
        Ok((out, count))
    }

    fn unit() -> Vec<u8> {
        let mut data = Vec::new();
        write_neutral(7, 4, b"body", b"TAGS\x01x", &mut data).unwrap();
        data
    }

    #[test]
    fn a_record_has_the_fields_of_the_unit_and_of_the_queue() {
        let (record, count) = serve(&unit(), &place(b"topic", b"hostport"), &[b"x".to_vec()]).unwrap();
        assert_eq!((u32_at(&record, 0) as usize, u32_at(&record, 4), count), (record.len(), V1, 1));
        assert_eq!((i32_at(&record, 12), i32_at(&record, 16)), (3, 7));
        assert_eq!(&record[20..36], [9i64.to_be_bytes(), 109i64.to_be_bytes()].concat());
        assert_eq!(&record[40..72], [&4i64.to_be_bytes()[..], b"hostport", &5i64.to_be_bytes(), b"hostport"].concat());
        assert_eq!(&record[88..], b"body\x05topic\0\x0bTAGS\x01x\x02a\x01b\x02");
    }

    #[test]
    fn long_hosts_and_topics_have_other_fields() {
        let topic = [b't'; 128];
        let (record, _) = serve(&unit(), &place(&topic, &[1; 20]), &[]).unwrap();
        assert_eq!((u32_at(&record, 4), u32_at(&record, 36)), (V2, BORN_IPV6 | STORE_IPV6));
        assert_eq!((&record[112..116], u16_at(&record, 116)), (&b"body"[..], 128));
    }

    #[test]
    fn other_tags_are_left_out() {
        assert_eq!(serve(&unit(), &place(b"T", &[0; 8]), &[b"y".to_vec()]), Ok((vec![], 0)));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let data = unit();
        for end in 0..data.len() {
            assert!(matches!(serve(&data[..end], &place(b"T", &[0; 8]), &[]), Err(Error::Protocol(_))), "{end}");
        }
    }

    #[test]
    fn other_hosts_and_offsets_beyond_64_bits_are_left_to_the_plain_code() {
        assert_eq!(serve(&unit(), &place(b"T", &[0; 9]), &[]), Err(Error::Unsupported));
        let far = Place { physical_base: i64::MAX, ..place(b"T", &[0; 8]) };
        assert_eq!(serve(&unit(), &far, &[]), Err(Error::Unsupported));
    }
}
