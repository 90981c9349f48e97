#include "query/expression/parse_work.h"
#include "query/pipeline/bucket_filter.h"
#include "query/pipeline/bucket_test.h"
#include "query/plan/executor.h"
#include "security/user_cache.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/expiry_services.h"
#include "server/execution/existing_collection.h"
#include "server/execution/link_facts.h"
#include "server/execution/point_groups.h"
#include "server/execution/series_definition.h"
#include "server/execution/ttl_status.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/index_keys.h"
#include "storage/catalog/namespace.h"
#include "storage/read/visibility.h"
#include "storage/storage.h"
#include "storage/write/archive.h"
#include "storage/write/indexed_arrays.h"
#include "timeseries/bucket_control.h"

namespace mayfly {
namespace {

constexpr size_t kSamplesAReason = 5;

/// Why nothing of a time series expires, and a filter for the points to delete: samples are of
/// buckets, which say little of them.
void AppendSuspension(const CollectionInfo& buckets, BsonBuilder& reply) {
  reply.Append("suspended", kExpirySuspended);
  BsonBuilder filter = reply.OpenDocument("suspendedBy");
  BsonArrayBuilder either = filter.OpenArray("$or");
  const std::string& time = buckets.series->time_field;
  either.OpenDocument().OpenDocument(time).Append("$lt", kFirstExpiringDate);
  either.OpenDocument().OpenDocument(time).Append("$gt", kLastExpiringDate);
}

/// Why a time series refuses to archive the points of another one, of which a bucket has arrays
/// where it has an index; empty: it takes all of them. Reads buckets up to the first one refused.
Result<std::string> RefusedPoints(CommandContext& ctx, const CollectionInfoPtr& coll,
                                  const ArchiveTarget& target) {
  Catalog& catalog = ctx.data.storage().catalog();
  CollectionInfoPtr into = catalog.Find(target.db, target.collection);
  if (into && into->is_series()) into = BucketsOf(catalog, *into);
  if (!coll->is_buckets() || !into || !into->is_buckets()) return std::string();
  std::vector<IndexInfoPtr> indexes;
  for (const IndexInfoPtr& i : into->indexes)
    if (i->measured != 0) indexes.push_back(i);
  if (indexes.empty()) return std::string();
  QuerySpec spec;
  spec.coll = coll;
  spec.ns = coll->ns;
  spec.include_expired = true;
  spec.fill_cache = false;
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> found,
             MakeFindExecutor(ctx.data.storage(), ctx.op, std::move(spec)));
  for (;;) {
    MAYFLY_TRY(const PlanExecutor::State state, found->Next());
    if (state == PlanExecutor::State::kEof) return std::string();
    for (const IndexInfoPtr& i : indexes) {
      Result<void> r = CheckIndexedArrays(*into, *i, found->input_doc(), ctx.op);
      if (r) continue;
      if (r.error().code != LocationCode(kIndexedArray)) return r.error();
      return RefusedByArchive(*coll, *into, r.error());
    }
  }
}

Result<void> RunCheck(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const std::string_view collection = in.Collection();
  const auto index = in.OptString("index");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CollectionInfoPtr coll, ExistingCollection(ctx.data, req.db, collection));
  MAYFLY_TRY(TtlRule rule, FindTtlRule(ctx.expiry, coll, index.value_or("")));
  MAYFLY_TRY(RuleCensus c, TakeCensus(ctx.data.storage(), ctx.op, rule, kSamplesAReason));
  reply.Append("total", c.total).Append("willExpire", c.will_expire);
  AppendRestoreHold(ctx.expiry, reply);
  {
    BsonBuilder never = reply.OpenDocument("neverExpires");
    for (size_t i = 1; i < c.never.size(); ++i)
      if (c.never[i] > 0) never.Append(NeverExpiresName(static_cast<NeverExpires>(i)), c.never[i]);
  }
  if (c.never[static_cast<size_t>(NeverExpires::kSuspended)] > 0) AppendSuspension(*coll, reply);
  if (const std::optional<ArchiveTarget> target = ArchiveTargetOf(*coll)) {
    // Shown even if all is well: the rule continues if its creator loses the right to write there.
    BsonBuilder archive = reply.OpenDocument("archive");
    archive.Append("into", JoinNamespace(target->db, target->collection));
    // It may have been named before it was there, as a dump does: nothing is removed until it is.
    std::string problem = ArchiveProblem(ctx.data.storage().catalog(), *coll);
    if (problem.empty()) {
      MAYFLY_TRY(problem, RefusedPoints(ctx, coll, *target));
    }
    if (!problem.empty()) archive.Append("problem", problem);
  }
  // They are of another database than that of the rule.
  if (ctx.access == nullptr ||
      ctx.access->privileges.Allows(kLinkStatusDb, kLinkStatusCollection, {Action::find})) {
    MAYFLY_TRY(AppendLinks(ctx.data.storage(), ctx.op, reply));
  }
  BsonBuilder samples = reply.OpenDocument("samples");
  for (size_t i = 1; i < c.never.size(); ++i) {
    if (c.samples[i].empty()) continue;
    BsonArrayBuilder list = samples.OpenArray(NeverExpiresName(static_cast<NeverExpires>(i)));
    for (const Value& id : c.samples[i]) list.Append(id.view());
  }
  return Ok();
}

