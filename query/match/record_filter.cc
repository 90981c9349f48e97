#include "query/match/record_filter.h"

#include <atomic>

#include "protocol/large_memory.h"
#include "query/expression/parse_work.h"
#include "query/match/match_expression.h"

namespace mayfly {

namespace {

std::atomic<int64_t> g_bytes{0};  ///< of all compiled filters

class MatchRecordFilter : public RecordFilter {
 public:
  /// `bytes`: what it was parsed into.
  MatchRecordFilter(MatchPtr match, int slots, bool for_index, const Clock* clock, uint64_t bytes)
      : match_(std::move(match)),
        slots_(slots),
        for_index_(for_index),
        clock_(clock),
        bytes_(static_cast<int64_t>(bytes)) {
    g_bytes.fetch_add(bytes_, std::memory_order_relaxed);
  }
  ~MatchRecordFilter() override { g_bytes.fetch_sub(bytes_, std::memory_order_relaxed); }

  bool Matches(BsonView doc) const override {
    EvalContext ctx;
    // Never in the middle of an index's keys: what is interrupted does not match.
    if (!for_index_) ctx.op = ParseWork::Asked();
    if (slots_ > 0) {
      ctx.variables.resize(static_cast<size_t>(slots_));
      if (clock_ != nullptr) ctx.now = clock_->Now();
    }
    Result<bool> r = match_->Matches(doc, &ctx);
    return r.has_value() && r.value();
  }

 private:
  MatchPtr match_;
  int slots_;  // 0: no $expr in it, and so no need to make room for variables
  bool for_index_;
  const Clock* clock_;
  const int64_t bytes_;
};

bool HasExpr(const MatchExpression& e) {
  if (e.kind == MatchKind::kExpr) return true;
  for (const MatchPtr& c : e.children)
    if (HasExpr(*c)) return true;
  return false;
}

}  // namespace

Result<std::shared_ptr<const RecordFilter>> CompileRecordFilter(BsonView filter, bool for_index,
                                                                const Clock* clock) {
  VariableScope scope;
  MatchParseOptions options;
  options.scope = &scope;
  options.for_partial_index = for_index;
  ParseWork work(nullptr);
  MAYFLY_TRY(MatchPtr match, ParseMatch(filter, options));
  int slots = HasExpr(*match) ? scope.slots() : 0;
  return std::shared_ptr<const RecordFilter>(
      std::make_shared<MatchRecordFilter>(std::move(match), slots, for_index, clock, work.bytes()));
}

Result<void> CheckRecordFilters() {
  const int64_t bytes = g_bytes.load(std::memory_order_relaxed), most = large_memory::Limit() / 4;
  if (bytes <= most) return Ok();
  return Error{ErrorCode::kExceededMemoryLimit,
               "the validators and partial filters of all collections would take " +
                   std::to_string(bytes >> 20) + " MB of memory, more than the " +
                   std::to_string(most >> 20) + " MB they may: use fewer conditions"};
}

}  // namespace mayfly
