#include "server/execution/write_ops.h"

#include <thread>

#include "protocol/database_name.h"
#include "protocol/system_names.h"
#include "query/expression/insert_prepare.h"
#include "query/expression/operator.h"
#include "query/expression/options_once.h"
#include "query/expression/parse_work.h"
#include "query/match/explain_mismatch.h"
#include "server/access/stored_users.h"
#include "server/dispatch/data_services.h"
#include "server/dispatch/redacted_command.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/short_reads.h"
#include "server/execution/bucket_sealer.h"
#include "server/execution/collection_options.h"
#include "server/execution/inline_writes.h"
#include "server/execution/transactions.h"
#include "server/execution/write_parts.h"
#include "storage/catalog/namespace.h"
#include "storage/schema/transaction_schema.h"
#include "storage/write/capped_trim.h"
#include "storage/write/inline_unit.h"
#include "ttl/ttl_controls.h"

namespace mayfly {
namespace {

constexpr int kDocumentsPerUnit = 1000;
constexpr size_t kBytesPerUnit = 4 << 20;
constexpr int kDocumentsPerDelete = 100;

/// {errInfo: {failingDocumentId, details}}. A note stands for details too long for a reply.
BsonDocument ValidationFailure(const CollectionInfo& coll, BsonView doc, Instant now) {
  constexpr size_t kMaxBytes = size_t{1} << 19;
  return BuildBson([&](BsonBuilder& b) {
    auto info = b.OpenDocument("errInfo");
    const BsonValue id = doc["_id"];
    if (id.size() <= kMaxBytes) info.Append("failingDocumentId", id);
    const BsonDocument details = ExplainMismatch(coll.validator, doc, now);
    if (details.view().size() <= kMaxBytes) {
      info.Append("details", details);
      return;
    }
    BsonBuilder cut = info.OpenDocument("details");
    cut.Append("reason", "the explanation is too long for a reply").Append("truncated", true);
  });
}

/// The document and why it fails, as the log may show them. A long one, which a line has no room
/// for, is shown by its size and _id: it is looked at in its place, and not copied.
BsonDocument ShownFailure(const CollectionInfo& coll, BsonView doc, Instant now) {
  constexpr size_t kMaxShown = 16 << 10;
  const BsonDocument piece = BuildBson([&](BsonBuilder& b) {
    if (doc.size() <= kMaxShown) {
      b.Append("document", doc);
      return;
    }
    BsonBuilder d = b.OpenDocument("document");
    if (const BsonValue id = doc["_id"]; id.size() <= kMaxShown) d.Append("_id", id);
    d.Append("$truncated", std::to_string(doc.size()) + " bytes");
  });
  return BuildBson([&](BsonBuilder& b) {
    b.AppendAll(ShownDefinition(coll.db, coll.name, {}, piece));
    // The explanation quotes what is hidden in the document, also where that is left out.
    if (ShowsWhole(coll.db, coll.name, {"document", doc.AsValue()}))
      b.AppendAll(ValidationFailure(coll, doc, now));
    else
      b.Append("errInfo", kRedacted);
  });
}

}  // namespace

void BackOff(Operation& op, int attempt) {
  ++op.write_conflicts;
  if (attempt < 4)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::min(50 << std::min(attempt - 4, 6), 3000)));
}

UnitStep::UnitStep(WriteCommand& command) : command_(command), unit_(command.unit_) {
  if (unit_ == nullptr) {
    unit_ = &own_.emplace(command.storage_, command.op_);
    if (command_.met_transaction_ != nullptr)
      LeaveToTransactions(*unit_, command_.met_transaction_);
  } else {
    begin_ = unit_->Mark();
  }
  if (command_.observer_ != nullptr) command_.observer_->BeginUnit(*unit_);
}

UnitStep::~UnitStep() {
  if (begin_) unit_->RollBackTo(*begin_);
}

Result<void> UnitStep::Commit(const UnitResult& r) {
  UnitObserver* const observer = command_.observer_;
  if (observer != nullptr) {
    MAYFLY_TRY(observer->BeforeCommit(*unit_, r));
  }
  if (!own_) {
    MAYFLY_TRY(CheckTransactionSize(*unit_));
    begin_.reset();
    return Ok();
  }
  Result<void> committed = command_.storage_.committer().Commit(std::move(*own_));
  if (observer != nullptr) observer->AfterCommit(committed.has_value());
  return committed;
}

