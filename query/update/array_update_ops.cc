// Operators on one array: $addToSet $pop $pull $pullAll $push.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "protocol/bson_compare.h"
#include "protocol/cut_text.h"
#include "query/expression/element_text.h"
#include "query/expression/insert_prepare.h"
#include "query/expression/options_once.h"
#include "query/expression/pace.h"
#include "query/expression/parse_work.h"
#include "query/match/match_expression.h"
#include "query/update/update_node.h"
#include "storage/operation.h"

namespace mayfly::update {
namespace {

std::string TypeText(BsonValue v) { return std::string(BsonTypeName(v.type())); }

using OperandSet = std::unordered_set<BsonValue, BsonValueHash, BsonValueEqual>;

/// Of a value in a set of them, about.
constexpr size_t kInSetBytes = 64;

/// Writes the array of `values` as the element of `t`.
Result<void> EmitArray(const Target& t, std::span<const BsonValue> values, Pace& pace) {
  EmitHeader(t.out, BsonType::kArray, t.name);
  BsonArrayBuilder b(t.out);
  for (BsonValue v : values) {
    MAYFLY_TRY(pace.Step(v.size()));
    b.Append(v);
  }
  b.Done();
  return Ok();
}

/// Writes `old` (an array, or missing) followed by `added`, copying the old elements in one piece.
Result<void> EmitAppended(const Target& t, int old_count, std::span<const BsonValue> added,
                          Pace& pace) {
  EmitHeader(t.out, BsonType::kArray, t.name);
  size_t start = t.out.size();
  // bounded: a document and what the update gives
  t.out.append(4, '\0');
  if (!t.old.missing()) t.out.append(t.old.data() + 4, t.old.size() - 5);
  char name[12];
  for (BsonValue v : added) {
    MAYFLY_TRY(pace.Step(v.size()));
    auto end = std::to_chars(name, name + sizeof name, old_count++).ptr;
    Emit(t.out, {name, static_cast<size_t>(end - name)}, v);
  }
  t.out.push_back('\0');
  StoreLe<int32_t>(t.out.data() + start, static_cast<int32_t>(t.out.size() - start));
  return Ok();
}

/// The elements of a document's array, or none of what is missing.
Result<std::vector<BsonValue>> ArrayValues(BsonValue array, Pace& pace) {
  std::vector<BsonValue> out;
  if (!array.missing())
    for (const BsonElement& e : array.Document()) {
      MAYFLY_TRY(pace.Step());
      out.push_back(e.value);  // bounded: by a document
    }
  return out;
}

/// What an operator gives an array: there may be a million of them.
struct Operands {
  std::vector<BsonValue> values;
  int depth = 0;  ///< NestingDepth of the deepest

  /// Errors: those of ParseWork.
  Result<void> Add(BsonValue v) {
    MAYFLY_TRY(Step(v));
    ParseWork::Made(2 * sizeof v);  // a vector that doubles
    values.push_back(v);
    depth = std::max(depth, NestingDepth(v));
    return Ok();
  }
  Result<void> AddAll(BsonView array) {
    for (const BsonElement& e : array) {
      MAYFLY_TRY(Add(e.value));
    }
    return Ok();
  }
  /// Before one of them is looked at, hashed or compared.
  static Result<void> Step(BsonValue v) { return ParseWork::Step(1 + v.size() / kStepBytes); }

