#include "query/match/explain_mismatch.h"

#include "query/expression/nesting.h"
#include "query/expression/parse_work.h"
#include "query/match/explanation.h"
#include "query/match/match_internal.h"

namespace mayfly {

namespace {

using match::ExplanationBuilder;
using match::ExplanationList;
using match::ExplanationRoom;
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
  void Filter(BsonView filter, bool wanted, ExplanationBuilder& out) const;
  void Clause(BsonView clause, bool wanted, ExplanationBuilder& out) const;
  void Logical(std::string_view name, BsonView members, bool wanted, ExplanationBuilder& out) const;
  void Predicate(std::string_view path, const BsonElement& op, BsonView clause, bool wanted,
                 ExplanationBuilder& out) const;
  void Expr(BsonView clause, bool wanted, ExplanationBuilder& out) const;
  void Considered(std::string_view path, bool leaf_arrays, bool types, std::string_view reason,
                  ExplanationBuilder& out) const;
};

bool IsOperators(BsonValue v) {
  return v.IsDocument() && v.Document().First().name.starts_with('$') &&
         v.Document().First().name != "$ref" && v.Document().First().name != "$id" &&
         v.Document().First().name != "$db";
}

/// The filter taken apart into filters of one operator each.
std::vector<BsonDocument> OneOperatorEach(BsonView filter, ExplanationRoom& room) {
  std::vector<BsonDocument> out;
  if (!room.TakeCopy(filter.size())) return out;
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

void Explainer::Filter(BsonView filter, bool wanted, ExplanationBuilder& out) const {
  std::vector<BsonDocument> clauses = OneOperatorEach(filter, out.room());
  if (clauses.size() == 1) return Clause(clauses[0], wanted, out);
  out.Append("operatorName", "$and");
  ExplanationList list = out.OpenArray(wanted ? "clausesNotSatisfied" : "clausesSatisfied");
  for (size_t i = 0; i < clauses.size(); ++i) {
    if (!list.room().GoOn()) break;
    if (Matches(clauses[i]) == wanted) continue;
    ExplanationBuilder entry = list.OpenDocument();
    entry.Append("index", static_cast<int32_t>(i));
    ExplanationBuilder details = entry.OpenDocument("details");
    Clause(clauses[i], wanted, details);
  }
}

void Explainer::Logical(std::string_view name, BsonView members, bool wanted,
                        ExplanationBuilder& out) const {
  out.Append("operatorName", name);
  const bool inner = name == "$nor" ? !wanted : wanted;
  ExplanationList list = out.OpenArray(inner ? "clausesNotSatisfied" : "clausesSatisfied");
  int32_t i = 0;
  for (const BsonElement& m : members) {
    const int32_t index = i++;
    if (!list.room().GoOn()) break;
    if (Matches(m.value.Document()) == inner) continue;
    ExplanationBuilder entry = list.OpenDocument();
    entry.Append("index", index);
    ExplanationBuilder details = entry.OpenDocument("details");
    Filter(m.value.Document(), inner, details);
  }
}

void Explainer::Clause(BsonView clause, bool wanted, ExplanationBuilder& out) const {
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
    ExplanationList rules = out.OpenArray("schemaRulesNotSatisfied");
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

void Explainer::Expr(BsonView clause, bool wanted, ExplanationBuilder& out) const {
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
  if (v) out.Append("expressionResult", v.value().view());
}

void Explainer::Considered(std::string_view path, bool leaf_arrays, bool types,
                           std::string_view reason, ExplanationBuilder& out) const {
  // Many ways may lead to a value, and each would show it: the walk ends when there is no room.
  std::vector<BsonValue> seen;
  size_t bytes = 0;
  auto collect = [&](BsonValue v, int) {
    if (v.missing()) return false;
    constexpr size_t kHeader = 3;  // an element's type, and at least one digit as its name
    bytes += kHeader + v.size();
    if (bytes > out.room().left()) {
      out.room().Cut();
      return true;
    }
    seen.push_back(v);
    return false;
  };
  match::AmbiguousSteps steps(ParseWork::Asked());
  WalkPath(doc, path, leaf_arrays, -1, collect, steps);
  if (seen.empty()) {
    if (steps.TooMany()) out.room().Cut();
    out.Append("reason", "field was missing");
    return;
  }
  if (steps.TooMany()) out.room().Cut();
  if (out.room().cut()) return;
  out.Append("reason", reason);
  if (seen.size() == 1) {
    out.Append("consideredValue", seen[0]);
    if (types) out.Append("consideredType", BsonTypeName(seen[0].type()));
    return;
  }
  {
    ExplanationList values = out.OpenArray("consideredValues");
    for (BsonValue v : seen) values.Append(v);
  }
  if (!types) return;
  ExplanationList names = out.OpenArray("consideredTypes");
  for (BsonValue v : seen) names.Append(BsonTypeName(v.type()));
}

void Explainer::Predicate(std::string_view path, const BsonElement& op, BsonView clause,
                          bool wanted, ExplanationBuilder& out) const {
  const std::string_view name = op.name;
  out.Append("operatorName", name);
  if (name == "$not") {
    if (!out.room().TakeCopy(path.size() + op.value.size())) return;
    const BsonDocument inner = BuildBson([&](BsonBuilder& b) { b.Append(path, op.value); });
    ExplanationBuilder details = out.OpenDocument("details");
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
  ExplanationRoom room(kMaxExplanation);
  std::string bytes;
  {
    ExplanationBuilder out(BsonBuilder(bytes), room);
    explainer.Filter(filter, true, out);
  }
  if (room.cut())
    return BuildBson([](BsonBuilder& b) {
      b.Append("reason", "the explanation is too long for a reply").Append("truncated", true);
    });
  BsonDocument details(std::move(bytes));
  // The reply around it comes on top.
  constexpr int kAround = 8;
  if (!NestsDeeper(details.view().AsValue(), kMaxValueDepth - kAround)) return details;
  return BuildBson(
      [](BsonBuilder& b) { b.Append("reason", "the details nest too deep to be shown"); });
}

}  // namespace mayfly
