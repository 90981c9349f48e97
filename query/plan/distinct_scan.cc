#include "query/plan/distinct_scan.h"

#include <algorithm>

#include "query/match/match_internal.h"
#include "query/plan/index_plan_kind.h"
#include "storage/catalog/index_keys.h"
#include "storage/keys/key_encoding.h"

namespace mayfly {
namespace {

/// Whether the entries with one value of field `at` come in the order of the sort, and how the scan
/// must then go. Fields before `at` have one value, so they do not matter.
SortProvision OrderWithin(const IndexInfo& index, size_t at, const SortPattern& sort) {
  int direction = 0, own = 0;
  size_t next = at + 1;
  for (const auto& part : sort.parts()) {
    if (part.meta != SortPattern::Meta::kNone) return SortProvision::kNo;
    const auto is_part = [&](const IndexField& f) { return f.path == part.path; };
    if (is_part(index.fields[at])) own = index.fields[at].descending == part.descending ? 1 : -1;
    if (std::any_of(index.fields.begin(), index.fields.begin() + static_cast<ptrdiff_t>(at) + 1,
                    is_part))
      continue;
    if (next >= index.fields.size() || !is_part(index.fields[next])) return SortProvision::kNo;
    const int wanted = index.fields[next++].descending == part.descending ? 1 : -1;
    if (direction != 0 && direction != wanted) return SortProvision::kNo;
    direction = wanted;
  }
  if (direction == 0) direction = own;
  return direction < 0 ? SortProvision::kBackward : SortProvision::kForward;
}

SortProvision Opposite(SortProvision order) {
  if (order == SortProvision::kNo) return order;
  return order == SortProvision::kForward ? SortProvision::kBackward : SortProvision::kForward;
}

/// How one index serves the request.
struct Choice {
  IndexAccess access;
  KeyFilter filter;
  size_t field = 0;
  bool backward = false, covered = true;
};

std::optional<Choice> Serve(PlannerInput& in, const DistinctWish& wish, const IndexInfoPtr& index,
                            const std::vector<const MatchExpression*>& clauses,
                            const std::vector<PathPredicate>& predicates) {
  Choice c;
  const auto& fields = index->fields;
  while (c.field < fields.size() && fields[c.field].path != wish.path) ++c.field;
  if (c.field == fields.size() || !PlanKindOf(*index).keys_hold_values) return std::nullopt;
  c.access = BuildIndexAccess(index, in.ctx.view.Multikey(*index), clauses, predicates);
  for (size_t i = 0; i < c.field; ++i)
    if (!c.access.bounds.fields[i].AllPoints()) return std::nullopt;
  std::vector<const MatchExpression*> residual;
  for (const auto* clause : clauses)
    if (std::find(c.access.exact.begin(), c.access.exact.end(), clause) == c.access.exact.end())
      residual.push_back(clause);
  if (!residual.empty()) c.filter = KeyFilter::Take(*index, c.access.multikey, &residual);
  if (!residual.empty()) return std::nullopt;
  if (!wish.of_group) {
    // Documents that a sparse index leaves out have no value to show.
    const bool complete = c.access.safe || (clauses.empty() && !index->has_partial_filter);
    // The keys are the elements of an array. All elements count, also those outside of the bounds.
    const bool arrays = (c.access.multikey >> std::min<size_t>(c.field, 63) & 1) != 0;
    if (!complete || (arrays && (!clauses.empty() || wish.path.find('.') != wish.path.npos)))
      return std::nullopt;
    return c;
  }
  if (!c.access.safe || c.access.multikey != 0) return std::nullopt;
  // "a.0" has the key 5 for {a: [5]} and for {a: {"0": 5}}. The expression "$a.0" has [] and 5.
  if (match::HasNumericPart(wish.path)) return std::nullopt;
  for (size_t i = 0; i < c.field; ++i)
    if (!c.access.bounds.fields[i].IsPoint()) return std::nullopt;
  SortProvision order = OrderWithin(*index, c.field, in.sort);
  if (wish.last) order = Opposite(order);
  if (order == SortProvision::kNo) return std::nullopt;
  c.backward = order == SortProvision::kBackward;
  c.covered = CanCover(in, *index, c.access.multikey);
  return c;
}

}  // namespace

Result<std::string_view> DistinctScan::Prefix(const Row& row, Value* value) const {
  std::string_view key = row.key_values, bits = row.type_bits;
  if (HasCutValue(*scan->index(), key)) {
    size_t at = 0;
    for (size_t i = 0; i <= field; ++i)
      at += StoredValueLength(key, at, scan->index()->fields[i].descending);
    *value = Value::Null();
    return key.substr(0, at);
  }
  for (size_t i = 0; i <= field; ++i) {
    MAYFLY_TRY(*value, DecodeKeyValue(&key, scan->index()->fields[i].descending, &bits));
  }
  return row.key_values.substr(0, row.key_values.size() - key.size());
}

std::optional<DistinctScan> PlanDistinctScan(PlannerInput& in, const DistinctWish& wish) {
  if (in.natural != 0 || !in.min.view().empty() || !in.max.view().empty()) return std::nullopt;
  if (!in.hint.missing() && !(in.hint.IsDocument() && in.hint.Document().empty()))
    return std::nullopt;
  std::vector<const MatchExpression*> clauses;
  if (in.filter != nullptr) clauses = Clauses(*in.filter);
  const auto predicates = CollectPredicates(clauses);
  std::optional<Choice> best;
  for (const auto& index : in.ctx.coll->indexes) {
    if (!in.MayUse(*index) || (best && best->covered)) continue;
    auto choice = Serve(in, wish, index, clauses, predicates);
    if (choice && (!best || choice->covered)) best = std::move(choice);
  }
  if (!best) return std::nullopt;
  DistinctScan out;
  out.field = best->field;
  IndexScanStage::Params params;
  params.index = best->access.index;
  params.multikey = best->access.multikey;
  params.bounds = std::move(best->access.bounds);
  params.backward = best->backward;
  params.distinct = true;
  ResidualFilter by_keys = best->filter.clauses();
  params.filter = std::move(best->filter);
  out.plan.signature = params.index->name + "^";
  auto scan = std::make_unique<IndexScanStage>(in.ctx, std::move(params));
  out.scan = scan.get();
  scan->SetKeysOnly(best->covered);
  if (best->covered) {
    out.plan.root = std::make_unique<ProjectionMarkStage>(
        in.ctx, std::move(scan), "PROJECTION_COVERED",
        BuildBson([&](BsonBuilder& b) { b.Append("_id", 0).Append(wish.path, 1); }));
  } else {
    out.plan.root = std::make_unique<FetchStage>(in.ctx, std::move(scan), ResidualFilter{}, 0,
                                                 std::move(by_keys));
    out.plan.has_fetch = true;
  }
  return out;
}

}  // namespace mayfly
