#include "query/plan/key_filter.h"

#include <algorithm>
#include <bit>
#include <set>

#include "query/expression/operator.h"
#include "query/match/match_internal.h"
#include "query/plan/bounds_builder.h"
#include "storage/catalog/index_keys.h"
#include "storage/keys/key_encoding.h"

namespace mayfly {
namespace {

struct FieldAppender {
  const std::vector<IndexField>& fields;
  const std::vector<Value>& values;
  std::vector<bool> done;

  void Append(std::string_view prefix, BsonBuilder& out) {
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string_view path = fields[i].path;
      if (done[i] || !path.starts_with(prefix)) continue;
      const std::string_view rest = path.substr(prefix.size());
      const size_t dot = rest.find('.');
      if (dot == std::string_view::npos) {
        done[i] = true;
        out.Append(rest, values[i].view());
        continue;
      }
      auto inner = out.OpenDocument(rest.substr(0, dot));
      Append(path.substr(0, prefix.size() + dot + 1), inner);
    }
  }
};

constexpr size_t kNoField = SIZE_MAX;

/// The field of the index that `path` is, if its keys have what documents have there.
size_t FieldAt(const IndexInfo& index, uint64_t multikey, std::string_view path) {
  for (size_t i = 0; i < index.fields.size(); ++i) {
    if (index.fields[i].path != path) continue;
    if ((multikey >> std::min<size_t>(i, 63) & 1) != 0) return kNoField;
    // "a.0" reaches into an array without making the index multikey.
    return match::HasNumericPart(path) ? kNoField : i;
  }
  return kNoField;
}

bool OneLiesInTheOther(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  return b.size() > a.size() && b.starts_with(a) && b[a.size()] == '.';
}

}  // namespace

void AppendKeyFields(const std::vector<IndexField>& fields, const std::vector<Value>& values,
                     BsonBuilder& out) {
  FieldAppender{fields, values, std::vector<bool>(values.size())}.Append("", out);
}

bool KeyFilter::Compile(const IndexInfo& index, uint64_t multikey, const MatchExpression& e,
                        Node* out) {
  out->expression = &e;
  switch (e.kind) {
    case MatchKind::kAnd:
    case MatchKind::kOr:
    case MatchKind::kNor:
    case MatchKind::kNot:
    case MatchKind::kAll:
      for (const auto& c : e.children)
        if (!Compile(index, multikey, *c, &out->children.emplace_back())) return false;
      return true;
    case MatchKind::kAlwaysTrue:
    case MatchKind::kAlwaysFalse:
      return true;
    case MatchKind::kExpr: {
      std::set<std::string> paths;
      e.extra->expr->AddDependencies(&paths);
      if (paths.empty()) return false;
      for (const std::string& path : paths) {
        const size_t field = FieldAt(index, multikey, path);
        if (field == kNoField) return false;
        for (size_t other : out->reads)
          if (OneLiesInTheOther(path, index.fields[other].path)) return false;
        out->reads.push_back(field);
        out->read_fields.push_back(index.fields[field]);
      }
      return true;
    }
    case MatchKind::kWhere:
    case MatchKind::kJsonSchema:
      return false;
    default:
      out->field = FieldAt(index, multikey, e.path);
      return !e.path.empty() && out->field != kNoField;
  }
}

/// A condition that holds if one element of an array satisfies it. The keys of a document are its
/// elements beside the same values of the other fields, so a document that matches has a key that
/// satisfies the condition, and the scan comes to it if its bounds have room for all such keys.
bool KeyFilter::CompileOnElements(const IndexInfo& index, uint64_t multikey,
                                  const IndexBounds& bounds, const MatchExpression& e, Node* out) {
  switch (e.kind) {
    case MatchKind::kRegex:
    case MatchKind::kMod:
    case MatchKind::kType:
    case MatchKind::kBitsAllSet:
    case MatchKind::kBitsAllClear:
    case MatchKind::kBitsAnySet:
    case MatchKind::kBitsAnyClear:
      break;
    case MatchKind::kExists:
      if (!e.operand.view().Bool()) return false;
      break;
    default:
      return false;
  }
  // With arrays in two fields the keys pair elements, of which each may satisfy one condition only.
  if (std::popcount(multikey) != 1 || bounds.whole_key_range) return false;
  const auto field = static_cast<size_t>(std::countr_zero(multikey));
  // The last bit stands for all further fields.
  if (field >= std::min<size_t>(index.fields.size(), 63)) return false;
  if (index.fields[field].path != e.path || match::HasNumericPart(e.path)) return false;
  const std::optional<PredicateBounds> own = BoundsOf(e, true);
  if (!own || !bounds.fields[field].ContainsAll(own->list)) return false;
  out->expression = &e;
  out->field = field;
  return true;
}

size_t KeyFilter::NodesIn(const Node& node) {
  size_t n = 1;
  for (const Node& c : node.children) n += NodesIn(c);
  return n;
}

