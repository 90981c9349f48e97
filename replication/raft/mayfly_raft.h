#pragma once
/* raft-rs behind a C interface: a pure state machine without threads, time or I/O. One thread at
 * a time a node. Pointers handed out are good until the next call on the same node, if nothing
 * else is said. A panic inside ends in `fatal` and does not return. */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mf_raft mf_raft;
typedef struct mf_committed mf_committed;

typedef struct {
  const uint8_t* data;
  size_t size;
} mf_bytes;

typedef struct {
  uint64_t term, index;
  uint32_t type; /* 0 normal, 1 ConfChange, 2 ConfChangeV2 */
  mf_bytes data, context;
} mf_entry;

typedef struct {
  uint64_t to;
  uint32_t type; /* eraftpb.MessageType */
  mf_bytes bytes;
} mf_message;

typedef struct {
  uint64_t index;
  uint64_t request; /* of mf_raft_read_index */
} mf_read;

enum { MF_FOLLOWER = 0, MF_CANDIDATE = 1, MF_LEADER = 2, MF_PRE_CANDIDATE = 3 };
enum { MF_OK = 0, MF_DROPPED = 1, MF_MALFORMED = 2, MF_SNAPSHOT = 3, MF_BUSY = 4 };

/* What the node reads and tells. All are called on the thread that calls the node. */
typedef struct {
  void* self;
  /* Entries [low, high) up to max_bytes, at least one: calls `emit` for each in order. 0: done;
   * else the log is broken. */
  int (*entries)(void* self, uint64_t low, uint64_t high, uint64_t max_bytes, void* sink,
                 void (*emit)(void* sink, const mf_entry* entry));
  /* Term of an entry that is in the log. 0: done. */
  int (*term)(void* self, uint64_t index, uint64_t* term);
  /* A snapshot at or behind request_index for node `to`. 1: filled (copied before the call
   * returns); 0: not yet. */
  int (*snapshot)(void* self, uint64_t request_index, uint64_t to, uint64_t* index, uint64_t* term,
                  mf_bytes* conf_state, mf_bytes* data);
  void (*log)(void* self, int level, const char* text,
              size_t size); /* slog: 1 critical .. 4 info */
  void (*fatal)(void* self, const char* why, size_t size);
} mf_callbacks;

typedef struct {
  uint64_t id;
  uint64_t election_ticks, heartbeat_ticks;
  uint64_t term, vote, commit; /* hard state */
  uint64_t trimmed_index, trimmed_term, last_index, applied;
  mf_bytes conf_state; /* protobuf; empty: none */
  uint64_t max_message_bytes, max_inflight;
  uint64_t cache_bytes,
      keep_bytes; /* of the end of the log in memory: what is not applied yet; what is */
  uint64_t seed;  /* of the election timeouts: equal seeds, equal runs */
} mf_config;

/* What is to be done: send `messages`, write `entries` and the hard state (forced to disk if
 * must_sync), then call mf_raft_persisted. */
typedef struct {
  int has_hard_state, must_sync;
  uint64_t term, vote, commit;
  const mf_entry* entries;
  size_t entry_count;
  const mf_message* messages;
  size_t message_count;
  const mf_read* reads;
  size_t read_count;
  mf_committed* committed; /* owned by the caller, may be null */
} mf_ready;

typedef struct {
  const mf_message* messages; /* to be sent now that everything is on disk */
  size_t message_count;
  mf_committed* committed;
} mf_light_ready;

typedef struct {
  uint64_t term, vote, leader, commit, applied, last_index, first_index;
  int role;
  int pending_conf; /* a change of membership is not applied yet */
  int joint;
  uint64_t transferee; /* leadership is moving there; 0: it is not */
} mf_status;

typedef struct {
  uint64_t id, matched, next;
  int state; /* 0 probe, 1 replicate, 2 snapshot */
  int recent_active, voter, learner;
  uint64_t pending_snapshot;
} mf_progress;

typedef struct {
  uint64_t index, term, from;
  mf_bytes data, conf_state;
} mf_snapshot;

enum { MF_ADD_VOTER = 0, MF_REMOVE = 1, MF_ADD_LEARNER = 2 };
typedef struct {
  uint32_t type;
  uint64_t node;
} mf_change;

/// Starts a node from its stored state, which must be whole: what cannot be read ends in `fatal`.
/// Both structs are copied; what `callbacks->self` points to must outlive the node. Never null;
/// ended by mf_raft_free.
mf_raft* mf_raft_new(const mf_config* config, const mf_callbacks* callbacks);
void mf_raft_free(mf_raft* node);

