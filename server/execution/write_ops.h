#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/large_memory.h"
#include "query/plan/executor.h"
#include "query/update/update.h"
#include "server/base/large_turns.h"
#include "server/base/log.h"
#include "server/dispatch/collection_notifier.h"
#include "server/execution/point_groups.h"
#include "server/execution/scratch_documents.h"
#include "storage/read/visibility.h"
#include "storage/storage.h"
#include "storage/write/transaction_unit.h"

namespace mayfly {

class BucketSealer;
class DataServices;

/// The services of write commands; all of them outlive the commands.
struct WriteServices {
  Storage& storage;
  Log& log;
  CollectionNotifier& notifier;
  LargeTurns& large_turns;
  BucketSealer* sealer = nullptr;  ///< null: nobody merges buckets
};
/// A server's. REQUIRES: it has its storage.
WriteServices WriteServicesOf(DataServices& server);

/// One statement of `update`, or the writing half of findAndModify. Views live as long as the
/// command.
struct UpdateStatement {
  BsonView filter;
  BsonValue update;
  std::vector<BsonView> array_filters;
  BsonView sort;
  BsonValue hint;
  std::optional<BsonView> constants;  ///< `c`: variables of the pipeline, taken literally
  bool multi = false, upsert = false;
  ExpirySetting expiry;  ///< the statement's, or else the command's; not with `$expire`
  // For touch, persist and ttlRecover, which have no `update`:
  ExpireWhen when = ExpireWhen::kAlways;
  bool recover = false;  ///< only documents that are past their own deadline, and hidden
};

/// One statement of `delete`, or findAndModify with `remove`. Views live as long as the command.
struct DeleteStatement {
  BsonView filter;
  BsonView sort;
  BsonValue hint;
  bool multi = false;
  bool tombstone = true;  ///< false: leaves none; it was made elsewhere
  DeleteCause cause() const {
    DeleteCause c;
    c.tombstone = tombstone;
    return c;
  }
};

/// The result of an update statement.
struct UpdateResult {
  int64_t matched = 0, modified = 0;
  Value upserted_id;                                     ///< missing: nothing was upserted
  std::optional<BsonDocument> before, after;             ///< findAndModify: the document it changed
  std::optional<Instant> before_expires, after_expires;  ///< and its deadlines
};

/// The next change of a command's write unit, for the keeper of statements' results.
struct UnitResult {
  enum class Kind : uint8_t { kInsert, kUpdate, kDelete } kind = Kind::kInsert;
  size_t first_document = 0, documents = 0;  ///< kInsert: which of Insert's documents
  const UpdateResult* update = nullptr;      ///< kUpdate: upserted_id; before and after if wanted
  BsonView deleted;                          ///< kDelete: the document, of a statement for one
};

/// Sees each unit of a WriteCommand before it commits (and may add to it, or fail it) and after.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  /// BeginUnit comes before anything is staged. An error of BeforeCommit fails the statement, and
  /// the unit is not committed. AfterCommit comes only where a commit was tried: not after such an
  /// error, nor for units that outlive the statement (set_unit).
  virtual void BeginUnit(WriteUnit& unit) = 0;
  virtual Result<void> BeforeCommit(WriteUnit& unit, const UnitResult& r) = 0;
  virtual void AfterCommit(bool committed) = 0;
};

/// True for a conflict that another try may not meet.
bool IsRetryable(const Error& e);

/// The common part of one write command's statements: the namespace, `let`, how documents are
/// checked. Runs statements one after another, each document in a write unit of its own or with
/// some neighbours; retries conflicts with other writers. Blocking: everything but the calls that
/// say otherwise belongs on a worker thread. One thread.
class WriteCommand {
 public:
  WriteCommand(const WriteServices& services, Operation& op, std::string_view db,
               std::string_view collection);