size_t KeyFilter::FieldsRead(const Node& node) {
  size_t n = 0;
  switch (node.expression->kind) {
    case MatchKind::kAnd:
    case MatchKind::kOr:
    case MatchKind::kNor:
    case MatchKind::kNot:
    case MatchKind::kAll:
      for (const Node& c : node.children) n = std::max(n, FieldsRead(c));
      return n;
    case MatchKind::kAlwaysTrue:
    case MatchKind::kAlwaysFalse:
      return 0;
    case MatchKind::kExpr:
      for (const size_t field : node.reads) n = std::max(n, field + 1);
      return n;
    default:
      return node.field + 1;
  }
}

KeyFilter KeyFilter::Take(const IndexInfo& index, uint64_t multikey,
                          std::vector<const MatchExpression*>* clauses,
                          const IndexBounds* elements) {
  KeyFilter filter;
  std::erase_if(*clauses, [&](const MatchExpression* c) {
    Node node{};
    if (!Compile(index, multikey, *c, &node)) {
      node = {};
      if (elements == nullptr || !CompileOnElements(index, multikey, *elements, *c, &node))
        return false;
      elements = nullptr;  // another condition may hold for another element
    }
    filter.decoded_ = std::max(filter.decoded_, FieldsRead(node));
    filter.made_ += NodesIn(node);
    filter.nodes_.push_back(std::move(node));
    filter.clauses_.clauses.push_back(c);
    return true;
  });
  return filter;
}

KeyFilter::Verdict KeyFilter::TestLeaf(const MatchExpression& e, BsonValue v, EvalContext& eval) {
  // The key of an empty array: there is none where the field has no arrays.
  if (v.Is(BsonType::kUndefined)) return Verdict::kUnknown;
  match::Run run{.ctx = &eval};
  const bool found = run.Single(e, v);
  if (run.error) return Verdict::kUnknown;
  if (v.IsNull() && run.Single(e, BsonValue()) != found) return Verdict::kUnknown;
  if (run.error) return Verdict::kUnknown;
  return found ? Verdict::kYes : Verdict::kNo;
}

KeyFilter::Verdict KeyFilter::TestExpression(const Node& node, EvalContext& eval) {
  read_.clear();
  for (size_t i : node.reads) {
    if (values_[i].view().IsNullish()) return Verdict::kUnknown;
    read_.push_back(Value::Borrow(values_[i].view()));
  }
  document_.clear();
  BsonBuilder b(document_);  // bounded: a part of a key
  AppendKeyFields(node.read_fields, read_, b);
  b.Done();
  Result<bool> found = node.expression->Matches(BsonView(document_), &eval);
  if (!found) return Verdict::kUnknown;
  return found.value() ? Verdict::kYes : Verdict::kNo;
}

KeyFilter::Verdict KeyFilter::Test(const Node& node, EvalContext& eval) {
  const auto negated = [](Verdict v) {
    if (v == Verdict::kUnknown) return v;
    return v == Verdict::kYes ? Verdict::kNo : Verdict::kYes;
  };
  switch (node.expression->kind) {
    case MatchKind::kAlwaysTrue:
      return Verdict::kYes;
    case MatchKind::kAlwaysFalse:
      return Verdict::kNo;
    case MatchKind::kAnd:
    case MatchKind::kAll: {
      Verdict all = Verdict::kYes;
      for (const Node& c : node.children) {
        const Verdict v = Test(c, eval);
        if (v == Verdict::kNo) return v;
        if (v == Verdict::kUnknown) all = v;
      }
      return all;
    }
    case MatchKind::kOr:
    case MatchKind::kNor:
    case MatchKind::kNot: {
      const bool is_or = node.expression->kind == MatchKind::kOr;
      Verdict any = Verdict::kNo;
      for (const Node& c : node.children) {
        const Verdict v = Test(c, eval);
        if (v == Verdict::kYes) return is_or ? v : Verdict::kNo;
        if (v == Verdict::kUnknown) any = v;
      }
      return is_or ? any : negated(any);
    }
    case MatchKind::kExpr:
      return TestExpression(node, eval);
    default:
      return TestLeaf(*node.expression, values_[node.field].view(), eval);
  }
}

KeyFilter::Verdict KeyFilter::Test(const IndexInfo& index, std::string_view key_values,
                                   std::string_view type_bits, EvalContext& eval) {
  values_.clear();
  if (HasCutValue(index, key_values)) return Verdict::kUnknown;
  for (size_t i = 0; i < decoded_; ++i) {
    Result<Value> v = DecodeKeyValue(&key_values, index.fields[i].descending, &type_bits);
    if (!v) return Verdict::kUnknown;
    values_.push_back(std::move(v).value());
  }
  Verdict all = Verdict::kYes;
  for (const Node& node : nodes_) {
    const Verdict v = Test(node, eval);
    if (v == Verdict::kNo) return v;
    if (v == Verdict::kUnknown) all = v;
  }
  return all;
}

}  // namespace mayfly
