#include "query/match/json_schema.h"

#include <algorithm>
#include <cmath>

#include "protocol/bson_compare.h"
#include "protocol/decimal128.h"
#include "query/match/match_internal.h"
#include "query/parse_work.h"

namespace mayfly {

namespace {

/// The same value with the fields of every document in it in name order: `enum` and `uniqueItems`
/// compare documents without regard to order.
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

Value Normalized(BsonValue v) {
  if (!v.IsDocument() && !v.IsArray()) return Value::Borrow(v);
  BsonDocument doc = BuildBson([&](BsonBuilder& b) { AppendNormalized(b, "", v); });
  return Value::Copy(doc.view().First().value);
}

bool Less(const Value& a, const Value& b) { return CompareValues(a.view(), b.view()) < 0; }

bool HasDuplicates(std::vector<Value>& values) {
  std::sort(values.begin(), values.end(), Less);
  return std::adjacent_find(values.begin(), values.end(), [](const Value& a, const Value& b) {
           return CompareValues(a.view(), b.view()) == 0;
         }) != values.end();
}

int64_t CodePoints(std::string_view s) {
  return std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string Keyword(std::string_view name) {
  return "$jsonSchema keyword '" + std::string(name) + "'";
}

}  // namespace

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
    int64_t n = CodePoints(v.String());
    if ((min_length_ && n < *min_length_) || (max_length_ && n > *max_length_)) return false;
  }
  if (!pattern_) return true;
  Result<bool> r = pattern_->Matches(v.String());
  if (r.has_value()) return r.value();
  *error = std::move(r).error();
  return false;
}