/// may_campaign 0: the election timeout never starts an election here (votes are given all the
/// same).
void mf_raft_tick(mf_raft* node, int may_campaign);
/// A message of member `from`. MF_SNAPSHOT: not stepped, filled into *snapshot; take the state from
/// there and make a new node. MF_DROPPED: of no use here.
int mf_raft_step(mf_raft* node, uint64_t from, mf_bytes message, int may_campaign,
                 mf_snapshot* snapshot);
/// Entries of this leader. First index given out in *first_index. MF_DROPPED: not a leader, or one
/// that hands over.
int mf_raft_propose(mf_raft* node, const mf_bytes* data, const mf_bytes* context, size_t count,
                    uint64_t* first_index);
/// MF_BUSY: a change is under way.
int mf_raft_propose_change(mf_raft* node, const mf_change* changes, size_t count, mf_bytes context,
                           uint64_t* index);
/// Takes a committed change of membership into account; the new eraftpb.ConfState comes back.
mf_bytes mf_raft_apply_change(mf_raft* node, const mf_entry* entry);
/// By other ways than raft-rs's messages: `id` follows this leader (no follower: nothing); this
/// follower's leader leads.
void mf_raft_member_alive(mf_raft* node, uint64_t id);
void mf_raft_leader_alive(mf_raft* node);
/// Asks for an index that is safe to read at. It comes as an mf_read with this `request` in a later
/// mf_ready, or not at all when leadership is lost meanwhile.
void mf_raft_read_index(mf_raft* node, uint64_t request);
/// Starts to hand leadership over to `to`; mf_status::transferee shows it. Given up after an
/// election timeout; nothing is reported then.
void mf_raft_transfer(mf_raft* node, uint64_t to);
/// Calls an election at once, with the vote before the vote that finds out whether it could be won
/// (pre-vote). Nothing on a leader.
void mf_raft_campaign(mf_raft* node);
/// A leader becomes a follower of nobody.
void mf_raft_step_down(mf_raft* node);
/// What the transport knows of `id`, for a leader: messages to it were lost (so its log is probed
/// again); the snapshot that was sent has arrived (`ok`) or has not.
void mf_raft_report_unreachable(mf_raft* node, uint64_t id);
void mf_raft_report_snapshot(mf_raft* node, uint64_t id, int ok);
/// A leader that wants a member to take a copy, or is about to, goes on behind `index` of the log
/// instead, which that member has. Nothing for one that follows the log already.
void mf_raft_probe_from(mf_raft* node, uint64_t id, uint64_t index);

/// The cycle of a node, after every call that may have given it something to do. While has_ready,
/// call ready, do what it asks, then persisted, and send and apply what that returns. One call of
/// persisted for each of ready.
int mf_raft_has_ready(mf_raft* node);
const mf_ready* mf_raft_ready(mf_raft* node);
const mf_light_ready* mf_raft_persisted(mf_raft* node);
/// Everything up to `index` has been applied. Lower indexes than before are ignored.
void mf_raft_applied(mf_raft* node, uint64_t index);
/// Entries before `first` are gone from the log; `term` is of the one before.
void mf_raft_trimmed(mf_raft* node, uint64_t first, uint64_t term);

/// A copy of the node's state now; the next call of it overwrites the struct.
const mf_status* mf_raft_status(mf_raft* node);
/// On a leader: how far each member has followed. Fills up to `capacity` rows, in no order, and
/// returns how many there are.
size_t mf_raft_progress(mf_raft* node, mf_progress* out, size_t capacity);

/// Any thread.
const mf_entry* mf_committed_entries(const mf_committed* committed, size_t* count);
void mf_committed_free(mf_committed* committed);

/// protobuf eraftpb.ConfState of these nodes; freed by mf_bytes_free.
mf_bytes mf_conf_state(const uint64_t* voters, size_t voter_count, const uint64_t* learners,
                       size_t learner_count);
/// Only for what mf_conf_state has returned.
void mf_bytes_free(mf_bytes bytes);
/// Ids in a ConfState (both halves of a joint one): fills up to `capacity`, returns how many there
/// are.
size_t mf_conf_state_nodes(mf_bytes conf_state, uint64_t* voters, uint64_t* learners,
                           size_t capacity, size_t* learner_count);

#ifdef __cplusplus
}
#endif