/// Whether a point of the bucket matches that is not hidden (HiddenPoints).
Result<bool> HasPoint(CommandContext& ctx, BsonView bucket, const SeriesFields& fields,
                      const MatchExpression& match, std::optional<Instant> hidden,
                      EvalContext& eval) {
  MAYFLY_TRY(const BucketVerdict verdict, TestBucket(match, bucket, fields, &eval));
  if (verdict == BucketVerdict::kNone) return false;
  BucketPoints points;
  MAYFLY_TRY(points.Open(bucket, fields));
  for (;;) {
    MAYFLY_TRY(ctx.op.CheckInterrupt());
    MAYFLY_TRY(const std::optional<BsonView> point, points.Next());
    if (!point) return false;
    const BsonValue time = (*point)[fields.time];
    if (hidden && time.IsDate() && time.Date() <= *hidden) continue;
    eval.root = *point;
    MAYFLY_TRY(const bool matches, match.Matches(eval.root, &eval));
    if (matches) return true;
  }
}

/// The key of the first bucket with a point that matches `q`; nothing if there is none.
Result<std::optional<std::string>> FindBucket(CommandContext& ctx, const CollectionInfoPtr& buckets,
                                              BsonView q, bool include_expired) {
  const SeriesFields fields = FieldsOf(*buckets->series);
  EvalContext eval;
  eval.now = ctx.op.now;
  eval.cluster_time = ctx.op.cluster_time;
  eval.op = &ctx.op;
  VariableScope scope;
  ParseWork work(&ctx.op);
  MAYFLY_TRY(const MatchPtr match, ParseMatch(q, {.scope = &scope}));
  eval.variables.resize(static_cast<size_t>(scope.slots()));
  const std::optional<BucketFilter> moved = FilterOfBuckets(q, ShapeOf(*buckets));
  HiddenPoints hidden;
  if (!include_expired)
    hidden = HiddenPointsOf(ctx.data.storage().expiry_policy(), *buckets, ctx.op.now);
  QuerySpec spec;
  spec.coll = buckets;
  spec.ns = buckets->ns;
  if (moved) spec.filter = moved->filter;
  spec.include_expired = include_expired;
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> found,
             MakeFindExecutor(ctx.data.storage(), ctx.op, std::move(spec)));
  for (;;) {
    MAYFLY_TRY(const PlanExecutor::State state, found->Next());
    if (state == PlanExecutor::State::kEof) return std::optional<std::string>();
    const BsonView bucket = found->input_doc();
    MAYFLY_TRY(const bool there, HasPoint(ctx, bucket, fields, *match, hidden.Of(bucket), eval));
    if (there) return std::optional<std::string>(found->record_key());
  }
}

/// The key of the first document that matches `q`; nothing if there is none.
Result<std::optional<std::string>> FindDocument(CommandContext& ctx, const CollectionInfoPtr& coll,
                                                BsonView q, bool include_expired) {
  QuerySpec spec;
  spec.coll = coll;
  spec.filter = q;
  spec.limit = 1;
  spec.include_expired = include_expired;
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> executor,
             MakeFindExecutor(ctx.data.storage(), ctx.op, spec));
  MAYFLY_TRY(PlanExecutor::State state, executor->Next());
  if (state == PlanExecutor::State::kEof) return std::optional<std::string>();
  return std::optional<std::string>(executor->record_key());
}

