#include "query/plan/plan_stage.h"

#include "query/plan/interval.h"

namespace mayfly {

void ResidualFilter::Explain(BsonBuilder& out) const {
  if (clauses.empty()) return;
  // A plan may have many stages and is shown several times. `parsedQuery` shows the whole filter.
  constexpr size_t kMaxExplained = 256 * 1024;
  const BsonDocument shown = BuildBson([&](BsonBuilder& filter) {
    if (clauses.size() == 1) {
      clauses[0]->Serialize(filter);
      return;
    }
    auto all = filter.OpenArray("$and");
    for (const auto* c : clauses) {
      auto one = all.OpenDocument();
      c->Serialize(one);
    }
  });
  if (shown.view().size() <= kMaxExplained) {
    out.Append("filter", shown);
  } else {
    out.Append("warning",
               "filter of " + std::to_string(shown.view().size()) + " bytes is not shown");
  }
}

void AppendStageStats(const StageStats& s, BsonBuilder& out) {
  out.Append("nReturned", s.advanced);
  out.Append("executionTimeMillisEstimate", s.micros / 1000);
  out.Append("works", s.works);
  out.Append("advanced", s.advanced);
  out.Append("needTime", s.need_time);
  out.Append("needYield", int64_t{0});
  out.Append("saveState", s.save_state);
  out.Append("restoreState", s.restore_state);
  out.Append("isEOF", int32_t{s.eof});
}

Result<StageState> PlanStage::TimedWork(Row* row) {
  int64_t begin = ctx_.op->clock().MonotonicMicros();
  Result<StageState> r = DoWork(row);
  stats_.micros += ctx_.op->clock().MonotonicMicros() - begin;
  return r;
}

void PlanStage::Explain(bool stats, BsonBuilder& out) const {
  out.Append("stage", name_);
  if (filter() != nullptr) filter()->Explain(out);
  if (stats) AppendStageStats(stats_, out);
  ExplainFields(out);
  if (stats) ExplainStats(out);
  if (children_.size() == 1) {
    auto input = out.OpenDocument("inputStage");
    children_[0]->Explain(stats, input);
  } else if (children_.size() > 1) {
    auto inputs = out.OpenArray("inputStages");
    for (const auto& c : children_) {
      auto input = inputs.OpenDocument();
      c->Explain(stats, input);
    }
  }
}

std::string KeyPatternText(BsonView key, std::string_view before) {
  std::string out;
  out.reserve(64);
  out.append(before).append("{ ");
  bool first = true;
  for (const auto& e : key) {
    if (!first) out += ", ";
    first = false;
    out += e.name;
    out += ": ";
    out += BoundText(e.value);
  }
  return out += " }";
}

}  // namespace mayfly
