#include "protocol/large_memory.h"

namespace mayfly::large_memory {
namespace {

Budget g_process;
constinit thread_local Budget* t_budget = nullptr;

}  // namespace

void SetThreadBudget(Budget* budget) { t_budget = budget; }
Budget& ThreadBudget() { return t_budget != nullptr ? *t_budget : g_process; }
BudgetScope::BudgetScope(Budget& budget) : before_(t_budget) { t_budget = &budget; }
BudgetScope::~BudgetScope() { t_budget = before_; }
bool Full() { return Used() > Limit(); }

Error TooMuch() {
  return Error{ErrorCode::kExceededMemoryLimit,
               "Operations in progress use more memory for large values than the " +
                   std::to_string(Limit() >> 20) +
                   " MB they may have together: make arrays and documents smaller as early as "
                   "possible, or try again later"};
}

Result<void> Hold::Change(size_t bytes) {
  const bool more = bytes > held_;
  if (held_ == 0) budget_ = &ThreadBudget();
  budget_->Add(static_cast<int64_t>(bytes) - static_cast<int64_t>(held_));
  held_ = bytes;
  if (more && budget_->used() > budget_->limit()) return TooMuch();
  return Ok();
}

void Hold::Release() {
  if (held_ != 0) budget_->Add(-static_cast<int64_t>(held_));
  held_ = 0;
}

}  // namespace mayfly::large_memory
