#include "query/plan/find_executor.h"
#include "query/plan/query_state.h"

namespace mayfly {

Result<ExplainVerbosity> ParseVerbosity(std::string_view name) {
  if (name == "queryPlanner") return ExplainVerbosity::kQueryPlanner;
  if (name == "executionStats") return ExplainVerbosity::kExecutionStats;
  if (name == "allPlansExecution") return ExplainVerbosity::kAllPlansExecution;
  return Error{ErrorCode::kBadValue, "Enumeration value '" + std::string(name) +
                                         "' for field 'explain.verbosity' is not a valid value."};
}

Result<int64_t> PlanExecutor::RunToEnd(int64_t limit) {
  int64_t n = 0;
  while (limit == 0 || n < limit) {
    MAYFLY_TRY(State state, Next());
    if (state == State::kEof) break;
    ++n;
  }
  return n;
}

Result<bool> PlanExecutor::FillBatch(BsonArrayBuilder& batch, int64_t max_documents,
                                     size_t max_bytes) {
  while (max_documents == 0 || batch.count() < max_documents) {
    MAYFLY_TRY(State state, Next());
    if (state == State::kEof) return !tailable();
    size_t bound = input_doc().size();
    if (MayGrow()) {
      MAYFLY_TRY(BsonView d, doc());
      bound = d.size();
    }
    if (batch.count() > 0 && batch.size() + bound > max_bytes) {
      PushBack();
      return false;
    }
    MAYFLY_TRY(AppendResult(batch));
  }
  return IsEof();
}

Result<void> PlanExecutor::Explain(ExplainVerbosity verbosity,
                                   const std::vector<ExplainStage>& on_top, BsonBuilder& out) {
  out.Append("explainVersion", "1");
  MAYFLY_TRY(AppendQueryPlanner(on_top, verbosity, out));
  if (verbosity != ExplainVerbosity::kQueryPlanner) {
    MAYFLY_TRY(AppendExecutionStats(on_top, verbosity, out));
  }
  return Ok();
}

void FindExecutor::AppendPlan(const CandidatePlan& plan, const std::vector<ExplainStage>& on_top,
                              size_t at, bool stats, bool first, BsonBuilder& out) const {
  if (first) out.Append("isCached", from_cache_);
  if (at == on_top.size()) {
    plan.root->Explain(stats, out);
    return;
  }
  const ExplainStage& stage = on_top[at];
  out.Append("stage", stage.stage);
  if (stats) {
    StageStats s = plan.root->stats();
    s.advanced = stage.n_returned;
    s.need_time = std::max<int64_t>(0, s.works - s.advanced - 1);
    s.eof = true;
    AppendStageStats(s, out);
  }
  if (stage.plan_fields) stage.plan_fields(out);
  if (stats && stage.stats_fields) stage.stats_fields(out);
  auto input = out.OpenDocument("inputStage");
  AppendPlan(plan, on_top, at + 1, stats, false, input);
}

Result<void> FindExecutor::AppendQueryPlanner(const std::vector<ExplainStage>& on_top,
                                              ExplainVerbosity, BsonBuilder& out) {
  MakeShape();
  std::string key = shape_;
  if (ctx_.coll != nullptr)
    for (const auto& i : ctx_.coll->indexes) key += "\n" + i->name;
  auto planner = out.OpenDocument("queryPlanner");
  planner.Append("namespace", ns_);
  // A larger query would leave no room for the plans in the reply.
  constexpr size_t kMaxQuery = 10 * 1024 * 1024;
  const BsonDocument query = BuildBson([&](BsonBuilder& b) {
    if (match_ != nullptr) match_->Serialize(b);
  });
  if (query.view().size() <= kMaxQuery) {
    planner.Append("parsedQuery", query);
  } else {
    planner.Append("warning",
                   "parsedQuery of " + std::to_string(query.view().size()) + " bytes is not shown");
  }
  planner.Append("indexFilterSet", input_->allowed != nullptr);
  std::string shape = HashText(ShapeHash(shape_));
  planner.Append("queryHash", shape).Append("planCacheShapeHash", shape);
  planner.Append("planCacheKey", HashText(ShapeHash(key)));
  planner.Append("optimizationTimeMillis", static_cast<int32_t>(planning_micros_ / 1000));
  planner.Append("maxIndexedOrSolutionsReached", false);
  planner.Append("maxIndexedAndSolutionsReached", false);
  planner.Append("maxScansToExplodeReached", false);
  planner.Append("prunedSimilarIndexes", false);
  {
    auto winning = planner.OpenDocument("winningPlan");
    AppendPlan(winner_, on_top, 0, false, true, winning);
  }
  auto rejected = planner.OpenArray("rejectedPlans");
  for (const auto& plan : rejected_) {
    auto one = rejected.OpenDocument();
    AppendPlan(plan, on_top, 0, false, true, one);
  }
  return Ok();
}

Result<void> FindExecutor::AppendExecutionStats(const std::vector<ExplainStage>& on_top,
                                                ExplainVerbosity verbosity, BsonBuilder& out) {
  int64_t keys = 0, docs = 0;
  winner_.root->AddExamined(&keys, &docs);
  auto stats = out.OpenDocument("executionStats");
  stats.Append("executionSuccess", true);
  stats.Append("nReturned", on_top.empty() ? returned_ : on_top[0].n_returned);
  int64_t millis = (ctx_.op->clock().MonotonicMicros() - started_micros_) / 1000;
  stats.Append("executionTimeMillis", static_cast<int32_t>(millis));
  stats.Append("totalKeysExamined", keys).Append("totalDocsExamined", docs);
  {
    auto stages = stats.OpenDocument("executionStages");
    AppendPlan(winner_, on_top, 0, true, true, stages);
  }
  if (verbosity != ExplainVerbosity::kAllPlansExecution) return Ok();
  auto all = stats.OpenArray("allPlansExecution");
  for (size_t i = 0; i < trial_.size(); ++i) {
    auto one = all.OpenDocument();
    int64_t k = trial_keys_, d = trial_docs_;
    if (i > 0) {
      k = d = 0;
      rejected_[i - 1].root->AddExamined(&k, &d);
    }
    one.Append("nReturned", trial_[i].advanced);
    one.Append("executionTimeMillisEstimate",
               i == 0 ? int64_t{0} : rejected_[i - 1].root->stats().micros / 1000);
    one.Append("totalKeysExamined", k).Append("totalDocsExamined", d);
    one.Append("score", trial_[i].score);
    if (i == 0) {
      one.Append("executionStages", *winner_trial_);
    } else {
      auto stages = one.OpenDocument("executionStages");
      rejected_[i - 1].root->Explain(true, stages);
    }
  }
  return Ok();
}

namespace {
void CollectSummaries(const PlanStage& stage, std::vector<std::string>* summaries,
                      std::vector<std::string>* indexes) {
  std::string s = stage.Summary();
  auto add = [](std::vector<std::string>* list, const std::string& text) {
    if (std::find(list->begin(), list->end(), text) == list->end()) list->push_back(text);
  };
  if (!s.empty()) {
    add(summaries, s);
    if (stage.index() != nullptr)
      add(indexes, stage.index()->name);
    else if (s != "COLLSCAN")
      add(indexes, "_id_");
  }
  for (const auto& c : stage.children()) CollectSummaries(*c, summaries, indexes);
}
}  // namespace

std::string FindExecutor::PlanSummary() const {
  // Nearly every plan is one access to the data below stages that have nothing to report.
  const PlanStage* stage = winner_.root.get();
  while (stage->children().size() == 1 && stage->index() == nullptr)
    stage = stage->children()[0].get();
  if (stage->children().empty())
    if (std::string s = stage->Summary(); !s.empty()) return s;
  std::vector<std::string> summaries, indexes;
  CollectSummaries(*winner_.root, &summaries, &indexes);
  if (summaries.empty()) return "EOF";
  std::string out;
  for (const auto& s : summaries) out += (out.empty() ? "" : ", ") + s;
  return out;
}

std::vector<std::string> FindExecutor::IndexesUsed() const {
  std::vector<std::string> summaries, indexes;
  CollectSummaries(*winner_.root, &summaries, &indexes);
  return indexes;
}

Result<std::unique_ptr<PlanExecutor>> MakeFindExecutor(Storage& storage, Operation& op,
                                                       QuerySpec spec) {
  auto executor = std::make_unique<FindExecutor>(storage, op);
  MAYFLY_TRY(executor->Open(std::move(spec), false));
  return std::unique_ptr<PlanExecutor>(std::move(executor));
}

void ClearPlanCache(Storage& storage, const CollectionInfo& coll) {
  QueryState::Of(storage).plans.Clear(coll);
}

void ForEachCachedPlan(Storage& storage, const CollectionInfo& coll,
                       const std::function<void(BsonView)>& each) {
  QueryState::Of(storage).plans.ForEach(coll, [&](const PlanCache::Entry& e) {
    each(BuildBson([&](BsonBuilder& b) {
      b.Append("version", "1");
      std::string hash = HashText(e.shape_hash);
      b.Append("queryHash", hash).Append("planCacheShapeHash", hash).Append("planCacheKey", hash);
      b.Append("isActive", true).Append("works", e.works).Append("worksType", "works");
      b.Append("timeOfCreation", Instant{e.created_millis});
      b.Append("createdFromQuery", e.created_from);
      b.Append("cachedPlan", BuildBson([&](BsonBuilder& p) { p.Append("solution", e.signature); }));
      b.Append("indexFilterSet", false);
    }));
  });
}

}  // namespace mayfly
