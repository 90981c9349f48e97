#include <algorithm>
#include <utility>

#include "query/plan/stages.h"

namespace mayfly {

FetchStage::FetchStage(PlanContext& ctx, PlanStagePtr child, ResidualFilter filter, int64_t wanted)
    : PlanStage(ctx, "FETCH"),
      filter_(std::move(filter)),
      // The rows of an index scan are only keys, so they can be kept while the scan goes on.
      wanted_(dynamic_cast<IndexScanStage*>(child.get()) != nullptr ? wanted : 0) {
  children_.push_back(std::move(child));
}

void FetchStage::AddExamined(int64_t* keys, int64_t* docs) const {
  *docs += docs_examined_;
  PlanStage::AddExamined(keys, docs);
}

bool FetchStage::StillHasKey(const Row& row) {
  if (row.index == nullptr || !ExtractKeys(*row.index, row.doc, &keys_)) return false;
  for (size_t i = 0; i < keys_.size(); ++i)
    if (keys_.values(i) == row.key_values) return true;
  return false;
}

/// Reads the next keys and looks their records up together: first one, then ever more, because most
/// queries that find one document find no other.
Result<void> FetchStage::ReadAhead() {
  next_ = kept_ = 0;
  const int64_t n = std::min(ahead_, wanted_);
  ahead_ = std::min(ahead_ * 2, kMaxAhead);
  if (keys_ahead_.size() < static_cast<size_t>(n)) keys_ahead_.resize(static_cast<size_t>(n));
  while (kept_ < static_cast<size_t>(n)) {
    Row row;
    // A key is counted in the batch that asks for its record, which may be a later batch than this
    // one.
    const int64_t before = ctx_.op->keys_examined;
    MAYFLY_TRY(StageState state, children_[0]->Work(&row));
    const int64_t examined = ctx_.op->keys_examined - before;
    ctx_.op->keys_examined = before;
    if (state != StageState::kAdvanced) {
      scan_ended_ = true;
      keys_at_end_ = examined;
      break;
    }
    KeyAhead& k = keys_ahead_[kept_++];
    k.examined = examined;
    k.record_key.assign(row.record_key);
    k.key_values.assign(row.key_values);
    k.type_bits.assign(row.type_bits);
    k.index = row.index;
    k.stale = false;
  }
  wanted_ -= static_cast<int64_t>(kept_);
  return LookUpAhead();
}

Result<void> FetchStage::LookUpAhead() {
  looked_up_from_ = next_;
  std::array<std::string_view, kMaxAhead> keys;
  const size_t n = kept_ - next_;
  for (size_t i = 0; i < n; ++i) keys[i] = keys_ahead_[next_ + i].record_key;
  if (n == 0) return Ok();
  MAYFLY_TRY(records_.Fetch(*ctx_.storage, *ctx_.coll, std::span(keys).first(n), ctx_.view));
  size_t bytes = 0;
  for (size_t i = 0; i < n; ++i) bytes += records_[i].doc.size();
  if (bytes > kMaxBytesAhead) ahead_ = 1;
  return Ok();
}

/// The next row of those read ahead; kEof when there is none. `*found` false: its record is gone.
Result<StageState> FetchStage::NextAhead(Row* row, bool* found) {
  if (next_ == kept_ && !scan_ended_) {
    MAYFLY_TRY(ReadAhead());
  }
  if (next_ == kept_) {
    ctx_.op->keys_examined += std::exchange(keys_at_end_, 0);
    return StageState::kEof;
  }
  if (looked_up_from_ == kNone) {  // after a pause
    MAYFLY_TRY(LookUpAhead());
  }
  const RecordBatch::Entry& record = records_[next_ - looked_up_from_];
  const KeyAhead& k = keys_ahead_[next_++];
  ++docs_examined_;
  ++ctx_.op->docs_examined;
  ctx_.op->keys_examined += k.examined;
  *row = {};
  row->record_key = k.record_key;
  row->index = k.index;
  row->key_values = k.key_values;
  row->type_bits = k.type_bits;
  row->stale = k.stale;
  *found = record.found;
  if (record.found) {
    row->doc = record.doc;
    row->has_doc = true;
    row->expire_at = record.expire_at;
  }
  return StageState::kAdvanced;
}

/// One row of the input, with its record.
Result<StageState> FetchStage::NextOne(Row* row, bool* found) {
  MAYFLY_TRY(StageState state, children_[0]->Work(row));
  if (state != StageState::kAdvanced) return state;
  *found = true;
  if (row->has_doc) {
    ++already_has_doc_;
    return state;
  }
  ++docs_examined_;
  ++ctx_.op->docs_examined;
  MAYFLY_TRY(*found, ctx_.storage->Fetch(*ctx_.coll, row->record_key, &record_, ctx_.view));
  if (*found) {
    row->doc = record_.doc;
    row->has_doc = true;
    row->expire_at = record_.expire_at;
  }
  return state;
}

Result<StageState> FetchStage::DoWork(Row* row) {
  while (true) {
    // In a trial each unit of work is counted, so nothing is read ahead.
    const bool ahead = next_ < kept_ || scan_ended_ || (wanted_ > 0 && !ctx_.step);
    bool found = false;
    MAYFLY_TRY(StageState state, ahead ? NextAhead(row, &found) : NextOne(row, &found));
    if (state == StageState::kEof) return state;
    if (state == StageState::kAdvanced && found) {
      MAYFLY_TRY(ctx_.op->Charge(row->doc.size()));
      bool match = ctx_.visible.Shows(row->doc, row->expire_at);
      if (!match) {
        MAYFLY_TRY(ctx_.visible.Stopped());
      }
      match = match && (!row->stale || StillHasKey(*row));
      if (match && !filter_.empty()) {
        ctx_.scanned.expire_at = row->expire_at;
        ctx_.eval.metadata = &ctx_.scanned;
        MAYFLY_TRY(match, filter_.Matches(row->doc, ctx_.eval));
      }
      if (match) return StageState::kAdvanced;
    }
    if (ctx_.step) return StageState::kNeedTime;
    CountLoop();
  }
}

void FetchStage::DoSave() {
  record_.pinned.Reset();
  records_.Reset();
  looked_up_from_ = kNone;
  for (size_t i = next_; i < kept_; ++i) keys_ahead_[i].stale = true;
}

void FetchStage::ExplainStats(BsonBuilder& out) const {
  out.Append("docsExamined", docs_examined_);
  out.Append("alreadyHasObj", already_has_doc_);
}

}  // namespace mayfly
