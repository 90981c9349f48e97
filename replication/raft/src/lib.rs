//! raft-rs behind the C interface of mayfly_raft.h. No threads, no time, no I/O: those are the caller's.

mod c;
mod store;
mod wire;

use std::os::raw::{c_char, c_int};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::{mem, ptr, slice};

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{
    ConfChange, ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType,
    HardState, Message, MessageType,
};
use raft::{Config, ProgressState, RawNode, Ready, SnapshotStatus, StateRole};
use raft_proto::ConfChangeI;

use c::*;
use store::Store;

const OK: c_int = 0;
const DROPPED: c_int = 1;
const MALFORMED: c_int = 2;
const SNAPSHOT: c_int = 3;
const BUSY: c_int = 4;

/// Entries that a majority has, with views for the caller. The bytes are shared with the log's cache.
pub struct Committed {
    _entries: Vec<Entry>,
    views: Vec<MfEntry>,
}

impl Committed {
    fn boxed(entries: Vec<Entry>) -> *mut Committed {
        if entries.is_empty() {
            return ptr::null_mut();
        }
        let views = entries.iter().map(MfEntry::of).collect();
        Box::into_raw(Box::new(Committed { _entries: entries, views }))
    }
}

pub struct Node {
    raw: RawNode<Store>,
    callbacks: MfCallbacks,
    seed: u64,
    draws: u64,
    last_seen: (u64, StateRole),
    lost_told: bool, // that the log is shorter than was promised
    ready: Option<Ready>,
    // What the pointers handed out point into.
    out_ready: MfReady,
    out_light: MfLightReady,
    out_status: MfStatus,
    entry_views: Vec<MfEntry>,
    message_bytes: Vec<Vec<u8>>,
    message_views: Vec<MfMessage>,
    reads: Vec<MfRead>,
    scratch: Vec<u8>,
    snapshot_data: Vec<u8>,
}

struct CDrain(MfCallbacks);

impl slog::Drain for CDrain {
    type Ok = ();
    type Err = slog::Never;
    fn log(&self, record: &slog::Record, _: &slog::OwnedKVList) -> Result<(), slog::Never> {
        if record.level().as_usize() <= slog::Level::Info.as_usize() {
            let text = record.msg().to_string();
            (self.0.log)(
                self.0.this,
                record.level().as_usize() as c_int,
                text.as_ptr() as *const c_char,
                text.len(),
            );
        }
        Ok(())
    }
}

/// Runs `f`; a panic is told to the caller's `fatal`, which ends the process.
fn guard<T>(callbacks: &MfCallbacks, f: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => value,
        Err(cause) => {
            let why = cause
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| cause.downcast_ref::<&str>().map(|s| s.to_string()))
                .unwrap_or_else(|| "panic".to_string());
            (callbacks.fatal)(callbacks.this, why.as_ptr() as *const c_char, why.len());
            std::process::abort();
        }
    }
}

fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Node {
    /// raft-rs draws election timeouts from the thread's generator; ours come from the seed, so that a run can be
    /// repeated. Called after whatever may have changed term or role.
    fn draw_timeout(&mut self) {
        let now = (self.raw.raft.term, self.raw.raft.state);
        if now != self.last_seen {
            self.last_seen = now;
            self.draws += 1;
        }
        let min = self.raw.raft.election_timeout() as u64;
        // A quarter apart is enough for one to be first, and no longer than that is nobody leading.
        let spread = (min / 4).max(4).min(min);
        let t = min + mix(self.seed ^ mix(self.raw.raft.id) ^ mix(self.draws)) % spread;
        self.raw.raft.set_randomized_election_timeout(t as usize);
    }

    fn encode(&mut self, messages: Vec<Message>) {
        self.message_bytes.clear();
        self.message_views.clear();
        for m in &messages {
            self.message_bytes.push(m.write_to_bytes().expect("a message can be encoded"));
        }
        for (m, b) in messages.iter().zip(&self.message_bytes) {
            self.message_views.push(MfMessage {
                to: m.to,
                kind: m.get_msg_type() as u32,
                bytes: MfBytes::of(b),
            });
        }
    }
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_new(config: *const MfConfig, callbacks: *const MfCallbacks) -> *mut Node {
    let c = &*config;
    let callbacks = *callbacks;
    guard(&callbacks, || {
        // The message comes through `fatal`; nothing is printed beside it.
        std::panic::set_hook(Box::new(|_| {}));
        let mut hard = HardState::default();
        hard.term = c.term;
        hard.vote = c.vote;
        hard.commit = c.commit;
        let conf = ConfState::parse_from_bytes(c.conf_state.get()).expect("stored conf state");
        let store = Store::new(
            callbacks,
            hard,
            conf,
            (c.trimmed_index, c.trimmed_term),
            c.last_index,
            c.applied,
            c.cache_bytes as usize,
            c.keep_bytes as usize,
        );
        let config = Config {
            id: c.id,
            election_tick: c.election_ticks as usize,
            heartbeat_tick: c.heartbeat_ticks as usize,
            applied: c.applied,
            max_size_per_msg: c.max_message_bytes,
            max_inflight_msgs: c.max_inflight as usize,
            check_quorum: true,
            pre_vote: true,
            // Would join all that is on its way to a member that catches up into one message of any size.
            batch_append: false,
            max_committed_size_per_ready: 16 << 20,
            ..Default::default()
        };
        let logger = slog::Logger::root(CDrain(callbacks), slog::o!());
        let raw = RawNode::new(&config, store, &logger).expect("stored state");
        let last_seen = (raw.raft.term, raw.raft.state);
        let mut node = Box::new(Node {
            raw,
            callbacks,
            seed: c.seed,
            draws: 0,
            last_seen,
            lost_told: false,
            ready: None,
            out_ready: mem::zeroed(),
            out_light: mem::zeroed(),
            out_status: mem::zeroed(),
            entry_views: Vec::new(),
            message_bytes: Vec::new(),
            message_views: Vec::new(),
            reads: Vec::new(),
            scratch: Vec::new(),
            snapshot_data: Vec::new(),
        });
        node.draw_timeout();
        Box::into_raw(node)
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_free(node: *mut Node) {
    drop(Box::from_raw(node));
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_tick(node: *mut Node, may_campaign: c_int) {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        let raft = &mut node.raw.raft;
        if may_campaign == 0
            && raft.state != StateRole::Leader
            && raft.election_elapsed + 1 >= raft.randomized_election_timeout()
        {
            // Old enough that the lease of the last leader does not keep it from giving its vote.
            raft.election_elapsed = raft.election_timeout();
            return;
        }
        node.raw.tick();
        node.draw_timeout();
    })
}

/// Whether an entry's change of the members can be read, if it is one.
fn readable_change(kind: EntryType, data: &[u8]) -> bool {
    match kind {
        EntryType::EntryNormal => true,
        EntryType::EntryConfChange => {
            wire::has_no_groups(data, &wire::CONF_CHANGE) && ConfChange::parse_from_bytes(data).is_ok()
        }
        EntryType::EntryConfChangeV2 => {
            wire::has_no_groups(data, &wire::CONF_CHANGE_V2) && ConfChangeV2::parse_from_bytes(data).is_ok()
        }
    }
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_step(
    node: *mut Node,
    from: u64,
    message: MfBytes,
    may_campaign: c_int,
    snapshot: *mut MfSnapshot,
) -> c_int {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        if !wire::has_no_groups(message.get(), &wire::MESSAGE) {
            return MALFORMED;
        }
        let mut m = match Message::parse_from_bytes(message.get()) {
            Ok(m) => m,
            Err(_) => return MALFORMED,
        };
        if m.from != from || m.to != node.raw.raft.id {
            return MALFORMED;
        }
        // Refused here, because once a change is committed every member has to apply it.
        if !m.get_entries().iter().all(|e| readable_change(e.get_entry_type(), &e.data)) {
            return MALFORMED;
        }
        match m.get_msg_type() {
            MessageType::MsgPropose | MessageType::MsgTransferLeader => return MALFORMED,
            // Leadership is offered to somebody who has just been told not to take it.
            MessageType::MsgTimeoutNow if may_campaign == 0 => return DROPPED,
            // The log is shorter than what this node has told that it has: its files were put back from before, or its disk
            // loses what it has synced. Nothing is taken for committed by it, but it is answered: the leader waits for that before it
            // looks where to go on.
            MessageType::MsgHeartbeat if m.commit > node.raw.raft.raft_log.last_index() => {
                m.commit = node.raw.raft.raft_log.committed;
                if !node.lost_told {
                    node.lost_told = true;
                    let text = "the log ends before what this member has acknowledged: its directory was put back from before, or its disk loses \
                                what it has written. What is missing comes from the primary";
                    (callbacks.log)(callbacks.this, 3, text.as_ptr() as *const c_char, text.len());
                }
            }
            MessageType::MsgSnapshot => {
                if m.term < node.raw.raft.term {
                    return DROPPED;
                }
                let (index, term) =
                    (m.get_snapshot().get_metadata().index, m.get_snapshot().get_metadata().term);
                let log = &node.raw.raft.raft_log;
                if index <= log.committed || log.match_term(index, term) {
                    // Nothing to copy: raft-rs answers how far the log is, so that the leader goes on from there.
                    let _ = node.raw.step(m);
                    node.draw_timeout();
                    return OK;
                }
                let s = m.take_snapshot();
                node.snapshot_data = s.get_data().to_vec();
                node.scratch = s
                    .get_metadata()
                    .get_conf_state()
                    .write_to_bytes()
                    .expect("a conf state can be encoded");
                *snapshot = MfSnapshot {
                    index: s.get_metadata().index,
                    term: s.get_metadata().term,
                    from,
                    data: MfBytes::of(&node.snapshot_data),
                    conf_state: MfBytes::of(&node.scratch),
                };
                return SNAPSHOT;
            }
            _ => {}
        }
        let result = node.raw.step(m);
        node.draw_timeout();
        if result.is_ok() {
            OK
        } else {
            DROPPED
        }
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_propose(
    node: *mut Node,
    data: *const MfBytes,
    context: *const MfBytes,
    count: usize,
    first_index: *mut u64,
) -> c_int {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        if node.raw.raft.state != StateRole::Leader {
            return DROPPED;
        }
        let mut m = Message::default();
        m.set_msg_type(MessageType::MsgPropose);
        m.from = node.raw.raft.id;
        let entries: Vec<Entry> = (0..count)
            .map(|i| {
                let mut e = Entry::default();
                e.data = Bytes::copy_from_slice((*data.add(i)).get());
                e.context = Bytes::copy_from_slice((*context.add(i)).get());
                e
            })
            .collect();
        m.set_entries(entries.into());
        *first_index = node.raw.raft.raft_log.last_index() + 1;
        match node.raw.step(m) {
            Ok(()) => OK,
            Err(_) => DROPPED,
        }
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_propose_change(
    node: *mut Node,
    changes: *const MfChange,
    count: usize,
    context: MfBytes,
    index: *mut u64,
) -> c_int {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        let raft = &node.raw.raft;
        if raft.state != StateRole::Leader {
            return DROPPED;
        }
        if raft.has_pending_conf() || !raft.prs().conf().to_conf_state().get_voters_outgoing().is_empty() {
            return BUSY;
        }
        let mut cc = ConfChangeV2::default();
        for i in 0..count {
            let c = &*changes.add(i);
            let mut single = ConfChangeSingle::default();
            single.node_id = c.node;
            single.set_change_type(match c.kind {
                0 => ConfChangeType::AddNode,
                1 => ConfChangeType::RemoveNode,
                _ => ConfChangeType::AddLearnerNode,
            });
            cc.mut_changes().push(single);
        }
        let at = node.raw.raft.raft_log.last_index() + 1;
        match node.raw.propose_conf_change(context.get().to_vec(), cc) {
            Ok(()) => {
                *index = at;
                OK
            }
            Err(_) => DROPPED,
        }
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_apply_change(node: *mut Node, entry: *const MfEntry) -> MfBytes {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        let data = (*entry).data.get();
        let cc = if (*entry).kind == 1 {
            ConfChange::parse_from_bytes(data).expect("a committed change").into_v2()
        } else {
            ConfChangeV2::parse_from_bytes(data).expect("a committed change")
        };
        let state = node.raw.apply_conf_change(&cc).expect("a committed change applies");
        node.raw.mut_store().set_conf_state(state.clone());
        node.scratch = state.write_to_bytes().expect("a conf state can be encoded");
        node.draw_timeout();
        MfBytes::of(&node.scratch)
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_member_alive(node: *mut Node, id: u64) {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        let raft = &mut node.raw.raft;
        if raft.state == StateRole::Leader {
            if let Some(pr) = raft.mut_prs().get_mut(id) {
                pr.recent_active = true;
            }
        }
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_leader_alive(node: *mut Node) {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        let raft = &mut node.raw.raft;
        if raft.state == StateRole::Follower && raft.leader_id != 0 {
            raft.election_elapsed = 0;
        }
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_read_index(node: *mut Node, request: u64) {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || node.raw.read_index(request.to_le_bytes().to_vec()))
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_transfer(node: *mut Node, to: u64) {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || node.raw.transfer_leader(to))
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_campaign(node: *mut Node) {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        let _ = node.raw.campaign();
        node.draw_timeout();
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_step_down(node: *mut Node) {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        if node.raw.raft.state == StateRole::Leader {
            let term = node.raw.raft.term;
            node.raw.raft.become_follower(term, 0);
            node.draw_timeout();
        }
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_report_unreachable(node: *mut Node, id: u64) {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || node.raw.report_unreachable(id))
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_report_snapshot(node: *mut Node, id: u64, ok: c_int) {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        let status = if ok != 0 { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        node.raw.report_snapshot(id, status)
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_probe_from(node: *mut Node, id: u64, index: u64) {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        let raft = &mut node.raw.raft;
        if raft.state != StateRole::Leader {
            return;
        }
        let last = raft.raft_log.last_index();
        if let Some(pr) = raft.mut_prs().get_mut(id) {
            if pr.state == ProgressState::Replicate {
                return;
            }
            pr.become_probe();
            pr.next_idx = index.min(last).max(pr.matched) + 1;
        }
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_has_ready(node: *mut Node) -> c_int {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || node.raw.has_ready() as c_int)
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_ready(node: *mut Node) -> *const MfReady {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        let mut rd = node.raw.ready();
        // A leader sends before it has written; everybody else's messages are promises and wait (mf_raft_persisted).
        let messages = rd.take_messages();
        node.encode(messages);
        node.entry_views = rd.entries().iter().map(MfEntry::of).collect();
        node.reads = rd
            .take_read_states()
            .into_iter()
            .filter_map(|r| {
                let id: [u8; 8] = r.request_ctx.as_slice().try_into().ok()?;
                Some(MfRead { index: r.index, request: u64::from_le_bytes(id) })
            })
            .collect();
        let hs = rd.hs();
        node.out_ready = MfReady {
            has_hard_state: hs.is_some() as c_int,
            must_sync: rd.must_sync() as c_int,
            term: hs.map_or(0, |h| h.term),
            vote: hs.map_or(0, |h| h.vote),
            commit: hs.map_or(0, |h| h.commit),
            entries: node.entry_views.as_ptr(),
            entry_count: node.entry_views.len(),
            messages: node.message_views.as_ptr(),
            message_count: node.message_views.len(),
            reads: node.reads.as_ptr(),
            read_count: node.reads.len(),
            committed: ptr::null_mut(),
        };
        node.out_ready.committed = Committed::boxed(rd.take_committed_entries());
        node.ready = Some(rd);
        &node.out_ready as *const MfReady
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_persisted(node: *mut Node) -> *const MfLightReady {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        let mut rd = node.ready.take().expect("mf_raft_ready comes first");
        let mut messages = rd.take_persisted_messages();
        let entries = rd.take_entries();
        node.raw.mut_store().append(entries);
        let mut light = node.raw.advance_append(rd);
        messages.extend(light.take_messages());
        node.encode(messages);
        node.out_light = MfLightReady {
            messages: node.message_views.as_ptr(),
            message_count: node.message_views.len(),
            committed: Committed::boxed(light.take_committed_entries()),
        };
        node.draw_timeout();
        &node.out_light as *const MfLightReady
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_applied(node: *mut Node, index: u64) {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        if index > node.raw.raft.raft_log.applied {
            node.raw.advance_apply_to(index);
            node.raw.mut_store().applied(index);
        }
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_trimmed(node: *mut Node, first: u64, term: u64) {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || node.raw.mut_store().trim(first, term))
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_status(node: *mut Node) -> *const MfStatus {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        let raft = &node.raw.raft;
        node.out_status = MfStatus {
            term: raft.term,
            vote: raft.vote,
            leader: raft.leader_id,
            commit: raft.raft_log.committed,
            applied: raft.raft_log.applied,
            last_index: raft.raft_log.last_index(),
            first_index: raft.raft_log.first_index(),
            role: match raft.state {
                StateRole::Follower => 0,
                StateRole::Candidate => 1,
                StateRole::Leader => 2,
                StateRole::PreCandidate => 3,
            },
            pending_conf: raft.has_pending_conf() as c_int,
            joint: !raft.prs().conf().to_conf_state().get_voters_outgoing().is_empty() as c_int,
            transferee: raft.lead_transferee.unwrap_or(0),
        };
        &node.out_status as *const MfStatus
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_raft_progress(node: *mut Node, out: *mut MfProgress, capacity: usize) -> usize {
    let node = &mut *node;
    let callbacks = node.callbacks;
    guard(&callbacks, || {
        let conf = node.raw.raft.prs().conf().to_conf_state();
        let mut n = 0;
        for (id, pr) in node.raw.raft.prs().iter() {
            if n < capacity {
                *out.add(n) = MfProgress {
                    id: *id,
                    matched: pr.matched,
                    next: pr.next_idx,
                    state: match pr.state {
                        ProgressState::Probe => 0,
                        ProgressState::Replicate => 1,
                        ProgressState::Snapshot => 2,
                    },
                    recent_active: pr.recent_active as c_int,
                    voter: conf.get_voters().contains(id) as c_int,
                    learner: conf.get_learners().contains(id) as c_int,
                    pending_snapshot: pr.pending_snapshot,
                };
            }
            n += 1;
        }
        n
    })
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_committed_entries(committed: *const Committed, count: *mut usize) -> *const MfEntry {
    *count = (*committed).views.len();
    (*committed).views.as_ptr()
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_committed_free(committed: *mut Committed) {
    drop(Box::from_raw(committed));
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_conf_state(
    voters: *const u64,
    voter_count: usize,
    learners: *const u64,
    learner_count: usize,
) -> MfBytes {
    let mut state = ConfState::default();
    state.set_voters((0..voter_count).map(|i| *voters.add(i)).collect());
    state.set_learners((0..learner_count).map(|i| *learners.add(i)).collect());
    let bytes = state.write_to_bytes().unwrap_or_default().into_boxed_slice();
    let out = MfBytes::of(&bytes);
    mem::forget(bytes);
    out
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_bytes_free(bytes: MfBytes) {
    if bytes.size > 0 {
        drop(Box::from_raw(slice::from_raw_parts_mut(bytes.data as *mut u8, bytes.size)));
    }
}

/// # Safety
/// Pointers as mayfly_raft.h says.
#[no_mangle]
pub unsafe extern "C" fn mf_conf_state_nodes(
    conf_state: MfBytes,
    voters: *mut u64,
    learners: *mut u64,
    capacity: usize,
    learner_count: *mut usize,
) -> usize {
    let state = ConfState::parse_from_bytes(conf_state.get()).unwrap_or_default();
    let mut v: Vec<u64> = state.get_voters().to_vec();
    for id in state.get_voters_outgoing() {
        if !v.contains(id) {
            v.push(*id);
        }
    }
    for (i, id) in v.iter().take(capacity).enumerate() {
        *voters.add(i) = *id;
    }
    for (i, id) in state.get_learners().iter().take(capacity).enumerate() {
        *learners.add(i) = *id;
    }
    *learner_count = state.get_learners().len();
    v.len()
}
