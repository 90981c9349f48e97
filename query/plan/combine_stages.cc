#include <cstring>
#include <utility>

#include "query/plan/stages.h"
#include "storage/keys/key_encoding.h"

namespace mayfly {

// --- OrStage -------------------------------------------------------------------------------------

OrStage::OrStage(PlanContext& ctx, std::vector<PlanStagePtr> inputs) : PlanStage(ctx, "OR") {
  children_ = std::move(inputs);
}

Result<StageState> OrStage::DoWork(Row* row) {
  while (current_ < children_.size()) {
    MAYFLY_TRY(StageState state, children_[current_]->Work(row));
    if (state == StageState::kEof) {
      ++current_;
      if (current_ == children_.size()) break;
    } else if (state == StageState::kAdvanced) {
      ++dups_tested_;
      if (seen_.emplace(row->record_key).second) return state;
      ++dups_dropped_;
    }
    if (ctx_.step) return StageState::kNeedTime;
    CountLoop();
  }
  return StageState::kEof;
}

void OrStage::ExplainStats(BsonBuilder& out) const {
  out.Append("dupsTested", dups_tested_);
  out.Append("dupsDropped", dups_dropped_);
}

// --- SortMergeStage ------------------------------------------------------------------------------

SortMergeStage::SortMergeStage(PlanContext& ctx, std::vector<PlanStagePtr> inputs, SortPattern sort)
    : PlanStage(ctx, "SORT_MERGE"), inputs_(inputs.size()), sort_(std::move(sort)) {
  children_ = std::move(inputs);
}

void SortMergeStage::MakeKey(Input& in) const {
  const auto& fields = in.row.index->fields;
  in.key.clear();
  for (const auto& part : sort_.parts()) {
    const std::string_view values = in.key_values;
    size_t at = 0;
    for (const auto& field : fields) {
      const size_t n = StoredValueLength(values, at, field.descending);
      if (field.path == part.path) {
        const size_t from = in.key.size();
        in.key.append(values, at, n);
        if (field.descending != part.descending)
          for (size_t i = from; i < in.key.size(); ++i) in.key[i] = static_cast<char>(~in.key[i]);
        break;
      }
      at += n;
    }
  }
}

Result<StageState> SortMergeStage::DoWork(Row* row) {
  while (true) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      Input& in = inputs_[i];
      if (in.loaded || in.eof) continue;
      MAYFLY_TRY(StageState state, children_[i]->Work(&in.row));
      if (state == StageState::kNeedTime) return state;
      if (state == StageState::kEof) {
        in.eof = true;
        continue;
      }
      // Copied: the row must outlive a pause, and the scan's own bytes do not.
      in.record_key = in.row.record_key;
      in.key_values = in.row.key_values;
      in.type_bits = in.row.type_bits;
      MakeKey(in);
      in.loaded = true;
      in.stale = false;
      if (ctx_.step) return StageState::kNeedTime;
    }
    Input* best = nullptr;
    for (Input& in : inputs_) {
      if (!in.loaded) continue;
      if (best == nullptr || in.key < best->key) best = &in;
    }
    if (best == nullptr) return StageState::kEof;
    best->loaded = false;
    ++dups_tested_;
    if (seen_.insert(best->record_key).second) {
      *row = {};
      row->index = best->row.index;
      row->record_key = best->record_key;
      row->key_values = best->key_values;
      row->type_bits = best->type_bits;
      row->stale = best->stale;
      row->key_matched = best->row.key_matched;
      return StageState::kAdvanced;
    }
    ++dups_dropped_;
    if (ctx_.step) return StageState::kNeedTime;
    CountLoop();
  }
}

void SortMergeStage::ExplainStats(BsonBuilder& out) const {
  out.Append("dupsTested", dups_tested_);
  out.Append("dupsDropped", dups_dropped_);
}

// --- SortStage -----------------------------------------------------------------------------------

SortStage::SortStage(PlanContext& ctx, PlanStagePtr child, SortPattern pattern,
                     SorterOptions options, bool whole_records)
    : PlanStage(ctx, "SORT"),
      options_(options),
      sorter_(std::move(pattern), options),
      simple_(whole_records) {
  children_.push_back(std::move(child));
}

namespace {

constexpr uint32_t kById = UINT32_MAX;  ///< in place of an index's number

/// Packs the record key of a row and the index key that led to it: the number of the index, the
/// lengths of record key and type bits, then these two and the values.
void PackKeys(const Row& row, std::string* out) {
  const uint32_t head[] = {row.index != nullptr ? row.index->id
                           : row.by_id          ? kById
                                                : 0,
                           static_cast<uint32_t>(row.record_key.size()),
                           static_cast<uint32_t>(row.type_bits.size())};
  out->assign(reinterpret_cast<const char*>(head), sizeof head);
  out->append(row.record_key).append(row.type_bits).append(row.key_values);
}

/// `packed` is what PackKeys made; the row's keys view it.
void UnpackKeys(const CollectionInfo& coll, std::string_view packed, Row* row) {
  uint32_t head[3];
  std::memcpy(head, packed.data(), sizeof head);
  packed.remove_prefix(sizeof head);
  row->record_key = packed.substr(0, head[1]);
  row->type_bits = packed.substr(head[1], head[2]);
  row->key_values = packed.substr(head[1] + head[2]);
  row->by_id = head[0] == kById;
  for (const IndexInfoPtr& i : coll.indexes)
    if (i->id == head[0]) row->index = i.get();
}

}  // namespace

