#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "protocol/seeded_hash.h"
#include "security/action.h"
#include "server/base/session_registry.h"
#include "server/dispatch/cursor_limits.h"
#include "storage/clock.h"
#include "storage/operation.h"
#include "storage/read/read_view.h"

namespace mayfly {

class ShownCommand;

/// The source of a cursor's documents: an executor, a pipeline, or a list made beforehand. Used by
/// one thread at a time, but by different ones from batch to batch.
class ServerCursor {
 public:
  virtual ~ServerCursor() = default;
  /// Appends at most `batch_size` documents to `batch`, stopping before `batch` would exceed
  /// `max_bytes` (one document is always given, however large). Fewer than asked means that there
  /// are no more for now.
  virtual Result<void> NextBatch(Operation& op, int64_t batch_size, size_t max_bytes,
                                 BsonArrayBuilder& batch) = 0;
  /// True when no document will ever come again; then the cursor closes. A tailable cursor is never
  /// exhausted unless it lost its position.
  virtual bool Exhausted() const = 0;
  /// Called between batches: give up snapshots, iterators and pins that are costly to hold.
  virtual void Park() {}
  virtual bool tailable() const { return false; }
  virtual bool await_data() const { return false; }
  /// The event that CollectionNotifier::WaitFor waits for, for awaitData.
  virtual uint32_t collection_id() const { return 0; }
  /// A change stream: its errors have labels, and it outlives its collection, whose end it is to
  /// tell.
  virtual bool change_stream() const { return false; }
  /// For awaitData: an empty batch is not the end of what there is; the client is to ask again at
  /// once.
  virtual bool behind() const { return false; }
  /// Fields of the reply's `cursor` besides the batch, after NextBatch: postBatchResumeToken.
  virtual void AppendPosition(BsonBuilder& cursor) const { (void)cursor; }

  /// The size of its parsed form (ParseWork::bytes), which lives as long as it does. `kept`: of
  /// these, what large_memory knows of already (ParseWork::kept_bytes). Errors: ExceededMemoryLimit
  /// 146.
  Result<void> HoldParsed(size_t bytes, size_t kept = 0) {
    parsed_bytes_ = bytes;
    parsed_kept_ = kept;
    return parsed_.Set(bytes - kept);
  }
  /// What it takes between two batches.
  size_t bytes() const {
    large_memory::Kept kept;
    AddKept(&kept);
    return parsed_bytes_ + KeptBytes() + kept.bytes;
  }
  /// Those of them that large_memory knows of already.
  size_t held_bytes() const {
    large_memory::Kept kept;
    AddKept(&kept);
    return parsed_kept_ + parsed_.held() + kept.held;
  }

 protected:
  /// Documents that wait for the next batch.
  virtual size_t KeptBytes() const { return 0; }
  /// What sorts, groups and the like keep, of which large_memory may know already.
  virtual void AddKept(large_memory::Kept* kept) const { (void)kept; }

 private:
  size_t parsed_bytes_ = 0, parsed_kept_ = 0;
  large_memory::Hold parsed_;
};

/// Bytes of documents a reply may hold, so that the reply with its other fields stays a valid
/// document.
inline constexpr size_t kMaxBatchBytes = 16 * 1024 * 1024;
inline constexpr int64_t kDefaultFirstBatch = 101;

/// A command as a cursor keeps it for currentOp and the profiler: of a long one only the fields
/// that are short, since the cursor is not to be as large as the command that made it, and of these
/// only what may be shown.
inline constexpr uint32_t kMaxOriginatingCommand = 16 * 1024;
BsonDocument OriginatingCommand(BsonView command, const ShownCommand& shown);

/// What a command that names a collection by UUID needs besides what its privilege function asks
/// for: that does not know which collection it is. No actions: nothing.
struct NeedsOfUuid {
  std::string collection;  ///< of the command's database
  ActionSet actions;
};

/// A cursor between batches, with what getMore, killCursors, currentOp and serverStatus need to
/// know.
struct ClientCursor {
  int64_t id = 0;
  std::string ns;  ///< "db.coll", or "db.$cmd.aggregate", "db.$cmd.listIndexes.coll" …
  std::string db, collection;  ///< what getMore's `collection` must equal
  std::string session;         ///< its session's key (SessionKey); empty: none
  SessionUse session_use;      ///< of that session: it is in use as long as its cursor lives
  std::string user;  ///< UserName::Id of its user; empty: of no user, without access control
  uint64_t access_generation = 0;  ///< UserAccess::generation of who was allowed to have it
  std::string address;             ///< of the client that opened it; empty: one of the server's own
  std::unique_ptr<ServerCursor> cursor;
  bool no_timeout = false;
  /// What is left of the maxTimeMS of the command that opened it, for all its getMores together;
  /// 0: no limit. Not used by tailable cursors: their getMore brings its own.
  int64_t time_left_micros = 0;
  bool allow_partial = false, single_batch = false;
  std::shared_ptr<ReadPoint> point;  ///< of a snapshot read: what its getMores read
  BsonDocument originating_command;  ///< for currentOp and the profiler
  /// The same if that leaves something out, with access control: what is allowed is asked again.
  BsonDocument whole_command;
  /// Operation::reads_credentials of its getMores; also if its command named the collections of
  /// users (ShownCommand::of_users): only the whole of that tells, with what was beside its body
  /// and the UUIDs of that time.
  bool reads_credentials = false;
  std::string plan_summary;
  std::string_view read_concern;  ///< literal
  int64_t batches = 0, documents_returned = 0;
  Instant created;
  int64_t last_used_micros = 0;  ///< Clock::MonotonicMicros()
  Instant last_used;
  NeedsOfUuid needs;  ///< of its command, if that named a collection by UUID
  std::unique_ptr<CursorLimits::Share> share;  ///< the manager's

