#include "query/pipeline/bounded_sort.h"

#include <algorithm>

namespace mayfly {
namespace {
constexpr size_t kEntryBytes = 128;  ///< of an entry beside its texts
}

void BoundedSortStage::Serialize(BsonBuilder& out) const {
  BsonBuilder sub = out.OpenDocument("$_internalBoundedSort");
  {
    BsonBuilder key = sub.OpenDocument("sortKey");
    key.AppendAll(pattern_.spec());
  }
  if (limit_ > 0) sub.Append("limit", limit_);
}

void BoundedSortStage::ExplainStats(BsonBuilder& out) const {
  out.Append("inOrderOfBuckets", *kept_);
  out.Append("maxMemoryUsageBytes", static_cast<int64_t>(most_memory_));
  out.Append("usedDisk", sorter_ && sorter_->spills() > 0);
}

StageNeeds BoundedSortStage::AddDependencies(std::set<std::string>* fields) const {
  for (const auto& part : pattern_.parts()) fields->insert(part.path);
  return StageNeeds::kAlso;
}

BucketOrder BoundedSortStage::Order() const {
  const SeriesShape& shape = unpack_.shape();
  return {"control.min." + shape.fields.time, descending(), !shape.extended_range, kept_};
}

void BoundedSortStage::AddKeptByStage(large_memory::Kept* kept) const {
  kept->Add(memory_, hold_);
  if (sorter_) sorter_->AddKept(kept);
}

bool BoundedSortStage::Settled(const Entry& e) const {
  if (end_) return true;
  if (!descending()) return e.millis < floor_.millis;
  int64_t end = 0;  // of the bucket, and what follows begins no later
  return !__builtin_add_overflow(floor_.millis, unpack_.shape().max_span_seconds * 1000, &end) &&
         e.millis >= end;
}

Result<void> BoundedSortStage::Add(BsonView point) {
  if (sorter_) return sorter_->Add(point);
  Entry e;
  MAYFLY_TRY(pattern_.AppendKey(point, nullptr, e.key));
  const BsonValue time = point[unpack_.shape().fields.time];
  e.millis = time.IsDate() ? time.Date().millis : 0;
  e.point = point.bytes();
  memory_ += kEntryBytes + e.key.size() + e.point.size();
  most_memory_ = std::max(most_memory_, memory_);
  heap_.push_back(std::move(e));
  std::push_heap(heap_.begin(), heap_.end(), &Later);
  Trim();
  if (memory_ <= options().memory_limit && hold_.Set(memory_)) return Ok();
  // Above the memory limit: all the rest goes through a sorter, which can use the disk.
  sorter_ =
      std::make_unique<Sorter>(pattern_, options().Sorting(limit_ > 0 ? limit_ - handed_on_ : 0));
  for (Entry& kept : heap_) {
    MAYFLY_TRY(sorter_->Add(BsonView(kept.point.data())));
    kept = Entry();
  }
  heap_.clear();
  memory_ = 0;
  hold_.Release();
  return Ok();
}

void BoundedSortStage::Trim() {
  constexpr size_t kSlack = 1000;
  if (limit_ <= 0) return;
  const auto wanted = static_cast<size_t>(limit_ - handed_on_);
  if (heap_.size() < kSlack || heap_.size() / 2 < wanted) return;
  std::nth_element(heap_.begin(), heap_.begin() + static_cast<ptrdiff_t>(wanted), heap_.end(),
                   [](const Entry& a, const Entry& b) { return a.key < b.key; });
  for (size_t i = wanted; i < heap_.size(); ++i)
    memory_ -= kEntryBytes + heap_[i].key.size() + heap_[i].point.size();
  heap_.resize(wanted);
  std::make_heap(heap_.begin(), heap_.end(), &Later);
}

Result<StreamState> BoundedSortStage::NextSorted(StreamDocument* out) {
  MAYFLY_TRY(sorter_->Finish());
  MAYFLY_TRY(const bool more, sorter_->Next(out));
  return more ? StreamState::kAdvanced : StreamState::kEof;
}

Result<StreamState> BoundedSortStage::GetNext(StreamDocument* out) {
  if (context_->op != nullptr) context_->op->has_sort_stage = true;
  if (!begun_) {
    begun_ = true;
    if (!*kept_) sorter_ = std::make_unique<Sorter>(pattern_, options().Sorting(limit_));
  }
  for (;;) {
    if (limit_ > 0 && handed_on_ >= limit_) return StreamState::kEof;
    if (sorter_ && end_) return NextSorted(out);
    if (!heap_.empty() && Settled(heap_.front())) {
      MAYFLY_TRY(Check());
      std::pop_heap(heap_.begin(), heap_.end(), &Later);
      current_ = std::move(heap_.back());
      heap_.pop_back();
      memory_ -= kEntryBytes + current_.key.size() + current_.point.size();
      if (heap_.empty()) hold_.Release();
      ++handed_on_;
      *out = {BsonView(current_.point.data()), nullptr};
      return StreamState::kAdvanced;
    }
    if (end_) return StreamState::kEof;
    MAYFLY_TRY(const StreamState state, Pull(out));
    if (state == StreamState::kPaused) return state;
    end_ = state == StreamState::kEof;
    if (end_ && sorter_ && context_->op != nullptr) {
      MAYFLY_TRY(sorter_->Finish());
      sorter_->CountFor(*context_->op);
    }
    if (end_) continue;
    floor_ = unpack_.floor();
    MAYFLY_TRY(Add(out->doc));
  }
}

}  // namespace mayfly
