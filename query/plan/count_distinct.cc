#include <unordered_set>

#include "protocol/bson_compare.h"
#include "protocol/large_memory.h"
#include "query/match/match_internal.h"
#include "query/plan/distinct_scan.h"
#include "query/plan/find_executor.h"

namespace mayfly {
namespace {

bool MatchesAll(const QuerySpec& spec) {
  if (spec.match != nullptr) return spec.match->kind == MatchKind::kAlwaysTrue;
  return spec.filter.empty();
}

bool NoHint(const QuerySpec& spec) {
  return spec.hint.missing() || (spec.hint.IsDocument() && spec.hint.Document().empty());
}

// --- count ---------------------------------------------------------------------------------------

class CountExecutorImpl final : public CountExecutor {
 public:
  CountExecutorImpl(Storage& storage, Operation& op)
      : storage_(storage), op_(op), find_(storage, op) {}

  Result<void> Open(QuerySpec spec) {
    skip_ = spec.skip;
    limit_ = spec.limit;
    if (skip_ < 0 || limit_ < 0)
      return Error{ErrorCode::kBadValue, "skip and limit must be non-negative"};
    spec.skip = spec.limit = 0;
    spec.sort = spec.projection = BsonView();
    if (spec.coll != nullptr && MatchesAll(spec) && NoHint(spec) && spec.min.empty() &&
        spec.max.empty() && !spec.include_expired) {
      fast_ = spec.coll;
      ns_ = spec.coll->ns;
      return Ok();
    }
    return find_.Open(std::move(spec), true);
  }

  Result<int64_t> Count() override {
    int64_t found = 0;
    if (fast_ != nullptr) {
      const ReadView& view = op_.view == nullptr ? Storage::kNow : *op_.view;
      MAYFLY_TRY(found, Visibility(storage_, *fast_, op_, false, view).CountVisible(op_, view));
    } else {
      MAYFLY_TRY(found, find_.CountRest(limit_ > 0 ? skip_ + limit_ : INT64_MAX));
    }
    skipped_ = std::min(skip_, found);
    counted_ = found - skipped_;
    if (limit_ > 0) counted_ = std::min(counted_, limit_);
    op_.n_returned = 0;
    return counted_;
  }

  Result<void> Explain(ExplainVerbosity verbosity, BsonBuilder& out) override {
    auto counts = [this](BsonBuilder& b) {
      b.Append("nCounted", counted_).Append("nSkipped", skipped_);
    };
    if (fast_ == nullptr) return find_.Explain(verbosity, {{"COUNT", nullptr, counts, 0}}, out);
    out.Append("explainVersion", "1");
    {
      auto planner = out.OpenDocument("queryPlanner");
      planner.Append("namespace", ns_).Append("indexFilterSet", false);
      planner.Append("maxIndexedOrSolutionsReached", false);
      planner.Append("maxIndexedAndSolutionsReached", false);
      planner.Append("maxScansToExplodeReached", false);
      {
        auto winning = planner.OpenDocument("winningPlan");
        winning.Append("isCached", false).Append("stage", "RECORD_STORE_FAST_COUNT");
      }
      planner.OpenArray("rejectedPlans");
    }
    if (verbosity == ExplainVerbosity::kQueryPlanner) return Ok();
    auto stats = out.OpenDocument("executionStats");
    stats.Append("executionSuccess", true).Append("nReturned", 0);
    stats.Append("executionTimeMillis", 0).Append("totalKeysExamined", 0);
    stats.Append("totalDocsExamined", 0);
    {
      auto stages = stats.OpenDocument("executionStages");
      stages.Append("stage", "RECORD_STORE_FAST_COUNT");
      AppendStageStats({.works = 1, .eof = true}, stages);
      counts(stages);
    }
    if (verbosity == ExplainVerbosity::kAllPlansExecution) stats.OpenArray("allPlansExecution");
    return Ok();
  }

  std::string PlanSummary() const override {
    return fast_ != nullptr ? "RECORD_STORE_FAST_COUNT" : find_.PlanSummary();
  }

 private:
  Storage& storage_;
  Operation& op_;
  FindExecutor find_;
  CollectionInfoPtr fast_;
  std::string ns_;
  int64_t skip_ = 0, limit_ = 0, counted_ = 0, skipped_ = 0;
};

// --- distinct ------------------------------------------------------------------------------------

class DistinctExecutorImpl final : public DistinctExecutor {
 public:
  DistinctExecutorImpl(Storage& storage, Operation& op, std::string_view key)
      : storage_(storage), op_(op), find_(storage, op), key_(key) {}