Result<void> RunTtlExplain(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const std::string_view collection = in.Collection();
  const BsonView q = in.Document("q");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CollectionInfoPtr coll, ExistingCollection(ctx.data, req.db, collection));
  // A filter could reveal the content of an expired document bit by bit.
  const bool include_expired =
      ctx.access == nullptr ||
      ctx.access->privileges.Allows(req.db, collection, {Action::readExpired});
  // Of a time series `q` is about points; buckets are what expires.
  const bool of_points = coll->is_buckets() && coll->name != collection;
  MAYFLY_TRY(const std::optional<std::string> key,
             of_points ? FindBucket(ctx, coll, q, include_expired)
                       : FindDocument(ctx, coll, q, include_expired));
  if (!key)
    return Error{ErrorCode::kNoMatchingDocument,
                 "no document of " + JoinNamespace(req.db, collection) + " matches 'q'"};
  Storage::Record record;
  MAYFLY_TRY(bool there, ctx.data.storage().Fetch(*coll, *key, &record));
  if (!there) return Error{ErrorCode::kNoMatchingDocument, "the document was removed meanwhile"};

  struct Candidate {
    const ListedTtlRule* rule;
    std::optional<int64_t> deadline;
    NeverExpires why;
  };
  const std::vector<ListedTtlRule> rules = ListRulesFor(ctx.expiry, coll->db, coll->name);
  std::vector<Candidate> candidates;
  const FilteringFor filtering(&ctx.op);
  const Candidate* deciding = nullptr;
  for (const ListedTtlRule& r : rules) {
    Candidate c{&r, {}, NeverExpires::kNo};
    if (auto date = DateByRule(r.rule, record.doc, record.expire_at, &c.why))
      c.deadline = r.rule.Deadline(*date);
    candidates.push_back(c);
  }
  for (const Candidate& c : candidates)
    if (c.deadline && !c.rule->special && (!deciding || *c.deadline < *deciding->deadline))
      deciding = &c;
  const auto held = ctx.expiry.ttl_controls().HeldUntil(*coll, record.doc, ctx.op.now);
  MAYFLY_TRY(ctx.op.CheckInterruptNow());  // a filter that was stopped has said no
  if (deciding) {
    reply.Append("deadline", Instant{*deciding->deadline});
    reply.Append("rule", deciding->rule->rule.RuleName());
    reply.Append("state", held ? "held" : StateOf(ctx.expiry, *deciding->rule, ctx.op.now));
  } else {
    reply.AppendNull("deadline").AppendNull("rule").AppendNull("state");
  }
  {
    BsonArrayBuilder list = reply.OpenArray("candidates");
    for (const Candidate& c : candidates) {
      BsonBuilder d = list.OpenDocument();
      d.Append("rule", c.rule->rule.RuleName());
      if (c.deadline)
        d.Append("deadline", Instant{*c.deadline});
      else
        d.AppendNull("deadline").Append("reason", NeverExpiresName(c.why));
      const std::string_view s = StateOf(ctx.expiry, *c.rule, ctx.op.now);
      if (s != "active") d.Append("state", s);
    }
  }
  if (held) {
    BsonArrayBuilder holds = reply.OpenArray("holds");
    for (const TtlHold& h : ctx.expiry.ttl_controls().Holds(ctx.op.now)) {
      if (h.uuid != coll->uuid || !h.matches->Matches(record.doc)) continue;
      BsonBuilder d = holds.OpenDocument();
      d.AppendObjectId("holdId", h.id);
      if (h.until) d.Append("until", *h.until);
      if (!h.reason.empty()) d.Append("reason", h.reason);
    }
    MAYFLY_TRY(ctx.op.CheckInterruptNow());
  }
  return Ok();
}

}  // namespace

void RegisterTtlCheck(CommandRegistry& registry) {
  registry.Add({.name = "ttlCheck",
                .flags = kReadOnly | kSecondaryOk | kWorker,
                .help = "Documents that a rule will never remove, by reason, with sample _ids.",
                .run = &RunCheck,
                .privileges = &privileges::OnCollection<Action::find, Action::viewExpiry>});
  registry.Add({.name = "ttlExplain",
                .flags = kReadOnly | kSecondaryOk | kWorker,
                .help = "When the first document that matches 'q' expires, and by which rule.",
                .run = &RunTtlExplain,
                .privileges = &privileges::OnCollection<Action::find, Action::viewExpiry>});
}

}  // namespace mayfly
