#include "storage/schema/name_claims.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "storage/operation.h"

namespace mayfly {

namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

std::string Lower(std::string_view s) {
  std::string lower(s);
  for (char& c : lower) c = Lower(c);
  return lower;
}

}  // namespace

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return Lower(x) == Lower(y); });
}

NameClaims::Claim::~Claim() {
  {
    std::lock_guard l(table_.mutex_);
    const auto of = table_.claims_.find(Lower(db_));
    of->second.collections.erase(name_);
    if (of->second.collections.empty()) table_.claims_.erase(of);
  }
  table_.ended_.notify_all();
}

NameClaims::ClaimPtr NameClaims::TryTake(std::string_view db, std::string_view name) {
  std::lock_guard l(mutex_);
  Database& of = claims_[Lower(db)];
  if (of.collections.empty()) of.name = db;
  if (of.name != db || !of.collections.emplace(name).second) return nullptr;
  return ClaimPtr(new Claim(*this, db, name));
}

Result<NameClaims::ClaimPtr> NameClaims::Take(Operation& op, const std::atomic<bool>& closing,
                                              std::string_view db, std::string_view name) {
  for (;;) {
    if (ClaimPtr claim = TryTake(db, name)) return claim;
    MAYFLY_TRY(op.CheckInterruptNow());
    if (closing) return Error{ErrorCode::kInterruptedAtShutdown, "interrupted at shutdown"};
    std::unique_lock l(mutex_);
    ended_.wait_for(l, std::chrono::milliseconds(20));
  }
}

}  // namespace mayfly
