#include "query/match/explain_mismatch.h"

#include "query/expression/nesting.h"
#include "query/expression/parse_work.h"
#include "query/match/match_internal.h"

namespace mayfly {

namespace {

using match::WalkPath;

struct Explainer {
  BsonView doc;
  Instant now;

  bool Matches(BsonView filter) const {
    VariableScope scope;
    MatchParseOptions options;
    options.scope = &scope;
    Result<MatchPtr> parsed = ParseMatch(filter, options);
    if (!parsed) return false;
    EvalContext ctx;
    ctx.root = doc;
    ctx.now = now;
    ctx.op = ParseWork::Asked();
    ctx.variables.resize(static_cast<size_t>(scope.slots()));
    Result<bool> r = parsed.value()->Matches(doc, &ctx);
    return r.has_value() && r.value();
  }

  /// `wanted`: whether the filter should have matched; its details say why it did the opposite.
  void Filter(BsonView filter, bool wanted, BsonBuilder& out) const;
  void Clause(BsonView clause, bool wanted, BsonBuilder& out) const;
  void Logical(std::string_view name, BsonView members, bool wanted, BsonBuilder& out) const;
  void Predicate(std::string_view path, const BsonElement& op, BsonView clause, bool wanted,
                 BsonBuilder& out) const;
  void Expr(BsonView clause, bool wanted, BsonBuilder& out) const;
  void Considered(std::string_view path, bool leaf_arrays, bool types, std::string_view reason,
                  BsonBuilder& out) const;
};

bool IsOperators(BsonValue v) {
  return v.IsDocument() && v.Document().First().name.starts_with('$') &&
         v.Document().First().name != "$ref" && v.Document().First().name != "$id" &&
         v.Document().First().name != "$db";
}

/// The filter taken apart into filters of one operator each.
std::vector<BsonDocument> OneOperatorEach(BsonView filter) {
  std::vector<BsonDocument> out;
  for (const BsonElement& e : filter) {
    if (e.name == "$comment") continue;
    if (e.name.starts_with('$') || !IsOperators(e.value)) {
      out.push_back(BuildBson([&](BsonBuilder& b) { b.Append(e); }));
      continue;
    }
    const BsonView ops = e.value.Document();
    for (const BsonElement& op : ops) {
      if (op.name == "$options") continue;  // stands with its $regex
      out.push_back(BuildBson([&](BsonBuilder& b) {
        BsonBuilder inner = b.OpenDocument(e.name);
        inner.Append(op);
        if (op.name == "$regex") inner.Append("$options", ops["$options"]);
      }));
    }
  }
  return out;
}

void Explainer::Filter(BsonView filter, bool wanted, BsonBuilder& out) const {
  std::vector<BsonDocument> clauses = OneOperatorEach(filter);
  if (clauses.size() == 1) return Clause(clauses[0], wanted, out);
  out.Append("operatorName", "$and");
  BsonArrayBuilder list = out.OpenArray(wanted ? "clausesNotSatisfied" : "clausesSatisfied");
  for (size_t i = 0; i < clauses.size(); ++i) {
    if (match::ExplanationTooLong(list.raw().buffer().size())) break;
    if (Matches(clauses[i]) == wanted) continue;
    BsonBuilder entry = list.OpenDocument();
    entry.Append("index", static_cast<int32_t>(i));
    BsonBuilder details = entry.OpenDocument("details");
    Clause(clauses[i], wanted, details);
  }
}

void Explainer::Logical(std::string_view name, BsonView members, bool wanted,
                        BsonBuilder& out) const {
  out.Append("operatorName", name);
  const bool inner = name == "$nor" ? !wanted : wanted;
  BsonArrayBuilder list = out.OpenArray(inner ? "clausesNotSatisfied" : "clausesSatisfied");
  int32_t i = 0;
  for (const BsonElement& m : members) {
    const int32_t index = i++;
    if (match::ExplanationTooLong(list.raw().buffer().size())) break;
    if (Matches(m.value.Document()) == inner) continue;
    BsonBuilder entry = list.OpenDocument();
    entry.Append("index", index);
    BsonBuilder details = entry.OpenDocument("details");
    Filter(m.value.Document(), inner, details);
  }
}

void Explainer::Clause(BsonView clause, bool wanted, BsonBuilder& out) const {
  const BsonElement e = clause.First();
  if (e.name == "$and" || e.name == "$or" || e.name == "$nor")
    return Logical(e.name, e.value.Document(), wanted, out);
  if (e.name == "$expr") return Expr(clause, wanted, out);
  if (e.name == "$jsonSchema") {
    out.Append("operatorName", e.name);
    if (!wanted) {
      out.Append("specifiedAs", clause).Append("reason", "schema matched");
      return;
    }
    const BsonView schema = e.value.Document();
    out.Append("title", schema["title"]).Append("description", schema["description"]);
    BsonArrayBuilder rules = out.OpenArray("schemaRulesNotSatisfied");
    match::ExplainSchema(schema, doc.AsValue(), rules);
    return;
  }
  if (e.name.starts_with('$')) {  // $alwaysFalse and the like
    out.Append("operatorName", e.name).Append("specifiedAs", clause);
    out.Append("reason", wanted ? "expression always evaluates to false"
                                : "expression always evaluates to true");
    return;
  }
  if (IsOperators(e.value))
    return Predicate(e.name, e.value.Document().First(), clause, wanted, out);
  Predicate(e.name, {e.value.Is(BsonType::kRegex) ? "$regex" : "$eq", e.value}, clause, wanted,
            out);
}

void Explainer::Expr(BsonView clause, bool wanted, BsonBuilder& out) const {
  out.Append("operatorName", "$expr").Append("specifiedAs", clause);
  out.Append("reason", wanted ? "expression did not match" : "expression did match");
  VariableScope scope;
  Result<ExpressionPtr> parsed = ParseExpression(clause.First().value, scope);
  if (!parsed) return;
  EvalContext ctx;
  ctx.root = doc;
  ctx.now = now;
  ctx.op = ParseWork::Asked();
  ctx.variables.resize(static_cast<size_t>(scope.slots()));
  Result<Value> v = parsed.value()->Evaluate(ctx);
  if (v && v.value().view().size() <= static_cast<uint32_t>(kMaxBsonUserSize))
    out.Append("expressionResult", v.value().view());
}

void Explainer::Considered(std::string_view path, bool leaf_arrays, bool types,
                           std::string_view reason, BsonBuilder& out) const {
  std::vector<BsonValue> seen;
  auto collect = [&](BsonValue v, int) {
    if (!v.missing()) seen.push_back(v);
    return false;
  };
  match::AmbiguousSteps steps(ParseWork::Asked());
  WalkPath(doc, path, leaf_arrays, -1, collect, steps);
  if (seen.empty()) {
    out.Append("reason", "field was missing");
    return;
  }
  out.Append("reason", reason);
  if (seen.size() == 1) {
    out.Append("consideredValue", seen[0]);
    if (types) out.Append("consideredType", BsonTypeName(seen[0].type()));
    return;
  }
  {
    BsonArrayBuilder values = out.OpenArray("consideredValues");
    for (BsonValue v : seen) values.Append(v);
  }
  if (!types) return;
  BsonArrayBuilder names = out.OpenArray("consideredTypes");
  for (BsonValue v : seen) names.Append(BsonTypeName(v.type()));
}

void Explainer::Predicate(std::string_view path, const BsonElement& op, BsonView clause,
                          bool wanted, BsonBuilder& out) const {
  const std::string_view name = op.name;
  out.Append("operatorName", name);
  if (name == "$not") {
    BsonDocument inner = BuildBson([&](BsonBuilder& b) { b.Append(path, op.value); });
    BsonBuilder details = out.OpenDocument("details");
    return Filter(inner, !wanted, details);
  }
  out.Append("specifiedAs", clause);
  if (name == "$exists") {
    const bool there = op.value.Truthy() != wanted;
    out.Append("reason", there ? "path does exist" : "path does not exist");
    return;
  }
  struct Text {
    std::string_view name, failed, succeeded;
    bool leaf_arrays = true;
  };
  static constexpr Text kTexts[] = {
      {"$ne", "comparison succeeded", "comparison failed"},
      {"$in", "no matching value found in array", "matching value found in array"},
      {"$nin", "matching value found in array", "no matching value found in array"},
      {"$type", "type did not match", "type did match"},
      {"$regex", "regular expression did not match", "regular expression did match"},
      {"$mod", "$mod did not evaluate to expected remainder",
       "$mod did evaluate to expected remainder"},
      {"$size", "array length was not equal to given size", "array length was equal to given size",
       false},
      {"$all", "array did not contain all specified values",
       "array did contain all specified values", false},
      {"$elemMatch", "array did not satisfy the child predicate",
       "array did satisfy the child predicate", false},
      {"$bitsAllSet", "bitwise operator failed to match", "bitwise operator matched successfully"},
      {"$bitsAllClear", "bitwise operator failed to match",
       "bitwise operator matched successfully"},
      {"$bitsAnySet", "bitwise operator failed to match", "bitwise operator matched successfully"},
      {"$bitsAnyClear", "bitwise operator failed to match",
       "bitwise operator matched successfully"}};
  for (const Text& t : kTexts) {
    if (t.name != name) continue;
    Considered(path, t.leaf_arrays, name == "$type", wanted ? t.failed : t.succeeded, out);
    return;
  }
  Considered(path, true, false, wanted ? "comparison failed" : "comparison succeeded", out);
}

}  // namespace

BsonDocument ExplainMismatch(BsonView filter, BsonView doc, Instant now) {
  Explainer explainer{doc, now};
  BsonDocument details = BuildBson([&](BsonBuilder& b) { explainer.Filter(filter, true, b); });
  // The reply around it comes on top.
  constexpr int kAround = 8;
  if (!NestsDeeper(details.view().AsValue(), kMaxValueDepth - kAround)) return details;
  return BuildBson(
      [](BsonBuilder& b) { b.Append("reason", "the details nest too deep to be shown"); });
}

bool match::ExplanationTooLong(size_t bytes) {
  constexpr size_t kMaxBytes = 1 << 20;
  return bytes > kMaxBytes || !ParseWork::Step();
}

}  // namespace mayfly