WriteServices WriteServicesOf(DataServices& server) {
  return {server.storage(), server.log(), server.notifier(), server.large_turns(), server.sealer()};
}

WriteCommand::WriteCommand(const WriteServices& services, Operation& op, std::string_view db,
                           std::string_view collection)
    : services_(services), storage_(services.storage), op_(op), db_(db), collection_(collection) {}

Result<void> WriteCommand::Open() {
  // Also those that a bulkWrite names. `local` is not in the log: one unit with both kinds would
  // put one of them in the wrong place.
  if (unit_ != nullptr && IsInternalDatabase(db_)) [[unlikely]]
    return Error{
        ErrorCode::kOperationNotSupportedInTransaction,
        "Cannot run command against the '" + std::string(db_) + "' database in a transaction."};
  // Whether they are there or not: an insert must not make them either.
  if (collection_ == kProfileCollection || collection_ == kViewsCollection ||
      (collection_ == kTimeKeysCollection && db_ == kUsersDatabase)) [[unlikely]]
    return Error{ErrorCode::kInvalidNamespace,
                 "cannot write to " + JoinNamespace(db_, collection_)};
  MAYFLY_TRY(coll_, FindCollection(storage_.catalog(), op_, db_, collection_));
  if (collection_uuid_ && (!coll_ || coll_->uuid != *collection_uuid_)) [[unlikely]]
    return UuidMismatch();
  series_ = nullptr;
  // Buckets that went with their time series: a delete finds nothing, and nothing makes them.
  if (!coll_ && collection_.starts_with(kBucketsPrefix)) [[unlikely]]
    return ValidateNamespace(db_, collection_);
  if (!coll_) return ValidateNewNamespace(db_, collection_);
  if (coll_->is_series()) [[unlikely]]
    return OpenSeries();
  MAYFLY_TRY(CheckUse(*coll_, CollectionUse::kWrite));
  if (unit_ != nullptr && coll_->is_buckets()) [[unlikely]]
    return Error{ErrorCode::kOperationNotSupportedInTransaction,
                 "Cannot write to the buckets of a time-series collection in a multi-document "
                 "transaction: " +
                     coll_->ns};
  if (unit_ != nullptr && (coll_->capped() || coll_->unreplicated)) [[unlikely]]
    return Error{ErrorCode::kOperationNotSupportedInTransaction,
                 "Collection '" + coll_->ns +
                     "' is a capped collection. Writes in transactions are "
                     "not allowed on capped collections."};
  return Ok();
}

Error WriteCommand::UuidMismatch() const {
  const CollectionInfoPtr actual = storage_.catalog().FindByUuid(*collection_uuid_);
  BsonDocument details = BuildBson([&](BsonBuilder& b) {
    b.Append("db", db_);
    b.AppendBinary("collectionUUID", 4,
                   std::string_view(reinterpret_cast<const char*>(collection_uuid_->data()),
                                    collection_uuid_->size()));
    b.Append("expectedCollection", collection_);
    if (actual && actual->db == db_)
      b.Append("actualCollection", actual->name);
    else
      b.AppendNull("actualCollection");
  });
  return Error{ErrorCode::kCollectionUUIDMismatch,
               "Collection UUID does not match that specified: " + JoinNamespace(db_, collection_) +
                   " is another collection than the one that 'collectionUUID' names",
               std::string(details.view().bytes())};
}

Result<void> WriteCommand::OpenOrCreate() {
  MAYFLY_TRY(Open());
  if (coll_) return Ok();
  if (unit_ == nullptr) {
    MAYFLY_TRY(CollectionInfoPtr made, storage_.catalog().GetOrCreate(op_, db_, collection_));
    // Another operation may have just created a view or time series of this name.
    if (made->is_view() || made->is_series()) return Open();
    coll_ = std::move(made);
  } else {
    CollectionInfo plain;
    plain.db = db_;
    plain.name = collection_;
    MAYFLY_TRY(coll_, CreateInTransaction(storage_, *unit_, op_, std::move(plain)));
  }
  return Ok();
}

Error WriteCommand::ReplacedBySeries() const {
  return Error{ErrorCode::kNamespaceNotFound,
               "the collection " + JoinNamespace(db_, collection_) +
                   " was dropped during the write, and a time series of its name was created"};
}

Result<void> WriteCommand::SetLet(BsonView let) {
  return EvaluateLet(let, op_, &scope_, &variables_);
}