  /// Checks the namespace for writing and finds the collection (null while it does not exist).
  /// Errors: InvalidNamespace 73, CommandNotSupportedOnView 166, Unauthorized 13 for system
  /// collections. Not blocking.
  Result<void> Open();
  /// The collection, created when absent.
  Result<void> OpenOrCreate();
  /// Open then refuses any other collection of that name, with CollectionUUIDMismatch 361.
  void set_collection_uuid(const Uuid& uuid) { collection_uuid_ = uuid; }
  const CollectionInfoPtr& coll() const { return coll_; }
  /// The time series that is written to; null if it is none. coll() are its buckets then.
  const CollectionInfoPtr& series() const { return series_; }
  void set_bypass_validation(bool on) { bypass_validation_ = on; }
  /// Timestamp(0,0) in documents to insert and in replacements is stored as it is, not as the
  /// current timestamp.
  void set_keep_empty_timestamps(bool on) { keep_empty_timestamps_ = on; }
  /// Merge writes buckets of time series, which otherwise it refuses (166): as they are in a log.
  void set_restores_buckets(bool on) { restores_buckets_ = on; }
  /// Must outlive the command's statements; null: none.
  void set_observer(UnitObserver* observer) { observer_ = observer; }
  /// A unit that outlives the statements: they are staged into it and nothing is committed. A step
  /// that fails takes back what it has staged, and a conflict with another writer is an error at
  /// once. REQUIRES: the unit owns its documents, and op.view shows what it has staged. Null: each
  /// step is a unit of its own. Must outlive the command's statements.
  void set_unit(WriteUnit* unit) { unit_ = unit; }
  /// Statements do not wait for locks that transactions have: they fail with WriteConflict 112, and
  /// `*met` is true. For those that can begin again. Null: they wait.
  void set_met_transaction(bool* met) { met_transaction_ = met; }
  /// The field in which documents to insert bring their own deadlines; it is not stored. Empty:
  /// none (server/dispatch/dump_deadlines.h).
  void set_deadline_field(std::string field) { deadline_field_ = std::move(field); }
  /// The command's expiration for all documents that Insert and Merge store.
  void set_expiry(const ExpirySetting& e) { expiry_ = e; }
  /// How many of the documents written got an earlier deadline than was asked for (maxTTL).
  int64_t expiry_clamped() const { return clamped_; }
  /// How the first statement that needed a plan found its documents; empty: none did.
  const std::string& plan_summary() const { return plan_summary_; }
  /// The command's `let`. Before the first statement.
  Result<void> SetLet(BsonView let);

  /// `want_documents`: fills `before` and `after` of the result. When a multi statement fails, the
  /// documents that were committed before stay changed.
  Result<UpdateResult> Update(const UpdateStatement& s, bool want_documents = false);
  /// How many were deleted. `deleted`: the one document, when not multi.
  Result<int64_t> Delete(const DeleteStatement& s, std::optional<BsonDocument>* deleted = nullptr);
  /// Stores documents in order, as one unit where possible. Calls `failed` for each one that cannot
  /// be; false from it stops. Returns how many were inserted. An error ends the command: nothing
  /// more was written.
  Result<int64_t> Insert(std::span<const BsonView> documents,
                         const std::function<bool(size_t index, Error error)>& failed);

  /// Finds the document equal to `query` and stores what `decide` makes of it (of none: inserts
  /// it), as one unit. For $merge.
  Result<void> Merge(
      BsonView query,
      const std::function<Result<std::optional<BsonDocument>>(std::optional<BsonView>)>& decide);

  // --- for io threads: never wait. nullopt: not possible here, call the blocking one on a worker
  // Their changes must be committed even if nothing matched: they remove expired documents that
  // they met. They do not evaluate anything that may take long: validators, expressions,
  // conditions, and index keys beyond some hundred (storage/write/inline_unit.h) are for a
  // worker.
  /// Stages the whole batch into `unit`, which the caller commits.
  std::optional<Result<void>> TryStageInsert(std::span<const BsonView> documents, WriteUnit& unit);
  /// An update of one document by `_id`.
  std::optional<Result<UpdateResult>> TryStageUpdate(const UpdateStatement& s, WriteUnit& unit);
  std::optional<Result<int64_t>> TryStageDelete(const DeleteStatement& s, WriteUnit& unit);

