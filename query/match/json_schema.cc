#include "query/match/json_schema.h"

#include <algorithm>
#include <cmath>

#include "protocol/bson_compare.h"
#include "protocol/decimal128.h"
#include "query/expression/pace.h"
#include "query/expression/parse_work.h"
#include "query/match/match_internal.h"

namespace mayfly {

namespace {

void AppendNormalized(BsonBuilder& out, std::string_view name, BsonValue v) {
  if (v.IsDocument()) {
    std::vector<BsonElement> fields;
    for (const BsonElement& e : v.Document()) fields.push_back(e);
    std::stable_sort(fields.begin(), fields.end(),
                     [](const BsonElement& a, const BsonElement& b) { return a.name < b.name; });
    BsonBuilder sub = out.OpenDocument(name);
    for (const BsonElement& e : fields) AppendNormalized(sub, e.name, e.value);
  } else if (v.IsArray()) {
    BsonArrayBuilder sub = out.OpenArray(name);
    for (const BsonElement& e : v.Document()) AppendNormalized(sub.raw(), sub.NextName(), e.value);
  } else {
    out.Append(name, v);
  }
}

struct ByName {
  template <class Property>
  bool operator()(const Property& p, std::string_view name) const {
    return p.first < name;
  }
  template <class Property>
  bool operator()(std::string_view name, const Property& p) const {
    return name < p.first;
  }
};

bool LessValue(const Value& a, const Value& b) { return CompareValues(a.view(), b.view()) < 0; }

/// A schema may have as many rules as a document has fields, and each is looked at for each. False,
/// and `*error` set, when the operation is to stop.
bool GoOn(size_t cost, std::optional<Error>* error) {
  if (*error) return false;
  Result<void> r = ParseWork::Step(cost);
  if (r) [[likely]]
    return true;
  *error = std::move(r).error();
  return false;
}

/// Work as long as one step: comparing this many bytes, or skipping fields of this size.
constexpr size_t kBytesPerStep = 512;
size_t CostOf(BsonValue v) { return 1 + v.size() / kBytesPerStep; }

int64_t CodePoints(std::string_view s) {
  return std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

Value match::Normalized(BsonValue v) {
  if (!v.IsDocument() && !v.IsArray()) return Value::Borrow(v);
  BsonDocument doc = BuildBson([&](BsonBuilder& b) { AppendNormalized(b, "", v); });
  return Value::Copy(doc.view().First().value);
}

Result<bool> match::SortAndFindDuplicates(std::vector<Value>& values) {
  EvalContext ctx;
  ctx.op = ParseWork::Asked();
  MAYFLY_TRY(
      SortItems(ctx, values, LessValue, [](const Value& v) { return size_t{v.view().size()}; }));
  for (size_t i = 1; i < values.size(); ++i) {
    MAYFLY_TRY(ParseWork::Step(CostOf(values[i].view())));
    if (CompareValues(values[i - 1].view(), values[i].view()) == 0) return true;
  }
  return false;
}

Result<bool> JsonSchema::RepeatsItem(BsonView array) const {
  EvalContext ctx;
  ctx.op = ParseWork::Asked();
  Charge charge(ctx);
  std::vector<Value> values;
  size_t bytes = 0;
  for (const BsonElement& e : array) {
    MAYFLY_TRY(ParseWork::Step(CostOf(e.value)));
    values.push_back(match::Normalized(e.value));
    bytes += sizeof(Value) + (values.back().owns() ? e.value.size() : 0);
    MAYFLY_TRY(charge.Set(bytes));
  }
  return match::SortAndFindDuplicates(values);
}

bool JsonSchema::MatchesNumber(BsonValue v) const {
  if (!minimum_.missing() &&
      !match::Compare(exclusive_minimum_ ? MatchKind::kGt : MatchKind::kGte, minimum_.view(), v))
    return false;
  if (!maximum_.missing() &&
      !match::Compare(exclusive_maximum_ ? MatchKind::kLt : MatchKind::kLte, maximum_.view(), v))
    return false;
  if (!multiple_of_.missing()) {
    auto decimal = [](BsonValue n) {
      if (n.Is(BsonType::kDecimal128)) return n.Decimal();
      int64_t i;
      if (n.ExactInt64(&i)) return decimal128::FromInt64(i);
      return decimal128::FromDouble(n.NumberAsDouble());
    };
    Decimal128Bits rest = decimal128::Modulo(decimal(v), decimal(multiple_of_.view()));
    if (decimal128::IsNan(rest) || !decimal128::IsZero(rest)) return false;
  }
  return true;
}

bool JsonSchema::MatchesString(BsonValue v, std::optional<Error>* error) const {
  if (min_length_ || max_length_) {
    if (!GoOn(CostOf(v), error)) return false;
    int64_t n = CodePoints(v.String());
    if ((min_length_ && n < *min_length_) || (max_length_ && n > *max_length_)) return false;
  }
  if (!pattern_) return true;
  if (!GoOn(CompiledRegex::Cost(v.String()), error)) return false;
  Result<bool> r = pattern_->Matches(v.String(), ParseWork::Asked());
  if (r.has_value()) return r.value();
  *error = std::move(r).error();
  return false;
}

bool JsonSchema::MatchesObject(BsonView doc, std::optional<Error>* error) const {
  const size_t look = CostOf(doc.AsValue());
  for (const std::string& name : required_)
    if (!GoOn(look, error) || !doc.Has(name)) return false;
  if (min_properties_ || max_properties_) {
    if (!GoOn(look, error)) return false;
    int64_t n = doc.Count();
    if ((min_properties_ && n < *min_properties_) || (max_properties_ && n > *max_properties_))
      return false;
  }
  for (const Dependency& d : dependencies_) {
    if (!GoOn(look, error)) return false;
    if (!doc.Has(d.field)) continue;
    for (const std::string& name : d.required)
      if (!GoOn(look, error) || !doc.Has(name)) return false;
    if (d.schema && !d.schema->Matches(doc.AsValue(), error)) return false;
  }
  if (properties_.empty() && pattern_properties_.empty() && additional_properties_ &&
      !additional_properties_schema_)
    return true;
  for (const BsonElement& e : doc) {
    bool named = false;
    if (!GoOn(1, error)) return false;
    const auto [begin, end] =
        std::equal_range(properties_.begin(), properties_.end(), e.name, ByName());
    for (auto it = begin; it != end; ++it) {
      named = true;
      if (!it->second->Matches(e.value, error)) return false;
    }
    for (const auto& [regex, schema] : pattern_properties_) {
      if (!GoOn(CompiledRegex::Cost(e.name), error)) return false;
      Result<bool> r = regex->Matches(e.name, ParseWork::Asked());
      if (!r.has_value()) {
        *error = std::move(r).error();
        return false;
      }
      if (!r.value()) continue;
      named = true;
      if (!schema->Matches(e.value, error)) return false;
    }
    if (named) continue;
    if (!additional_properties_) return false;
    if (additional_properties_schema_ && !additional_properties_schema_->Matches(e.value, error))
      return false;
  }
  return true;
}

bool JsonSchema::MatchesArray(BsonView array, std::optional<Error>* error) const {
  if (min_items_ || max_items_) {
    if (!GoOn(1 + array.size() / kBytesPerStep, error)) return false;
    int64_t n = array.Count();
    if ((min_items_ && n < *min_items_) || (max_items_ && n > *max_items_)) return false;
  }
  if (items_ || tuple_) {
    size_t i = 0;
    for (const BsonElement& e : array) {
      if (!GoOn(1, error)) return false;
      if (items_) {
        if (!items_->Matches(e.value, error)) return false;
      } else if (i < tuple_->size()) {
        if (!(*tuple_)[i]->Matches(e.value, error)) return false;
      } else {
        if (!additional_items_) return false;
        if (additional_items_schema_ && !additional_items_schema_->Matches(e.value, error))
          return false;
      }
      ++i;
    }
  }
  if (unique_items_) {
    if (*error) return false;
    Result<bool> repeats = RepeatsItem(array);
    if (!repeats) {
      *error = std::move(repeats).error();
      return false;
    }
    if (repeats.value()) return false;
  }
  return true;
}

bool JsonSchema::Matches(BsonValue v, std::optional<Error>* error) const {
  if (!GoOn(1, error)) return false;
  if (types_ && !(*types_)[static_cast<uint8_t>(v.type())]) return false;
  if (enum_ && !GoOn(CostOf(v), error)) return false;
  if (enum_ && !std::binary_search(enum_->begin(), enum_->end(), match::Normalized(v), LessValue))
    return false;
  if (v.IsNumber()) {
    if (!MatchesNumber(v)) return false;
  } else if (v.IsString()) {
    if (!MatchesString(v, error)) return false;
  } else if (v.IsDocument()) {
    if (!MatchesObject(v.Document(), error)) return false;
  } else if (v.IsArray()) {
    if (!MatchesArray(v.Document(), error)) return false;
  }
  for (const Ptr& s : all_of_)
    if (!s->Matches(v, error)) return false;
  if (!any_of_.empty() && std::none_of(any_of_.begin(), any_of_.end(),
                                       [&](const Ptr& s) { return s->Matches(v, error); }))
    return false;
  if (!one_of_.empty() && std::count_if(one_of_.begin(), one_of_.end(),
                                        [&](const Ptr& s) { return s->Matches(v, error); }) != 1)
    return false;
  if (not_ && not_->Matches(v, error)) return false;
  return !*error;
}

}  // namespace mayfly
