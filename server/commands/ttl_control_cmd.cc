#include "protocol/extended_json.h"
#include "protocol/object_id.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/redacted_command.h"
#include "server/dispatch/server_context.h"
#include "server/execution/existing_collection.h"
#include "server/execution/series_definition.h"
#include "server/execution/ttl_status.h"
#include "server/privileges/privileges.h"
#include "storage/storage.h"
#include "ttl/ttl_monitor.h"

namespace mayfly {
namespace {

constexpr size_t kMaxHoldsACollection = 1000;
/// Every document that expires is matched with every hold of its collection, and all holds of the
/// server share one row of the catalog with all pauses: no collection may fill it alone.
constexpr uint32_t kMaxHoldFilter = 64 << 10;
constexpr size_t kMaxHoldBytesACollection = 2 << 20;
constexpr size_t kMaxReason = 1024;

/// `until`: a date in the future, or nothing.
std::optional<Instant> Until(ArgReader& in, Instant now) {
  const BsonValue v = in.Any("until");
  if (v.IsNullish()) return {};
  if (!v.IsDate()) {
    in.Fail(in.WrongType("until", v.type(), "date"));
    return {};
  }
  if (v.Date() <= now)
    in.Fail({ErrorCode::kBadValue, "BSON field '" + in.where() +
                                       ".until' must be in the future, but " + ToRelaxedJson(v) +
                                       " is not"});
  return v.Date();
}

/// The scope of a pause or of its end, and the rules in it now.
struct Scoped {
  TtlScope scope;
  std::string ns;  ///< for the audit log: "*", "db.*" or "db.coll"
  int rules = 0;
};
Result<Scoped> ReadScope(CommandContext& ctx, const CommandRequest& req,
                         std::optional<std::string_view> index) {
  Scoped s;
  MAYFLY_TRY(TtlTarget t, ReadTtlTarget(req));
  if (t.all) {
    if (index)
      return Error{ErrorCode::kInvalidOptions,
                   "'index' needs the name of its collection: {" + std::string(req.name) +
                       ": <collection>, index: '" + std::string(*index) + "'}"};
    s.scope.level = t.db.empty() ? TtlScope::Level::kServer : TtlScope::Level::kDatabase;
    s.scope.db = t.db;
    s.ns = t.db.empty() ? "*" : std::string(t.db) + ".*";
    s.rules = static_cast<int>(ListRulesFor(ctx.expiry, t.db, {}).size());
    return s;
  }
  MAYFLY_TRY(CollectionInfoPtr coll, ExistingCollection(ctx.data, t.db, t.collection));
  s.scope.level = TtlScope::Level::kCollection;
  s.scope.db = coll->db;
  s.scope.uuid = coll->uuid;
  s.ns = coll->ns;
  if (!index) {
    s.rules = static_cast<int>(ListRulesFor(ctx.expiry, coll->db, coll->name).size());
    return s;
  }
  if (index->empty())
    return Error{ErrorCode::kBadValue, "'index' must be the name of a TTL index, not empty"};
  MAYFLY_TRY(TtlRule rule, FindTtlRule(ctx.expiry, coll, *index));
  s.scope.level = TtlScope::Level::kRule;
  s.scope.rule = RuleIdentity(rule);
  s.rules = 1;
  return s;
}

Result<void> RunPause(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const auto index = in.OptString("index");
  const auto until = Until(in, ctx.op.now);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(Scoped s, ReadScope(ctx, req, index));
  MAYFLY_TRY(ctx.expiry.ttl_controls().Pause(ctx.op, {s.scope, ctx.op.now, until}));
  Audit(ctx, "ttlPause", [&](BsonBuilder& p) {
    p.Append("ns", s.ns);
    if (index) p.Append("index", *index);
    if (until) p.Append("until", *until);
  });
  reply.Append("rules", s.rules);
  return Ok();
}

Result<void> RunResume(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const auto index = in.OptString("index");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(Scoped s, ReadScope(ctx, req, index));
  TtlControls& controls = ctx.expiry.ttl_controls();
  if (controls.PausedAbove(s.scope, ctx.op.now))
    return Error{
        ErrorCode::kIllegalOperation,
        s.ns + " is paused as part of a wider pause: resume that one (ttlStatus lists them)"};
  // Counted before: the rules that a pause in this scope kept from acting.
  int paused = 0;
  for (const ListedTtlRule& r : ListRulesFor(ctx.expiry, s.scope.db, {})) {
    if (s.scope.level >= TtlScope::Level::kCollection && r.rule.coll->uuid != s.scope.uuid)
      continue;
    if (s.scope.level == TtlScope::Level::kRule && RuleIdentity(r.rule) != s.scope.rule) continue;
    paused += controls.StateOf(r.rule, ctx.op.now) == TtlStanding::kPaused;
  }
  MAYFLY_TRY(int ended, controls.Resume(ctx.op, s.scope));
  if (ended > 0)
    Audit(ctx, "ttlResume", [&](BsonBuilder& p) {
      p.Append("ns", s.ns);
      if (index) p.Append("index", *index);
    });
  reply.Append("rules", paused);
  return Ok();
}

/// A hold's filter for the audit log.
void AppendShownFilter(const CollectionInfo& coll, BsonView filter, BsonBuilder& out) {
  const BsonDocument whole = BuildBson([&](BsonBuilder& b) { b.Append("filter", filter); });
  out.AppendAll(ShownDefinition(coll.db, coll.name, {}, whole));
}

Result<void> RunHold(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const std::string_view collection = in.Collection();
  const BsonView filter = in.Document("filter");
  const auto until = Until(in, ctx.op.now);
  const std::string_view reason = in.StringOr("reason");
  MAYFLY_TRY(in.Finish());
  if (reason.size() > kMaxReason)
    return Error{ErrorCode::kBadValue, "'reason' is longer than 1024 bytes"};
  if (filter.size() > kMaxHoldFilter)
    return Error{ErrorCode::kBadValue,
                 "'filter' is larger than " + std::to_string(kMaxHoldFilter) + " bytes"};
  MAYFLY_TRY(CollectionInfoPtr coll, ExistingCollection(ctx.data, req.db, collection));
  TtlHold h;
  h.id = NewObjectId(ctx.op.now);
  h.db = coll->db;
  h.uuid = coll->uuid;
  h.filter = BsonDocument(filter);
  if (const auto named = ctx.data.storage().catalog().Find(req.db, collection);
      named && named->is_series()) {
    // Points are removed bucket by bucket, so it is buckets that are held.
    std::optional<BsonDocument> of_buckets = BucketMetaFilter(*named->series, filter);
    if (!of_buckets)
      return Error{
          ErrorCode::kInvalidOptions,
          "a hold on a time-series collection may only name its metaField, since points go "
          "bucket by bucket"};
    h.filter = std::move(*of_buckets);
  }
  MAYFLY_TRY(h.matches, ctx.data.storage().options().compile_filter(h.filter, false));
  h.since = ctx.op.now;
  h.until = until;
  h.reason = reason;
  TtlControls& controls = ctx.expiry.ttl_controls();
  size_t there = 0, bytes = filter.size() + reason.size();
  for (const TtlHold& other : controls.Holds(ctx.op.now)) {
    if (other.uuid != coll->uuid) continue;
    ++there;
    bytes += other.filter.view().size() + other.reason.size();
  }
  if (there >= kMaxHoldsACollection)
    return Error{ErrorCode::kExceededMemoryLimit,
                 coll->ns + " has 1000 holds: release some, or hold with a wider filter"};
  if (bytes > kMaxHoldBytesACollection)
    return Error{ErrorCode::kExceededMemoryLimit,
                 "the filters and reasons of the holds of " + coll->ns + " would take more than " +
                     std::to_string(kMaxHoldBytesACollection) +
                     " bytes: release some, or use shorter filters"};
  MAYFLY_TRY(controls.Hold(ctx.op, h));
  Audit(ctx, "ttlHold", [&](BsonBuilder& p) {
    p.Append("ns", coll->ns).AppendObjectId("holdId", h.id);
    AppendShownFilter(*coll, filter, p);
    if (until) p.Append("until", *until);
    if (!reason.empty()) p.Append("reason", reason);
  });
  reply.AppendObjectId("holdId", h.id);
  return Ok();
}

Result<void> RunHoldRelease(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  (void)reply;
  ArgReader in(req);
  const std::string_view collection = in.Collection();
  const BsonValue id = in.Any("holdId");
  if (id.missing())
    in.Fail({ErrorCode::kMissingField,
             "BSON field 'ttlHoldRelease.holdId' is missing but a required field"});
  else if (!id.Is(BsonType::kObjectId))
    in.Fail(in.WrongType("holdId", id.type(), "objectId"));
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CollectionInfoPtr coll, ExistingCollection(ctx.data, req.db, collection));
  TtlHold was;
  MAYFLY_TRY(bool released,
             ctx.expiry.ttl_controls().ReleaseHold(ctx.op, coll->uuid, id.ObjectId(), &was));
  if (!released)
    return Error{ErrorCode::kNoSuchKey,
                 coll->ns + " has no hold " + ToRelaxedJson(id) + ": ttlStatus lists them"};
  Audit(ctx, "ttlHoldRelease", [&](BsonBuilder& p) {
    p.Append("ns", coll->ns).AppendObjectId("holdId", was.id);
    AppendShownFilter(*coll, was.filter, p);
    if (!was.reason.empty()) p.Append("reason", was.reason);
  });
  return Ok();
}

/// {ttlRelease: 1, restored: true, confirm: true}: restored data begins to expire.
Result<void> ReleaseRestored(CommandContext& ctx, const TtlTarget& t, bool confirm,
                             BsonBuilder& reply) {
  if (!t.all || !t.db.empty())
    return Error{ErrorCode::kInvalidOptions,
                 "'restored' is about the whole server: {ttlRelease: 1, restored: true} to admin"};
  TtlControls& controls = ctx.expiry.ttl_controls();
  if (!controls.RestoreHold())
    return Error{ErrorCode::kIllegalOperation,
                 "expiry is not held: this server's data was not restored, or was released"};
  if (!confirm) {
    MAYFLY_TRY(const Forecast f, ForecastAll(ctx.expiry, ctx.op, {}, ForecastOptions()));
    return Error{ErrorCode::kInvalidOptions,
                 "releasing what was restored would at once remove about " +
                     std::to_string(f.overdue) +
                     " documents (ttlForecast: 1 counts them by rule): give confirm: true"};
  }
  MAYFLY_TRY(const std::optional<TtlRestoreHold> was, controls.ReleaseRestored(ctx.op));
  const auto rules = ListRulesFor(ctx.expiry, {}, {});
  reply.Append("rules", was ? static_cast<int32_t>(rules.size()) : 0);
  if (!was) return Ok();
  ctx.server.log().Write(LogSeverity::kInfo, LogComponent::kIndex, 9000210,
                         "Expiry of the restored data begins: it was released",
                         BuildBson([&](BsonBuilder& b) { b.Append("backup", was->backup); }));
  Audit(ctx, "ttlReleaseRestored", [&](BsonBuilder& p) { p.Append("backup", was->backup); });
  return Ok();
}

/// {ttlRelease: c, index, confirm: true} lets a rule act that the guard holds; {ttlRelease: 1,
/// confirm: true} confirms the clock after a jump.
Result<void> RunRelease(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const auto index = in.OptString("index");
  const bool confirm = in.BoolOr("confirm", false);
  const bool restored = in.BoolOr("restored", false);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(TtlTarget t, ReadTtlTarget(req));
  if (restored && index)
    return Error{ErrorCode::kInvalidOptions, "'restored' and 'index' exclude each other"};
  if (restored) return ReleaseRestored(ctx, t, confirm, reply);
  if (t.all) {
    if (index) return Error{ErrorCode::kInvalidOptions, "'index' needs the name of its collection"};
    if (!confirm)
      return Error{ErrorCode::kInvalidOptions,
                   "ttlRelease: 1 confirms the clock, after which everything due by it is removed: "
                   "give confirm: true"};
    const bool was = ctx.expiry.ttl_monitor && ctx.expiry.ttl_monitor->ConfirmClock();
    if (was) Audit(ctx, "ttlConfirmClock", [&](BsonBuilder& p) { p.Append("clock", ctx.op.now); });
    const auto rules = ListRulesFor(ctx.expiry, {}, {});
    reply.Append("rules", was ? static_cast<int32_t>(rules.size()) : 0);
    return Ok();
  }
  MAYFLY_TRY(CollectionInfoPtr coll, ExistingCollection(ctx.data, t.db, t.collection));
  std::string rule_name;
  if (index) {
    MAYFLY_TRY(TtlRule rule, FindTtlRule(ctx.expiry, coll, *index));
    rule_name = RuleIdentity(rule);
  }
  TtlControls& controls = ctx.expiry.ttl_controls();
  if (!confirm) {
    int64_t documents = 0;
    for (const TtlGuardHold& g : controls.GuardHolds())
      if (g.uuid == coll->uuid && (!index || g.rule == rule_name)) documents += g.would_expire;
    return Error{ErrorCode::kInvalidOptions,
                 "releasing what the guard holds in " + coll->ns + " would at once remove about " +
                     std::to_string(documents) + " documents: give confirm: true"};
  }
  MAYFLY_TRY(std::vector<TtlGuardHold> released,
             controls.ReleaseGuard(ctx.op, coll->uuid, rule_name));
  for (const TtlGuardHold& g : released)
    Audit(ctx, "ttlRelease", [&](BsonBuilder& p) {
      p.Append("ns", coll->ns)
          .Append("index", RuleNameOf(g.rule))
          .Append("wouldExpireNow", g.would_expire);
      p.Append("fractionOfCollection", g.fraction);
    });
  reply.Append("rules", static_cast<int32_t>(released.size()));
  return Ok();
}

}  // namespace

