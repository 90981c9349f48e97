//! Bytes of another member, before protobuf reads them. protobuf 2 skips groups that it does not know by recursion
//! without a bound (RUSTSEC-2024-0437), and raft-rs 0.7 needs that version: a message of nested groups would use up the
//! stack. No message of raft-rs has a group.

/// Where messages are within a message: fields that are looked into as well.
pub struct Shape(&'static [(u64, &'static Shape)]);

const LEAF: Shape = Shape(&[]);
const METADATA: Shape = Shape(&[(1, &LEAF)]);
const SNAPSHOT: Shape = Shape(&[(2, &METADATA)]);
/// eraftpb.Message: entries, snapshot.
pub const MESSAGE: Shape = Shape(&[(7, &LEAF), (9, &SNAPSHOT)]);
/// eraftpb.ConfChange.
pub const CONF_CHANGE: Shape = LEAF;
/// eraftpb.ConfChangeV2: changes.
pub const CONF_CHANGE_V2: Shape = Shape(&[(2, &LEAF)]);

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for i in 0..10 {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f).checked_shl(7 * i)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Whether the bytes are fields without groups, and so are the messages in them that `shape` names.
pub fn has_no_groups(mut rest: &[u8], shape: &Shape) -> bool {
    while !rest.is_empty() {
        let tag = match varint(&mut rest) {
            Some(tag) => tag,
            None => return false,
        };
        let size = match tag & 7 {
            0 => match varint(&mut rest) {
                Some(_) => 0,
                None => return false,
            },
            1 => 8,
            2 => match varint(&mut rest) {
                Some(size) if size <= rest.len() as u64 => size as usize,
                _ => return false,
            },
            5 => 4,
            _ => return false,
        };
        if size > rest.len() {
            return false;
        }
        let (value, after) = rest.split_at(size);
        rest = after;
        if tag & 7 == 2 {
            for (field, inner) in shape.0 {
                // As protobuf reads it: a field number has 29 bits.
                if (tag as u32) >> 3 == *field as u32 && !has_no_groups(value, inner) {
                    return false;
                }
            }
        }
    }
    true
}
