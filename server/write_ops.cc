#include "server/write_ops.h"

#include <thread>

#include "query/update/insert_prepare.h"
#include "storage/namespace.h"

namespace mayfly {
namespace {

constexpr int kDocumentsPerUnit = 1000;
constexpr size_t kBytesPerUnit = 4 << 20;
constexpr int kMultiDocumentsPerUnit = 100;
constexpr int kRetries = 1000;

/// Between two tries of a unit that met another writer: first at once, then ever more politely.
void BackOff(Operation& op, int attempt) {
  ++op.write_conflicts;
  if (attempt < 4)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(
        std::chrono::microseconds(std::min(50 << std::min(attempt - 4, 6), 3000)));
}

Error ValidationFailed(BsonView doc) {
  BsonDocument details = BuildBson([&](BsonBuilder& b) {
    auto info = b.OpenDocument("errInfo");
    info.Append("failingDocumentId", doc["_id"]);
    auto d = info.OpenDocument("details");
    d.Append("operatorName", "validator")
        .Append("reason", "the document does not match the collection's validator");
  });
  return {ErrorCode::kDocumentValidationFailure, "Document failed validation", details.bytes()};
}

}  // namespace

bool IsRetryable(const Error& e) {
  return e.code == ErrorCode::kWriteConflict || e.code == ErrorCode::kQueryPlanKilled;
}

bool EndsCommand(const Error& e) {
  switch (e.code) {
    case ErrorCode::kInterrupted:
    case ErrorCode::kInterruptedAtShutdown:
    case ErrorCode::kMaxTimeMSExpired:
    case ErrorCode::kInterruptedDueToReplStateChange:
    case ErrorCode::kNotWritablePrimary:
      return true;
    default:
      return false;
  }
}

void AppendWriteError(BsonArrayBuilder& out, int32_t index, const Error& e) {
  BsonBuilder b = out.OpenDocument();
  b.Append("index", index).Append("code", static_cast<int32_t>(e.code)).Append("errmsg", e.message);
  if (!e.details.empty()) b.AppendAll(BsonView(e.details.data()));
}

WriteCommand::WriteCommand(ServerContext& server, Operation& op, std::string_view db,
                           std::string_view collection)
    : server_(server), storage_(server.storage()), op_(op), db_(db), collection_(collection) {}

Result<void> WriteCommand::Open() {
  coll_ = storage_.catalog().Find(db_, collection_);
  if (!coll_) return ValidateNewNamespace(db_, collection_);
  if (coll_->is_view)
    return Error{ErrorCode::kCommandNotSupportedOnView,
                 "Namespace " + coll_->ns + " is a view, not a collection"};
  if (coll_->source || (coll_->unreplicated && coll_->ns == "local.system.replset"))
    return Error{ErrorCode::kInvalidNamespace, "cannot write to '" + coll_->ns + "'"};
  if (collection_ == "system.profile" || collection_ == "system.views")
    return Error{ErrorCode::kInvalidNamespace, "cannot write to " + coll_->ns};
  return Ok();
}

Result<void> WriteCommand::OpenOrCreate() {
  MAYFLY_TRY(Open());
  if (!coll_) {
    MAYFLY_TRY(coll_, storage_.catalog().GetOrCreate(op_, db_, collection_));
  }
  return Ok();
}

Result<void> WriteCommand::SetLet(BsonView let) {
  return EvaluateLet(let, op_, &scope_, &variables_);
}

EvalContext WriteCommand::MakeEval() const {
  EvalContext ctx;
  ctx.variables = variables_;
  ctx.variables.resize(static_cast<size_t>(scope_.slots()));
  ctx.now = op_.now;
  ctx.op = &op_;
  return ctx;
}

Result<BsonView> WriteCommand::Prepare(BsonView doc) {
  std::string& scratch = scratch_.emplace_back();
  MAYFLY_TRY(BsonView ready, PrepareInsert(doc, op_.now, &scratch));
  if (ready.data() != scratch.data()) scratch_.pop_back();
  return ready;
}

Result<void> WriteCommand::Validate(BsonView next, const BsonView* before) {
  if (bypass_validation_ || !coll_->validator_filter || coll_->validator_filter->Matches(next))
    return Ok();
  if (before && coll_->validation_moderate && !coll_->validator_filter->Matches(*before))
    return Ok();
  if (coll_->validation_warn_only) {
    server_.log().Write(LogSeverity::kWarning, LogComponent::kStorage, 20294,
                        "Document would fail validation", BuildBson([&](BsonBuilder& b) {
                          b.Append("namespace", coll_->ns).Append("id", next["_id"]);
                        }));
    return Ok();
  }
  return ValidationFailed(next);
}

Result<void> WriteCommand::Commit(WriteUnit unit, const UnitResult& r) {
  if (observer_ == nullptr) return storage_.committer().Commit(std::move(unit));
  MAYFLY_TRY(observer_->BeforeCommit(unit, r));
  Result<void> committed = storage_.committer().Commit(std::move(unit));
  observer_->AfterCommit(committed.has_value());
  return committed;
}

std::optional<Result<void>> WriteCommand::TryStageInsert(std::span<const BsonView> documents,
                                                         WriteUnit& unit) {
  unit.set_no_wait(true);
  if (observer_ != nullptr) observer_->BeginUnit(unit);
  for (size_t i = 0; i < documents.size(); ++i) {
    const BsonView doc = documents[i];
    if (observer_ != nullptr) observer_->BeginDocument(unit, i);
    Result<BsonView> ready = Prepare(doc);
    if (!ready) return ready.error();
    Result<void> r = Validate(ready.value(), nullptr);
    if (r) r = unit.Insert(*coll_, ready.value());
    if (!r) {
      if (IsRetryable(r.error())) return std::nullopt;
      return r;
    }
  }
  return Ok();
}

Result<int64_t> WriteCommand::Insert(std::span<const BsonView> documents,
                                     const std::function<bool(size_t, Error)>& failed) {
  int64_t inserted = 0;
  size_t next = 0;
  bool stopped = false;
  while (next < documents.size() && !stopped) {
    for (int attempt = 0;; ++attempt) {
      // A unit of neighbours; what fails in it is reported once the unit is known to stay.
      std::vector<std::pair<size_t, Error>> errors;
      std::optional<Error> conflict;
      size_t i = next;
      int64_t staged = 0;
      scratch_.clear();
      WriteUnit unit(storage_, op_);
      if (observer_ != nullptr) observer_->BeginUnit(unit);
      for (; i < documents.size() && staged < kDocumentsPerUnit && unit.SizeBytes() < kBytesPerUnit;
           ++i) {
        MAYFLY_TRY(op_.CheckInterrupt());
        if (observer_ != nullptr) observer_->BeginDocument(unit, i);
        Result<BsonView> ready = Prepare(documents[i]);
        Result<void> r = ready ? Validate(ready.value(), nullptr) : Result<void>(ready.error());
        if (r) r = unit.Insert(*coll_, ready.value());
        if (r) {
          ++staged;
          continue;
        }
        if (IsRetryable(r.error())) {
          conflict = r.error();
          break;
        }
        errors.emplace_back(i, r.error());
        // Ordered or not is the caller's: it says so when it is told. An error may end the batch,
        // so what came before goes first.
        ++i;
        break;
      }
      if (!conflict && staged > 0) {
        Result<void> committed =
            Commit(std::move(unit), {.kind = UnitResult::Kind::kInsert,
                                     .first_document = next,
                                     .documents = static_cast<size_t>(staged)});
        if (!committed) {
          if (!IsRetryable(committed.error())) return committed.error();
          conflict = committed.error();
        }
      }
      if (conflict) {
        if (attempt > kRetries) return *conflict;
        MAYFLY_TRY(op_.CheckInterrupt());
        if (conflict->code == ErrorCode::kQueryPlanKilled) {
          MAYFLY_TRY(OpenOrCreate());
        }
        BackOff(op_, attempt);
        continue;
      }
      inserted += staged;
      op_.n_inserted += staged;
      next = i;
      for (auto& [index, error] : errors)
        if (!failed(index, std::move(error))) stopped = true;
      break;
    }
  }
  scratch_.clear();
  if (inserted > 0) NotifyInserted();
  return inserted;
}

Result<std::shared_ptr<const MatchExpression>> WriteCommand::ParseFilter(BsonView filter) {
  MatchParseOptions o;
  o.scope = &scope_;
  MAYFLY_TRY(MatchPtr match, ParseMatch(filter, o));
  return std::shared_ptr<const MatchExpression>(std::move(match));
}

Result<std::unique_ptr<PlanExecutor>> WriteCommand::Find(
    BsonView filter, std::shared_ptr<const MatchExpression> match, BsonView sort, BsonValue hint,
    int64_t limit) {
  QuerySpec spec;
  spec.coll = coll_;
  spec.filter = filter;
  spec.match = std::move(match);
  spec.sort = sort;
  spec.hint = hint;
  spec.batch_hint = limit;
  spec.scope = &scope_;
  spec.variables = &variables_;
  return MakeFindExecutor(storage_, op_, std::move(spec));
}

namespace {

/// The `_id` a statement names, when it is nothing but {_id: value}.
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

std::optional<Result<UpdateResult>> WriteCommand::TryStageUpdate(const UpdateStatement& s,
                                                                 WriteUnit& unit) {
  BsonValue id;
  if (!coll_ || s.multi || coll_->capped || !PointId(coll_, s.filter, s.sort, s.hint, &id))
    return std::nullopt;
  Result<std::unique_ptr<mayfly::Update>> update = mayfly::Update::Parse(
      s.update, s.array_filters, scope_, {.multi = s.multi, .upsert = s.upsert});
  if (!update) return update.error();
  if (update.value()->NeedsPosition()) return std::nullopt;
  unit.set_no_wait(true);
  Observe(unit);
  std::string key;
  Storage::AppendRecordKey(*coll_, id, key);
  WriteUnit::Locked locked;
  Result<bool> found = unit.LockAndRead(*coll_, key, &locked);
  if (!found) {
    if (IsRetryable(found.error())) return std::nullopt;
    return found.error();
  }
  if (!found.value()) {
    if (s.upsert) return std::nullopt;
    return UpdateResult{};
  }
  ++op_.docs_examined;
  ++op_.keys_examined;
  EvalContext eval = MakeEval();
  std::string& next = scratch_.emplace_back();
  Result<bool> changed = update.value()->ApplyTo(locked.doc, -1, false, eval, &next);
  if (!changed) return changed.error();
  UpdateResult r;
  r.matched = 1;
  ++op_.n_matched;
  if (!changed.value()) return r;
  BsonView after(next);
  Result<void> ok = Validate(after, &locked.doc);
  if (ok) ok = unit.Update(*coll_, locked, after, locked.expire_at);
  if (!ok) {
    if (IsRetryable(ok.error())) return std::nullopt;
    return ok.error();
  }
  r.modified = 1;
  ++op_.n_modified;
  return r;
}

std::optional<Result<int64_t>> WriteCommand::TryStageDelete(const DeleteStatement& s,
                                                            WriteUnit& unit) {
  BsonValue id;
  if (!coll_ || coll_->capped || !PointId(coll_, s.filter, s.sort, s.hint, &id))
    return std::nullopt;
  unit.set_no_wait(true);
  Observe(unit);
  std::string key;
  Storage::AppendRecordKey(*coll_, id, key);
  WriteUnit::Locked locked;
  Result<bool> found = unit.LockAndRead(*coll_, key, &locked);
  if (!found) {
    if (IsRetryable(found.error())) return std::nullopt;
    return found.error();
  }
  if (!found.value()) return int64_t{0};
  ++op_.docs_examined;
  ++op_.keys_examined;
  Result<void> ok = unit.Delete(*coll_, locked);
  if (!ok) {
    if (IsRetryable(ok.error())) return std::nullopt;
    return ok.error();
  }
  ++op_.n_deleted;
  return int64_t{1};
}

Result<UpdateResult> WriteCommand::Upsert(const mayfly::Update& update,
                                          const MatchExpression* match, bool want_documents) {
  if (!coll_) {
    MAYFLY_TRY(OpenOrCreate());
  }
  EvalContext eval = MakeEval();
  scratch_.clear();
  MAYFLY_TRY(std::string made, update.MakeUpsert(match, op_.now, eval));
  scratch_.push_back(std::move(made));
  BsonView ready(scratch_.front());
  MAYFLY_TRY(Validate(ready, nullptr));
  WriteUnit unit(storage_, op_);
  Observe(unit);
  MAYFLY_TRY(unit.Insert(*coll_, ready));
  UpdateResult r;
  r.upserted_id = Value::Copy(ready["_id"]);
  if (want_documents) r.after = BsonDocument(ready);
  MAYFLY_TRY(Commit(std::move(unit), {.kind = UnitResult::Kind::kUpdate, .update = &r}));
  ++op_.n_inserted;
  NotifyInserted();
  return r;
}

Result<UpdateResult> WriteCommand::Update(const UpdateStatement& s, bool want_documents) {
  MAYFLY_TRY(std::shared_ptr<const MatchExpression> match, ParseFilter(s.filter));
  MAYFLY_TRY(std::unique_ptr<mayfly::Update> update,
             mayfly::Update::Parse(s.update, s.array_filters, scope_,
                                   {.multi = s.multi, .upsert = s.upsert}));
  EvalContext eval = MakeEval();
  UpdateResult result;
  const int per_unit = s.multi ? kMultiDocumentsPerUnit : 1;
  for (int attempt = 0;; ++attempt) {
    MAYFLY_TRY(op_.CheckInterrupt());
    bool again = false;
    if (coll_) {
      MAYFLY_TRY(std::unique_ptr<PlanExecutor> found,
                 Find(s.filter, match, s.sort, s.hint, s.multi ? 0 : 1));
      std::vector<std::string> keys;
      // One unit: locks each record, looks again whether it still matches, applies. On a conflict
      // the unit is dropped and its records are tried one by one.
      auto apply = [&](std::span<const std::string> batch, int64_t* matched,
                       int64_t* modified) -> Result<void> {
        scratch_.clear();
        *matched = *modified = 0;
        WriteUnit unit(storage_, op_);
        Observe(unit);
        std::vector<WriteUnit::Locked> locked(batch.size());
        for (size_t i = 0; i < batch.size(); ++i) {
          WriteUnit::Locked& l = locked[i];
          MAYFLY_TRY(bool there, unit.LockAndRead(*coll_, batch[i], &l));
          if (!there) continue;
          int position = -1;
          eval.root = l.doc;
          MAYFLY_TRY(bool matches, update->NeedsPosition()
                                       ? match->MatchesWithPosition(l.doc, &eval, &position)
                                       : match->Matches(l.doc, &eval));
          if (!matches) continue;
          std::string& next = scratch_.emplace_back();
          MAYFLY_TRY(bool changed, update->ApplyTo(l.doc, position, false, eval, &next));
          ++*matched;
          if (want_documents) result.before = BsonDocument(l.doc);
          if (!changed) {
            if (want_documents) result.after = result.before;
            continue;
          }
          BsonView after(next);
          MAYFLY_TRY(Validate(after, &l.doc));
          if (want_documents) result.after = BsonDocument(after);
          MAYFLY_TRY(unit.Update(*coll_, l, after, l.expire_at));
          ++*modified;
        }
        if (*modified > 0)
          return Commit(std::move(unit), {.kind = UnitResult::Kind::kUpdate, .update = &result});
        return Ok();
      };
      auto flush = [&]() -> Result<void> {
        int64_t matched = 0, modified = 0;
        Result<void> r = apply(keys, &matched, &modified);
        if (r) {
          result.matched += matched;
          result.modified += modified;
        } else if (IsRetryable(r.error()) || (keys.size() > 1 && !EndsCommand(r.error()))) {
          // One by one: what came before the one that fails is kept, as if each had been a
          // statement.
          for (const std::string& key : keys) {
            for (int n = 0;; ++n) {
              r = apply({&key, 1}, &matched, &modified);
              if (r || !IsRetryable(r.error()) || n > kRetries) break;
              MAYFLY_TRY(op_.CheckInterrupt());
              if (r.error().code == ErrorCode::kQueryPlanKilled)
                return Ok();  // dropped meanwhile: nothing is left to update
              BackOff(op_, n);
            }
            if (!r) return r;
            result.matched += matched;
            result.modified += modified;
          }
        } else {
          return r;
        }
        keys.clear();
        return Ok();
      };
      for (;;) {
        MAYFLY_TRY(PlanExecutor::State state, found->Next());
        if (state == PlanExecutor::State::kEof) break;
        keys.emplace_back(found->record_key());
        if (static_cast<int>(keys.size()) < per_unit) continue;
        MAYFLY_TRY(flush());
        if (!s.multi) {
          if (result.matched > 0) break;
          again = true;  // it changed under us: another document may match now, or this one again
        }
      }
      if (!keys.empty()) {
        MAYFLY_TRY(flush());
      }
    }
    if (result.matched > 0) break;
    if (again && attempt < kRetries) {
      result.before.reset();
      result.after.reset();
      BackOff(op_, attempt);
      continue;
    }
    if (!s.upsert) break;
    Result<UpdateResult> up = Upsert(*update, match.get(), want_documents);
    if (up) return up;
    // Another client may have inserted it first: then there is something to update.
    bool raced = up.error().code == ErrorCode::kDuplicateKey && attempt < 3;
    if (up.error().code == ErrorCode::kQueryPlanKilled)
      coll_ = storage_.catalog().Find(db_, collection_);
    if (!raced && !(IsRetryable(up.error()) && attempt < kRetries)) return up.error();
    if (!coll_) coll_ = storage_.catalog().Find(db_, collection_);
    BackOff(op_, attempt);
  }
  op_.n_matched += result.matched;
  op_.n_modified += result.modified;
  scratch_.clear();
  return result;
}

Result<int64_t> WriteCommand::Delete(const DeleteStatement& s,
                                     std::optional<BsonDocument>* deleted_doc) {
  MAYFLY_TRY(std::shared_ptr<const MatchExpression> match, ParseFilter(s.filter));
  if (!coll_) return int64_t{0};
  EvalContext eval = MakeEval();
  int64_t total = 0;
  for (int attempt = 0;; ++attempt) {
    MAYFLY_TRY(op_.CheckInterrupt());
    bool again = false;
    MAYFLY_TRY(std::unique_ptr<PlanExecutor> found,
               Find(s.filter, match, s.sort, s.hint, s.multi ? 0 : 1));
    std::vector<std::string> keys;
    auto remove = [&](std::span<const std::string> batch) -> Result<int64_t> {
      WriteUnit unit(storage_, op_);
      Observe(unit);
      std::vector<std::string_view> views(batch.begin(), batch.end());
      std::vector<WriteUnit::Locked> locked;
      int busy = 0;
      MAYFLY_TRY(unit.LockAndReadMany(*coll_, views, &locked, &busy));
      int64_t n = 0;
      BsonView gone;
      for (const WriteUnit::Locked& l : locked) {
        eval.root = l.doc;
        MAYFLY_TRY(bool matches, match->Matches(l.doc, &eval));
        if (!matches) continue;
        if (deleted_doc) *deleted_doc = BsonDocument(l.doc);
        MAYFLY_TRY(unit.Delete(*coll_, l));
        gone = l.doc;
        ++n;
      }
      if (n > 0) {
        MAYFLY_TRY(Commit(std::move(unit), {.kind = UnitResult::Kind::kDelete, .deleted = gone}));
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
        if (!IsRetryable(r.error()) || n > kRetries) return r.error();
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
      if (s.multi && static_cast<int>(keys.size()) < kMultiDocumentsPerUnit) continue;
      MAYFLY_TRY(flush());
      if (!s.multi) {
        if (total > 0) break;
        again = true;
      }
    }
    if (!keys.empty()) {
      MAYFLY_TRY(flush());
    }
    if (total > 0 || !again || attempt > kRetries) return total;
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
    Result<void> done = [&]() -> Result<void> {
      MAYFLY_TRY(OpenOrCreate());
      WriteUnit unit(storage_, op_);
      WriteUnit::Locked locked;
      bool there = false;
      MAYFLY_TRY(std::unique_ptr<PlanExecutor> found, Find(query, match, {}, {}, 1));
      MAYFLY_TRY(PlanExecutor::State state, found->Next());
      if (state == PlanExecutor::State::kAdvanced) {
        MAYFLY_TRY(there, unit.LockAndRead(*coll_, found->record_key(), &locked));
        if (there) {
          MAYFLY_TRY(bool still, match->Matches(locked.doc, &eval));
          if (!still) return Error{ErrorCode::kWriteConflict, "write conflict, retry"};
        }
      }
      MAYFLY_TRY(std::optional<BsonDocument> next,
                 decide(there ? std::optional<BsonView>(locked.doc) : std::nullopt));
      if (!next) return Ok();
      BsonView after = next->view();
      if (there) {
        if (after.bytes() == locked.doc.bytes()) return Ok();
        if (!after["_id"].BinaryEquals(locked.doc["_id"]))
          return Error{
              ErrorCode::kImmutableField,
              "$merge failed to update the matching document: the '_id' field is immutable"};
        MAYFLY_TRY(Validate(after, &locked.doc));
        MAYFLY_TRY(unit.Update(*coll_, locked, after, locked.expire_at));
        ++op_.n_modified;
      } else {
        scratch_.clear();
        MAYFLY_TRY(after, Prepare(after));
        MAYFLY_TRY(Validate(after, nullptr));
        MAYFLY_TRY(unit.Insert(*coll_, after));
        ++op_.n_inserted;
      }
      return Commit(std::move(unit), {});
    }();
    if (done) return done;
    bool raced = done.error().code == ErrorCode::kDuplicateKey && attempt < 3;
    if ((!raced && !IsRetryable(done.error())) || attempt > kRetries) return done;
    BackOff(op_, attempt);
  }
}

}  // namespace mayfly
