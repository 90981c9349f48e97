#include "ttl/remove_due.h"

#include <algorithm>

#include "storage/catalog/index_keys.h"
#include "storage/write/archive.h"
#include "ttl/ttl_rule.h"

namespace mayfly {
namespace {
constexpr size_t kDocumentsPerUnit = 100;
/// Each may have a thousand points for an archive.
constexpr size_t kBucketsPerUnit = 4;
}  // namespace

Result<int64_t> RemoveDue(Storage& storage, Operation& op, const CollectionInfoPtr& coll) {
  const ExpiryPolicy& policy = storage.expiry_policy();
  if (policy.suspended.load(std::memory_order_relaxed)) return int64_t{0};
  std::vector<TtlRule> rules;
  std::vector<InvalidTtlRule> invalid;
  ListTtlRulesOf(coll, &rules, &invalid);
  const size_t per_unit =
      coll->is_buckets() && ArchiveTargetOf(*coll) ? kBucketsPerUnit : kDocumentsPerUnit;
  int64_t removed = 0;
  for (const TtlRule& rule : rules) {
    if (rule.kind != TtlRule::Kind::kDocument &&
        (!policy.monitor_enabled.load(std::memory_order_relaxed) ||
         !policy.RuleActive(*coll, rule.index.get())))
      continue;
    const int64_t threshold = rule.Threshold(op.now);
    const int64_t earliest = rule.state().Earliest();
    if (earliest > threshold) continue;
    TtlCursor cursor(storage, rule, earliest, threshold);
    for (bool more = true; more;) {
      std::vector<std::string> keys;
      while (keys.size() < per_unit) {
        MAYFLY_TRY(op.CheckInterrupt());
        MAYFLY_TRY(more, cursor.Next());
        if (!more) break;
        keys.emplace_back(cursor.record_key());
      }
      // Sorted by key and without duplicates: a document with an array has several entries.
      std::sort(keys.begin(), keys.end());
      keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
      std::vector<std::string_view> views(keys.begin(), keys.end());
      WriteUnit unit(storage, op);
      unit.set_no_wait(true);
      std::vector<WriteUnit::Locked> locked;
      int busy = 0;
      MAYFLY_TRY(unit.LockAndReadMany(*coll, views, &locked, &busy));
      int64_t n = 0;
      const FilteringFor filtering(&op);
      for (const WriteUnit::Locked& l : locked) {
        std::optional<DeleteCause> cause = IsDue(rule, l.doc, l.expire_at, threshold);
        // A filter that was stopped has said no.
        MAYFLY_TRY(op.CheckInterruptNow());
        if (!cause || policy.Held(*coll, l.doc, op.now)) continue;
        MAYFLY_TRY(unit.DeleteExpired(*coll, l, *cause));
        ++n;
      }
      if (n == 0) continue;
      MAYFLY_TRY(storage.committer().Commit(std::move(unit)));
      removed += n;
    }
  }
  return removed;
}

}  // namespace mayfly