  /// The memory it keeps, about, with what its plan holds. For the limits on cursors.
  size_t bytes() const;
};

class CursorManager;

/// How a getMore ends that did not give its cursor back, because of an error or an exception: the
/// cursor is forgotten.
struct DiscardCursor {
  CursorManager* of = nullptr;
  void operator()(ClientCursor* cursor) const noexcept;
};
/// A cursor while a getMore has it.
using CheckedOutCursor = std::unique_ptr<ClientCursor, DiscardCursor>;

/// A cursor that no getMore has, as currentOp shows it: a copy.
struct IdleCursor {
  int64_t id = 0;
  std::string ns, session, plan_summary;
  std::string user;  ///< UserName::Id() of who has opened it; empty without access control
  BsonDocument originating_command;
  bool reads_credentials = false;  ///< ClientCursor::reads_credentials
  int64_t batches = 0, documents_returned = 0;
  Instant created, last_used;
  bool no_timeout = false, tailable = false, await_data = false;
};

/// All open cursors. Threads: any. Cursors idle for `cursorTimeoutMillis` are closed by Sweep.
class CursorManager {
 public:
  explicit CursorManager(const Clock& clock);
  ~CursorManager();
  /// Ends the operation with this id with CursorKilled, also one that only waits: the getMore of a
  /// cursor that was killed. Before the first client.
  void set_kill_operation(std::function<void(uint64_t op_id)> f) { kill_operation_ = std::move(f); }

  /// Takes the cursor and returns its id: positive, unguessable, unique. One whose session has
  /// ended meanwhile is closed at once. Errors: those of CursorLimits and RandomBytes.
  Result<int64_t> Register(std::unique_ptr<ClientCursor> cursor);

  /// Gives the cursor to a getMore for one batch. Errors: CursorNotFound 43, QueryPlanKilled 175
  /// (its collection is gone), CursorInUse 12051, Unauthorized 13 (another namespace, session or
  /// user).
  /// `op` is what killCursors interrupts, until the cursor is given back or forgotten: it must live
  /// longer than the result.
  Result<CheckedOutCursor> CheckOut(int64_t id, std::string_view db, std::string_view collection,
                                    std::string_view session, std::string_view user, Operation& op);
  /// Gives it back. A cursor that is exhausted or was killed meanwhile is destroyed; the answer
  /// says whether it lives.
  bool CheckIn(CheckedOutCursor cursor);
  /// The cursor has given another batch. By the getMore that has it.
  void CountBatch(ClientCursor& cursor);

  enum class KillResult { kKilled, kNotFound, kWrongNamespace, kNotOwner };
  /// Closes the cursor, or interrupts the getMore that has it. `ns_db`, `ns_collection` empty:
  /// whatever its namespace. `user`: only if it is this user's; none: whose ever it is.
  KillResult Kill(int64_t id, std::string_view ns_db, std::string_view ns_collection,
                  std::optional<std::string_view> user = std::nullopt);
  /// endSessions, expiry of a session; how many. Costs what the session has, however many cursors
  /// there are.
  int KillSession(std::string_view session);
  /// Those of every session that `of` is true for: one look at each cursor.
  int KillSessions(const std::function<bool(std::string_view id)>& of);
  /// Closes the cursors on a collection that is gone (empty: on all of the db), but not change
  /// streams; how many. The next getMore of each fails with 175 and the reason `why`, once.
  int KillNamespace(std::string_view db, std::string_view collection,
                    std::string_view why = "collection dropped");
  void KillAll();
  /// Closes what has been idle too long.
  int Sweep(int64_t timeout_millis);

  /// For serverStatus.metrics.cursor.
  struct Totals {
    int64_t open = 0, pinned = 0, no_timeout = 0, timed_out = 0, total_opened = 0,
            more_than_one_batch = 0;
  };
  /// Takes no lock: the numbers are read one after the other.
  Totals totals() const;
  /// Calls `f` for each idle cursor, or for those of one user (UserName::Id()), without a lock.
  /// Cursors are copied one at a time, so opening or using one waits for one copy at
  /// most, however many there are. One that is opened or closed meanwhile may be
  /// missing.
  void ForEachIdle(std::optional<std::string_view> of_user,
                   const std::function<void(const IdleCursor&)>& f) const;

