#include "server/execution/ttl_status.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "server/dispatch/arg_reader.h"
#include "server/dispatch/expiry_services.h"
#include "server/dispatch/redacted_command.h"
#include "server/execution/existing_collection.h"
#include "server/execution/link_facts.h"
#include "server/execution/series_definition.h"
#include "storage/catalog/namespace.h"
#include "storage/storage.h"
#include "ttl/ttl_monitor.h"

namespace mayfly {
namespace {

/// Counts the rows that are listed and tells which of them belong to the requested page.
class Page {
 public:
  explicit Page(const TtlStatusPart& part) : part_(part) {}
  bool HasNext() {
    const int64_t i = total_++;
    return i >= part_.skip && (part_.limit == 0 || i - part_.skip < part_.limit);
  }
  bool whole() const { return part_.skip == 0 && part_.limit == 0; }
  int64_t total() const { return total_; }

 private:
  const TtlStatusPart& part_;
  int64_t total_ = 0;
};

/// Documents that are due later than this from now are counted as beyondHorizon. It is the longest
/// horizon that is shown by default.
constexpr int64_t kHorizonMillis = int64_t{30} * 86'400'000;

void AppendDeadline(BsonBuilder& out, std::string_view name, int64_t millis) {
  if (millis == INT64_MAX)
    out.AppendNull(name);
  else
    out.Append(name, Instant{millis});
}

/// Every collection has the rule of its documents' own deadlines. It is shown if there are such
/// documents, or if the collection or its database assigns deadlines.
bool RuleInUse(const TtlRule& r) {
  if (r.kind != TtlRule::Kind::kDocument || r.state().Earliest() != INT64_MAX) return true;
  const ExpiryOptions& o = r.coll->expiry_options;
  return !o.field.empty() || o.max_ttl > 0 || o.recover_seconds > 0 ||
         (r.coll->database_max_ttl && *r.coll->database_max_ttl > 0);
}

int64_t Whole(double d) { return static_cast<int64_t>(std::llround(d)); }

/// The earliest deadline, or INT64_MAX if there is none. It is looked up if the reaper has not done
/// so yet, or if others may have removed the document that the reaper knows of.
Result<int64_t> NextDeadline(ExpiryServices& server, const TtlRule& rule, Instant now) {
  int64_t next = rule.state().next_millis;
  if (next <= rule.Threshold(now)) {
    const int64_t from = rule.state().resume_millis;
    if (from == INT64_MAX) return INT64_MAX;
    TtlCursor cursor(server.storage(), rule, from, INT64_MAX);
    MAYFLY_TRY(bool found, cursor.Next());
    next = found ? cursor.millis() : INT64_MAX;
  }
  return next == INT64_MAX ? next : rule.Deadline(next);
}

/// The number of expired documents that are still stored: those that the reaper's marks show, and
/// those that stay because their archive refuses them.
Result<int64_t> Pending(ExpiryServices& server, Operation& op, const TtlRule& rule,
                        const TtlRuleFigures& figures) {
  MAYFLY_TRY(Counted due, CountDue(server.storage(), op, rule, true));
  int64_t n = Whole(due.n);
  const int64_t threshold = rule.Threshold(op.now);
  if (figures.refused_earliest <= threshold && rule.state().resume_millis.load() > threshold)
    n += figures.refused;
  return n;
}

TtlRuleFigures FiguresOf(ExpiryServices& server, const TtlRule& rule) {
  return server.ttl_figures ? server.ttl_figures(rule) : TtlRuleFigures();
}

/// By its name, or as buckets by that of their time series.
bool IsNamed(const CollectionInfo& c, std::string_view name) {
  return c.name == name || (c.is_buckets() && c.name == BucketsName(name));
}

}  // namespace

std::vector<ListedTtlRule> ListRulesFor(ExpiryServices& server, std::string_view db,
                                        std::string_view collection, bool used_only) {
  std::vector<ListedTtlRule> out;
  auto wanted = [&](const CollectionInfo& c) {
    return (db.empty() || c.db == db) && (collection.empty() || IsNamed(c, collection));
  };
  std::vector<InvalidTtlRule> invalid;
  Catalog& catalog = server.storage().catalog();
  for (TtlRule& r : ListTtlRules(catalog, &invalid))
    if (wanted(*r.coll) && (!used_only || RuleInUse(r))) out.push_back({std::move(r)});
  for (const InvalidTtlRule& i : invalid)
    if (wanted(*i.coll))
      out.push_back({i.index ? TtlRule{TtlRule::Kind::kTtlIndex, i.coll, i.index,
                                       i.index->expire_after_seconds.value_or(0)}
                             : TtlRule{TtlRule::Kind::kClustered, i.coll, nullptr,
                                       i.coll->expire_after_seconds.value_or(0)},
                     i.coll->ExpirySuspended() ? "suspended" : "invalid", i.reason});
  for (const CollectionInfoPtr& c : catalog.ListAll()) {
    if (!wanted(*c)) continue;
    for (const IndexInfoPtr& i : c->indexes)
      if (i->expire_after_seconds && i->state == IndexState::kBuilding)
        out.push_back(
            {TtlRule{TtlRule::Kind::kTtlIndex, c, i, *i->expire_after_seconds}, "building"});
  }
  std::stable_sort(out.begin(), out.end(), [](const ListedTtlRule& a, const ListedTtlRule& b) {
    return a.rule.coll->ns < b.rule.coll->ns;
  });
  return out;
}

std::vector<TtlRule> WorkingRulesOf(const CollectionInfoPtr& coll) {
  std::vector<TtlRule> out;
  std::vector<InvalidTtlRule> invalid;
  ListTtlRulesOf(coll, &out, &invalid);
  std::erase_if(out, [](const TtlRule& r) { return !RuleInUse(r); });
  return out;
}

std::string_view StateOf(ExpiryServices& server, const ListedTtlRule& r, Instant now) {
  if (r.special) return r.special;
  return TtlStandingName(server.ttl_controls().StateOf(r.rule, now));
}

Result<void> AppendRuleFacts(ExpiryServices& server, Operation& op, const ListedTtlRule& r,
                             BsonBuilder& out) {
  out.Append("state", StateOf(server, r, op.now));
  if (r.special) {
    if (r.reason) out.Append("reason", r.reason);
    return Ok();
  }
  const TtlRuleFigures f = FiguresOf(server, r.rule);
  MAYFLY_TRY(int64_t next, NextDeadline(server, r.rule, op.now));
  if (f.refused_earliest != INT64_MAX) next = std::min(next, r.rule.Deadline(f.refused_earliest));
  AppendDeadline(out, "nextDeadline", next);
  out.Append("lagMillis", LagMillis(next, op.now.millis));
  int64_t pending = 0;
  if (next <= op.now.millis) {
    MAYFLY_TRY(pending, Pending(server, op, r.rule, f));
  }
  out.Append("pending", pending);
  out.Append("deleted", f.deleted).Append("ratePerSecond", f.rate_per_second);
  AppendDeadline(out, "lastPass", f.last_visit == INT64_MIN ? INT64_MAX : f.last_visit);
  // An error quotes the key of a document, which may be a credential or a password.
  const bool hidden =
      HoldsCredentials(r.rule.coll->db, r.rule.coll->name) || QuotesSecret(f.last_error);
  if (!f.last_error.empty()) out.Append("lastError", hidden ? kRedacted : f.last_error);
  if (f.locked > 0 && pending > 0)
    out.Append("waitsFor", "transaction").Append("lockedByTransactions", f.locked);
  else if (f.waits_for == TtlWait::kWindow || f.waits_for == TtlWait::kLimit) {
    out.Append("waitsFor", f.waits_for == TtlWait::kWindow ? "window" : "limit");
    AppendDeadline(out, "waitsUntil", f.waits_until);
  }
  return Ok();
}

void AppendRestoreHold(ExpiryServices& server, BsonBuilder& out) {
  const std::optional<TtlRestoreHold> hold = server.ttl_controls().RestoreHold();
  if (!hold) return;
  BsonBuilder d = out.OpenDocument("restored");
  d.Append("expiryHeld", true).Append("backup", hold->backup);
  d.Append("backupTime", hold->backup_time).Append("dataTime", hold->data_time);
  d.Append("since", hold->since);
}

Result<void> AppendTtlStatus(ExpiryServices& server, Operation& op, std::string_view db,
                             std::string_view collection, const TtlStatusPart& part,
                             BsonBuilder& reply) {
  const std::vector<ListedTtlRule> all = ListRulesFor(server, db, collection);
  const auto skip = static_cast<size_t>(part.skip);
  if (part.skip > 0 || part.limit > 0) reply.Append("total", static_cast<int64_t>(all.size()));
  auto too_large = [&] {
    return Error{ErrorCode::kBSONObjectTooLarge,
                 "ttlStatus: " + std::to_string(all.size()) +
                     " rules, and what holds or pauses them, do not fit in one reply: give 'limit' "
                     "and 'skip', or ask "
                     "for one database or collection"};
  };
  {
    BsonArrayBuilder rules = reply.OpenArray("rules");
    for (size_t i = skip; i < all.size(); ++i) {
      if (part.limit > 0 && i - skip >= static_cast<size_t>(part.limit)) break;
      const ListedTtlRule& r = all[i];
      MAYFLY_TRY(op.CheckInterrupt());
      if (reply.size() > part.most_bytes) return too_large();
      BsonBuilder d = rules.OpenDocument();
      d.Append("ns", SeriesNamespace(*r.rule.coll)).Append("kind", RuleKindName(r.rule));
      d.Append("index", r.rule.RuleName());
      MAYFLY_TRY(AppendRuleFacts(server, op, r, d));
      if (auto g = server.ttl_controls().GuardHoldOf(r.rule)) {
        BsonBuilder guard = d.OpenDocument("guard");
        guard.Append("since", g->since).Append("wouldExpireNow", g->would_expire);
        guard.Append("fractionOfCollection", g->fraction);
      }
    }
  }
  if (server.ttl_monitor) {
    const ClockGuard::State clock = server.ttl_monitor->clock_guard().state();
    if (clock.suspended)
      reply.OpenDocument("clock")
          .Append("suspended", true)
          .Append("since", clock.since)
          .Append("expected", clock.expected)
          .Append("reason",
                  clock.downtime
                      ? "By the clock the server was off for longer than ttlMaxDowntimeSecs"
                      : "The clock has jumped by more than ttlMaxClockJumpSecs");
  }
  if (db.empty()) {
    MAYFLY_TRY(AppendLinks(server.storage(), op, reply));
  }
  AppendRestoreHold(server, reply);
  Catalog& catalog = server.storage().catalog();
  Page held(part), paused(part);
  {
    BsonArrayBuilder holds = reply.OpenArray("holds");
    for (const TtlHold& h : server.ttl_controls().Holds(op.now)) {
      CollectionInfoPtr c = catalog.FindByUuid(h.uuid);
      if (!c || (!db.empty() && c->db != db) || (!collection.empty() && !IsNamed(*c, collection)))
        continue;
      if (!held.HasNext()) continue;
      if (reply.size() > part.most_bytes) return too_large();
      BsonBuilder d = holds.OpenDocument();
      d.AppendObjectId("holdId", h.id).Append("ns", SeriesNamespace(*c));
      d.Append("filter", c->is_buckets() ? SeriesFilter(*c->series, h.filter) : h.filter);
      d.Append("since", h.since);
      if (h.until) d.Append("until", *h.until);
      if (!h.reason.empty()) d.Append("reason", h.reason);
    }
  }
  if (!held.whole()) reply.Append("totalHolds", held.total());
  BsonArrayBuilder pauses = reply.OpenArray("pauses");
  for (const TtlPause& p : server.ttl_controls().Pauses(op.now)) {
    CollectionInfoPtr c;
    if (p.scope.level >= TtlScope::Level::kCollection) {
      c = catalog.FindByUuid(p.scope.uuid);
      if (!c || (!db.empty() && c->db != db) || (!collection.empty() && !IsNamed(*c, collection)))
        continue;
    } else if (p.scope.level == TtlScope::Level::kDatabase && !db.empty() && p.scope.db != db) {
      continue;
    }
    if (!paused.HasNext()) continue;
    if (reply.size() > part.most_bytes) return too_large();
    BsonBuilder d = pauses.OpenDocument();
    if (c)
      d.Append("ns", SeriesNamespace(*c));
    else if (p.scope.level == TtlScope::Level::kDatabase)
      d.Append("db", p.scope.db);
    if (!p.scope.rule.empty()) d.Append("index", RuleNameOf(p.scope.rule));
    d.Append("since", p.since);
    if (p.until) d.Append("until", *p.until);
  }
  pauses.Done();
  if (!paused.whole()) reply.Append("totalPauses", paused.total());
  return Ok();
}

ForecastOptions ReadForecastOptions(ArgReader& in) {
  ForecastOptions o;
  // At most a hundred years, so that no bound overflows.
  o.horizon_seconds = in.OptInRange("horizonSeconds", 1, 3'155'760'000).value_or(o.horizon_seconds);
  o.buckets = static_cast<int>(in.OptInRange("buckets", 1, 1000).value_or(o.buckets));
  return o;
}

void AppendForecast(const Forecast& f, BsonBuilder& out) {
  // Rule names that cover all collections are long. A reply must have room for a thousand intervals
  // for each of a hundred rules.
  size_t names = 0, longest = 1;
  for (const std::string& r : f.rules) {
    names += r.size() + 10;
    longest = std::max(longest, r.size() + 10);
  }
  const size_t room = kMaxTtlReplyBytes / (f.intervals.size() + 1) - 100;
  const bool all_named = f.rules.size() <= kForecastRulesNamed && names <= room;
  const size_t most_named = std::min(kForecastRulesNamed, room / longest);
  {
    BsonArrayBuilder list = out.OpenArray("intervals");
    for (const Forecast::Interval& x : f.intervals) {
      BsonBuilder d = list.OpenDocument();
      d.Append("from", x.from).Append("to", x.to).Append("count", x.count);
      if (f.of_buckets)
        d.Append("points", static_cast<int64_t>(std::llround(x.points)))
            .Append("bytes", static_cast<int64_t>(std::llround(x.bytes)));
      BsonBuilder by = d.OpenDocument("byRule");
      if (all_named) {
        for (size_t r = 0; r < f.rules.size(); ++r) by.Append(f.rules[r], x.by_rule[r]);
        continue;
      }
      // With thousands of rules the reply would be larger than a document may be.
      std::vector<size_t> most;
      for (size_t r = 0; r < f.rules.size(); ++r)
        if (x.by_rule[r] > 0) most.push_back(r);
      const size_t n = std::min(most.size(), most_named);
      std::partial_sort(most.begin(), most.begin() + static_cast<ptrdiff_t>(n), most.end(),
                        [&](size_t a, size_t b) {
                          return x.by_rule[a] != x.by_rule[b] ? x.by_rule[a] > x.by_rule[b] : a < b;
                        });
      for (size_t k = 0; k < n; ++k) by.Append(f.rules[most[k]], x.by_rule[most[k]]);
    }
  }
  out.Append("overdue", f.overdue).Append("beyond", f.beyond).Append("never", f.never);
  out.Append("exact", f.exact).Append("errorFraction", f.error_fraction);
}

Result<Forecast> ForecastCollection(ExpiryServices& server, Operation& op, std::string_view db,
                                    std::string_view collection, const ForecastOptions& options) {
  MAYFLY_TRY(CollectionInfoPtr coll, ExistingCollection(server, db, collection));
  return MakeForecast(server.storage(), op, coll, WorkingRulesOf(coll), options,
                      &server.ttl_controls());
}

Result<Forecast> ForecastAll(ExpiryServices& server, Operation& op, std::string_view db,
                             const ForecastOptions& options) {
  // At most this many documents are looked at, over all collections. The rest is estimated.
  constexpr int64_t kLookedAt = 500'000;
  Forecast all;
  double counted = 0, weighted = 0;
  Catalog& catalog = server.storage().catalog();
  std::unordered_map<uint32_t, std::vector<TtlRule>> rules;
  std::vector<InvalidTtlRule> invalid;
  for (TtlRule& r : ListTtlRules(catalog, &invalid))
    if (RuleInUse(r)) rules[r.coll->id].push_back(std::move(r));
  ForecastOptions here_options = options;
  int64_t looked_at = 0;
  for (const CollectionInfoPtr& coll : catalog.ListAll()) {
    if (coll->is_view() || (!db.empty() && coll->db != db)) continue;
    MAYFLY_TRY(op.CheckInterrupt());
    here_options.exact_documents = std::min(options.exact_documents, kLookedAt - looked_at);
    const std::vector<TtlRule>& here_rules = rules[coll->id];
    if (const int64_t n = Storage::DocumentCount(*coll);
        !here_rules.empty() && n <= here_options.exact_documents)
      looked_at += n;
    MAYFLY_TRY(Forecast f, MakeForecast(server.storage(), op, coll, here_rules, here_options,
                                        &server.ttl_controls()));
    if (all.intervals.empty()) {
      all.intervals = f.intervals;
      for (Forecast::Interval& x : all.intervals) {
        x.count = 0;
        x.points = x.bytes = 0;
        x.by_rule.clear();
      }
    }
    int64_t here = f.overdue + f.beyond;
    for (const std::string& r : f.rules) all.rules.push_back(coll->ns + "." + r);
    for (size_t i = 0; i < f.intervals.size(); ++i) {
      Forecast::Interval& x = all.intervals[i];
      x.count += f.intervals[i].count;
      x.points += f.intervals[i].points;
      x.bytes += f.intervals[i].bytes;
      x.by_rule.insert(x.by_rule.end(), f.intervals[i].by_rule.begin(),
                       f.intervals[i].by_rule.end());
      here += f.intervals[i].count;
    }
    all.of_buckets = all.of_buckets || f.of_buckets;
    all.overdue += f.overdue;
    all.beyond += f.beyond;
    all.never += f.never;
    all.exact = all.exact && f.exact;
    counted += static_cast<double>(here);
    weighted += static_cast<double>(here) * f.error_fraction;
  }
  if (counted > 0) all.error_fraction = weighted / counted;
  return all;
}

Result<TtlRule> FindTtlRule(ExpiryServices& server, const CollectionInfoPtr& coll,
                            std::string_view name) {
  std::vector<ListedTtlRule> rules = ListRulesFor(server, coll->db, coll->name, name.empty());
  if (name.empty()) {
    if (rules.size() == 1) return rules[0].rule;
    if (rules.empty())
      return Error{ErrorCode::kInvalidOptions,
                   "nothing expires in " + SeriesNamespace(*coll) +
                       ": it has no TTL index and no expiry of its own"};
    std::string names;
    for (const ListedTtlRule& r : rules)
      names += (names.empty() ? "'" : ", '") + std::string(r.rule.RuleName()) + "'";
    return Error{ErrorCode::kInvalidOptions,
                 SeriesNamespace(*coll) + " has several rules: name one with 'index': " + names};
  }
  for (const ListedTtlRule& r : rules)
    if (r.rule.RuleName() == name ||
        (r.rule.kind == TtlRule::Kind::kClustered && name == coll->clustered_index_name))
      return r.rule;
  if (coll->FindIndex(name) || name == "_id_")
    return Error{ErrorCode::kInvalidOptions, "index '" + std::string(name) + "' of " +
                                                 SeriesNamespace(*coll) + " is not a TTL index"};
  return Error{ErrorCode::kIndexNotFound,
               "cannot find index " + std::string(name) + " for ns " + SeriesNamespace(*coll)};
}

Result<TtlTarget> ReadTtlTarget(const CommandRequest& req) {
  TtlTarget t;
  const BsonValue v = req.fields[0].value;
  if (v.IsString()) {
    MAYFLY_TRY(ValidateNamespace(req.db, v.String()));
    t.db = req.db;
    t.collection = v.String();
    return t;
  }
  if (!v.IsNumber() || v.NumberAsDouble() != 1)
    return Error{v.IsNumber() ? ErrorCode::kBadValue : ErrorCode::kTypeMismatch,
                 std::string(req.name) + " takes the name of a collection, or 1 for all"};
  t.all = true;
  if (req.db != "admin") t.db = req.db;
  return t;
}

namespace {

Result<double> BeyondHorizon(ExpiryServices& server, Operation& op) {
  double beyond = 0;
  for (const ListedTtlRule& r : ListRulesFor(server, {}, {})) {
    MAYFLY_TRY(op.CheckInterrupt());
    if (r.special || Storage::DocumentCount(*r.rule.coll) == 0) continue;
    const int64_t from = SaturatingDeadline(op.now.millis + kHorizonMillis, -r.rule.seconds);
    if (from == INT64_MAX) continue;
    MAYFLY_TRY(double n,
               RangeCounter(server.storage(), op, r.rule).CountRoughly(from + 1, INT64_MAX));
    beyond += n;
  }
  return beyond;
}

}  // namespace

void AppendTtlMetrics(ExpiryServices& server, Operation& op, BsonBuilder& ttl) {
  const TtlMetrics& m = server.metrics().ttl;
  {
    BsonBuilder lag = ttl.OpenDocument("lagMillis");
    lag.Append("p50", m.lag.Percentile(0.5)).Append("p99", m.lag.Percentile(0.99));
    lag.Append("max", m.lag.Max());
  }
  int64_t pending = 0;
  for (const ListedTtlRule& r : ListRulesFor(server, {}, {})) {
    if (r.special || !op.CheckInterrupt()) continue;
    if (auto n = Pending(server, op, r.rule, FiguresOf(server, r.rule))) pending += n.value();
  }
  ttl.Append("pendingDocuments", pending);
  ttl.Append("expiredReadsHidden", server.storage().expiry_policy().hidden_reads.load());
  ttl.Append("bytesDeleted", m.bytes_deleted.Get()).Append("clockHolds", m.clock_holds.Get());
  ttl.Append("archivedDocuments", m.archived_documents.Get());
  ExpiryServices::SlowFigure& f = server.ttl_beyond_horizon;
  std::lock_guard l(f.mutex);
  const int64_t begin = server.clock().MonotonicMicros();
  if (begin >= f.good_until) {
    if (auto n = BeyondHorizon(server, op)) f.value = n.value();
    // A result that took long to compute is kept long enough that it costs a hundredth of a core.
    const int64_t took = server.clock().MonotonicMicros() - begin;
    f.good_until = took > 20'000 ? begin + 100 * took : 0;
  }
  ttl.Append("beyondHorizon", Whole(f.value));
}

}  // namespace mayfly