EvalContext WriteCommand::MakeEval() const {
  EvalContext ctx;
  ctx.variables = variables_;
  ctx.variables.resize(static_cast<size_t>(scope_.slots()));
  ctx.now = op_.now;
  ctx.cluster_time = op_.cluster_time;
  ctx.op = &op_;
  return ctx;
}

Result<BsonView> WriteCommand::Prepare(BsonView doc, ExpirySetting* setting) {
  if (setting != nullptr && !deadline_field_.empty() && !coll_->is_buckets()) [[unlikely]] {
    *setting = expiry_;
    std::string& without = scratch_.Add();
    MAYFLY_TRY(doc, TakeDeadline(doc, deadline_field_, setting, &without));
    if (doc.data() != without.data()) scratch_.RemoveLast();
  }
  std::string& scratch = scratch_.Add();
  // A bucket stays as it was checked.
  const bool keep_empty = keep_empty_timestamps_ || (coll_->is_buckets() && !series_);
  MAYFLY_TRY(BsonView ready, PrepareInsert(doc, op_.now, &scratch, keep_empty));
  if (ready.data() != scratch.data()) scratch_.RemoveLast();
  return ready;
}

Result<void> WriteCommand::Validate(BsonView next, const BsonView* before) {
  if (bypass_validation_ || !coll_->validator_filter) return Ok();
  ParseWork work(&op_);  // allows the filter to be interrupted
  if (coll_->validator_filter->Matches(next)) return Ok();
  MAYFLY_TRY(op_.CheckInterruptNow());
  if (before && coll_->validation_moderate && !coll_->validator_filter->Matches(*before)) {
    MAYFLY_TRY(op_.CheckInterruptNow());
    return Ok();
  }
  if (LogsFailedValidation(*coll_))
    services_.log.Write(LogSeverity::kWarning, LogComponent::kStorage, 20294,
                        "Document would fail validation", BuildBson([&](BsonBuilder& b) {
                          b.Append("namespace", coll_->ns);
                          b.AppendAll(ShownFailure(*coll_, next, op_.now));
                        }));
  if (coll_->validation_warn_only) return Ok();
  return Error{ErrorCode::kDocumentValidationFailure, "Document failed validation",
               ValidationFailure(*coll_, next, op_.now).bytes()};
}

Result<Deadline> WriteCommand::InsertDeadline(const ExpirySetting& setting, BsonView doc,
                                              int64_t* clamped) const {
  if (!setting.given() && HasNoExpiry(*coll_)) return Deadline();
  MAYFLY_TRY(Deadline d, ResolveDeadline(setting, *coll_, op_.now, doc, nullptr));
  *clamped += d.clamped;
  return d;
}

bool WriteCommand::Recoverable(const DeleteCause& cause) const {
  // Only recoverSeconds decides. A document that is still stored after it, for another reason or
  // because the reaper is behind, cannot be recovered.
  return cause.reason == DeleteReason::kExpiredDocument &&
         SaturatingDeadline(cause.deadline.millis, coll_->expiry_options.recover_seconds) >
             op_.now.millis;
}

Result<bool> WriteCommand::RemoveIfExpired(WriteUnit& unit, const WriteUnit::Locked& locked) {
  MAYFLY_TRY(const std::optional<DeleteCause> cause,
             Visible().Expired(locked.doc, locked.expire_at));
  if (!cause) return false;
  if (coll_->expiry_options.recover_seconds == 0 && !RemovalHeld(storage_.expiry_policy())) {
    Result<void> removed = unit.DeleteExpired(*coll_, locked, *cause);
    // A document that cannot be removed now (its archive refuses it) counts as absent anyway. The
    // reaper reports why.
    if (!removed && IsRetryable(removed.error())) return removed.error();
    MAYFLY_TRY(op_.CheckInterruptNow());
  }
  return true;
}