 private:
  static constexpr size_t kStepBytes = 256;
};

class AddToSetLeaf final : public Leaf {
 public:
  /// `operands`: each of them once.
  explicit AddToSetLeaf(Operands operands) : values_(std::move(operands.values)) {
    depth_ = 1 + operands.depth;
  }
  Result<Effect> Apply(const Target& t, const ApplyContext& ctx) const override {
    Pace pace(*ctx.eval);
    if (t.old.missing()) {
      MAYFLY_TRY(EmitArray(t, values_, pace));
      return Effect::kReplaced;
    }
    if (!t.old.IsArray())
      return BadValue("Cannot apply $addToSet to non-array field. Field named '" +
                      std::string(t.name) + "' has non-array type " + TypeText(t.old));
    int count = 0;
    std::vector<BsonValue> added;
    if (values_.size() <= 4) {
      added = values_;
      for (const BsonElement& e : t.old.Document()) {
        MAYFLY_TRY(pace.Step(e.value.size()));
        ++count;
        std::erase_if(added, [&](BsonValue v) { return ValuesEqual(v, e.value); });
      }
    } else {
      OperandSet present;
      for (const BsonElement& e : t.old.Document()) {
        MAYFLY_TRY(pace.Step(e.value.size()));
        ++count;
        present.insert(e.value);  // bounded: by a document
      }
      for (const BsonValue v : values_) {
        MAYFLY_TRY(pace.Step(v.size()));
        if (!present.contains(v)) added.push_back(v);
      }
    }
    if (added.empty()) return Effect::kUnchanged;
    MAYFLY_TRY(EmitAppended(t, count, added, pace));
    return Effect::kReplaced;
  }

 private:
  std::vector<BsonValue> values_;
};

class PopLeaf final : public Leaf {
 public:
  explicit PopLeaf(bool front) : front_(front) { on_blocked_ = OnBlocked::kCannotTraverse; }
  Result<Effect> Apply(const Target& t, const ApplyContext& ctx) const override {
    if (t.old.missing()) return Effect::kUnchanged;
    if (!t.old.IsArray())
      return TypeMismatch("Path '" + t.path.Dotted() + "' contains an element of non-array type '" +
                          TypeText(t.old) + "'");
    Pace pace(*ctx.eval);
    MAYFLY_TRY(std::vector<BsonValue> values, ArrayValues(t.old, pace));
    if (values.empty()) return Effect::kUnchanged;
    values.erase(front_ ? values.begin() : values.end() - 1);
    MAYFLY_TRY(EmitArray(t, values, pace));
    return Effect::kReplaced;
  }

 private:
  bool front_;
};

/// Shared by $pull and $pullAll: removes matching elements.
class CullingLeaf : public Leaf {
 public:
  CullingLeaf() { on_blocked_ = OnBlocked::kCannotTraverse; }
  Result<Effect> Apply(const Target& t, const ApplyContext& ctx) const override {
    if (t.old.missing()) return Effect::kUnchanged;
    if (!t.old.IsArray()) return BadValue("Cannot apply $pull to a non-array value");
    std::vector<BsonValue> kept;
    bool culled = false;
    std::string scratch;
    for (const BsonElement& e : t.old.Document()) {
      if (ctx.eval && ctx.eval->op) {
        MAYFLY_TRY(ctx.eval->op->CheckInterrupt());
      }
      MAYFLY_TRY(bool matches, Culls(e.value, ctx, scratch));
      if (matches) {
        culled = true;
      } else {
        kept.push_back(e.value);  // bounded: by a document
      }
    }
    if (!culled) return Effect::kUnchanged;
    Pace pace(*ctx.eval);
    MAYFLY_TRY(EmitArray(t, kept, pace));
    return Effect::kReplaced;
  }

 protected:
  virtual Result<bool> Culls(BsonValue v, const ApplyContext& ctx, std::string& scratch) const = 0;
};

class PullEqualLeaf final : public CullingLeaf {
 public:
  explicit PullEqualLeaf(BsonValue value) : value_(value) {}

 protected:
  Result<bool> Culls(BsonValue v, const ApplyContext&, std::string&) const override {
    return ValuesEqual(v, value_);
  }

 private:
  BsonValue value_;
};

/// A filter on elements that are documents.
class PullDocumentLeaf final : public CullingLeaf {
 public:
  explicit PullDocumentLeaf(MatchPtr match) : match_(std::move(match)) {}

 protected:
  Result<bool> Culls(BsonValue v, const ApplyContext& ctx, std::string&) const override {
    if (!v.IsDocument()) return false;
    return match_->Matches(v.Document(), ctx.eval);
  }

