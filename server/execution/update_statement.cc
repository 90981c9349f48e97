#include "query/expression/parse_work.h"
#include "query/update/positional.h"
#include "server/execution/write_ops.h"
#include "server/execution/write_parts.h"

namespace mayfly {
namespace {

constexpr int kDocumentsPerUpdate = 100;

}  // namespace

class WriteCommand::Updating {
 public:
  Updating(WriteCommand& command, const UpdateStatement& s, bool want_documents)
      : c_(command), s_(s), want_documents_(want_documents), setting_(s.expiry) {}

  Result<UpdateResult> Run();

 private:
  Result<void> Parse();
  /// Goes once over the documents that the filter finds. True if a document changed before it was
  /// locked: another one may match now, or this one again.
  Result<bool> Pass();
  /// Updates the documents of keys_ as one unit, or one by one if that is not possible.
  Result<void> Flush();
  /// Updates one by one. Documents before the one that fails stay updated, as if each were a
  /// statement.
  Result<void> FlushOneByOne();
  /// One unit: locks each record, checks again whether it matches, and applies the update.
  Result<void> ApplyTo(std::span<const std::string> keys);
  /// For a locked document that exists: stages its change, if there is one.
  Result<void> Change(WriteUnit& unit, const WriteUnit::Locked& l);
  Result<Deadline> DeadlineOf(const WriteUnit::Locked& l, BsonView after, bool changed);
  /// An error is for the client. Otherwise the result, or nothing if by now there is a document to
  /// update.
  Result<std::optional<UpdateResult>> TryUpsert(int attempt);

  WriteCommand& c_;
  const UpdateStatement& s_;
  const bool want_documents_;
  ExpirySetting setting_;
  std::shared_ptr<const MatchExpression> match_;
  std::unique_ptr<mayfly::Update> update_;  ///< null: only deadlines move
  bool whole_ = false;                      ///< a replacement
  EvalContext eval_;
  DocumentMetadata metadata_;
  std::optional<Visibility> visible_;  ///< of a pass
  UpdateResult result_;
  std::vector<std::string> keys_;
  // For the unit that ApplyTo makes.
  int64_t matched_ = 0, modified_ = 0, clamped_ = 0;
};

Result<void> WriteCommand::Updating::Parse() {
  MAYFLY_TRY(match_, c_.ParseFilter(s_.filter));
  if (s_.upsert) {
    MAYFLY_TRY(CheckUpsertFilter(s_.filter));
  }
  if (!s_.update.missing()) {
    MAYFLY_TRY(update_, c_.ParseUpdate(s_));
    MAYFLY_TRY(setting_, CombineExpiry(s_, *update_));
  }
  whole_ = update_ && update_->kind() == UpdateKind::kReplacement;
  eval_ = c_.MakeEval();
  eval_.metadata = &metadata_;
  return Ok();
}

Result<Deadline> WriteCommand::Updating::DeadlineOf(const WriteUnit::Locked& l, BsonView after,
                                                    bool changed) {
  Deadline deadline;
  if (!changed && !MayMoveDeadline(setting_, whole_ || !update_, l.expire_at, *c_.coll_)) {
    deadline.at = l.expire_at;
  } else if (setting_.given() || !HasNoExpiry(*c_.coll_)) {
    const Replaced before{l.doc, l.expire_at, whole_};
    MAYFLY_TRY(deadline, ResolveDeadline(setting_, *c_.coll_, c_.op_.now, after, &before));
  }
  clamped_ += deadline.clamped;
  if (!changed && !Allows(s_.when, l.expire_at, deadline.at)) deadline = {l.expire_at};
  return deadline;
}

Result<void> WriteCommand::Updating::Change(WriteUnit& unit, const WriteUnit::Locked& l) {
  int position = -1;
  eval_.root = l.doc;
  metadata_.expire_at = l.expire_at;
  MAYFLY_TRY(bool matches, update_ && update_->NeedsPosition()
                               ? MatchForPosition(*match_, *update_, l.doc, &eval_, &position)
                               : match_->Matches(l.doc, &eval_));
  if (!matches) return Ok();
  std::string& next = c_.scratch_.Add();
  bool changed = false;
  if (update_) {
    MAYFLY_TRY(changed, update_->ApplyTo(l.doc, position, false, eval_, &next));
  }
  ++matched_;
  const BsonView after = changed ? BsonView(next) : l.doc;
  MAYFLY_TRY(const Deadline deadline, DeadlineOf(l, after, changed));
  if (want_documents_) {
    result_.before = BsonDocument(l.doc);
    result_.after = BsonDocument(after);
    result_.before_expires = l.expire_at;
    result_.after_expires = deadline.at;
  }
  if (!changed && whole_) {
    // As in MongoDB, a replacement counts as a write even if it does not change the document.
    MAYFLY_TRY(c_.Validate(l.doc, &l.doc));
  }
  if (!changed && deadline.at == l.expire_at) return Ok();
  if (changed) {
    MAYFLY_TRY(c_.Validate(after, &l.doc));
  }
  unit.SetReplacement(whole_);
  MAYFLY_TRY(unit.Update(*c_.coll_, l, after, deadline.at));
  c_.NoteDeadline(deadline);
  ++modified_;
  return Ok();
}

Result<void> WriteCommand::Updating::ApplyTo(std::span<const std::string> keys) {
  c_.scratch_.Clear();
  matched_ = modified_ = clamped_ = 0;
  UnitStep unit(c_);
  // Lives as long as the unit, which holds views of it.
  std::vector<WriteUnit::Locked> locked(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    WriteUnit::Locked& l = locked[i];
    MAYFLY_TRY(bool there, unit->LockAndRead(*c_.coll_, keys[i], &l));
    if (!there) continue;
    MAYFLY_TRY(const std::optional<DeleteCause> expired, visible_->Expired(l.doc, l.expire_at));
    if (s_.recover ? !expired || !c_.Recoverable(*expired) : expired.has_value()) continue;
    MAYFLY_TRY(Change(*unit, l));
  }
  if (modified_ > 0) {
    MAYFLY_TRY(unit.Commit({.kind = UnitResult::Kind::kUpdate, .update = &result_}));
  }
  c_.clamped_ += clamped_;
  result_.matched += matched_;
  result_.modified += modified_;
  return Ok();
}

Result<void> WriteCommand::Updating::FlushOneByOne() {
  for (const std::string& key : keys_) {
    Result<void> r = Ok();
    for (int n = 0;; ++n) {
      r = ApplyTo({&key, 1});
      if (r || !c_.MayTryAgain(r.error()) || n > kWriteRetries) break;
      MAYFLY_TRY(c_.op_.CheckInterrupt());
      if (r.error().code == ErrorCode::kQueryPlanKilled)
        return Ok();  // the collection was dropped: nothing is left to update
      BackOff(c_.op_, n);
    }
    if (!r) return r;
  }
  return Ok();
}

Result<void> WriteCommand::Updating::Flush() {
  Result<void> r = ApplyTo(keys_);
  // In a unit that outlives the statement, the statement fails as a whole.
  if (!r && c_.unit_ == nullptr &&
      (IsRetryable(r.error()) || (keys_.size() > 1 && !EndsCommand(r.error()))))
    r = FlushOneByOne();
  if (!r) return r;
  keys_.clear();
  return Ok();
}

Result<bool> WriteCommand::Updating::Pass() {
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> found,
             c_.Find(s_.filter, match_, s_.sort, s_.hint, s_.multi ? 0 : 1, s_.recover));
  visible_.emplace(c_.Visible());
  const int per_unit = s_.multi ? kDocumentsPerUpdate : 1;
  bool again = false;
  for (;;) {
    MAYFLY_TRY(PlanExecutor::State state, found->Next());
    if (state == PlanExecutor::State::kEof) break;
    keys_.emplace_back(found->record_key());
    if (static_cast<int>(keys_.size()) < per_unit) continue;
    MAYFLY_TRY(Flush());
    if (!s_.multi) {
      if (result_.matched > 0) break;
      again = true;
    }
  }
  if (!keys_.empty()) {
    MAYFLY_TRY(Flush());
  }
  return again;
}