std::optional<Result<void>> WriteCommand::TryStageInsert(std::span<const BsonView> documents,
                                                         WriteUnit& unit) {
  if (series_) [[unlikely]]
    return TryStagePoints(documents, unit);
  if (HasValidator() || !ExpiryIsShort(*coll_) || coll_->is_buckets() || !deadline_field_.empty())
    return std::nullopt;
  KeepShort(unit);
  int64_t clamped = 0;
  const int64_t keys_before = op_.keys_inserted;
  if (observer_ != nullptr) observer_->BeginUnit(unit);
  for (size_t i = 0; i < documents.size(); ++i) {
    const BsonView doc = documents[i];
    Result<BsonView> ready = Prepare(doc);
    if (!ready) return ready.error();
    Result<Deadline> deadline = InsertDeadline(expiry_, ready.value(), &clamped);
    Result<void> r = deadline ? unit.Insert(*coll_, ready.value(), deadline.value().at)
                              : Result<void>(deadline.error());
    if (!r) {
      if (!IsRetryable(r.error())) return r;
      op_.keys_inserted = keys_before;  // the worker starts over
      return std::nullopt;
    }
    NoteDeadline(deadline.value());
  }
  clamped_ = clamped;
  return Ok();
}

Result<void> WriteCommand::ValidateAhead(std::span<const BsonView> documents, size_t next,
                                         Validated* v) {
  if (next < v->until || v->failed) return Ok();
  v->until = documents.size();
  const bool buckets = coll_->is_buckets();
  if (!HasValidator() && !buckets) return Ok();
  bool suspends = false;
  size_t bytes = 0, i = next;
  for (; i < documents.size() && i - next < kDocumentsPerUnit && bytes < kBytesPerUnit; ++i) {
    MAYFLY_TRY(op_.CheckInterruptNow());
    scratch_.Clear();
    ExpirySetting own;
    Result<void> r = Ok();
    if (buckets) [[unlikely]] {
      // Only here: it looks at all points.
      Result<bool> bucket = CheckBucket(documents[i]);
      if (bucket)
        suspends = suspends || bucket.value();
      else
        r = bucket.error();
    }
    if (r) {
      Result<BsonView> ready = Prepare(documents[i], &own);
      r = ready ? Validate(ready.value(), nullptr) : Result<void>(ready.error());
    }
    if (!r) {
      v->failed = r.error();
      break;
    }
    bytes += documents[i].size();
  }
  v->until = i;
  // The definition says so before the buckets are there, and only for those that will be.
  return suspends ? SuspendExpiry() : Ok();
}

Result<int64_t> WriteCommand::Insert(std::span<const BsonView> documents,
                                     const std::function<bool(size_t, Error)>& failed) {
  if (series_) [[unlikely]]
    return InsertPoints(documents, failed);
  if (coll_->is_buckets()) [[unlikely]] {
    MAYFLY_TRY(RefuseExpiryOfPoints(expiry_));
  }
  constexpr size_t kLargeBytes = 4 << 20;
  size_t bytes = 0;
  for (const BsonView& d : documents) bytes += d.size();
  int64_t inserted = 0;
  size_t next = 0;
  bool stopped = false;
  Validated valid;
  while (next < documents.size() && !stopped) {
    for (int attempt = 0;; ++attempt) {
      // Consecutive statements share a unit. What fails in it is reported once the unit is known to
      // be kept.
      std::vector<std::pair<size_t, Error>> errors;
      std::optional<Error> conflict;
      size_t i = next;
      int64_t staged = 0, clamped = 0;
      MAYFLY_TRY(ValidateAhead(documents, next, &valid));
      scratch_.Clear();
      if (coll_->capped() && unit_ == nullptr) {
        MAYFLY_TRY(TrimCapped(storage_, op_, *coll_));
      }
      LargeTurn turn(services_.large_turns);
      if (bytes > kLargeBytes) {
        MAYFLY_TRY(turn.Take(op_));
      }
      UnitStep unit(*this);
      const size_t full = unit->SizeBytes() + kBytesPerUnit;
      for (; i < valid.until && staged < kDocumentsPerUnit && unit->SizeBytes() < full; ++i) {
        MAYFLY_TRY(op_.CheckInterrupt());
        ExpirySetting own;
        Result<BsonView> ready = Prepare(documents[i], &own);
        Result<void> r = ready ? Ok() : Result<void>(ready.error());
        if (r) {
          Result<Deadline> deadline = InsertDeadline(SettingOf(own), ready.value(), &clamped);
          r = deadline ? unit->Insert(*coll_, ready.value(), deadline.value().at)
                       : Result<void>(deadline.error());
          if (r) NoteDeadline(deadline.value());
        }
        if (r) {
          ++staged;
          continue;
        }
        if (IsRetryable(r.error())) {
          conflict = r.error();
          break;
        }
        errors.emplace_back(i, r.error());
        // Only the caller knows whether the batch is ordered, when it gets the error. An error may
        // end the batch, so everything before it is committed first.
        ++i;
        break;
      }
      if (!conflict && errors.empty() && i == valid.until && valid.failed)
        errors.emplace_back(i++, *valid.failed);
      if (!conflict && staged > 0) {
        Result<void> committed = unit.Commit({.kind = UnitResult::Kind::kInsert,
                                              .first_document = next,
                                              .documents = static_cast<size_t>(staged)});
        if (!committed) {
          if (!MayTryAgain(committed.error())) return committed.error();
          conflict = committed.error();
        }
      }
      if (conflict) {
        if (attempt > kWriteRetries || !MayTryAgain(*conflict)) return *conflict;
        turn.Give();
        MAYFLY_TRY(op_.CheckInterrupt());
        if (conflict->code == ErrorCode::kQueryPlanKilled) {
          MAYFLY_TRY(OpenOrCreate());
          valid = {};  // the collection was replaced, and its validator with it
          if (series_) return ReplacedBySeries();
        }
        BackOff(op_, attempt);
        continue;
      }
      inserted += staged;
      clamped_ += clamped;
      op_.n_inserted += staged;
      next = i;
      if (next > valid.until) valid.failed.reset();
      for (auto& [index, error] : errors)
        if (!failed(index, std::move(error))) stopped = true;
      break;
    }
  }
  scratch_.Clear();
  if (inserted > 0) NotifyInserted();
  return inserted;
}

