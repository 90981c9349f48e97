#include "protocol/bson_compare.h"
#include "query/plan/query_state.h"
#include "query/plan/stages.h"
#include "storage/keys/key_encoding.h"
#include "storage/keys/key_format.h"

namespace mayfly {

// --- RecordScanStage -----------------------------------------------------------------------------

RecordScanStage::RecordScanStage(PlanContext& ctx, Kind kind, IntervalList id_bounds, bool backward,
                                 ResidualFilter filter, bool tailable)
    : PlanStage(ctx, kind == Kind::kCollection  ? "COLLSCAN"
                     : kind == Kind::kClustered ? "CLUSTERED_IXSCAN"
                     : kind == Kind::kIdLookup
                         ? (ctx.coll->clustered() ? "EXPRESS_CLUSTERED_IXSCAN" : "EXPRESS_IXSCAN")
                         : "FETCH"),
      kind_(kind),
      bounds_(std::move(id_bounds)),
      backward_(backward),
      tailable_(tailable),
      filter_(std::move(filter)),
      // Not where others may follow the scan, or where it goes another way than keys do.
      look_at_(kind == Kind::kIdLookup || backward || tailable || ctx.coll->capped() ||
                       ctx.coll->source != nullptr
                   ? -1
                   : kFirstLook) {}

void RecordScanStage::BuildRanges() {
  built_ = true;
  if (kind_ == Kind::kCollection && !bounds_.IsFull()) {
    BuildSourceRanges();
    return;
  }
  if (kind_ == Kind::kCollection || (kind_ != Kind::kIdLookup && bounds_.IsFull())) {
    ranges_.push_back({"", "", false});
    return;
  }
  for (const auto& i : bounds_.intervals) {
    Range r;
    r.point = i.IsPoint();
    Storage::AppendRecordKey(*ctx_.coll, i.low.view(), r.lower);
    if (!r.point) {
      // No key is a prefix of another, so a key with one more byte is the next possible position.
      // Keys that are cut at the same byte are in no order: all of them are looked at.
      if (HasCutId(RecordIdOf(r.lower)))
        r.lower.resize(kIdPrefixSize + kMaxKeySize);
      else if (!i.low_inclusive)
        r.lower.push_back('\0');
      Storage::AppendRecordKey(*ctx_.coll, i.high.view(), r.upper);
      if (HasCutId(RecordIdOf(r.upper)))
        r.upper = PrefixSuccessor(r.upper.substr(0, kIdPrefixSize + kMaxKeySize));
      else if (i.high_inclusive)
        r.upper.push_back('\0');
    }
    ranges_.push_back(std::move(r));
  }
  if (backward_) std::reverse(ranges_.begin(), ranges_.end());
}

void RecordScanStage::BuildSourceRanges() {
  // A bound within the range of timestamps becomes a key. A bound below or above all timestamps
  // leaves that end open.
  auto key = [this](uint64_t ts) {
    std::string k;
    AppendBe32(k, ctx_.coll->id);
    AppendBe64(k, ts);
    return k;
  };
  for (const auto& i : bounds_.intervals) {
    Range r{"", "", false};
    if (i.low.view().Is(BsonType::kTimestamp)) {
      r.lower = key(i.low.view().Timestamp());
      if (!i.low_inclusive) r.lower.push_back('\0');
    }
    if (i.high.view().Is(BsonType::kTimestamp)) {
      r.upper = key(i.high.view().Timestamp());
      if (i.high_inclusive) r.upper.push_back('\0');
    }
    ranges_.push_back(std::move(r));
  }
  if (backward_) std::reverse(ranges_.begin(), ranges_.end());
}

Result<bool> RecordScanStage::NextRecord() {
  while (range_ < ranges_.size()) {
    const Range& r = ranges_[range_];
    if (r.point) {
      ++range_;
      ++seeks_;
      MAYFLY_TRY(bool found, ctx_.storage->Fetch(*ctx_.coll, r.lower, &record_, ctx_.view));
      if (!found) continue;
      key_ = r.lower;
      doc_ = record_.doc;
      expire_at_ = record_.expire_at;
      return true;
    }
    if (!cursor_) {
      ++seeks_;
      cursor_ = ctx_.storage->ScanRecords(ctx_.coll, {.view = ctx_.view,
                                                      .backward = backward_,
                                                      .lower = resume_.empty() ? r.lower : resume_,
                                                      .upper = r.upper,
                                                      .fill_cache = ctx_.fill_cache,
                                                      .max_skipped = ctx_.MaxSkipped(),
                                                      .deadline_field = ctx_.deadline_field});
    }
    MAYFLY_TRY(bool more, cursor_->Next());
    if (more) {
      key_ = cursor_->record_key();
      if (ctx_.coll->capped()) last_key_.assign(key_);
      doc_ = cursor_->doc();
      expire_at_ = cursor_->expire_at();
      return true;
    }
    if (tailable_) return false;  // the cursor stays where it is
    EndRange();
  }
  return false;
}

void RecordScanStage::EndRange() {
  cursor_.reset();
  resume_.clear();
  ++range_;
  if (look_at_ < 0) return;
  looked_key_.clear();
  look_at_ = docs_examined_ + kFirstLook;
}

/// After some documents the scan remembers where it is. If it reads many more from there, it
/// proves long: helpers read what is left of the range beside it, if there are any.
void RecordScanStage::LookForHelp() {
  QueryState& state = QueryState::Of(*ctx_.storage);
  ScanHelpers* helpers = state.helpers.load(std::memory_order_acquire);
  if (helpers == nullptr || ctx_.view.snapshot() == nullptr || ctx_.view.has_own_writes() ||
      !ctx_.deadline_field.empty()) {
    look_at_ = -1;
    return;
  }
  look_at_ = docs_examined_ + kFirstLook;
  if (!cursor_ || helpers->most() <= 0 || ctx_.op->in_slice() || ctx_.step) return;
  if (looked_key_.empty()) {
    looked_key_ = key_;
    looked_at_ = docs_examined_;
  }
  const int64_t read = docs_examined_ - looked_at_, after = std::max<int64_t>(helpers->after(), 1);
  if (read < after) {
    look_at_ = looked_at_ + after;
    return;
  }
  constexpr int64_t kMostInPart = 8192, kFewest = 16;
  const int64_t documents = std::clamp(after / 2, kFewest, kMostInPart);
  const uint64_t bytes = ctx_.storage->kv().ApproximateBytes(Keyspace::kRecords, looked_key_, key_);
  const std::string& upper = ranges_[range_].upper;
  parallel_ = ParallelScan::Begin(
      *helpers,
      {.context = &ctx_,
       .filter = &filter_,
       .lower = std::string(key_) + '\0',
       .upper = upper.empty() ? IdPrefixEnd(ctx_.coll->id) : upper,
       .part_documents = documents,
       .part_bytes = bytes * static_cast<uint64_t>(documents) / static_cast<uint64_t>(read)});
  if (parallel_ == nullptr) look_at_ = docs_examined_ + after;
}

void RecordScanStage::EndParallel() {
  const int64_t parts = parallel_->parts_of_helpers();
  parts_of_helpers_ += parts;
  QueryState::Of(*ctx_.storage).parts_of_helpers.fetch_add(parts, std::memory_order_relaxed);
  parallel_.reset();
}

Result<StageState> RecordScanStage::NextInParallel(Row* row) {
  MAYFLY_TRY(ctx_.op->CheckInterrupt());
  cursor_.reset();
  ParallelScan::Found found;
  const Result<bool> more = parallel_->Next(&found);
  const int64_t examined = parallel_->TakeExamined();
  docs_examined_ += examined;
  ctx_.op->docs_examined += examined;
  if (kind_ == Kind::kIdIndex) ctx_.op->keys_examined += examined;
  const bool advanced = more && more.value();
  const int64_t passed = examined - (advanced ? 1 : 0);
  stats_.works += passed;
  stats_.need_time += passed;
  if (!more) return more.error();
  if (!advanced) {
    EndParallel();
    EndRange();
    return StageState::kNeedTime;
  }
  key_ = found.key;
  doc_ = found.doc.empty() ? BsonView() : BsonView(found.doc);
  expire_at_ = found.expire_at;
  FillRow(row);
  row->has_doc = !found.doc.empty();
  return StageState::kAdvanced;
}

void RecordScanStage::FillRow(Row* row) const {
  *row = {};
  row->record_key = key_;
  row->doc = doc_;
  row->has_doc = true;
  row->by_id = kind_ != Kind::kCollection;
  row->expire_at = expire_at_;
}

Result<StageState> RecordScanStage::DoWork(Row* row) {
  if (lost_) return *lost_;
  if (finished_) return StageState::kEof;
  if (!built_) BuildRanges();
  while (true) {
    if (docs_examined_ == look_at_ && !parallel_) [[unlikely]]
      LookForHelp();
    if (parallel_) [[unlikely]] {
      MAYFLY_TRY(const StageState state, NextInParallel(row));
      if (state == StageState::kAdvanced) return state;
      continue;
    }
    MAYFLY_TRY(ctx_.op->CheckInterrupt());
    MAYFLY_TRY(bool more, NextRecord());
    if (!more) {
      // A tailable cursor without a position in the collection has nothing to follow.
      if (!tailable_ || (!started_ && !ctx_.coll->source)) finished_ = true;
      return StageState::kEof;
    }
    started_ = true;
    ++docs_examined_;
    ++ctx_.op->docs_examined;
    MAYFLY_TRY(ctx_.op->Charge(doc_.size()));
    if (kind_ == Kind::kIdIndex || kind_ == Kind::kIdLookup) ++ctx_.op->keys_examined;
    if (!ctx_.visible.Shows(doc_, expire_at_)) {
      MAYFLY_TRY(ctx_.visible.Stopped());
    } else {
      bool match = true;
      if (!filter_.empty()) {
        ctx_.scanned.expire_at = expire_at_;
        ctx_.eval.metadata = &ctx_.scanned;
        MAYFLY_TRY(bool m, filter_.Matches(doc_, ctx_.eval));
        match = m;
      }
      if (match) {
        FillRow(row);
        return StageState::kAdvanced;
      }
    }
    if (ctx_.step) return StageState::kNeedTime;
    CountLoop();
  }
}

void RecordScanStage::DoSave() {
  if (parallel_) {
    resume_ = parallel_->Position();
    EndParallel();
  }
  looked_key_.clear();
  if (look_at_ >= 0) look_at_ = docs_examined_ + kFirstLook;
  key_ = {};
  record_.pinned.Reset();
  if (cursor_) cursor_->Reposition(nullptr);
}

void RecordScanStage::DoRestore() {
  if (cursor_) cursor_->Reposition(ctx_.view);
  if (!KeepsPosition()) return;
  key_ = last_key_;
  Storage::Record record;
  auto found = ctx_.storage->Fetch(*ctx_.coll, last_key_, &record, ctx_.view);
  if (!found)
    lost_ = found.error();
  else if (!found.value())
    lost_ = Error{ErrorCode::kCappedPositionLost,
                  "CollectionScan died due to position in capped collection being deleted."};
}

void RecordScanStage::AddExamined(int64_t* keys, int64_t* docs) const {
  *docs += docs_examined_;
  if (kind_ == Kind::kIdIndex || kind_ == Kind::kIdLookup) *keys += docs_examined_;
}

std::string RecordScanStage::Summary() const {
  switch (kind_) {
    case Kind::kCollection:
      return "COLLSCAN";
    case Kind::kClustered:
      return "CLUSTERED_IXSCAN";
    case Kind::kIdLookup:
      return "IDHACK";  // as a find and an update without a plan say
    case Kind::kIdIndex:
      break;
  }
  return "IXSCAN { _id: 1 }";
}

/// How many ranges helpers have read, if any.
void RecordScanStage::AppendParallel(BsonBuilder& out) const {
  const int64_t parts = parts_of_helpers_ + (parallel_ ? parallel_->parts_of_helpers() : 0);
  if (parts > 0) out.Append("parallelRanges", parts);
}

void RecordScanStage::AppendIdIndex(BsonBuilder& out) const {
  out.OpenDocument("keyPattern").Append("_id", 1);
  out.Append("indexName", "_id_");
  out.Append("isMultiKey", false);
  {
    auto paths = out.OpenDocument("multiKeyPaths");
    paths.OpenArray("_id");
  }
  out.Append("isUnique", true).Append("isSparse", false).Append("isPartial", false);
  out.Append("indexVersion", 2).Append("direction", backward_ ? "backward" : "forward");
  IndexInfo shape;
  shape.fields.push_back({"_id", false, ""});
  IndexBounds bounds;
  bounds.fields.push_back(bounds_);
  auto b = out.OpenDocument("indexBounds");
  bounds.Explain(shape, backward_, b);
}

void RecordScanStage::Explain(bool stats, BsonBuilder& out) const {
  out.Append("stage", name_);
  if (kind_ == Kind::kIdLookup) {
    if (stats) AppendStageStats(stats_, out);
    out.Append("keyPattern", "{ _id: 1 }");
    out.Append("indexName", ctx_.coll->clustered() && !ctx_.coll->clustered_index_name.empty()
                                ? ctx_.coll->clustered_index_name
                                : std::string("_id_"));
    if (stats) {
      out.Append("keysExamined", docs_examined_);
      out.Append("docsExamined", docs_examined_);
    }
    return;
  }
  filter_.Explain(out);
  if (stats) AppendStageStats(stats_, out);
  if (kind_ != Kind::kIdIndex) {
    out.Append("direction", backward_ ? "backward" : "forward");
    if (kind_ == Kind::kClustered && !bounds_.empty()) {
      out.Append("minRecord", bounds_.intervals.front().low.view());
      out.Append("maxRecord", bounds_.intervals.back().high.view());
    }
    if (tailable_) out.Append("tailable", true);
    if (stats) out.Append("docsExamined", docs_examined_);
    if (stats) AppendParallel(out);
    return;
  }
  if (stats) {
    out.Append("docsExamined", docs_examined_);
    out.Append("alreadyHasObj", int64_t{0});
    AppendParallel(out);
  }
  auto input = out.OpenDocument("inputStage");
  input.Append("stage", "IXSCAN");
  if (stats) {
    StageStats scan = stats_;
    scan.advanced = docs_examined_;
    scan.need_time = 0;
    AppendStageStats(scan, input);
  }
  AppendIdIndex(input);
  if (stats) {
    input.Append("keysExamined", docs_examined_).Append("seeks", seeks_);
    input.Append("dupsTested", int64_t{0}).Append("dupsDropped", int64_t{0});
  }
}

// --- IndexScanStage ------------------------------------------------------------------------------

IndexScanStage::IndexScanStage(PlanContext& ctx, Params&& params)
    : PlanStage(ctx, params.distinct ? "DISTINCT_SCAN" : "IXSCAN"),
      params_(std::move(params)),
      encoded_(params_.bounds, *params_.index, params_.backward),
      dedup_(params_.multikey != 0 && MayRepeat()),
      done_(encoded_.empty()) {
  if (params_.count_only && encoded_.contiguous()) name_ = "COUNT_SCAN";
}

void IndexScanStage::SkipValues(std::string_view encoded_values) {
  // Backward: all keys that begin with the values are longer, so they lie behind this position.
  seek_ = params_.backward ? std::string(encoded_values) : PrefixSuccessor(encoded_values);
  if (seek_.empty()) done_ = true;
}

std::optional<uint64_t> IndexScanStage::ApproximateBytes() const {
  if (encoded_.empty()) return 0;
  if (!encoded_.contiguous()) return std::nullopt;
  const std::string prefix = IdPrefix(params_.index->id);
  return ctx_.storage->kv().ApproximateBytes(
      params_.index->keyspace, prefix + encoded_.lower(),
      encoded_.upper().empty() ? IdPrefixEnd(params_.index->id) : prefix + encoded_.upper());
}

Result<bool> IndexScanStage::Counts(bool* matched) {
  *matched = params_.filter.empty();
  if (!*matched && keys_decide_) {
    switch (params_.filter.Test(*params_.index, cursor_->encoded_values(), cursor_->type_bits(),
                                ctx_.eval)) {
      case KeyFilter::Verdict::kNo:
        return false;
      case KeyFilter::Verdict::kYes:
        *matched = true;
        break;
      case KeyFilter::Verdict::kUnknown:
        break;
    }
  }
  if (dedup_) {
    ++dups_tested_;
    if (!seen_.emplace(cursor_->record_key()).second) {
      ++dups_dropped_;
      return false;
    }
  }
  if (!keys_only_ || (!ctx_.check_keys && *matched)) return true;
  ++docs_examined_;
  ++ctx_.op->docs_examined;
  MAYFLY_TRY(bool found,
             ctx_.storage->Fetch(*ctx_.coll, cursor_->record_key(), &record_, ctx_.view));
  if (!found) return false;
  MAYFLY_TRY(ctx_.op->Charge(record_.doc.size()));
  if (!ctx_.visible.Shows(record_.doc, record_.expire_at)) {
    MAYFLY_TRY(ctx_.visible.Stopped());
    return false;
  }
  if (*matched) return true;
  ctx_.scanned.expire_at = record_.expire_at;
  ctx_.eval.metadata = &ctx_.scanned;
  MAYFLY_TRY(*matched, params_.filter.clauses().Matches(record_.doc, ctx_.eval));
  return *matched;
}

Result<StageState> IndexScanStage::DoWork(Row* row) {
  if (done_) return StageState::kEof;
  if (!cursor_) {
    ctx_.op->CountUse(params_.index, params_.index->accesses);
    ++seeks_;
    cursor_ = ctx_.storage->ScanIndex(ctx_.coll, params_.index,
                                      {.view = ctx_.view,
                                       .backward = params_.backward,
                                       .lower = encoded_.lower(),
                                       .upper = encoded_.upper(),
                                       .fill_cache = ctx_.fill_cache,
                                       .max_skipped = ctx_.MaxSkipped()});
  }
  while (true) {
    MAYFLY_TRY(ctx_.op->CheckInterrupt());
    if (!seek_.empty()) {
      ++seeks_;
      cursor_->SeekTo(seek_);
      last_seek_.swap(seek_);
      seek_.clear();
    }
    MAYFLY_TRY(bool more, cursor_->Next());
    if (!more) {
      done_ = true;
      cursor_.reset();
      return StageState::kEof;
    }
    ++keys_examined_;
    ++ctx_.op->keys_examined;
    switch (encoded_.Check(cursor_->encoded_values(), &seek_)) {
      case EncodedBounds::Verdict::kEnd:
        done_ = true;
        cursor_.reset();
        return StageState::kEof;
      case EncodedBounds::Verdict::kSeek:
        // The scan is already there (the entry equals an exclusive end): take one step instead of
        // seeking.
        if (seek_ == last_seek_) seek_.clear();
        break;
      case EncodedBounds::Verdict::kInside: {
        seek_.clear();
        bool matched = true;
        MAYFLY_TRY(bool counts, Counts(&matched));
        if (counts) {
          *row = {};
          row->key_matched = matched;
          row->record_key = cursor_->record_key();
          row->index = params_.index.get();
          row->key_values = cursor_->encoded_values();
          row->type_bits = cursor_->type_bits();
          return StageState::kAdvanced;
        }
        break;
      }
    }
    if (ctx_.step) return StageState::kNeedTime;
    CountLoop();
  }
}

void IndexScanStage::DoSave() {
  record_.pinned.Reset();
  if (cursor_) cursor_->Reposition(nullptr);
}

void IndexScanStage::DoRestore() {
  if (cursor_) cursor_->Reposition(ctx_.view);
  // The index may have received its first array in the meantime. From now on a record can appear
  // twice.
  const uint64_t multikey = ctx_.view.Multikey(*params_.index);
  if (!dedup_ && MayRepeat() && multikey != 0) dedup_ = true;
  if (multikey != params_.multikey) keys_decide_ = false;
}

std::string IndexScanStage::Summary() const {
  std::string name(name_);
  return KeyPatternText(params_.index->key, name += ' ');
}

void IndexScanStage::ExplainFields(BsonBuilder& out) const {
  const IndexInfo& index = *params_.index;
  out.Append("keyPattern", index.key);
  out.Append("indexName", index.name);
  out.Append("isMultiKey", params_.multikey != 0);
  {
    auto paths = out.OpenDocument("multiKeyPaths");
    for (size_t i = 0; i < index.fields.size(); ++i) {
      auto list = paths.OpenArray(index.fields[i].path);
      // Which part of a dotted path holds the array is not recorded; the first one is shown.
      if (params_.multikey >> std::min<size_t>(i, 63) & 1)
        list.Append(
            std::string_view(index.fields[i].path).substr(0, index.fields[i].path.find('.')));
    }
  }
  out.Append("isUnique", index.unique).Append("isSparse", index.sparse);
  out.Append("isPartial", index.has_partial_filter).Append("indexVersion", 2);
  if (std::strcmp(name_, "COUNT_SCAN") != 0) {
    out.Append("direction", params_.backward ? "backward" : "forward");
    auto b = out.OpenDocument("indexBounds");
    params_.bounds.Explain(index, params_.backward, b);
    return;
  }
  auto b = out.OpenDocument("indexBounds");
  bool start_inclusive = true, end_inclusive = true;
  for (bool start : {true, false}) {
    auto key = b.OpenDocument(start ? "startKey" : "endKey");
    for (size_t i = 0; i < index.fields.size(); ++i) {
      const auto& list = params_.bounds.fields[i].intervals;
      const Interval& interval = start != index.fields[i].descending ? list.front() : list.back();
      bool low = start != index.fields[i].descending;
      key.Append(index.fields[i].path, (low ? interval.low : interval.high).view());
      bool inclusive = low ? interval.low_inclusive : interval.high_inclusive;
      (start ? start_inclusive : end_inclusive) &= inclusive;
    }
    key.Done();
    b.Append(start ? "startKeyInclusive" : "endKeyInclusive",
             start ? start_inclusive : end_inclusive);
  }
}

void IndexScanStage::ExplainStats(BsonBuilder& out) const {
  out.Append("keysExamined", keys_examined_);
  if (params_.distinct || std::strcmp(name_, "COUNT_SCAN") == 0) return;
  out.Append("seeks", seeks_);
  out.Append("dupsTested", dups_tested_);
  out.Append("dupsDropped", dups_dropped_);
}

}  // namespace mayfly