 private:
  MatchPtr match_;
};

/// Query operators on the element itself.
class PullOperatorLeaf final : public CullingLeaf {
 public:
  explicit PullOperatorLeaf(ElementFilter filter) : filter_(std::move(filter)) {}

 protected:
  Result<bool> Culls(BsonValue v, const ApplyContext& ctx, std::string& scratch) const override {
    return filter_.Matches(v, ctx, scratch);
  }

 private:
  ElementFilter filter_;
};

class PullAllLeaf final : public CullingLeaf {
 public:
  explicit PullAllLeaf(OperandSet values) : values_(std::move(values)) {}

 protected:
  Result<bool> Culls(BsonValue v, const ApplyContext&, std::string&) const override {
    return values_.contains(v);
  }

 private:
  OperandSet values_;
};

/// The order of $push's $sort.
struct ElementOrder {
  struct Key {
    std::string path;
    int direction;
  };
  int whole = 0;          ///< 1 or -1: by the element itself
  std::vector<Key> keys;  ///< else by these paths of elements that are documents

  static BsonValue Get(BsonValue v, std::string_view path) {
    static constexpr BsonValue kNull(BsonType::kNull, "", 0);
    BsonValue found = v.IsDocument() ? v.Document().FindPath(path) : BsonValue();
    return found.missing() ? kNull : found;
  }
  bool operator()(BsonValue a, BsonValue b) const {
    if (whole != 0) return whole * CompareValues(a, b) < 0;
    for (const Key& k : keys)
      if (int c = k.direction * CompareValues(Get(a, k.path), Get(b, k.path)); c != 0) return c < 0;
    return false;
  }
};

class PushLeaf final : public Leaf {
 public:
  struct Options {
    Operands given;
    std::optional<int64_t> slice, position;
    std::optional<ElementOrder> sort;
  };
  explicit PushLeaf(Options options) : o_(std::move(options)) { depth_ = 1 + o_.given.depth; }

  Result<Effect> Apply(const Target& t, const ApplyContext& ctx) const override {
    if (!t.old.missing() && !t.old.IsArray())
      return BadValue("The field '" + t.path.Dotted() + "' must be an array but is of type " +
                      TypeText(t.old) + " in document " + IdText(ctx.root));
    Pace pace(*ctx.eval);
    const std::vector<BsonValue>& given = o_.given.values;
    if (!o_.slice && !o_.position && !o_.sort) {
      if (given.empty() && !t.old.missing()) return Effect::kUnchanged;
      const int count = t.old.missing() ? 0 : t.old.Document().Count();
      MAYFLY_TRY(EmitAppended(t, count, given, pace));
      return Effect::kReplaced;
    }
    MAYFLY_TRY(std::vector<BsonValue> values, ArrayValues(t.old, pace));
    auto size = static_cast<int64_t>(values.size());
    int64_t at = size;
    if (o_.position)
      at = *o_.position >= 0 ? std::min(*o_.position, size)
                             : std::max<int64_t>(size + *o_.position, 0);
    values.insert(values.begin() + at, given.begin(), given.end());
    if (o_.sort) {
      // Each key is looked for in each element.
      const size_t keys = o_.sort->keys.size();
      MAYFLY_TRY(SortItems(*ctx.eval, values, *o_.sort,
                           [keys](BsonValue v) { return (v.size() + 32) * (keys + 1); }));
    }
    if (o_.slice) {
      size = static_cast<int64_t>(values.size());
      if (*o_.slice >= 0) {
        // bounded: it shrinks
        values.resize(static_cast<size_t>(std::min(*o_.slice, size)));
      } else if (*o_.slice > -size) {
        values.erase(values.begin(), values.end() + *o_.slice);
      }
    }
    size_t mark = t.out.size();
    MAYFLY_TRY(EmitArray(t, values, pace));
    if (!t.old.missing()) {
      std::string_view written = std::string_view(t.out).substr(mark + 2 + t.name.size());
      if (written == t.old.bytes()) {
        t.out.resize(mark);
        return Effect::kUnchanged;
      }
    }
    return Effect::kReplaced;
  }