Result<std::shared_ptr<const MatchExpression>> WriteCommand::ParseFilter(BsonView filter) {
  ParseWork work(&op_);
  MAYFLY_TRY(MatchPtr match, ParseMatch(filter, {.scope = &scope_, .allow_where = true}));
  return std::shared_ptr<const MatchExpression>(std::move(match));
}

Result<std::unique_ptr<PlanExecutor>> WriteCommand::Find(
    BsonView filter, std::shared_ptr<const MatchExpression> match, BsonView sort, BsonValue hint,
    int64_t limit, bool include_expired) {
  if (coll_ && coll_->is_buckets() && services_.sealer != nullptr && kept_out_ == nullptr)
      [[unlikely]] {
    MAYFLY_TRY(BucketSealer::KeptOut kept_out, services_.sealer->KeepOut(coll_->id, op_));
    kept_out_ = std::make_shared<BucketSealer::KeptOut>(std::move(kept_out));
  }
  QuerySpec spec;
  spec.coll = coll_;
  spec.filter = filter;
  spec.match = std::move(match);
  spec.sort = sort;
  spec.hint = hint;
  spec.batch_hint = limit;
  spec.include_expired = include_expired;
  spec.scope = &scope_;
  spec.variables = &variables_;
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> executor,
             MakeFindExecutor(storage_, op_, std::move(spec)));
  if (plan_summary_.empty()) plan_summary_ = executor->PlanSummary();
  return executor;
}

Result<ExpirySetting> CombineExpiry(const UpdateStatement& s, const Update& update) {
  if (!update.expiry().given()) return s.expiry;
  if (s.expiry.given())
    return Error{ErrorCode::kInvalidOptions,
                 "$expire and the command's expireAfterSeconds, expireAt or preserveExpiry exclude "
                 "each other, give one of them"};
  return update.expiry();
}

bool MayMoveDeadline(const ExpirySetting& setting, bool whole, std::optional<Instant> current,
                     const CollectionInfo& coll) {
  if (setting.given()) return true;
  return whole && (current || !HasNoExpiry(coll));
}

namespace {

/// The `_id` that a statement names, if its filter is just {_id: value}.
bool PointId(const CollectionInfoPtr& coll, BsonView filter, BsonView sort, BsonValue hint,
             BsonValue* id) {
  QuerySpec spec;
  spec.coll = coll;
  spec.filter = filter;
  spec.sort = sort;
  spec.hint = hint;
  return IsPointRead(spec, id);
}

}  // namespace

