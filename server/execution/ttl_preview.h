#pragma once
#include <memory>
#include <string>
#include <vector>

#include "server/dispatch/command.h"
#include "ttl/rule_date.h"
#include "ttl/ttl_controls.h"

namespace mayfly {

/// dryRun's reply (docs/expiry-control.md): wouldExpireNow, wouldExpireNextHour,
/// wouldExpireNextDay, fractionOfCollection, oldest, newest, neverExpires {missing, wrongType,
/// filtered}, and suspended where there are such.
void AppendDryRun(const RuleCensus& c, BsonBuilder& out);
/// Computes the effect of `rule` and appends it. Changes nothing. Errors: CheckInterrupt's.
Result<void> DryRun(CommandContext& ctx, const TtlRule& rule, BsonBuilder& out);

/// The guard (docs/expiry-control.md) over rules that a command makes or changes. Until it is
/// destroyed the rules do not act. With ttlGuardAction "hold" the rules are held, persistently,
/// before the change and released when they turn out harmless: a crash in between leaves them held,
/// for ttlStatus to show and ttlRelease to end.
class RuleGuard {
 public:
  explicit RuleGuard(CommandContext& ctx) : ctx_(ctx) {}
  ~RuleGuard();
  /// Before the change; `rules`: RuleIdentity of each. Nothing happens when the guard is off or the
  /// collection is too small.
  Result<void> Begin(const CollectionInfo& coll, std::vector<std::string> rules);
  bool active() const { return evaluation_ != nullptr; }
  /// Counts what the rule (as it is after the change) would remove at once, and warns or holds.
  /// REQUIRES: Begin named it.
  Result<void> Judge(const TtlRule& rule);
  /// The rules that tripped, as `ttlGuard` in the command's reply; nothing when there are none.
  /// Without numbers for a client that may not read the collection.
  void AppendTo(BsonBuilder& reply) const;

 private:
  struct Verdict {
    std::string rule;
    bool held;
    int64_t would_expire;
    double fraction;
  };
  CommandContext& ctx_;
  std::unique_ptr<TtlControls::Evaluation> evaluation_;
  Uuid uuid_{};
  std::string ns_, db_;
  std::vector<std::string> provisional_;  ///< held until judged
  std::vector<Verdict> tripped_;
};

/// Lines of the audit log for what a command does to rules. `old`, `now`: seconds; nothing: no
/// rule.
void AuditRule(CommandContext& ctx, std::string_view atype, std::string_view ns,
               std::string_view rule, std::optional<int64_t> old, std::optional<int64_t> now);
/// Likewise of the collection option onExpire; missing: there was none, or is none any more.
void AuditOnExpire(CommandContext& ctx, std::string_view atype, const CollectionInfo& coll,
                   BsonValue old, BsonValue now);
/// One for each rule that goes with the collection. `atype`: by which command.
void AuditDroppedRules(CommandContext& ctx, const CollectionInfo& coll,
                       std::string_view atype = "dropCollection");

}  // namespace mayfly