bool JsonSchema::MatchesObject(BsonView doc, std::optional<Error>* error) const {
  for (const std::string& name : required_)
    if (!doc.Has(name)) return false;
  if (min_properties_ || max_properties_) {
    int64_t n = doc.Count();
    if ((min_properties_ && n < *min_properties_) || (max_properties_ && n > *max_properties_))
      return false;
  }
  for (const Dependency& d : dependencies_) {
    if (!doc.Has(d.field)) continue;
    for (const std::string& name : d.required)
      if (!doc.Has(name)) return false;
    if (d.schema && !d.schema->Matches(doc.AsValue(), error)) return false;
  }
  if (properties_.empty() && pattern_properties_.empty() && additional_properties_ &&
      !additional_properties_schema_)
    return true;
  for (const BsonElement& e : doc) {
    bool named = false;
    for (const auto& [name, schema] : properties_) {
      if (name != e.name) continue;
      named = true;
      if (!schema->Matches(e.value, error)) return false;
    }
    for (const auto& [regex, schema] : pattern_properties_) {
      Result<bool> r = regex->Matches(e.name);
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
    int64_t n = array.Count();
    if ((min_items_ && n < *min_items_) || (max_items_ && n > *max_items_)) return false;
  }
  if (items_ || tuple_) {
    size_t i = 0;
    for (const BsonElement& e : array) {
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
    std::vector<Value> values;
    for (const BsonElement& e : array) values.push_back(Normalized(e.value));
    if (HasDuplicates(values)) return false;
  }
  return true;
}

bool JsonSchema::Matches(BsonValue v, std::optional<Error>* error) const {
  if (types_ && !(*types_)[static_cast<uint8_t>(v.type())]) return false;
  if (enum_ && !std::binary_search(enum_->begin(), enum_->end(), Normalized(v), Less)) return false;
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

class JsonSchemaParser {
 public:
  using Ptr = JsonSchema::Ptr;

  static Result<Ptr> Sub(BsonValue v, std::string_view keyword) {
    if (!v.IsDocument())
      return Error{ErrorCode::kTypeMismatch, Keyword(keyword) + " must be an object"};
    return JsonSchema::Parse(v.Document());
  }

  static Result<std::vector<std::string>> Strings(const BsonElement& e, std::string_view keyword) {
    if (!e.value.IsArray())
      return Error{ErrorCode::kTypeMismatch,
                   Keyword(keyword) + " must be an array, but found an element of type " +
                       std::string(BsonTypeName(e.value.type()))};
    std::vector<std::string> out;
    for (const BsonElement& m : e.value.Document()) {
      if (!m.value.IsString())
        return Error{ErrorCode::kTypeMismatch,
                     Keyword(keyword) +
                         " must be an array of strings, but found an element of type: " +
                         std::string(BsonTypeName(m.value.type()))};
      out.emplace_back(m.value.String());
    }
    if (out.empty())
      return Error{ErrorCode::kFailedToParse, Keyword(keyword) + " cannot be an empty array"};
    std::vector<std::string> sorted = out;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      return Error{ErrorCode::kFailedToParse,
                   Keyword(keyword) + " array cannot contain duplicate values"};
    return out;
  }

  static Result<std::vector<Ptr>> Schemas(const BsonElement& e) {
    if (!e.value.IsArray())
      return Error{ErrorCode::kTypeMismatch, Keyword(e.name) + " must be an array"};
    std::vector<Ptr> out;
    for (const BsonElement& m : e.value.Document()) {
      if (!m.value.IsDocument())
        return Error{ErrorCode::kTypeMismatch,
                     Keyword(e.name) +
                         " must be an array of objects, but found an element of type " +
                         std::string(BsonTypeName(m.value.type()))};
      MAYFLY_TRY(Ptr s, JsonSchema::Parse(m.value.Document()));
      out.push_back(std::move(s));
    }
    if (out.empty() && e.name != "items")
      return Error{ErrorCode::kBadValue, Keyword(e.name) + " must be a non-empty array"};
    return out;
  }

  static Result<std::bitset<256>> JsonTypes(const BsonElement& e) {
    std::bitset<256> types;
    auto add = [&](BsonValue v) -> Result<void> {
      if (!v.IsString())
        return Error{ErrorCode::kTypeMismatch, Keyword(e.name) + " must name types by strings"};
      static const std::pair<std::string_view, BsonType> kTypes[] = {
          {"array", BsonType::kArray},
          {"boolean", BsonType::kBool},
          {"null", BsonType::kNull},
          {"object", BsonType::kDocument},
          {"string", BsonType::kString}};
      if (v.String() == "number") {
        for (BsonType t :
             {BsonType::kInt32, BsonType::kInt64, BsonType::kDouble, BsonType::kDecimal128})
          types.set(static_cast<uint8_t>(t));
        return Ok();
      }
      for (const auto& [name, type] : kTypes)
        if (name == v.String()) {
          types.set(static_cast<uint8_t>(type));
          return Ok();
        }
      if (v.String() == "integer")
        return Error{ErrorCode::kBadValue,
                     "$jsonSchema type 'integer' is not currently supported."};
      return Error{ErrorCode::kBadValue, "Unknown type name alias: " + std::string(v.String())};
    };
    if (e.value.IsArray()) {
      if (e.value.Document().empty())
        return Error{ErrorCode::kFailedToParse, Keyword(e.name) + " must name at least one type"};
      for (const BsonElement& m : e.value.Document()) {
        MAYFLY_TRY(add(m.value));
      }
    } else if (e.value.IsString()) {
      MAYFLY_TRY(add(e.value));
    } else {
      return Error{ErrorCode::kTypeMismatch,
                   Keyword(e.name) + " must be either a string or an array of strings"};
    }
    return types;
  }

  static Result<CompiledRegex::Ptr> Pattern(std::string_view keyword, std::string_view pattern) {
    MAYFLY_TRY(ParseWork::Step(CompiledRegex::Cost(pattern)));
    Result<CompiledRegex::Ptr> r = CompiledRegex::Compile(pattern, "");
    if (r.has_value()) return r;
    return Error{r.error().code, Keyword(keyword) + ": " + r.error().message};
  }

  static Result<void> Number(const BsonElement& e, Value* out) {
    if (!e.value.IsNumber())
      return Error{ErrorCode::kTypeMismatch, Keyword(e.name) + " must be a number"};
    *out = Value::Copy(e.value);
    return Ok();
  }
  static Result<void> Bool(const BsonElement& e, bool* out) {
    if (!e.value.Is(BsonType::kBool))
      return Error{ErrorCode::kTypeMismatch, Keyword(e.name) + " must be a boolean"};
    *out = e.value.Bool();
    return Ok();
  }
  static Result<void> Count(const BsonElement& e, std::optional<int64_t>* out) {
    if (!e.value.IsNumber())
      return Error{ErrorCode::kTypeMismatch, Keyword(e.name) + " must be a number"};
    MAYFLY_TRY(*out, ParseNonNegativeInt(e));
    return Ok();
  }
  static Result<void> BoolOrSchema(const BsonElement& e, bool* allowed, Ptr* schema) {
    if (e.value.Is(BsonType::kBool)) {
      *allowed = e.value.Bool();
      return Ok();
    }
    if (!e.value.IsDocument())
      return Error{ErrorCode::kTypeMismatch,
                   Keyword(e.name) + " must be either an object or a boolean, but got a " +
                       std::string(BsonTypeName(e.value.type()))};
    MAYFLY_TRY(*schema, JsonSchema::Parse(e.value.Document()));
    return Ok();
  }

  static Result<void> Keywords(const BsonElement& e, JsonSchema& s, bool* seen_exclusive_minimum,
                               bool* seen_exclusive_maximum);
};

Result<void> JsonSchemaParser::Keywords(const BsonElement& e, JsonSchema& s,
                                        bool* seen_exclusive_minimum,
                                        bool* seen_exclusive_maximum) {
  std::string_view k = e.name;
  if (k == "type") {
    if (s.types_)
      return Error{ErrorCode::kFailedToParse,
                   "Cannot specify both $jsonSchema keywords 'type' and 'bsonType'"};
    MAYFLY_TRY(s.types_, JsonTypes(e));
  } else if (k == "bsonType") {
    if (s.types_)
      return Error{ErrorCode::kFailedToParse,
                   "Cannot specify both $jsonSchema keywords 'type' and 'bsonType'"};
    auto names_types = [](BsonValue v) { return v.IsString(); };
    bool fine = names_types(e.value);
    if (e.value.IsArray()) {
      fine = true;
      for (const BsonElement& m : e.value.Document()) fine = fine && names_types(m.value);
    }
    if (!fine)
      return Error{ErrorCode::kTypeMismatch,
                   Keyword(k) + " must be either a string or an array of strings"};
    MAYFLY_TRY(s.types_, ParseTypeSet(e.value, k));
  } else if (k == "enum") {
    if (!e.value.IsArray())
      return Error{ErrorCode::kTypeMismatch, Keyword(k) + " must be an array"};
    std::vector<Value> values;
    for (const BsonElement& m : e.value.Document()) values.push_back(Normalized(m.value).Own());
    if (values.empty())
      return Error{ErrorCode::kFailedToParse, Keyword(k) + " cannot be an empty array"};
    if (HasDuplicates(values))
      return Error{ErrorCode::kFailedToParse,
                   Keyword(k) + " array cannot contain duplicate values"};
    s.enum_ = std::move(values);
  } else if (k == "allOf") {
    MAYFLY_TRY(s.all_of_, Schemas(e));
  } else if (k == "anyOf") {
    MAYFLY_TRY(s.any_of_, Schemas(e));
  } else if (k == "oneOf") {
    MAYFLY_TRY(s.one_of_, Schemas(e));
  } else if (k == "not") {
    MAYFLY_TRY(s.not_, Sub(e.value, k));
  } else if (k == "minimum") {
    MAYFLY_TRY(Number(e, &s.minimum_));
  } else if (k == "maximum") {
    MAYFLY_TRY(Number(e, &s.maximum_));
  } else if (k == "exclusiveMinimum") {
    *seen_exclusive_minimum = true;
    MAYFLY_TRY(Bool(e, &s.exclusive_minimum_));
  } else if (k == "exclusiveMaximum") {
    *seen_exclusive_maximum = true;
    MAYFLY_TRY(Bool(e, &s.exclusive_maximum_));
  } else if (k == "multipleOf") {
    MAYFLY_TRY(Number(e, &s.multiple_of_));
    if (!(s.multiple_of_.view().NumberAsDouble() > 0) ||
        std::isinf(s.multiple_of_.view().NumberAsDouble()))
      return Error{ErrorCode::kFailedToParse, Keyword(k) + " must have a positive value"};
  } else if (k == "minLength") {
    MAYFLY_TRY(Count(e, &s.min_length_));
  } else if (k == "maxLength") {
    MAYFLY_TRY(Count(e, &s.max_length_));
  } else if (k == "minItems") {
    MAYFLY_TRY(Count(e, &s.min_items_));
  } else if (k == "maxItems") {
    MAYFLY_TRY(Count(e, &s.max_items_));
  } else if (k == "minProperties") {
    MAYFLY_TRY(Count(e, &s.min_properties_));
  } else if (k == "maxProperties") {
    MAYFLY_TRY(Count(e, &s.max_properties_));
  } else if (k == "pattern") {
    if (!e.value.IsString())
      return Error{ErrorCode::kTypeMismatch, Keyword(k) + " must be a string"};
    MAYFLY_TRY(s.pattern_, Pattern(k, e.value.String()));
  } else if (k == "required") {
    MAYFLY_TRY(s.required_, Strings(e, k));
  } else if (k == "properties") {
    if (!e.value.IsDocument())
      return Error{ErrorCode::kTypeMismatch, Keyword(k) + " must be an object"};
    for (const BsonElement& p : e.value.Document()) {
      if (!p.value.IsDocument())
        return Error{ErrorCode::kTypeMismatch, "Nested schema for $jsonSchema property '" +
                                                   std::string(p.name) + "' must be an object"};
      MAYFLY_TRY(Ptr sub, JsonSchema::Parse(p.value.Document()));
      s.properties_.emplace_back(p.name, std::move(sub));
    }
  } else if (k == "patternProperties") {
    if (!e.value.IsDocument())
      return Error{ErrorCode::kTypeMismatch, Keyword(k) + " must be an object"};
    for (const BsonElement& p : e.value.Document()) {
      if (!p.value.IsDocument())
        return Error{
            ErrorCode::kTypeMismatch,
            Keyword(k) + " has property '" + std::string(p.name) + "' which is not an object"};
      MAYFLY_TRY(CompiledRegex::Ptr regex, Pattern(k, p.name));
      MAYFLY_TRY(Ptr sub, JsonSchema::Parse(p.value.Document()));
      s.pattern_properties_.emplace_back(std::move(regex), std::move(sub));
    }
  } else if (k == "additionalProperties") {
    MAYFLY_TRY(BoolOrSchema(e, &s.additional_properties_, &s.additional_properties_schema_));
  } else if (k == "dependencies") {
    if (!e.value.IsDocument())
      return Error{ErrorCode::kTypeMismatch, Keyword(k) + " must be an object"};
    for (const BsonElement& p : e.value.Document()) {
      JsonSchema::Dependency d{.field = std::string(p.name)};
      if (p.value.IsDocument()) {
        MAYFLY_TRY(d.schema, JsonSchema::Parse(p.value.Document()));
      } else if (p.value.IsArray()) {
        MAYFLY_TRY(d.required, Strings(p, k));
      } else {
        return Error{ErrorCode::kTypeMismatch,
                     Keyword(k) + " must contain objects or arrays of strings, but '" +
                         std::string(p.name) + "' is neither"};
      }
      s.dependencies_.push_back(std::move(d));
    }
  } else if (k == "uniqueItems") {
    MAYFLY_TRY(Bool(e, &s.unique_items_));
  } else if (k == "items") {
    if (e.value.IsArray()) {
      MAYFLY_TRY(s.tuple_, Schemas(e));
    } else if (e.value.IsDocument()) {
      MAYFLY_TRY(s.items_, JsonSchema::Parse(e.value.Document()));
    } else {
      return Error{ErrorCode::kTypeMismatch, Keyword(k) + " must be an array or an object, not " +
                                                 std::string(BsonTypeName(e.value.type()))};
    }
  } else if (k == "additionalItems") {
    MAYFLY_TRY(BoolOrSchema(e, &s.additional_items_, &s.additional_items_schema_));
  } else if (k == "title" || k == "description") {
    if (!e.value.IsString())
      return Error{ErrorCode::kTypeMismatch, Keyword(k) + " must be of type string"};
  } else if (k == "$ref" || k == "$schema" || k == "default" || k == "definitions" ||
             k == "format" || k == "id" || k == "encrypt" || k == "encryptMetadata") {
    return Error{ErrorCode::kFailedToParse, Keyword(k) + " is not currently supported"};
  } else {
    return Error{ErrorCode::kFailedToParse, "Unknown $jsonSchema keyword: " + std::string(k)};
  }
  return Ok();
}

Result<std::shared_ptr<const JsonSchema>> JsonSchema::Parse(BsonView schema) {
  MAYFLY_TRY(ParseWork::Step());
  auto s = std::make_shared<JsonSchema>();
  ParseWork::Made(sizeof(JsonSchema) + 128);  // with its name and place in its parent
  bool exclusive_minimum = false, exclusive_maximum = false;
  std::set<std::string_view> seen;
  for (const BsonElement& e : schema) {
    if (!seen.insert(e.name).second)
      return Error{ErrorCode::kFailedToParse,
                   "Duplicate $jsonSchema keyword: " + std::string(e.name)};
    MAYFLY_TRY(JsonSchemaParser::Keywords(e, *s, &exclusive_minimum, &exclusive_maximum));
  }
  if (exclusive_minimum && s->minimum_.missing())
    return Error{ErrorCode::kFailedToParse,
                 "$jsonSchema keyword 'minimum' must be a present if exclusiveMinimum is present"};
  if (exclusive_maximum && s->maximum_.missing())
    return Error{ErrorCode::kFailedToParse,
                 "$jsonSchema keyword 'maximum' must be a present if exclusiveMaximum is present"};
  return std::shared_ptr<const JsonSchema>(std::move(s));
}

}  // namespace mayfly