Result<std::unique_ptr<mayfly::Update>> WriteCommand::ParseUpdate(const UpdateStatement& s) {
  // The names that `c` defines end with the statement; their values stay for the evaluation.
  std::vector<VariableId> names;
  ParseWork work(&op_);
  if (s.constants) {
    size_t made = 0;
    MAYFLY_TRY(CheckOptionsOnce("update.updates.c", s.constants->AsValue()));
    for (const BsonElement& e : *s.constants) {
      MAYFLY_TRY(CheckVariableName(e.name));
      MAYFLY_TRY(const size_t bytes, ParseWork::MadeVariable(e.name, e.value.size()));
      made += bytes;
    }
    MAYFLY_TRY(work.Keep(&scope_.values_hold(), made));
    for (const BsonElement& e : *s.constants) {
      names.push_back(scope_.Define(e.name));
      variables_.resize(static_cast<size_t>(scope_.slots()));
      variables_[static_cast<size_t>(names.back())] = Value::Copy(e.value);
    }
  }
  auto update = mayfly::Update::Parse(
      s.update, s.array_filters, scope_,
      {.multi = s.multi, .upsert = s.upsert, .keep_empty_timestamps = keep_empty_timestamps_});
  for (VariableId id : names) scope_.Undefine(id);
  return update;
}

/// A larger document may have many thousands of index entries, so a worker handles it.
constexpr size_t kInlineDocumentBytes = 64 << 10;

std::optional<Result<bool>> WriteCommand::LockCurrent(const BsonValue& id, bool upsert,
                                                      WriteUnit& unit, WriteUnit::Locked* locked) {
  if (!ExpiryIsShort(*coll_) || !ReadIsShort(*coll_, op_.now)) return std::nullopt;
  KeepShort(unit);
  Observe(unit);
  // The same text as for a find; short, so nothing is allocated.
  if (plan_summary_.empty()) plan_summary_ = "IDHACK";
  std::string key;
  Storage::AppendRecordKey(*coll_, id, key);
  Result<bool> current = unit.LockAndRead(*coll_, key, locked);
  if (current && current.value() && locked->doc.size() > kInlineDocumentBytes) [[unlikely]] {
    MetDocument(*coll_, locked->doc.size(), op_.now);
    return std::nullopt;
  }
  if (current && current.value() && (locked->expire_at || coll_->HasTtlRules())) {
    if (unit_ != nullptr) return std::nullopt;  // a transaction: what it sees is as it began
    if (storage_.expiry_policy().HasHolds(*coll_))
      return std::nullopt;  // a hold may have any filter
    if (upsert) {
      const auto expired = Visible().Expired(locked->doc, locked->expire_at);
      if (!expired || expired.value()) return std::nullopt;
    }
    current = RemoveIfExpired(unit, *locked);
    if (current) current = !current.value();
  }
  if (!current && IsRetryable(current.error())) return std::nullopt;
  return current;
}

std::optional<Result<UpdateResult>> WriteCommand::TryStageUpdate(const UpdateStatement& s,
                                                                 WriteUnit& unit) {
  BsonValue id;
  size_t compares = 0;
  if (!coll_ || series_ || coll_->is_buckets() || s.multi || coll_->capped() || HasValidator() ||
      !MayUpdateInline(s, &compares) || !PointId(coll_, s.filter, s.sort, s.hint, &id))
    return std::nullopt;
  Result<std::unique_ptr<mayfly::Update>> update = ParseUpdate(s);
  if (!update) return update.error();
  if (update.value()->NeedsPosition()) return std::nullopt;
  Result<ExpirySetting> setting = CombineExpiry(s, *update.value());
  if (!setting) return setting.error();
  WriteUnit::Locked locked;
  const std::optional<Result<bool>> found = LockCurrent(id, s.upsert, unit, &locked);
  if (!found) return std::nullopt;
  if (!*found) return found->error();
  if (!found->value()) {
    if (s.upsert) return std::nullopt;
    return UpdateResult{};
  }
  if (!CompareInline(compares, locked.doc.size())) return std::nullopt;
  ++op_.docs_examined;
  ++op_.keys_examined;
  EvalContext eval = MakeEval();
  DocumentMetadata metadata;
  metadata.expire_at = locked.expire_at;
  eval.metadata = &metadata;
  std::string& next = scratch_.Add();
  Result<bool> changed = update.value()->ApplyTo(locked.doc, -1, false, eval, &next);
  if (!changed) return changed.error();
  UpdateResult r;
  r.matched = 1;
  ++op_.n_matched;
  const bool whole = update.value()->kind() == UpdateKind::kReplacement;
  if (!changed.value()) {
    if (!MayMoveDeadline(setting.value(), whole, locked.expire_at, *coll_)) return r;
    next.assign(locked.doc.bytes());
  }
  BsonView after(next);
  Replaced before{locked.doc, locked.expire_at, whole};
  Deadline deadline;
  if (setting.value().given() || !HasNoExpiry(*coll_)) {
    Result<Deadline> resolved = ResolveDeadline(setting.value(), *coll_, op_.now, after, &before);
    if (!resolved) return resolved.error();
    deadline = resolved.value();
  }
  if (!changed.value() && deadline.at == locked.expire_at) {
    clamped_ += deadline.clamped;
    return r;
  }
  unit.SetReplacement(whole);
  Result<void> ok = unit.Update(*coll_, locked, after, deadline.at);
  if (ok) clamped_ += deadline.clamped;
  if (!ok) {
    if (!IsRetryable(ok.error())) return ok.error();
    --op_.docs_examined;  // the worker starts over
    --op_.keys_examined;
    --op_.n_matched;
    return std::nullopt;
  }
  NoteDeadline(deadline);
  r.modified = 1;
  ++op_.n_modified;
  return r;
}

