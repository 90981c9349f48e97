#include "server/execution/ttl_preview.h"

#include <cmath>

#include "security/user_cache.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/expiry_services.h"
#include "server/execution/collection_options.h"
#include "storage/catalog/namespace.h"
#include "storage/storage.h"
#include "ttl/forecast.h"
#include "ttl/ttl_guard.h"

namespace mayfly {

void AppendDryRun(const RuleCensus& c, BsonBuilder& out) {
  out.Append("wouldExpireNow", c.now).Append("wouldExpireNextHour", c.next_hour);
  out.Append("wouldExpireNextDay", c.next_day);
  out.Append("fractionOfCollection",
             c.total == 0 ? 0.0 : static_cast<double>(c.now) / static_cast<double>(c.total));
  auto date = [&](std::string_view name, std::optional<int64_t> millis) {
    if (millis)
      out.Append(name, Instant{*millis});
    else
      out.AppendNull(name);
  };
  date("oldest", c.oldest);
  date("newest", c.newest);
  int64_t missing = 0, filtered = 0, suspended = 0, wrong = 0;
  for (size_t i = 1; i < c.never.size(); ++i) {
    const auto why = static_cast<NeverExpires>(i);
    (why == NeverExpires::kMissing     ? missing
     : why == NeverExpires::kFiltered  ? filtered
     : why == NeverExpires::kSuspended ? suspended
                                       : wrong) += c.never[i];
  }
  BsonBuilder never = out.OpenDocument("neverExpires");
  never.Append("missing", missing).Append("wrongType", wrong).Append("filtered", filtered);
  if (suspended > 0) never.Append("suspended", suspended);
}

Result<void> DryRun(CommandContext& ctx, const TtlRule& rule, BsonBuilder& out) {
  MAYFLY_TRY(RuleCensus c, TakeCensus(ctx.expiry.storage(), ctx.op, rule, 0));
  AppendDryRun(c, out);
  return Ok();
}

RuleGuard::~RuleGuard() {
  // Rules that were not judged: the change has failed, so nothing is to be held. If the store
  // cannot be written to, the holds stay, and ttlStatus shows them.
  for (const std::string& rule : provisional_)
    (void)ctx_.expiry.ttl_controls().ReleaseGuard(ctx_.op, uuid_, rule);
}

Result<void> RuleGuard::Begin(const CollectionInfo& coll, std::vector<std::string> rules) {
  const TtlParameters& p = ctx_.expiry.ttl_settings();
  const auto action = static_cast<TtlGuardAction>(p.guard_action.load());
  if (action == TtlGuardAction::kOff || rules.empty() ||
      Storage::DocumentCount(coll) < std::max<int64_t>(1, p.guard_min_docs))
    return Ok();
  uuid_ = coll.uuid;
  ns_ = coll.ns;
  db_ = coll.db;
  evaluation_ = std::make_unique<TtlControls::Evaluation>(ctx_.expiry.ttl_controls(), uuid_, rules);
  if (action != TtlGuardAction::kHold) return Ok();
  for (const std::string& rule : rules) {
    MAYFLY_TRY(
        ctx_.expiry.ttl_controls().HoldByGuard(ctx_.op, {uuid_, db_, rule, ctx_.op.now, 0, 0}));
    provisional_.push_back(rule);
  }
  return Ok();
}

Result<void> RuleGuard::Judge(const TtlRule& rule) {
  const TtlParameters& p = ctx_.expiry.ttl_settings();
  TtlControls& controls = ctx_.expiry.ttl_controls();
  const std::string name(rule.RuleName()), identity = RuleIdentity(rule);
  const bool hold = std::erase(provisional_, identity) > 0;
  const int64_t documents = Storage::DocumentCount(*rule.coll);
  // The rule stays held if the number of due documents cannot be determined.
  MAYFLY_TRY(Counted due, CountDue(ctx_.data.storage(), ctx_.op, rule, false));
  const double n = std::min(due.n, static_cast<double>(documents));
  if (!GuardTrips(n, documents, p.guard_max_fraction, p.guard_min_docs)) {
    // Also releases what an earlier change of the rule left held, because the rule is harmless as
    // it is now.
    MAYFLY_TRY(controls.ReleaseGuard(ctx_.op, uuid_, identity));
    return Ok();
  }
  Verdict v{name, hold, static_cast<int64_t>(std::llround(n)), n / static_cast<double>(documents)};
  if (hold) {
    MAYFLY_TRY(controls.HoldByGuard(
        ctx_.op, {uuid_, db_, identity, ctx_.op.now, v.would_expire, v.fraction}));
  }
  BsonDocument facts = BuildBson([&](BsonBuilder& b) {
    b.Append("namespace", ns_).Append("index", name).Append("wouldExpireNow", v.would_expire);
    b.Append("fractionOfCollection", v.fraction).Append("held", hold);
  });
  ctx_.data.log().Warn(LogComponent::kIndex, 9000306,
                       hold ? "TTL rule would remove a large part of the collection at once and "
                              "is held: ttlRelease lets it act"
                            : "TTL rule removes a large part of the collection at once",
                       facts);
  if (hold)
    Audit(ctx_, "ttlGuardHold", [&](BsonBuilder& b) {
      b.Append("ns", ns_).Append("index", name).Append("wouldExpireNow", v.would_expire);
      b.Append("fractionOfCollection", v.fraction);
    });
  tripped_.push_back(std::move(v));
  return Ok();
}

void RuleGuard::AppendTo(BsonBuilder& reply) const {
  if (tripped_.empty()) return;
  // The numbers say how many documents match a filter of one's own.
  const bool may_count =
      ctx_.access == nullptr ||
      ctx_.access->privileges.Allows(db_, SplitNamespace(ns_).collection, {Action::find});
  BsonArrayBuilder list = reply.OpenArray("ttlGuard");
  for (const Verdict& v : tripped_) {
    BsonBuilder d = list.OpenDocument();
    d.Append("index", v.rule).Append("action", v.held ? "hold" : "warn");
    if (may_count)
      d.Append("wouldExpireNow", v.would_expire).Append("fractionOfCollection", v.fraction);
  }
}

void AuditRule(CommandContext& ctx, std::string_view atype, std::string_view ns,
               std::string_view rule, std::optional<int64_t> old, std::optional<int64_t> now) {
  Audit(ctx, atype, [&](BsonBuilder& p) {
    p.Append("ns", ns).Append("index", rule);
    auto side = [&](std::string_view name, std::optional<int64_t> seconds) {
      if (seconds)
        p.OpenDocument(name).Append("expireAfterSeconds", *seconds);
      else
        p.AppendNull(name);
    };
    side("old", old);
    side("new", now);
  });
}

void AuditOnExpire(CommandContext& ctx, std::string_view atype, const CollectionInfo& coll,
                   BsonValue old, BsonValue now) {
  Audit(ctx, atype, [&](BsonBuilder& p) {
    p.Append("ns", coll.ns);
    auto side = [&](std::string_view name, BsonValue v) {
      if (v.missing())
        p.AppendNull(name);
      else
        p.OpenDocument(name).Append("onExpire", v);
    };
    side("old", old);
    side("new", now);
  });
}

void AuditDroppedRules(CommandContext& ctx, const CollectionInfo& coll, std::string_view atype) {
  if (coll.expiry_options.set())
    Audit(ctx, atype, [&](BsonBuilder& p) {
      p.Append("ns", coll.ns);
      p.OpenDocument("old").Append("expiry", DescribeExpiryOptions(coll.expiry_options));
      p.AppendNull("new");
    });
  if (const BsonValue archive = coll.options.view()["onExpire"]; !archive.missing())
    AuditOnExpire(ctx, atype, coll, archive, {});
  if (coll.clustered() && coll.expire_after_seconds)
    AuditRule(ctx, atype, coll.ns, "clustered", coll.expire_after_seconds, {});
  for (const IndexInfoPtr& i : coll.indexes)
    if (i->expire_after_seconds)
      AuditRule(ctx, atype, coll.ns, i->name, *i->expire_after_seconds, {});
}

}  // namespace mayfly
