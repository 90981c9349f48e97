#include "query/pipeline/series_rules.h"

#include <algorithm>

#include "query/pipeline/bounded_sort.h"
#include "query/pipeline/bucket_filter.h"
#include "query/pipeline/edge_stage.h"
#include "query/pipeline/optimize.h"
#include "query/pipeline/unpack_stage.h"

namespace mayfly {
namespace {

/// Whether stage `i` is a sort by time: it wants the buckets in the order of their lower bounds,
/// which an index on a measurement does not have.
bool SortsByTime(const std::vector<StagePtr>& stages, size_t i, const SeriesShape& shape) {
  auto* sort = i < stages.size() ? dynamic_cast<PipelineSort*>(stages[i].get()) : nullptr;
  return sort != nullptr &&
         std::any_of(sort->pattern().parts().begin(), sort->pattern().parts().end(),
                     [&](const auto& part) { return part.path == shape.fields.time; });
}

/// Moves the filter after stage `i`, which unpacks. Returns the unpack stage's new place.
Result<size_t> MoveFilter(std::vector<StagePtr>& stages, size_t i, PipelineContext& context,
                          VariableScope& scope) {
  auto* match = i + 1 < stages.size() ? dynamic_cast<PipelineMatch*>(stages[i + 1].get()) : nullptr;
  auto* unpack = dynamic_cast<UnpackStage*>(stages[i].get());
  if (match == nullptr || unpack->filtered()) return i;
  std::vector<BsonDocument> all, before, behind;
  SplitConjuncts(match->filter(), all);
  SeriesShape shape = unpack->shape();
  if (SortsByTime(stages, i + 2, shape)) shape.indexed.clear();
  for (BsonDocument& conjunct : all) {
    if (before.size() > kMaxMeasuredConditions) shape.indexed.clear();
    std::optional<BucketFilter> of_buckets = FilterOfBuckets(conjunct, shape);
    // bounded: by the filter, which is parsed
    if (of_buckets) before.push_back(std::move(of_buckets->filter));
    // bounded: by the filter
    if (!of_buckets || !of_buckets->exact) behind.push_back(std::move(conjunct));
  }
  if (!behind.empty()) {
    MAYFLY_TRY(StagePtr rest, MakeMatch(behind, context, scope));
    auto& filter = dynamic_cast<PipelineMatch&>(*rest);
    unpack->TakeFilter(BsonDocument(filter.filter()), filter.TakeMatch());
  }
  stages.erase(stages.begin() + static_cast<ptrdiff_t>(i) + 1);
  if (before.empty()) return i;
  if (i > 0)
    if (auto* first = dynamic_cast<PipelineMatch*>(stages[i - 1].get())) {
      std::vector<BsonDocument> both;
      SplitConjuncts(first->filter(), both);
      both.insert(both.end(), before.begin(), before.end());
      MAYFLY_TRY(stages[i - 1], MakeMatch(both, context, scope));
      return i;
    }
  MAYFLY_TRY(StagePtr front, MakeMatch(before, context, scope));
  stages.insert(stages.begin() + static_cast<ptrdiff_t>(i), std::move(front));
  return i + 1;
}

/// Handles a sort by time after stage `i`, which unpacks.
void BoundSort(std::vector<StagePtr>& stages, size_t i, PipelineContext& context) {
  auto* sort = i + 1 < stages.size() ? dynamic_cast<PipelineSort*>(stages[i + 1].get()) : nullptr;
  auto* unpack = dynamic_cast<UnpackStage*>(stages[i].get());
  if (sort == nullptr || sort->wants_sort_key() || sort->pattern().needs_metadata() ||
      unpack->shape().max_span_seconds == 0 ||
      sort->pattern().parts()[0].path != unpack->shape().fields.time)
    return;
  stages[i + 1] =
      std::make_unique<BoundedSortStage>(context, sort->pattern(), sort->limit(), *unpack);
}

/// A $group or $count behind stage `i`, which unpacks, that needs less than the points.
void SummarizeBuckets(std::vector<StagePtr>& stages, size_t i, VariableScope& scope) {
  auto* unpack = dynamic_cast<UnpackStage*>(stages[i].get());
  std::vector<SummaryField> fields;
  int64_t interval_millis = 0;
  if (i + 1 >= stages.size()) return;
  if (SummarizeCount(*stages[i + 1], &fields))
    unpack->Summarize(std::move(fields), false);
  else if (SummarizeGroup(*stages[i + 1], unpack->shape(), scope, &fields, &interval_millis))
    unpack->Summarize(std::move(fields), true, interval_millis);
  else
    FollowIntervals(*stages[i + 1], *unpack);
}

/// The last point of each: a sort by time and a $group that takes the first or last of each meta
/// value behind stage `i`, which unpacks. Answers whether it has put one stage in their place.
bool TakeEdges(std::vector<StagePtr>& stages, size_t i, PipelineContext& context) {
  if (i + 2 >= stages.size() || i > 1) return false;
  auto* sort = dynamic_cast<PipelineSort*>(stages[i + 1].get());
  auto* before = i == 1 ? dynamic_cast<PipelineMatch*>(stages[0].get()) : nullptr;
  const SeriesShape& shape = dynamic_cast<UnpackStage*>(stages[i].get())->shape();
  bool first = false;
  if (sort == nullptr || sort->limit() > 0 || sort->wants_sort_key() ||
      shape.max_span_seconds == 0 || (i == 1 && before == nullptr) ||
      !TakesEdges(*stages[i + 2], shape.fields, &first))
    return false;
  const auto& parts = sort->pattern().parts();
  const auto& last = parts.back();
  if (last.meta != SortPattern::Meta::kNone || last.path != shape.fields.time || parts.size() > 2 ||
      (parts.size() == 2 && parts[0].path != shape.fields.meta))
    return false;
  const BsonDocument filter = before == nullptr ? BsonDocument() : BsonDocument(before->filter());
  // Variables have no names any more where the filter is parsed again.
  if (filter.view().bytes().find("$expr") != std::string_view::npos) return false;
  SortPattern pattern = sort->pattern();
  const bool newest = last.descending == first;
  auto edges = std::make_unique<EdgeStage>(context, filter, std::move(stages[i]),
                                           std::move(pattern), newest);
  stages.erase(stages.begin() + 1, stages.begin() + static_cast<ptrdiff_t>(i) + 2);
  stages[0] = std::move(edges);
  return true;
}

}  // namespace

Result<void> PushBelowUnpack(std::vector<StagePtr>& stages, PipelineContext& context,
                             VariableScope& scope) {
  if (!context.options.rewrite_series) return Ok();
  for (size_t i = 0; i < stages.size(); ++i) {
    if (dynamic_cast<UnpackStage*>(stages[i].get()) == nullptr) continue;
    MAYFLY_TRY(i, MoveFilter(stages, i, context, scope));
    if (TakeEdges(stages, i, context)) break;
    BoundSort(stages, i, context);
    SummarizeBuckets(stages, i, scope);
    break;
  }
  return Ok();
}

}  // namespace mayfly