std::optional<Result<int64_t>> WriteCommand::TryStageDelete(const DeleteStatement& s,
                                                            WriteUnit& unit) {
  BsonValue id;
  if (!coll_ || series_ || coll_->capped() || !PointId(coll_, s.filter, s.sort, s.hint, &id))
    return std::nullopt;
  WriteUnit::Locked locked;
  const std::optional<Result<bool>> found = LockCurrent(id, false, unit, &locked);
  if (!found) return std::nullopt;
  if (!*found) return found->error();
  if (!found->value()) return int64_t{0};
  ++op_.docs_examined;
  ++op_.keys_examined;
  Result<void> ok = unit.Delete(*coll_, locked, s.cause());
  if (!ok) {
    if (!IsRetryable(ok.error())) return ok.error();
    --op_.docs_examined;
    --op_.keys_examined;
    return std::nullopt;
  }
  ++op_.n_deleted;
  return int64_t{1};
}

Result<int64_t> WriteCommand::Delete(const DeleteStatement& s,
                                     std::optional<BsonDocument>* deleted_doc) {
  if (series_) [[unlikely]]
    return DeletePoints(s, deleted_doc != nullptr);
  MAYFLY_TRY(std::shared_ptr<const MatchExpression> match, ParseFilter(s.filter));
  if (!coll_) return int64_t{0};
  EvalContext eval = MakeEval();
  DocumentMetadata metadata;
  eval.metadata = &metadata;
  int64_t total = 0;
  for (int attempt = 0;; ++attempt) {
    MAYFLY_TRY(op_.CheckInterrupt());
    bool again = false;
    MAYFLY_TRY(std::unique_ptr<PlanExecutor> found,
               Find(s.filter, match, s.sort, s.hint, s.multi ? 0 : 1));
    std::vector<std::string> keys;
    const Visibility visible = Visible();
    auto remove = [&](std::span<const std::string> batch) -> Result<int64_t> {
      UnitStep unit(*this);
      std::vector<std::string_view> views(batch.begin(), batch.end());
      std::vector<WriteUnit::Locked> locked;
      int busy = 0;
      MAYFLY_TRY(unit->LockAndReadMany(*coll_, views, &locked, &busy));
      int64_t n = 0;
      BsonView gone;
      for (const WriteUnit::Locked& l : locked) {
        MAYFLY_TRY(const auto expired, visible.Expired(l.doc, l.expire_at));
        if (expired) continue;
        eval.root = l.doc;
        metadata.expire_at = l.expire_at;
        MAYFLY_TRY(bool matches, match->Matches(l.doc, &eval));
        if (!matches) continue;
        if (deleted_doc) *deleted_doc = BsonDocument(l.doc);
        MAYFLY_TRY(unit->Delete(*coll_, l, s.cause()));
        gone = l.doc;
        ++n;
      }
      if (n > 0) {
        MAYFLY_TRY(unit.Commit({.kind = UnitResult::Kind::kDelete, .deleted = gone}));
      }
      return n;
    };
    auto flush = [&]() -> Result<void> {
      for (int n = 0;; ++n) {
        Result<int64_t> r = remove(keys);
        if (r) {
          total += r.value();
          op_.n_deleted += r.value();
          break;
        }
        if (r.error().code == ErrorCode::kQueryPlanKilled) break;
        if (!MayTryAgain(r.error()) || n > kWriteRetries) return r.error();
        MAYFLY_TRY(op_.CheckInterrupt());
        BackOff(op_, n);
      }
      keys.clear();
      return Ok();
    };
    for (;;) {
      MAYFLY_TRY(PlanExecutor::State state, found->Next());
      if (state == PlanExecutor::State::kEof) break;
      keys.emplace_back(found->record_key());
      if (s.multi && static_cast<int>(keys.size()) < kDocumentsPerDelete) continue;
      MAYFLY_TRY(flush());
      if (!s.multi) {
        if (total > 0) break;
        again = true;
      }
    }
    if (!keys.empty()) {
      MAYFLY_TRY(flush());
    }
    if (total > 0 || !again || attempt > kWriteRetries) return total;
    BackOff(op_, attempt);
  }
}