 private:
  struct Entry {
    std::unique_ptr<ClientCursor> idle;  // null while checked out
    Operation* running = nullptr;
    bool kill = false;
    std::string db, collection, session, user;
    bool no_timeout = false, change_stream = false;
  };
  /// The remainder of a cursor whose collection is gone, kept until its client has received the
  /// error.
  struct Gone {
    std::string db, collection, session, why;
    int64_t since_micros = 0;
  };
  struct Shard {
    mutable std::mutex mutex;
    std::unordered_map<int64_t, Entry> entries;
    /// Ids of the entries of each session.
    ClientStringMap<std::unordered_set<int64_t>> sessions;
    std::unordered_map<int64_t, Gone> gone;  ///< kMaxGone at most
    /// Random bytes of the system's source, a few at a time.
    std::array<uint64_t, 32> random;
    size_t random_left = 0;
    Result<uint64_t> Random();
  };
  friend struct DiscardCursor;
  /// Forgets one that is checked out.
  void Forget(const ClientCursor& cursor) noexcept;
  static constexpr size_t kShards = 16, kMaxGone = 256;
  Shard& shard(int64_t id) { return shards_[static_cast<uint64_t>(id) % kShards]; }

  const Clock& clock_;
  const std::shared_ptr<CursorLimits> limits_ = std::make_shared<CursorLimits>();
  std::function<void(uint64_t op_id)> kill_operation_;
  std::array<Shard, kShards> shards_;
  std::atomic<uint64_t> next_shard_{0};
  std::atomic<int64_t> open_{0}, pinned_{0}, no_timeout_{0}, timed_out_{0}, total_opened_{0},
      more_than_one_batch_{0};
};

struct CommandContext;
struct CommandRequest;

/// The common facts of every cursor that a command opens: its namespace ("db.coll"; `collection` is
/// what comes after the command's database), its session and the command itself. The source of
/// documents is the caller's.
std::unique_ptr<ClientCursor> MakeClientCursor(const CommandContext& ctx, const CommandRequest& req,
                                               std::string_view ns);

/// Whether who asks, or reads on, has these actions on the collection of `db`. Errors: Unauthorized
/// 13, which does not name the collection.
Result<void> CheckNeedsOfUuid(const CommandContext& ctx, const NeedsOfUuid& needs,
                              std::string_view db);

/// `{cursor: {firstBatch: […], id, ns}}`: the first reply of every command that answers a cursor.
/// Takes one batch from `cursor.cursor`; registers it when there is more (and batch_size and
/// single_batch allow), else drops it. `ns`, db, collection and the other facts of `cursor` are set
/// by the caller. Returns the cursor's id; 0: there is no more.
Result<int64_t> ReplyFirstBatch(CursorManager& cursors, Operation& op,
                                std::unique_ptr<ClientCursor> cursor, int64_t batch_size,
                                BsonBuilder& reply);
/// The same, with the facts of the cursor asked for only when it is kept: most have one batch.
Result<int64_t> ReplyFirstBatch(CursorManager& cursors, Operation& op,
                                std::unique_ptr<ServerCursor> source, std::string_view ns,
                                int64_t batch_size, bool single_batch,
                                const std::function<std::unique_ptr<ClientCursor>()>& make_client,
                                BsonBuilder& reply);

/// The report says which cursor goes on, or that there is none.
void ReportCursor(CommandContext& ctx, int64_t id);

/// A ServerCursor over documents that are already there (listCollections, listIndexes, …).
class ListCursor final : public ServerCursor {
 public:
  /// Whether whoever reads the batch may see the document. Must not point into the command that
  /// opens the cursor.
  using Shown = std::function<bool(const Operation& reader, BsonView document)>;
  /// `shown` is asked in each batch, since the reader's roles may have changed; null: all are
  /// shown. `hold`: what the documents are charged for; nothing for short lists.
  explicit ListCursor(std::vector<BsonDocument> documents, Shown shown = nullptr,
                      large_memory::Hold hold = {})
      : documents_(std::move(documents)), shown_(std::move(shown)), hold_(std::move(hold)) {
    for (const BsonDocument& d : documents_) bytes_ += sizeof d + d.view().size();
  }
  Result<void> NextBatch(Operation& op, int64_t batch_size, size_t max_bytes,
                         BsonArrayBuilder& batch) override;
  bool Exhausted() const override { return next_ >= documents_.size(); }

 private:
  void AddKept(large_memory::Kept* kept) const override { kept->Add(bytes_, hold_); }
  std::vector<BsonDocument> documents_;
  const Shown shown_;
  large_memory::Hold hold_;
  size_t next_ = 0, bytes_ = 0;
};

}  // namespace mayfly
