//! The structures of mayfly_raft.h, field by field.

use std::ffi::c_void;
use std::os::raw::{c_char, c_int};
use std::{ptr, slice};

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType};

use crate::Committed;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MfBytes {
    pub data: *const u8,
    pub size: usize,
}

impl MfBytes {
    pub const EMPTY: MfBytes = MfBytes { data: ptr::null(), size: 0 };
    pub fn of(b: &[u8]) -> MfBytes {
        MfBytes { data: b.as_ptr(), size: b.len() }
    }
    /// The caller's memory, for as long as the call.
    pub unsafe fn get<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            &[]
        } else {
            slice::from_raw_parts(self.data, self.size)
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MfEntry {
    pub term: u64,
    pub index: u64,
    pub kind: u32,
    pub data: MfBytes,
    pub context: MfBytes,
}

impl MfEntry {
    pub fn of(e: &Entry) -> MfEntry {
        MfEntry {
            term: e.term,
            index: e.index,
            kind: e.get_entry_type() as u32,
            data: MfBytes::of(&e.data),
            context: MfBytes::of(&e.context),
        }
    }
    pub unsafe fn to_entry(self) -> Entry {
        let mut e = Entry::default();
        e.set_entry_type(match self.kind {
            1 => EntryType::EntryConfChange,
            2 => EntryType::EntryConfChangeV2,
            _ => EntryType::EntryNormal,
        });
        e.term = self.term;
        e.index = self.index;
        e.data = Bytes::copy_from_slice(self.data.get());
        e.context = Bytes::copy_from_slice(self.context.get());
        e
    }
}

#[repr(C)]
pub struct MfMessage {
    pub to: u64,
    pub kind: u32,
    pub bytes: MfBytes,
}

#[repr(C)]
pub struct MfRead {
    pub index: u64,
    pub request: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MfCallbacks {
    pub this: *mut c_void,
    pub entries: extern "C" fn(
        *mut c_void,
        u64,
        u64,
        u64,
        *mut c_void,
        extern "C" fn(*mut c_void, *const MfEntry),
    ) -> c_int,
    pub term: extern "C" fn(*mut c_void, u64, *mut u64) -> c_int,
    pub snapshot: extern "C" fn(
        *mut c_void,
        u64,
        u64,
        *mut u64,
        *mut u64,
        *mut MfBytes,
        *mut MfBytes,
    ) -> c_int,
    pub log: extern "C" fn(*mut c_void, c_int, *const c_char, usize),
    pub fatal: extern "C" fn(*mut c_void, *const c_char, usize),
}
// The caller promises that they may be called wherever the node is used.
unsafe impl Send for MfCallbacks {}
unsafe impl Sync for MfCallbacks {}

#[repr(C)]
pub struct MfConfig {
    pub id: u64,
    pub election_ticks: u64,
    pub heartbeat_ticks: u64,
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
    pub trimmed_index: u64,
    pub trimmed_term: u64,
    pub last_index: u64,
    pub applied: u64,
    pub conf_state: MfBytes,
    pub max_message_bytes: u64,
    pub max_inflight: u64,
    pub cache_bytes: u64,
    pub keep_bytes: u64,
    pub seed: u64,
}

#[repr(C)]
pub struct MfReady {
    pub has_hard_state: c_int,
    pub must_sync: c_int,
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
    pub entries: *const MfEntry,
    pub entry_count: usize,
    pub messages: *const MfMessage,
    pub message_count: usize,
    pub reads: *const MfRead,
    pub read_count: usize,
    pub committed: *mut Committed,
}

#[repr(C)]
pub struct MfLightReady {
    pub messages: *const MfMessage,
    pub message_count: usize,
    pub committed: *mut Committed,
}

#[repr(C)]
pub struct MfStatus {
    pub term: u64,
    pub vote: u64,
    pub leader: u64,
    pub commit: u64,
    pub applied: u64,
    pub last_index: u64,
    pub first_index: u64,
    pub role: c_int,
    pub pending_conf: c_int,
    pub joint: c_int,
    pub transferee: u64,
}

#[repr(C)]
pub struct MfProgress {
    pub id: u64,
    pub matched: u64,
    pub next: u64,
    pub state: c_int,
    pub recent_active: c_int,
    pub voter: c_int,
    pub learner: c_int,
    pub pending_snapshot: u64,
}

#[repr(C)]
pub struct MfSnapshot {
    pub index: u64,
    pub term: u64,
    pub from: u64,
    pub data: MfBytes,
    pub conf_state: MfBytes,
}

#[repr(C)]
pub struct MfChange {
    pub kind: u32,
    pub node: u64,
}