Result<void> WriteCommand::Merge(
    BsonView query,
    const std::function<Result<std::optional<BsonDocument>>(std::optional<BsonView>)>& decide) {
  MAYFLY_TRY(std::shared_ptr<const MatchExpression> match, ParseFilter(query));
  EvalContext eval = MakeEval();
  for (int attempt = 0;; ++attempt) {
    MAYFLY_TRY(op_.CheckInterrupt());
    bool suspends = false;
    Result<void> done = [&]() -> Result<void> {
      MAYFLY_TRY(OpenOrCreate());
      if (coll_->is_buckets() && (series_ || !restores_buckets_))
        return Error{ErrorCode::kCommandNotSupportedOnView,
                     "$merge into a time-series collection is not supported: write to an ordinary "
                     "collection"};
      UnitStep unit(*this);
      WriteUnit::Locked locked;
      bool there = false;
      MAYFLY_TRY(std::unique_ptr<PlanExecutor> found, Find(query, match, {}, {}, 1));
      MAYFLY_TRY(PlanExecutor::State state, found->Next());
      if (state == PlanExecutor::State::kAdvanced) {
        MAYFLY_TRY(there, unit->LockAndRead(*coll_, found->record_key(), &locked));
        if (there) {
          MAYFLY_TRY(const auto expired, Visible().Expired(locked.doc, locked.expire_at));
          there = !expired;
        }
        if (there) {
          MAYFLY_TRY(bool still, match->Matches(locked.doc, &eval));
          if (!still) return Error{ErrorCode::kWriteConflict, "write conflict, retry"};
        }
      }
      MAYFLY_TRY(std::optional<BsonDocument> next,
                 decide(there ? std::optional<BsonView>(locked.doc) : std::nullopt));
      if (!next) return Ok();
      BsonView after = next->view();
      if (coll_->is_buckets()) [[unlikely]] {
        MAYFLY_TRY(suspends, CheckBucket(after));
        suspends = suspends && !coll_->series->suspended;
        if (suspends) return Ok();
      }
      scratch_.Clear();
      if (there) {
        MAYFLY_TRY(after, PrepareReplacement(after, locked.doc["_id"], &scratch_.Add()));
        // A document stored by $merge is written like a replacement that says nothing about expiry.
        Deadline deadline;
        if (expiry_.given() || !HasNoExpiry(*coll_)) {
          const Replaced before{locked.doc, locked.expire_at, true};
          MAYFLY_TRY(deadline, ResolveDeadline(expiry_, *coll_, op_.now, after, &before));
        }
        if (after.bytes() == locked.doc.bytes() && deadline.at == locked.expire_at) return Ok();
        MAYFLY_TRY(Validate(after, &locked.doc));
        MAYFLY_TRY(unit->Update(*coll_, locked, after, deadline.at));
        ++op_.n_modified;
      } else {
        MAYFLY_TRY(after, Prepare(after));
        MAYFLY_TRY(Validate(after, nullptr));
        MAYFLY_TRY(const Deadline deadline, InsertDeadline(expiry_, after, &clamped_));
        MAYFLY_TRY(unit->Insert(*coll_, after, deadline.at));
        ++op_.n_inserted;
      }
      return unit.Commit({});
    }();
    if (done && suspends) {
      // The definition says so first, without locks; then once more.
      MAYFLY_TRY(SuspendExpiry());
      continue;
    }
    if (done) return done;
    bool raced = done.error().code == ErrorCode::kDuplicateKey && attempt < 3;
    if ((!raced && !MayTryAgain(done.error())) || attempt > kWriteRetries) return done;
    BackOff(op_, attempt);
  }
}

}  // namespace mayfly