  Result<void> Open(QuerySpec spec) {
    spec.skip = spec.limit = 0;
    spec.sort = spec.projection = BsonView();
    // The plan must deliver documents even without a filter on them, because the values are read
    // from them.
    return find_.Open(std::move(spec), false,
                      [&](FindExecutor& e) { return ChooseDistinctScan(e); });
  }

  Result<void> Run(const std::function<Result<void>(BsonValue)>& each) override {
    each_ = &each;
    if (distinct_) return RunScan();
    while (true) {
      MAYFLY_TRY(auto state, find_.Next());
      if (state == PlanExecutor::State::kEof) return Ok();
      MAYFLY_TRY(Extract(find_.input_doc()));
    }
  }

  Result<void> Explain(ExplainVerbosity verbosity, BsonBuilder& out) override {
    return find_.Explain(verbosity, {}, out);
  }
  std::string PlanSummary() const override { return find_.PlanSummary(); }

 private:
  bool ChooseDistinctScan(FindExecutor& e) {
    distinct_ = PlanDistinctScan(e.input(), {.path = key_});
    if (!distinct_) return false;
    e.UsePlan(std::move(distinct_->plan));
    e.input().count_only = true;  // rows are keys
    return true;
  }

  Result<void> RunScan() {
    while (true) {
      MAYFLY_TRY(auto state, find_.Next());
      if (state == PlanExecutor::State::kEof) return Ok();
      Value value;
      MAYFLY_TRY(std::string_view same, distinct_->Prefix(find_.row(), &value));
      const std::string prefix(same);
      if (value.view().IsNullish()) {
        // Null, missing or an empty array: only the documents can tell which.
        Storage::Record record;
        MAYFLY_TRY(bool found, storage_.Fetch(*find_.context().coll, find_.record_key(), &record,
                                              find_.context().view));
        ++op_.docs_examined;
        if (!found) continue;
        MAYFLY_TRY(op_.Charge(record.doc.size()));
        MAYFLY_TRY(Extract(record.doc));
        if (!seen_.contains(Value::Borrow(value.view()))) continue;
      } else {
        MAYFLY_TRY(Emit(value.view()));
      }
      distinct_->scan->SkipValues(prefix);
    }
  }

  Result<void> Extract(BsonView doc) {
    Result<void> status = Ok();
    auto f = [&](BsonValue v, int) {
      if (v.missing()) return false;
      if (v.IsArray()) {
        for (const auto& e : v.Document()) {
          status = Emit(e.value);
          if (!status) return true;
        }
        return false;
      }
      status = Emit(v);
      return !status.has_value();
    };
    match::AmbiguousSteps steps(&op_);
    match::WalkPath(doc, key_, false, -1, f, steps);
    if (!status) return status;
    return steps.Status(key_);
  }

  Result<void> Emit(BsonValue v) {
    MAYFLY_TRY(op_.CheckInterrupt());
    if (seen_.contains(Value::Borrow(v))) return Ok();
    seen_bytes_ += v.size() + kPerValue;
    MAYFLY_TRY(hold_.Set(seen_bytes_));
    auto it = seen_.insert(Value::Copy(v)).first;
    return (*each_)(it->view());
  }

  struct Hash {
    size_t operator()(const Value& v) const { return HashValue(v.view()); }
  };
  struct Equal {
    bool operator()(const Value& a, const Value& b) const {
      return CompareValues(a.view(), b.view()) == 0;
    }
  };

  Storage& storage_;
  Operation& op_;
  FindExecutor find_;
  std::string key_;
  std::optional<DistinctScan> distinct_;
  const std::function<Result<void>(BsonValue)>* each_ = nullptr;
  std::unordered_set<Value, Hash, Equal> seen_;
  /// A node of `seen_`, with its place among the others and what allocating it takes.
  static constexpr size_t kPerValue = sizeof(Value) + 4 * sizeof(void*);
  size_t seen_bytes_ = 0;  ///< of `seen_`
  large_memory::Hold hold_;
};

}  // namespace

Result<std::unique_ptr<CountExecutor>> MakeCountExecutor(Storage& storage, Operation& op,
                                                         QuerySpec spec) {
  auto e = std::make_unique<CountExecutorImpl>(storage, op);
  MAYFLY_TRY(e->Open(std::move(spec)));
  return std::unique_ptr<CountExecutor>(std::move(e));
}

Result<std::unique_ptr<DistinctExecutor>> MakeDistinctExecutor(Storage& storage, Operation& op,
                                                               QuerySpec spec,
                                                               std::string_view key) {
  auto e = std::make_unique<DistinctExecutorImpl>(storage, op, key);
  MAYFLY_TRY(e->Open(std::move(spec)));
  return std::unique_ptr<DistinctExecutor>(std::move(e));
}

}  // namespace mayfly
