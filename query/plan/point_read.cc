#include "query/expression/nesting.h"
#include "query/expression/operator.h"
#include "query/expression/options_once.h"
#include "query/expression/parse_work.h"
#include "query/plan/executor.h"
#include "query/projection/projection.h"
#include "storage/read/visibility.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

/// A value that `{_id: value}` compares for equality.
bool IsPlainId(BsonValue v) {
  switch (v.type()) {
    case BsonType::kMissing:
    case BsonType::kUndefined:
    case BsonType::kArray:
    case BsonType::kRegex:
      return false;
    case BsonType::kDocument: {
      auto it = v.Document().begin();
      return it == v.Document().end() || !it->name.starts_with('$');
    }
    default:
      return true;
  }
}

/// Whether a projection may ask for something that only a plan knows: how it found a document, or
/// that there was no sort.
bool ReadsPlan(BsonView projection) {
  const std::string_view bytes = projection.bytes();
  if (bytes.find("$meta") == std::string_view::npos) return false;
  for (std::string_view what : {"sortKey", "recordId", "indexKey"})
    if (bytes.find(what) != std::string_view::npos) return true;
  return false;
}

}  // namespace

bool IsPointRead(const QuerySpec& spec, BsonValue* id) {
  if (spec.coll == nullptr || spec.coll->capped() || spec.coll->is_view()) return false;
  if (spec.skip != 0 || spec.tailable || spec.return_key || spec.show_record_id) return false;
  if (!spec.deadline_field.empty()) return false;
  if (!spec.min.empty() || !spec.max.empty()) return false;
  if (!spec.projection.empty() && ReadsPlan(spec.projection)) return false;
  if (!spec.hint.missing()) {
    bool id_hint = spec.hint.IsString() ? spec.hint.String() == "_id_"
                   : spec.hint.IsDocument()
                       ? spec.hint.Document().empty() ||
                             (spec.hint.Document().Count() == 1 &&
                              spec.hint.Document().First().name == "_id" &&
                              spec.hint.Document().First().value.NumberAsInt64() == 1)
                       : false;
    if (!id_hint) return false;
  }
  if (!spec.sort.empty()) {
    for (const auto& e : spec.sort) {
      int64_t order;
      if (e.name.empty() || e.name.find('$') != std::string_view::npos ||
          !e.value.ExactInt64(&order) || (order != 1 && order != -1))
        return false;
    }
  }
  if (spec.match != nullptr) {
    if (spec.match->kind != MatchKind::kEq || spec.match->path != "_id") return false;
    *id = spec.match->operand.view();
    return IsPlainId(*id);
  }
  auto it = spec.filter.begin();
  if (it == spec.filter.end() || it->name != "_id") return false;
  BsonValue v = it->value;
  if (++it != spec.filter.end()) return false;
  if (v.IsDocument()) {
    auto op = v.Document().begin();
    if (op != v.Document().end() && op->name == "$eq") {
      v = op->value;
      if (++op; !op->value.missing()) return false;
    }
  }
  if (!IsPlainId(v)) return false;
  *id = v;
  return true;
}

Result<int> RunPointRead(Storage& storage, Operation& op, const QuerySpec& spec, BsonValue id,
                         BsonArrayBuilder& batch, PointReadLimits* limits) {
  Storage::Record record;
  const ReadView& view = op.view == nullptr ? Storage::kNow : *op.view;
  MAYFLY_TRY(bool found, storage.FindById(*spec.coll, id, &record, view));
  const bool whole = spec.projection.empty() || spec.projection_is_hint;
  if (found && limits != nullptr && record.doc.size() > (whole ? limits->whole : limits->projected))
      [[unlikely]] {
    limits->longer = record.doc.size();
    return 0;
  }
  ++op.keys_examined;
  if (found) {
    ++op.docs_examined;
    const Visibility visible(storage, *spec.coll, op, spec.include_expired, view);
    found = visible.Shows(record.doc, record.expire_at);
    if (!found) {
      MAYFLY_TRY(visible.Stopped());
    }
  }
  if (whole) {
    if (!found) return 0;
    batch.Append(record.doc);
    ++op.n_returned;
    return 1;
  }
  std::optional<VariableScope> own_scope;
  VariableScope* scope = spec.scope;
  std::vector<Value> variables;
  if (spec.variables != nullptr) variables = *spec.variables;
  if (scope == nullptr) scope = &own_scope.emplace();
  if (!spec.let.empty()) {
    MAYFLY_TRY(EvaluateLet(spec.let, op, scope, &variables));
  }
  MatchPtr parsed;
  const MatchExpression* filter = spec.match.get();
  if (filter == nullptr) {  // a positional projection reads it
    MAYFLY_TRY(parsed, ParseMatch(spec.filter, {.scope = scope}));
    filter = parsed.get();
  }
  MAYFLY_TRY(auto projection, ParseFindProjection(spec.projection, filter, *scope));
  if (!found) return 0;  // errors of the projection are still reported
  EvalContext ctx;
  DocumentMetadata metadata;
  metadata.expire_at = record.expire_at;
  ctx.metadata = &metadata;
  ctx.now = op.now;
  ctx.cluster_time = op.cluster_time;
  ctx.op = &op;
  ctx.variables = std::move(variables);
  ctx.variables.resize(static_cast<size_t>(scope->slots()));
  auto out = batch.OpenDocument();
  MAYFLY_TRY(projection->Apply(record.doc, ctx, out));
  out.Done();
  ++op.n_returned;
  return 1;
}

Result<void> EvaluateLet(BsonView let, Operation& op, VariableScope* scope,
                         std::vector<Value>* variables) {
  ParseWork work(&op);
  EvalContext ctx;
  ctx.now = op.now;
  ctx.cluster_time = op.cluster_time;
  ctx.op = &op;
  ctx.variables = std::move(*variables);
  size_t made = 0;
  MAYFLY_TRY(CheckOptionsOnce("let", let.AsValue()));
  for (const auto& e : let) {
    MAYFLY_TRY(ParseWork::Step());
    MAYFLY_TRY(CheckVariableName(e.name));
    MAYFLY_TRY(auto expression, ParseExpression(e.value, *scope));
    std::set<std::string> paths;
    expression->AddDependencies(&paths);
    if (!paths.empty())
      return Error{
          LocationCode(4890500),
          "Command let Expression tried to access a field, but this is not allowed because "
          "command let expressions run before the query examines any documents."};
    ctx.variables.resize(static_cast<size_t>(scope->slots()));
    MAYFLY_TRY(Value value, expression->Evaluate(ctx));
    MAYFLY_TRY(CheckNesting(value.view()));
    VariableId id = scope->Define(e.name);
    ctx.variables.resize(static_cast<size_t>(scope->slots()));
    Value& place = ctx.variables[static_cast<size_t>(id)];
    place = std::move(value).Own();
    MAYFLY_TRY(const size_t bytes, ParseWork::MadeVariable(e.name, place.view().size()));
    made += bytes;
  }
  // The expressions are gone.
  MAYFLY_TRY(work.Keep(&scope->values_hold(), made));
  *variables = std::move(ctx.variables);
  return Ok();
}

}  // namespace mayfly
