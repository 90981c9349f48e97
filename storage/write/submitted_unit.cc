#include "storage/write/submitted_unit.h"

#include "storage/write/local_committer.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {

bool SubmittedUnit::local() const { return unit_.impl().local; }
bool SubmittedUnit::empty() const { return unit_.impl().empty() && unit_.impl().commands.empty(); }
Operation* SubmittedUnit::operation() const { return unit_.impl().op; }

std::optional<uint64_t> SubmittedUnit::reign() const {
  const auto& t = unit_.impl().transaction;
  return t ? std::optional(t->reign) : std::nullopt;
}

Result<int64_t> SubmittedUnit::FixTime(const std::function<int64_t()>& clock) {
  const auto& t = unit_.impl().transaction;
  if (!t || !t->kept) [[likely]]
    return clock();
  Storage::Impl& storage = *unit_.impl().storage;
  int64_t time = 0;
  // Deadlines follow the readers' clock; the log's may be a little ahead of it.
  const std::optional<int64_t> now = storage.kept.Decide(t->kept, [&] {
    time = clock();
    return storage.options.clock->Now().millis;
  });
  if (!now) return TransactionConflict();
  return time;
}

void SubmittedUnit::SortForCommit() { unit_.impl().SortForCommit(); }
void SubmittedUnit::Finish() {
  for (auto& f : unit_.impl().on_commit) f();
  unit_.impl().TellWatch();
  unit_.impl().ReleaseLocks();
}

void SubmittedUnit::GiveUp() { unit_.impl().ReleaseLocks(); }

std::unique_ptr<Committer> MakeLocalCommitter(Storage& storage, int sync_interval_ms) {
  return std::make_unique<LocalCommitter>(storage.impl(), sync_interval_ms);
}

}  // namespace mayfly