 private:
  Options o_;
};

/// An integer in a number of any type without a fraction.
Result<int64_t> IntegerClause(BsonValue v, std::string_view name, std::string_view not_number) {
  int64_t n;
  if (!v.IsNumber()) return BadValue(std::string(not_number) + TypeText(v));
  if (!v.ExactInt64(&n))
    return BadValue("The value for " + std::string(name) +
                    " must be an integer value but was given: " + ValueText(v));
  return n;
}

Result<ElementOrder> ParseElementOrder(BsonValue v) {
  ElementOrder order;
  int64_t direction;
  if (v.IsNumber()) {
    if (!v.ExactInt64(&direction) || (direction != 1 && direction != -1))
      return BadValue("The $sort element value must be either 1 or -1");
    order.whole = static_cast<int>(direction);
    return order;
  }
  if (!v.IsDocument())
    return BadValue(
        "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort "
        "embedded fields");
  if (v.Document().empty())
    return BadValue("The $sort pattern is empty when it should be a set of fields.");
  MAYFLY_TRY(const std::optional<std::string_view> twice, RepeatedName(v.Document()));
  if (twice)
    return BadValue("The $sort pattern has the field '" + ShownText(*twice, 128) + "' twice");
  for (const BsonElement& key : v.Document()) {
    if (!key.value.IsNumber() || !key.value.ExactInt64(&direction) ||
        (direction != 1 && direction != -1))
      return BadValue("The $sort element value must be either 1 or -1");
    if (key.name.empty()) return BadValue("The $sort field cannot be empty");
    if (key.name.starts_with('.') || key.name.ends_with('.') ||
        key.name.find("..") != std::string_view::npos)
      return BadValue("The $sort field is a dotted field but has an empty part: " +
                      std::string(key.name));
    order.keys.push_back({std::string(key.name), static_cast<int>(direction)});
  }
  return order;
}

/// True for `{$gt: 1}`, false for `{$or: […]}` and `{a: 1}`.
bool IsValuePredicate(BsonView doc) {
  std::string_view first = doc.First().name;
  return first.starts_with('$') && first != "$and" && first != "$or" && first != "$nor" &&
         first != "$expr" && first != "$where" && first != "$comment" && first != "$jsonSchema" &&
         first != "$text" && first != "$ref" && first != "$id" && first != "$db" &&
         first != "$alwaysTrue" && first != "$alwaysFalse" && first != "$sampleRate";
}

/// $expr and the like see whole documents only.
Result<void> RefuseWholeDocumentOperators(BsonView filter) {
  for (const BsonElement& e : filter) {
    if (e.name == "$expr" || e.name == "$where" || e.name == "$text" || e.name == "$jsonSchema")
      return BadValue(std::string(e.name) + " is not allowed in this context");
    if ((e.name == "$and" || e.name == "$or" || e.name == "$nor") && e.value.IsArray())
      for (const BsonElement& branch : e.value.Document())
        if (branch.value.IsDocument()) {
          MAYFLY_TRY(RefuseWholeDocumentOperators(branch.value.Document()));
        }
  }
  return Ok();
}

}  // namespace

Result<LeafPtr> ParseAddToSet(const BsonElement& e, LeafParser&) {
  Operands operands;
  if (e.value.IsDocument() && e.value.Document().First().name == "$each") {
    BsonValue each = e.value.Document().First().value;
    if (!each.IsArray())
      return TypeMismatch(
          "The argument to $each in $addToSet must be an array but it was of type " +
          TypeText(each));
    if (e.value.Document().Count() > 1)
      return BadValue("Found unexpected fields after $each in $addToSet: " + ValueText(e.value));
    OperandSet seen;
    for (const BsonElement& v : each.Document()) {
      MAYFLY_TRY(Operands::Step(v.value));
      ParseWork::Made(kInSetBytes);
      if (!seen.insert(v.value).second) continue;
      MAYFLY_TRY(operands.Add(v.value));
    }
  } else {
    MAYFLY_TRY(operands.Add(e.value));
  }
  return LeafPtr(std::make_unique<AddToSetLeaf>(std::move(operands)));
}

Result<LeafPtr> ParsePop(const BsonElement& e, LeafParser&) {
  int64_t n;
  if (!e.value.IsNumber())
    return FailedToParse("Expected a number in: " + ElementText(e.name, e.value));
  if (!e.value.ExactInt64(&n))
    return FailedToParse("Expected an integer: " + ElementText(e.name, e.value));
  if (n != 1 && n != -1) return FailedToParse("$pop expects 1 or -1, found: " + std::to_string(n));
  return LeafPtr(std::make_unique<PopLeaf>(n == -1));
}

Result<LeafPtr> ParsePull(const BsonElement& e, LeafParser& parser) {
  if (e.value.IsDocument() && !IsValuePredicate(e.value.Document())) {
    MAYFLY_TRY(RefuseWholeDocumentOperators(e.value.Document()));
    MAYFLY_TRY(MatchPtr match, ParseMatch(e.value.Document(), {.scope = &parser.scope}));
    return LeafPtr(std::make_unique<PullDocumentLeaf>(std::move(match)));
  }
  if (e.value.IsDocument() || e.value.Is(BsonType::kRegex)) {
    ElementFilter filter{"v", nullptr};
    BsonDocument wrapped = BuildBson([&](BsonBuilder& b) { b.Append(filter.name, e.value); });
    MAYFLY_TRY(filter.match, ParseMatch(wrapped, {.scope = &parser.scope}));
    return LeafPtr(std::make_unique<PullOperatorLeaf>(std::move(filter)));
  }
  return LeafPtr(std::make_unique<PullEqualLeaf>(e.value));
}

Result<LeafPtr> ParsePullAll(const BsonElement& e, LeafParser&) {
  if (!e.value.IsArray())
    return BadValue("$pullAll requires an array argument but was given a " + TypeText(e.value));
  OperandSet values;
  for (const BsonElement& v : e.value.Document()) {
    MAYFLY_TRY(Operands::Step(v.value));
    ParseWork::Made(kInSetBytes);
    values.insert(v.value);
  }
  return LeafPtr(std::make_unique<PullAllLeaf>(std::move(values)));
}

Result<LeafPtr> ParsePush(const BsonElement& e, LeafParser&) {
  PushLeaf::Options o;
  if (!e.value.IsDocument() || !e.value.Document().Has("$each")) {
    MAYFLY_TRY(o.given.Add(e.value));
    return LeafPtr(std::make_unique<PushLeaf>(std::move(o)));
  }
  bool each = false;
  for (const BsonElement& clause : e.value.Document()) {
    if (clause.name == "$each") {
      if (each) return BadValue("Only one $each is supported.");
      each = true;
      if (!clause.value.IsArray())
        return BadValue("The argument to $each in $push must be an array but it was of type: " +
                        TypeText(clause.value));
      MAYFLY_TRY(o.given.AddAll(clause.value.Document()));
    } else if (clause.name == "$slice") {
      if (o.slice) return BadValue("Only one $slice is supported.");
      MAYFLY_TRY(
          o.slice,
          IntegerClause(clause.value, "$slice",
                        "The value for $slice must be an integer value but was given type: "));
    } else if (clause.name == "$position") {
      if (o.position) return BadValue("Only one $position is supported.");
      MAYFLY_TRY(o.position,
                 IntegerClause(clause.value, "$position",
                               "The value for $position must be an integer value, not of type: "));
    } else if (clause.name == "$sort") {
      if (o.sort) return BadValue("Only one $sort is supported.");
      MAYFLY_TRY(o.sort, ParseElementOrder(clause.value));
    } else {
      return BadValue("Unrecognized clause in $push: " + std::string(clause.name));
    }
  }
  return LeafPtr(std::make_unique<PushLeaf>(std::move(o)));
}

}  // namespace mayfly::update
