#include "ttl/ttl_schedule.h"

#include <algorithm>

namespace mayfly {

bool TtlSchedule::Refresh(int64_t now) {
  bool changed = false;
  if (uint64_t version = storage_.catalog().Version(); version != version_) {
    changed = true;
    version_ = version;
    ++generation_;
    DropQueue();
    stalled_.clear();
    invalid_.clear();
    for (TtlRule& rule : ListTtlRules(storage_.catalog(), &invalid_)) {
      std::unique_ptr<TtlSlot>& slot = slots_[&rule.state()];
      if (!slot) {
        slot = std::make_unique<TtlSlot>();
        slot->figures = states_.Of(rule);
      }
      slot->rule = std::move(rule);
      slot->limits = StoredReapLimits(slot->rule);
      slot->limiter.SetRate(slot->limits.max_docs_per_second, now);
      slot->seen = generation_;
      // next_millis is read after this, so everything that was noted before is taken into account.
      slot->rule.state().noted.exchange(false, std::memory_order_acq_rel);
      Place(*slot);
    }
    std::erase_if(slots_, [&](const auto& e) {
      if (e.second->seen == generation_) return false;
      e.second->DropResume();
      SetKey(*e.second, INT64_MAX);
      return true;
    });
    states_.Prune([&](const ExpiryState* s) { return slots_.contains(s); });
  }
  for (const ExpiryState* noted : storage_.expiry_waker().TakeNoted()) {
    auto it = slots_.find(noted);
    if (it == slots_.end()) continue;  // not a rule, or not yet: then the next list has it
    TtlSlot& slot = *it->second;
    slot.rule.state().noted.exchange(false, std::memory_order_acq_rel);
    if (!slot.queued) Place(slot, slot.not_before);
  }
  return changed;
}

void TtlSchedule::Place(TtlSlot& slot, int64_t not_before) {
  slot.not_before = not_before;
  if (slot.queued) return;
  const int64_t next = slot.NextMillis();
  slot.figures->Unfinished(slot.resume_date);
  int64_t key = next == INT64_MIN || next == INT64_MAX ? next : slot.rule.Deadline(next);
  key = std::max(key, not_before);
  SetKey(slot, std::min(key, slot.left_until));
}

void TtlSchedule::SetKey(TtlSlot& slot, int64_t key) {
  if (slot.key == key) return;
  if (slot.key != INT64_MAX) order_.erase({slot.key, &slot});
  slot.key = key;
  if (key != INT64_MAX) order_.insert({key, &slot});
}

void TtlSchedule::Stall(TtlSlot& slot) {
  SetKey(slot, INT64_MAX);
  slot.queued = true;  // out of the order until it is tried again
  stalled_.push_back(&slot);
}

void TtlSchedule::RetryStalled() {
  for (TtlSlot* slot : stalled_) {
    slot->queued = false;
    Place(*slot);
  }
  stalled_.clear();
}

void TtlSchedule::Reconsider() {
  for (auto& [state, slot] : slots_) {
    if (slot->queued) continue;
    ExpiryState& s = slot->rule.state();
    s.TakeLeft();
    slot->left_until = INT64_MAX;
    Place(*slot);
  }
}

TtlSlot* TtlSchedule::Take(int64_t now) {
  while (!order_.empty() && order_.begin()->first <= now) {
    TtlSlot* slot = order_.begin()->second;
    SetKey(*slot, INT64_MAX);
    slot->queued = true;
    queue_.push_back(slot);
  }
  if (queue_.empty()) return nullptr;
  TtlSlot* first = queue_.front();
  queue_.pop_front();
  first->queued = false;
  return first;
}

void TtlSchedule::DropQueue() {
  for (TtlSlot* slot : queue_) {
    slot->queued = false;
    Place(*slot, slot->not_before);
  }
  queue_.clear();
}

std::vector<TtlSlot*> TtlSchedule::All() {
  std::vector<TtlSlot*> all;
  all.reserve(slots_.size());
  for (auto& [state, slot] : slots_) all.push_back(slot.get());
  std::sort(all.begin(), all.end(), [](const TtlSlot* a, const TtlSlot* b) {
    return std::pair(a->rule.coll->id, a->rule.id()) < std::pair(b->rule.coll->id, b->rule.id());
  });
  return all;
}

}  // namespace mayfly