Result<StageState> SortStage::DoWork(Row* row) {
  while (!loaded_) {
    MAYFLY_TRY(StageState state, children_[0]->Work(row));
    if (state == StageState::kEof) {
      MAYFLY_TRY(sorter_.Finish());
      sorter_.CountFor(*ctx_.op);
      loaded_ = true;
    } else if (state == StageState::kAdvanced) {
      metadata_.expire_at = row->expire_at;
      std::string_view key = row->record_key;
      if (ctx_.keep_keys) {
        PackKeys(*row, &packed_);
        key = packed_;
      }
      MAYFLY_TRY(sorter_.Add(row->doc, &metadata_, key));
    }
    if (ctx_.step) return StageState::kNeedTime;
    CountLoop();
  }
  if (sorter_.spills() > 0) ctx_.op->used_disk = true;
  StreamDocument next;
  MAYFLY_TRY(bool more, sorter_.Next(&next));
  if (!more) return StageState::kEof;
  MAYFLY_TRY(ctx_.op->CheckInterrupt());
  *row = {};
  row->doc = next.doc;
  row->has_doc = true;
  row->metadata = next.metadata;
  if (next.metadata != nullptr) row->expire_at = next.metadata->expire_at;
  row->record_key = sorter_.extra();
  if (ctx_.keep_keys) UnpackKeys(*ctx_.coll, row->record_key, row);
  return StageState::kAdvanced;
}

void SortStage::ExplainFields(BsonBuilder& out) const {
  out.Append("sortPattern", sorter_.pattern().spec());
  out.Append("memLimit", static_cast<int64_t>(options_.memory_limit));
  if (options_.limit > 0) out.Append("limitAmount", options_.limit);
  out.Append("type", simple_ ? "simple" : "default");
}

void SortStage::ExplainStats(BsonBuilder& out) const {
  out.Append("totalDataSizeSorted", sorter_.bytes_sorted());
  out.Append("usedDisk", sorter_.spills() > 0);
  out.Append("spills", sorter_.spills());
  out.Append("spilledDataStorageSize", sorter_.spilled_bytes());
}

// --- CounterStage --------------------------------------------------------------------------------

Result<void> CounterStage::Count() {
  if (left_ >= 0) return Ok();
  // The counter is that of now, or of the view that the operation was given.
  const ReadView& view = ctx_.op->view == nullptr ? Storage::kNow : *ctx_.op->view;
  const Visibility visible(*ctx_.storage, *ctx_.coll, *ctx_.op, false, view);
  MAYFLY_TRY(left_, visible.CountVisible(*ctx_.op, view));
  left_ = std::max<int64_t>(left_ - skip_, 0);
  if (limit_ > 0) left_ = std::min(left_, limit_);
  return Ok();
}

Result<int64_t> CounterStage::TakeAll() {
  MAYFLY_TRY(Count());
  stats_.advanced += left_;
  ++stats_.works;
  stats_.eof = true;
  return std::exchange(left_, 0);
}

Result<StageState> CounterStage::DoWork(Row* row) {
  MAYFLY_TRY(Count());
  if (left_ == 0) return StageState::kEof;
  --left_;
  *row = {};
  return StageState::kAdvanced;
}

// --- SkipStage, LimitStage, ProjectionMarkStage --------------------------------------------------

SkipStage::SkipStage(PlanContext& ctx, PlanStagePtr child, int64_t skip, bool below_fetch)
    : PlanStage(ctx, "SKIP"), amount_(skip), left_(skip), below_fetch_(below_fetch) {
  children_.push_back(std::move(child));
  // Below a FETCH: what is dropped must be counted as if it had been read.
  if (below_fetch_) children_[0]->SetKeysOnly(true);
}

Result<StageState> SkipStage::DoWork(Row* row) {
  while (true) {
    MAYFLY_TRY(StageState state, children_[0]->Work(row));
    if (state != StageState::kAdvanced) return state;
    if (left_ == 0) return state;
    if (--left_ == 0 && below_fetch_) children_[0]->SetKeysOnly(false);
    if (ctx_.step) return StageState::kNeedTime;
    CountLoop();
  }
}

LimitStage::LimitStage(PlanContext& ctx, PlanStagePtr child, int64_t limit)
    : PlanStage(ctx, "LIMIT"), amount_(limit), left_(limit) {
  children_.push_back(std::move(child));
}

Result<StageState> LimitStage::DoWork(Row* row) {
  if (left_ == 0) return StageState::kEof;
  MAYFLY_TRY(StageState state, children_[0]->Work(row));
  if (state == StageState::kAdvanced) --left_;
  return state;
}

ProjectionMarkStage::ProjectionMarkStage(PlanContext& ctx, PlanStagePtr child, const char* name,
                                         BsonDocument transform)
    : PlanStage(ctx, name), transform_(std::move(transform)) {
  children_.push_back(std::move(child));
}

}  // namespace mayfly
