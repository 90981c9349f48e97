//! What raft-rs reads: positions in memory, the newest entries in a bounded cache, everything else from the caller.

use std::collections::VecDeque;
use std::mem;
use std::os::raw::c_void;

use protobuf::Message as _;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};

use crate::c::{MfBytes, MfCallbacks, MfEntry};

pub struct Store {
    callbacks: MfCallbacks,
    hard: HardState,
    conf: ConfState,
    trimmed: (u64, u64),
    last: u64,
    /// The end of the log without gaps; its bytes are shared with whoever sends or applies them.
    cache: VecDeque<Entry>,
    cached_bytes: usize,
    /// What is still to be applied stays up to `max_bytes`; what is applied, for members that are a little behind, up to `keep_bytes`.
    max_bytes: usize,
    keep_bytes: usize,
    applied: u64,
}

/// Memory of an entry: itself, its bytes, and what is counted beside them when they are shared.
fn size_of(e: &Entry) -> usize {
    e.data.len() + e.context.len() + mem::size_of::<Entry>() + 32
}

extern "C" fn emit(sink: *mut c_void, entry: *const MfEntry) {
    // The caller passes the sink through; it is the Vec of `entries` below.
    unsafe { (*(sink as *mut Vec<Entry>)).push((*entry).to_entry()) }
}

impl Store {
    pub fn new(
        callbacks: MfCallbacks,
        hard: HardState,
        conf: ConfState,
        trimmed: (u64, u64),
        last: u64,
        applied: u64,
        max_bytes: usize,
        keep_bytes: usize,
    ) -> Store {
        Store { callbacks, hard, conf, trimmed, last, cache: VecDeque::new(), cached_bytes: 0, max_bytes, keep_bytes, applied }
    }

    pub fn set_conf_state(&mut self, conf: ConfState) {
        self.conf = conf;
    }

    /// These entries are on disk; what was there from the first of them on is replaced.
    pub fn append(&mut self, entries: Vec<Entry>) {
        let first = match entries.first() {
            Some(e) => e.index,
            None => return,
        };
        while self.cache.back().map_or(false, |e| e.index >= first) {
            if let Some(e) = self.cache.pop_back() {
                self.cached_bytes -= size_of(&e);
            }
        }
        if self.cache.back().map_or(false, |e| e.index + 1 != first) {
            self.cache.clear();
            self.cached_bytes = 0;
        }
        for e in entries {
            self.last = e.index;
            self.cached_bytes += size_of(&e);
            self.cache.push_back(e);
        }
        self.shrink();
    }

    /// Entries up to this one have been applied.
    pub fn applied(&mut self, index: u64) {
        self.applied = index;
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.cache.front().map_or(false, |e| {
            let limit = if e.index <= self.applied { self.keep_bytes } else { self.max_bytes };
            self.cached_bytes > limit && self.cache.len() > 1
        }) {
            if let Some(e) = self.cache.pop_front() {
                self.cached_bytes -= size_of(&e);
            }
        }
    }

    pub fn trim(&mut self, first: u64, term: u64) {
        self.trimmed = (first - 1, term);
        while self.cache.front().map_or(false, |e| e.index < first) {
            if let Some(e) = self.cache.pop_front() {
                self.cached_bytes -= size_of(&e);
            }
        }
    }

    fn cached(&self, index: u64) -> Option<&Entry> {
        let first = self.cache.front()?.index;
        if index < first {
            return None;
        }
        self.cache.get((index - first) as usize)
    }
}

impl Storage for Store {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.conf.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.trimmed.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.last + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let max = max_size.into().unwrap_or(u64::MAX);
        let mut out: Vec<Entry> = Vec::new();
        let mut bytes = 0u64;
        if self.cached(low).is_none() {
            let end = self.cache.front().map_or(high, |e| e.index.min(high));
            let failed = (self.callbacks.entries)(
                self.callbacks.this,
                low,
                end,
                max,
                &mut out as *mut Vec<Entry> as *mut c_void,
                emit,
            );
            if failed != 0 || out.is_empty() {
                return Err(Error::Store(StorageError::Unavailable));
            }
            bytes = out.iter().map(|e| size_of(e) as u64).sum();
            if (out.len() as u64) < end - low {
                return Ok(out);
            }
        }
        let mut next = low + out.len() as u64;
        while next < high && (out.is_empty() || bytes < max) {
            match self.cached(next) {
                Some(e) => {
                    bytes += size_of(e) as u64;
                    out.push(e.clone());
                    next += 1;
                }
                None => break,
            }
        }
        Ok(out)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.trimmed.0 {
            return Ok(self.trimmed.1);
        }
        if index < self.trimmed.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        if index > self.last {
            return Err(Error::Store(StorageError::Unavailable));
        }
        if let Some(e) = self.cached(index) {
            return Ok(e.term);
        }
        let mut term = 0u64;
        if (self.callbacks.term)(self.callbacks.this, index, &mut term) != 0 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        Ok(term)
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.trimmed.0 + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> Result<Snapshot> {
        let (mut index, mut term) = (0u64, 0u64);
        let (mut conf, mut data) = (MfBytes::EMPTY, MfBytes::EMPTY);
        let there = (self.callbacks.snapshot)(
            self.callbacks.this,
            request_index,
            to,
            &mut index,
            &mut term,
            &mut conf,
            &mut data,
        );
        if there == 0 || index < request_index {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let mut s = Snapshot::default();
        s.mut_metadata().index = index;
        s.mut_metadata().term = term;
        let state = ConfState::parse_from_bytes(unsafe { conf.get() })?;
        s.mut_metadata().set_conf_state(state);
        s.set_data(unsafe { data.get() }.to_vec().into());
        Ok(s)
    }
}
