#include <algorithm>
#include <array>
#include <utility>

#include "query/plan/query_state.h"
#include "query/plan/stages.h"
#include "storage/keys/key_format.h"

namespace mayfly {

FetchStage::FetchStage(PlanContext& ctx, PlanStagePtr child, ResidualFilter filter, int64_t wanted,
                       ResidualFilter by_keys)
    : PlanStage(ctx, "FETCH"),
      filter_(std::move(filter)),
      by_keys_(std::move(by_keys)),
      wanted_(child->gives_keys() ? wanted : 0) {
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

/// Reads the next keys and looks their records up together: ever more, because most queries that
/// find one document find no other. The first comes by NextOne.
Result<void> FetchStage::ReadAhead() {
  next_ = kept_ = 0;
  const int64_t n = std::min(ahead_, wanted_);
  ahead_ = std::min(ahead_ * 2, kMaxAhead);
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
    if (kept_ == keys_ahead_.size()) {
      if (kept_ == 0) keys_ahead_.reserve(static_cast<size_t>(n));
      keys_ahead_.emplace_back();
    }
    KeyAhead& k = keys_ahead_[kept_++];
    k.examined = examined;
    k.record_key.assign(row.record_key);
    k.key_values.assign(row.key_values);
    k.type_bits.assign(row.type_bits);
    k.index = row.index;
    k.stale = false;
    k.key_matched = row.key_matched;
  }
  wanted_ -= static_cast<int64_t>(kept_);
  if (WalkAhead()) return Ok();
  return LookUpAhead();
}

/// Whether the records of the keys that were read ahead are walked, since they seem to lie next to
/// each other.
bool FetchStage::WalkAhead() {
  constexpr size_t kFew = 4, kMany = 8;  // of so many keys a walk costs less than look-ups
  const bool walking = walk_.walking();
  if (!may_walk_ || kept_ < (walking ? 1 : kFew) || ctx_.view.snapshot() == nullptr) return false;
  if (!walking) walks_down_ = keys_ahead_[1].record_key < keys_ahead_[0].record_key;
  // A walk that goes on is behind the last key of those before these.
  std::string_view last = walking ? std::string_view(last_walked_) : keys_ahead_[0].record_key;
  for (size_t i = walking ? 0 : 1; i < kept_; ++i) {
    const std::string_view key = keys_ahead_[i].record_key;
    if (walks_down_ ? key >= last : key <= last) {
      if (walking) EndWalk();
      return false;
    }
    last = key;
  }
  if (!walking) {
    const auto how = QueryState::Of(*ctx_.storage).neighbours.Ask(keys_ahead_[0].index->id);
    may_walk_ = how != Neighbours::Try::kNo;
    if (!may_walk_ || (how == Neighbours::Try::kLater && kept_ < kMany)) return false;
    walk_.Begin(ctx_.storage->kv(), *ctx_.coll, ctx_.view, keys_ahead_[0].record_key, walks_down_,
                ctx_.fill_cache);
  }
  last_walked_.assign(last);
  looked_up_from_ = kNone;
  return true;
}

/// The record of the next key, on a walk; false: it is gone, or the walk has ended before it.
Result<bool> FetchStage::WalkToNext(Row* row) {
  const KeyAhead& k = keys_ahead_[next_];
  std::string_view record;
  switch (walk_.Find(k.record_key, &record)) {
    case RecordWalk::Verdict::kFar:
      EndWalk();
      return false;
    case RecordWalk::Verdict::kAbsent:
      return false;
    case RecordWalk::Verdict::kFound:
      break;
  }
  if (walk_.found() == kWorthIt) QueryState::Of(*ctx_.storage).neighbours.Walked(k.index->id, true);
  if (!DecodeRecord(record, &row->doc, &row->expire_at)) return DamagedRecord(*ctx_.coll);
  row->has_doc = true;
  return true;
}

/// The keys lie apart, or are in another order. After a walk in vain there is none in this plan.
void FetchStage::EndWalk() {
  walk_.End();
  may_walk_ = walk_.found() >= kWorthIt;
  if (!may_walk_) QueryState::Of(*ctx_.storage).neighbours.Walked(keys_ahead_[0].index->id, false);
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
  *row = {};
  *found = false;
  if (walk_.walking()) {
    MAYFLY_TRY(*found, WalkToNext(row));
  }
  if (!walk_.walking()) {
    if (looked_up_from_ == kNone) {  // after a pause, or where a walk has ended
      MAYFLY_TRY(LookUpAhead());
    }
    const RecordBatch::Entry& record = records_[next_ - looked_up_from_];
    *found = record.found;
    if (record.found) {
      row->doc = record.doc;
      row->has_doc = true;
      row->expire_at = record.expire_at;
    }
  }
  const KeyAhead& k = keys_ahead_[next_++];
  ++docs_examined_;
  ++ctx_.op->docs_examined;
  ctx_.op->keys_examined += k.examined;
  row->record_key = k.record_key;
  row->index = k.index;
  row->key_values = k.key_values;
  row->type_bits = k.type_bits;
  row->stale = k.stale;
  row->key_matched = k.key_matched;
  return StageState::kAdvanced;
}

/// One row of the input, with its record.
Result<StageState> FetchStage::NextOne(Row* row, bool* found) {
  MAYFLY_TRY(StageState state, children_[0]->Work(row));
  if (state != StageState::kAdvanced) return state;
  if (wanted_ > 0) {
    --wanted_;
    ahead_ = 2;
  }
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

Result<bool> FetchStage::Matches(const Row& row) {
  ctx_.scanned.expire_at = row.expire_at;
  ctx_.eval.metadata = &ctx_.scanned;
  // A key that was read earlier may now belong to an array, so it no longer decides.
  if (!row.key_matched || row.stale) {
    MAYFLY_TRY(bool m, by_keys_.Matches(row.doc, ctx_.eval));
    if (!m) return false;
  }
  return filter_.Matches(row.doc, ctx_.eval);
}

Result<StageState> FetchStage::DoWork(Row* row) {
  while (true) {
    // In a trial each unit of work is counted, so nothing is read ahead.
    const bool ahead = next_ < kept_ || scan_ended_ || (wanted_ > 0 && ahead_ > 1 && !ctx_.step);
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
      if (match && (!filter_.empty() || !by_keys_.empty())) {
        MAYFLY_TRY(match, Matches(*row));
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
  walk_.End();
  looked_up_from_ = kNone;
  for (size_t i = next_; i < kept_; ++i) keys_ahead_[i].stale = true;
}

void FetchStage::ExplainStats(BsonBuilder& out) const {
  out.Append("docsExamined", docs_examined_);
  out.Append("alreadyHasObj", already_has_doc_);
}

}  // namespace mayfly