void RegisterTtlControl(CommandRegistry& registry) {
  constexpr uint32_t kControl = kWrites | kWorker;
  registry.Add({.name = "ttlPause",
                .flags = kControl,
                .help = "Keeps the rules of a collection (or one of them, or with 1 all) from "
                        "removing documents.",
                .run = &RunPause,
                .privileges = &privileges::OnExpiryTarget<Action::holdExpiry>});
  registry.Add({.name = "ttlResume",
                .flags = kControl,
                .help = "Ends ttlPause.",
                .run = &RunResume,
                .privileges = &privileges::OnExpiryTarget<Action::holdExpiry>});
  registry.Add({.name = "ttlHold",
                .flags = kControl,
                .help = "Documents that match 'filter' neither expire nor hide.",
                .run = &RunHold,
                .privileges = &privileges::OnExpiryTarget<Action::holdExpiry>});
  registry.Add({.name = "ttlHoldRelease",
                .flags = kControl,
                .help = "Ends ttlHold.",
                .run = &RunHoldRelease,
                .privileges = &privileges::OnExpiryTarget<Action::holdExpiry>});
  registry.Add({.name = "ttlRelease",
                .flags = kControl,
                .help = "Lets a rule act that the guard holds; with 1, confirms the clock, or lets "
                        "what was restored expire.",
                .run = &RunRelease,
                .privileges = &privileges::OnExpiryTarget<Action::reviewGuard>});
}

}  // namespace mayfly