Result<std::optional<UpdateResult>> WriteCommand::Updating::TryUpsert(int attempt) {
  Result<UpdateResult> up = c_.Upsert(*update_, setting_, match_.get(), want_documents_);
  if (up) return std::optional<UpdateResult>(std::move(up).value());
  // Another client may have inserted the document first. Then there is something to update.
  const bool raced = up.error().code == ErrorCode::kDuplicateKey && attempt < 3;
  if (up.error().code == ErrorCode::kQueryPlanKilled || !c_.coll_) (void)c_.Open();
  if (!raced && !(c_.MayTryAgain(up.error()) && attempt < kWriteRetries)) return up.error();
  return std::optional<UpdateResult>();
}

Result<UpdateResult> WriteCommand::Updating::Run() {
  MAYFLY_TRY(Parse());
  for (int attempt = 0;; ++attempt) {
    MAYFLY_TRY(c_.op_.CheckInterrupt());
    if (c_.series_) [[unlikely]]
      return c_.ReplacedBySeries();  // TryUpsert has opened it again
    bool again = false;
    if (c_.coll_) {
      MAYFLY_TRY(again, Pass());
    }
    if (result_.matched > 0) break;
    if (again && attempt < kWriteRetries) {
      result_.before.reset();
      result_.after.reset();
    } else {
      if (!s_.upsert) break;
      MAYFLY_TRY(std::optional<UpdateResult> upserted, TryUpsert(attempt));
      if (upserted) return std::move(*upserted);
    }
    BackOff(c_.op_, attempt);
  }
  c_.op_.n_matched += result_.matched;
  c_.op_.n_modified += result_.modified;
  c_.scratch_.Clear();
  return std::move(result_);
}

Result<UpdateResult> WriteCommand::Update(const UpdateStatement& s, bool want_documents) {
  if (coll_ && coll_->is_buckets()) [[unlikely]]
    return UpdateMeta(s, want_documents);
  return Updating(*this, s, want_documents).Run();
}

Result<UpdateResult> WriteCommand::Upsert(const mayfly::Update& update, const ExpirySetting& expiry,
                                          const MatchExpression* match, bool want_documents) {
  if (!coll_) {
    MAYFLY_TRY(OpenOrCreate());
  }
  if (series_) [[unlikely]]
    return ReplacedBySeries();
  EvalContext eval = MakeEval();
  scratch_.Clear();
  MAYFLY_TRY(std::string made, update.MakeUpsert(match, op_.now, eval));
  BsonView ready(scratch_.Add(std::move(made)));
  MAYFLY_TRY(Validate(ready, nullptr));
  int64_t clamped = 0;
  MAYFLY_TRY(const Deadline deadline, InsertDeadline(expiry, ready, &clamped));
  UnitStep unit(*this);
  MAYFLY_TRY(unit->Insert(*coll_, ready, deadline.at));
  NoteDeadline(deadline);
  UpdateResult r;
  r.upserted_id = Value::Copy(ready["_id"]);
  if (want_documents) r.after = BsonDocument(ready);
  r.after_expires = deadline.at;
  MAYFLY_TRY(unit.Commit({.kind = UnitResult::Kind::kUpdate, .update = &r}));
  clamped_ += clamped;
  ++op_.n_inserted;
  NotifyInserted();
  return r;
}

}  // namespace mayfly