  /// After commits of inserts: wakes tailable cursors.
  void NotifyInserted() {
    if (coll_ && coll_->capped()) services_.notifier.Notify(coll_->id);
  }

 private:
  // --- of time series (series_writes.cc)
  /// Goes on to the buckets. Errors: OperationNotSupportedInTransaction 263.
  Result<void> OpenSeries();
  Result<void> RefuseExpiryOfPoints(const ExpirySetting& setting) const;
  /// TryStageInsert for points: they become new buckets, and none is rewritten.
  std::optional<Result<void>> TryStagePoints(std::span<const BsonView> documents, WriteUnit& unit);
  /// That a bucket with another meta value may be in the partial indexes that it comes into.
  /// Errors: as CheckIndexedArrays.
  Result<void> CheckMovedBucket(BsonView was, BsonView is) const;
  Result<int64_t> InsertPoints(std::span<const BsonView> documents,
                               const std::function<bool(size_t, Error)>& failed);
  /// Some of Insert's documents, at most `most`, as one unit. `*until`: how far it came.
  /// `*refused`: a bucket of theirs cannot be stored, whenever it is tried.
  Result<void> InsertSomePoints(std::span<const BsonView> documents, size_t next, size_t most,
                                size_t* until, bool* refused, std::optional<Error>* failed);
  /// Tells the sealer of the unit's new buckets once they are committed.
  void TellSealer(WriteUnit& unit, const std::vector<PointGroups::Bucket>& buckets) const;
  /// Suspends expiry in the buckets' definition, before such a point is stored.
  Result<void> SuspendExpiry();
  Result<int64_t> DeletePoints(const DeleteStatement& s, bool want_document);
  /// Removes the matching points, or the first of them, from the bucket with this record key.
  /// `*gone`: how many.
  Result<void> DeletePointsOf(std::string_view record_key, const MatchExpression& match,
                              const DeleteStatement& s, int64_t* gone);
  Result<UpdateResult> UpdateMeta(const UpdateStatement& s, bool want_documents);
  /// Whether a bucket that a restore tool writes itself suspends expiry. Errors: BadValue 2 if it
  /// is no bucket of this time series.
  Result<bool> CheckBucket(BsonView doc) const;

