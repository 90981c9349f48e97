#include "query/match/record_filter.h"

#include "protocol/large_memory.h"
#include "query/expression/parse_work.h"
#include "query/match/match_expression.h"
#include "query/match/match_internal.h"
#include "storage/catalog/index_keys.h"

namespace mayfly {

namespace {

/// $$USER_ROLES in stored filters: the same for every user's operation.
Value NoRoles() { return Value::Array(std::string("\5\0\0\0\0", 5)); }

class MatchRecordFilter : public RecordFilter {
 public:
  /// `bytes`: what it was parsed into. `held`: these, as large memory, where `match` does not hold
  /// them.
  MatchRecordFilter(MatchPtr match, int slots, bool for_index, const Clock* clock, uint64_t bytes,
                    large_memory::Hold held)
      : match_(std::move(match)),
        slots_(slots),
        for_index_(for_index),
        clock_(clock),
        bytes_(static_cast<int64_t>(bytes)),
        held_(std::move(held)) {
    budget_.compiled_filter_bytes.fetch_add(bytes_, std::memory_order_relaxed);
  }
  ~MatchRecordFilter() override {
    budget_.compiled_filter_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  }

  bool Matches(BsonView doc) const override {
    EvalContext ctx;
    // An interrupted filter does not match: its caller checks the operation again.
    ctx.op = FilteringFor::Asked();
    if (ctx.op == nullptr && !for_index_) ctx.op = ParseWork::Asked();
    if (slots_ > 0) {
      ctx.variables.resize(static_cast<size_t>(slots_));
      ctx.variables[VariableScope::kUserRoles] = NoRoles();
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
  const large_memory::Hold held_;
  large_memory::Budget& budget_ = large_memory::ThreadBudget();
};

bool HasExpr(const MatchExpression& e) {
  if (e.kind == MatchKind::kExpr) return true;
  for (const MatchPtr& c : e.children)
    if (HasExpr(*c)) return true;
  return false;
}

/// Drops the text of each `$jsonSchema`, which is only for display, and which the catalog has.
/// Returns the freed bytes.
size_t ForgetSources(MatchExpression& e) {
  size_t bytes = 0;
  if (e.kind == MatchKind::kJsonSchema) {
    auto lean = std::make_shared<MatchExpression::Extra>();
    lean->schema = e.extra->schema;
    bytes = e.extra->schema_source.bytes().size();
    e.extra = std::move(lean);
  }
  for (const MatchPtr& c : e.children) bytes += ForgetSources(*c);
  return bytes;
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
  // The root's part that counts a large parse goes with its text.
  const bool of_schema = match->kind == MatchKind::kJsonSchema;
  const uint64_t bytes = work.bytes() - ForgetSources(*match);
  large_memory::Hold held;
  if (of_schema) {
    MAYFLY_TRY(held.Set(bytes));
  }
  return std::shared_ptr<const RecordFilter>(std::make_shared<MatchRecordFilter>(
      std::move(match), slots, for_index, clock, bytes, std::move(held)));
}

Result<void> CheckRecordFilters() {
  const large_memory::Budget& budget = large_memory::ThreadBudget();
  const int64_t bytes = budget.compiled_filter_bytes.load(std::memory_order_relaxed),
                most = budget.limit() / 4;
  if (bytes <= most) return Ok();
  return Error{ErrorCode::kExceededMemoryLimit,
               "the validators and partial filters of all collections would take " +
                   std::to_string(bytes >> 20) + " MB of memory, more than the " +
                   std::to_string(most >> 20) + " MB they may: use fewer conditions"};
}

}  // namespace mayfly