  Error UuidMismatch() const;
  /// NamespaceNotFound 26: a write to an ordinary collection finds that its name is a time series
  /// by now. It may not store documents as they are among buckets.
  Error ReplacedBySeries() const;
  /// `setting`: the document's own expiration, or else the command's; null: none
  /// allowed.
  Result<BsonView> Prepare(BsonView doc, ExpirySetting* setting = nullptr);
  /// For Insert: how many documents are known to be valid, and the error of the next one.
  struct Validated {
    size_t until = 0;
    std::optional<Error> failed;
  };
  /// Goes on from `next` as far as one unit may reach, when nothing is known of that one yet.
  /// Suspends expiry for buckets among them that ask for it.
  Result<void> ValidateAhead(std::span<const BsonView> documents, size_t next, Validated* v);
  bool HasValidator() const { return !bypass_validation_ && coll_->validator_filter != nullptr; }
  Result<void> Validate(BsonView next, const BsonView* before);
  Result<std::unique_ptr<PlanExecutor>> Find(BsonView filter,
                                             std::shared_ptr<const MatchExpression> match,
                                             BsonView sort, BsonValue hint, int64_t limit,
                                             bool include_expired = false);
  Result<std::shared_ptr<const MatchExpression>> ParseFilter(BsonView filter);
  Result<std::unique_ptr<mayfly::Update>> ParseUpdate(const UpdateStatement& s);
  friend class UnitStep;
  class Updating;  ///< an update statement while it runs on a worker
  Result<UpdateResult> Upsert(const mayfly::Update& update, const ExpirySetting& expiry,
                              const MatchExpression* match, bool want_documents);
  /// After a conflict with another writer: not in a longer unit, whose locks stay with it.
  bool MayTryAgain(const Error& e) const {
    return unit_ == nullptr && IsRetryable(e) &&
           (met_transaction_ == nullptr || !*met_transaction_);
  }
  /// The deadline of a document to insert; `*clamped` goes up when maxTTL lowers it.
  Result<Deadline> InsertDeadline(const ExpirySetting& setting, BsonView doc,
                                  int64_t* clamped) const;
  /// `own`: what Prepare has found.
  const ExpirySetting& SettingOf(const ExpirySetting& own) const {
    return deadline_field_.empty() || coll_->is_buckets() ? expiry_ : own;
  }
  Visibility Visible() const {
    return op_.view == nullptr ? Visibility(storage_, *coll_, op_)
                               : Visibility(storage_, *coll_, op_, false, *op_.view);
  }
  /// Whether a document past its deadline may be brought back.
  bool Recoverable(const DeleteCause& cause) const;
  /// For a document that a point write has locked: true when it is past its deadline. Then stages
  /// its removal, unless it may still be recovered.
  Result<bool> RemoveIfExpired(WriteUnit& unit, const WriteUnit::Locked& locked);
  /// The start of TryStageUpdate and TryStageDelete: locks the document with that `_id` without
  /// waiting, and stages its removal if it is past its deadline. True: it exists and is current;
  /// nothing: only a worker can go on, as when an `upsert` would replace it.
  std::optional<Result<bool>> LockCurrent(const BsonValue& id, bool upsert, WriteUnit& unit,
                                          WriteUnit::Locked* locked);
  /// After an insert or update that gave its document this deadline: in a transaction it counts
  /// from the commit.
  void NoteDeadline(const Deadline& d) {
    if (unit_ != nullptr && d.from_write) [[unlikely]]
      CountFromCommit(*unit_, d.latest);
  }
  void Observe(WriteUnit& unit) {
    if (observer_ == nullptr) return;
    observer_->BeginUnit(unit);
  }
  EvalContext MakeEval() const;

  const WriteServices services_;
  Storage& storage_;
  Operation& op_;
  const std::string db_, collection_;
  CollectionInfoPtr coll_;
  CollectionInfoPtr series_;
  std::optional<Uuid> collection_uuid_;
  bool bypass_validation_ = false;
  bool keep_empty_timestamps_ = false;
  bool restores_buckets_ = false;
  UnitObserver* observer_ = nullptr;
  WriteUnit* unit_ = nullptr;
  bool* met_transaction_ = nullptr;
  ExpirySetting expiry_;
  std::string deadline_field_;
  int64_t clamped_ = 0;
  std::shared_ptr<void> kept_out_;  ///< while this goes over buckets, nobody merges them
  std::string plan_summary_;
  VariableScope scope_;
  std::vector<Value> variables_;
  ScratchDocuments scratch_;
};

/// The room that one command has for what its failed statements say. Details beyond 1 MB are left
/// out, and so are messages beyond 1 MB: a hundred thousand errors have room in one reply.
class ErrorRoom {
 public:
  /// Takes from the command's next error what there is no room for; its code always stays.
  void Fit(Error& e);

 private:
  size_t messages_ = 0, details_ = 0;  ///< bytes of all, those left out too
};

/// The failed statements of a command, within its ErrorRoom and charged as large memory.
class WriteErrors {
 public:
  /// `index`: the statement's place in the command, from 0. The reply has them in the order of the
  /// calls. Errors: ExceededMemoryLimit 146.
  Result<void> Add(size_t index, Error e);
  bool empty() const { return errors_.empty(); }
  /// `writeErrors: [{index, code, errmsg, …}]`, if there are any.
  void AppendTo(BsonBuilder& reply) const;

 private:
  std::vector<std::pair<int32_t, Error>> errors_;
  ErrorRoom room_;
  size_t bytes_ = 0;
  large_memory::Hold hold_;  ///< of errors_
};

/// True when the error concerns the whole command, not one statement: the command fails with it.
bool EndsCommand(const Error& e);

}  // namespace mayfly
