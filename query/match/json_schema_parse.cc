#include <algorithm>
#include <cmath>
#include <span>

#include "query/expression/pace.h"
#include "query/expression/parse_work.h"
#include "query/match/json_schema.h"
#include "query/match/match_internal.h"

namespace mayfly {

namespace {

std::string Keyword(std::string_view name) {
  return "$jsonSchema keyword '" + std::string(name) + "'";
}

}  // namespace

/// Reads a schema, keyword by keyword.
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
      MAYFLY_TRY(ParseWork::Step(1 + m.value.size() / 256));
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
    EvalContext eval;
    eval.op = ParseWork::Asked();
    MAYFLY_TRY(
        SortItems(eval, sorted, std::less<>(), [](const std::string& s) { return s.size(); }));
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

  static Result<void> Type(const BsonElement& e, JsonSchema& s) {
    MAYFLY_TRY(FirstType(s));
    MAYFLY_TRY(s.types_, JsonTypes(e));
    return Ok();
  }
  static Result<void> BsonTypes(const BsonElement& e, JsonSchema& s) {
    MAYFLY_TRY(FirstType(s));
    bool fine = e.value.IsString();
    if (e.value.IsArray()) {
      fine = true;
      for (const BsonElement& m : e.value.Document()) fine = fine && m.value.IsString();
    }
    if (!fine)
      return Error{ErrorCode::kTypeMismatch,
                   Keyword(e.name) + " must be either a string or an array of strings"};
    MAYFLY_TRY(s.types_, ParseTypeSet(e.value, e.name));
    return Ok();
  }
  static Result<void> FirstType(const JsonSchema& s) {
    if (!s.types_) return Ok();
    return Error{ErrorCode::kFailedToParse,
                 "Cannot specify both $jsonSchema keywords 'type' and 'bsonType'"};
  }
  static Result<void> Enum(const BsonElement& e, JsonSchema& s) {
    if (!e.value.IsArray())
      return Error{ErrorCode::kTypeMismatch, Keyword(e.name) + " must be an array"};
    std::vector<Value> values;
    for (const BsonElement& m : e.value.Document()) {
      MAYFLY_TRY(ParseWork::Step(1 + m.value.size() / 512));
      values.push_back(match::Normalized(m.value).Own());
      ParseWork::Made(sizeof(Value) + m.value.size());
    }
    if (values.empty())
      return Error{ErrorCode::kFailedToParse, Keyword(e.name) + " cannot be an empty array"};
    MAYFLY_TRY(const bool twice, match::SortAndFindDuplicates(values));
    if (twice)
      return Error{ErrorCode::kFailedToParse,
                   Keyword(e.name) + " array cannot contain duplicate values"};
    s.enum_ = std::move(values);
    return Ok();
  }
  template <auto kMember>
  static Result<void> ListOfSchemas(const BsonElement& e, JsonSchema& s) {
    MAYFLY_TRY(s.*kMember, Schemas(e));
    return Ok();
  }
  template <auto kMember>
  static Result<void> NumberIn(const BsonElement& e, JsonSchema& s) {
    return Number(e, &(s.*kMember));
  }
  template <auto kMember>
  static Result<void> BoolIn(const BsonElement& e, JsonSchema& s) {
    return Bool(e, &(s.*kMember));
  }
  template <auto kMember>
  static Result<void> CountIn(const BsonElement& e, JsonSchema& s) {
    return Count(e, &(s.*kMember));
  }
  static Result<void> Not(const BsonElement& e, JsonSchema& s) {
    MAYFLY_TRY(s.not_, Sub(e.value, e.name));
    return Ok();
  }
  static Result<void> MultipleOf(const BsonElement& e, JsonSchema& s) {
    MAYFLY_TRY(Number(e, &s.multiple_of_));
    const double n = s.multiple_of_.view().NumberAsDouble();
    if (!(n > 0) || std::isinf(n))
      return Error{ErrorCode::kFailedToParse, Keyword(e.name) + " must have a positive value"};
    return Ok();
  }
  static Result<void> PatternOf(const BsonElement& e, JsonSchema& s) {
    if (!e.value.IsString())
      return Error{ErrorCode::kTypeMismatch, Keyword(e.name) + " must be a string"};
    MAYFLY_TRY(s.pattern_, Pattern(e.name, e.value.String()));
    return Ok();
  }
  static Result<void> Required(const BsonElement& e, JsonSchema& s) {
    MAYFLY_TRY(s.required_, Strings(e, e.name));
    return Ok();
  }
  static Result<void> MustBeObject(const BsonElement& e) {
    if (e.value.IsDocument()) return Ok();
    return Error{ErrorCode::kTypeMismatch, Keyword(e.name) + " must be an object"};
  }
  static Result<void> Properties(const BsonElement& e, JsonSchema& s) {
    MAYFLY_TRY(MustBeObject(e));
    for (const BsonElement& p : e.value.Document()) {
      if (!p.value.IsDocument())
        return Error{ErrorCode::kTypeMismatch, "Nested schema for $jsonSchema property '" +
                                                   std::string(p.name) + "' must be an object"};
      MAYFLY_TRY(Ptr sub, JsonSchema::Parse(p.value.Document()));
      s.properties_.emplace_back(p.name, std::move(sub));
    }
    return Ok();
  }
  static Result<void> PatternProperties(const BsonElement& e, JsonSchema& s) {
    MAYFLY_TRY(MustBeObject(e));
    for (const BsonElement& p : e.value.Document()) {
      if (!p.value.IsDocument())
        return Error{
            ErrorCode::kTypeMismatch,
            Keyword(e.name) + " has property '" + std::string(p.name) + "' which is not an object"};
      MAYFLY_TRY(CompiledRegex::Ptr regex, Pattern(e.name, p.name));
      MAYFLY_TRY(Ptr sub, JsonSchema::Parse(p.value.Document()));
      s.pattern_properties_.emplace_back(std::move(regex), std::move(sub));
    }
    return Ok();
  }
  static Result<void> AdditionalProperties(const BsonElement& e, JsonSchema& s) {
    return BoolOrSchema(e, &s.additional_properties_, &s.additional_properties_schema_);
  }
  static Result<void> AdditionalItems(const BsonElement& e, JsonSchema& s) {
    return BoolOrSchema(e, &s.additional_items_, &s.additional_items_schema_);
  }
  static Result<void> Dependencies(const BsonElement& e, JsonSchema& s) {
    MAYFLY_TRY(MustBeObject(e));
    for (const BsonElement& p : e.value.Document()) {
      JsonSchema::Dependency d{.field = std::string(p.name)};
      if (p.value.IsDocument()) {
        MAYFLY_TRY(d.schema, JsonSchema::Parse(p.value.Document()));
      } else if (p.value.IsArray()) {
        MAYFLY_TRY(d.required, Strings(p, e.name));
      } else {
        return Error{ErrorCode::kTypeMismatch,
                     Keyword(e.name) + " must contain objects or arrays of strings, but '" +
                         std::string(p.name) + "' is neither"};
      }
      s.dependencies_.push_back(std::move(d));
    }
    return Ok();
  }
  static Result<void> Items(const BsonElement& e, JsonSchema& s) {
    if (e.value.IsArray()) {
      MAYFLY_TRY(s.tuple_, Schemas(e));
    } else if (e.value.IsDocument()) {
      MAYFLY_TRY(s.items_, JsonSchema::Parse(e.value.Document()));
    } else {
      return Error{ErrorCode::kTypeMismatch, Keyword(e.name) +
                                                 " must be an array or an object, not " +
                                                 std::string(BsonTypeName(e.value.type()))};
    }
    return Ok();
  }
  static Result<void> Text(const BsonElement& e, JsonSchema&) {
    if (e.value.IsString()) return Ok();
    return Error{ErrorCode::kTypeMismatch, Keyword(e.name) + " must be of type string"};
  }
  static Result<void> NotSupported(const BsonElement& e, JsonSchema&) {
    return Error{ErrorCode::kFailedToParse, Keyword(e.name) + " is not currently supported"};
  }

  /// What a keyword of a schema does, one row each (manual: "$jsonSchema", "Available Keywords").
  struct Row {
    std::string_view name;
    Result<void> (*parse)(const BsonElement& e, JsonSchema& s);
  };
  static std::span<const Row> Rows();
  /// Reads one field of a schema into `s`.
  static Result<void> ReadKeyword(const BsonElement& e, JsonSchema& s);
  /// Checks that need the whole schema.
  static Result<void> CheckWhole(BsonView schema, const JsonSchema& s);
};

std::span<const JsonSchemaParser::Row> JsonSchemaParser::Rows() {
  using S = JsonSchema;
  static constexpr Row kRows[] = {{"$ref", NotSupported},
                                  {"$schema", NotSupported},
                                  {"additionalItems", AdditionalItems},
                                  {"additionalProperties", AdditionalProperties},
                                  {"allOf", ListOfSchemas<&S::all_of_>},
                                  {"anyOf", ListOfSchemas<&S::any_of_>},
                                  {"bsonType", BsonTypes},
                                  {"default", NotSupported},
                                  {"definitions", NotSupported},
                                  {"dependencies", Dependencies},
                                  {"description", Text},
                                  {"encrypt", NotSupported},
                                  {"encryptMetadata", NotSupported},
                                  {"enum", Enum},
                                  {"exclusiveMaximum", BoolIn<&S::exclusive_maximum_>},
                                  {"exclusiveMinimum", BoolIn<&S::exclusive_minimum_>},
                                  {"format", NotSupported},
                                  {"id", NotSupported},
                                  {"items", Items},
                                  {"maxItems", CountIn<&S::max_items_>},
                                  {"maxLength", CountIn<&S::max_length_>},
                                  {"maxProperties", CountIn<&S::max_properties_>},
                                  {"maximum", NumberIn<&S::maximum_>},
                                  {"minItems", CountIn<&S::min_items_>},
                                  {"minLength", CountIn<&S::min_length_>},
                                  {"minProperties", CountIn<&S::min_properties_>},
                                  {"minimum", NumberIn<&S::minimum_>},
                                  {"multipleOf", MultipleOf},
                                  {"not", Not},
                                  {"oneOf", ListOfSchemas<&S::one_of_>},
                                  {"pattern", PatternOf},
                                  {"patternProperties", PatternProperties},
                                  {"properties", Properties},
                                  {"required", Required},
                                  {"title", Text},
                                  {"type", Type},
                                  {"uniqueItems", BoolIn<&S::unique_items_>}};
  static_assert(std::is_sorted(std::begin(kRows), std::end(kRows),
                               [](const Row& a, const Row& b) { return a.name < b.name; }));
  return kRows;
}

Result<void> JsonSchemaParser::ReadKeyword(const BsonElement& e, JsonSchema& s) {
  const std::span<const Row> rows = Rows();
  const auto row = std::lower_bound(rows.begin(), rows.end(), e.name,
                                    [](const Row& r, std::string_view k) { return r.name < k; });
  if (row == rows.end() || row->name != e.name)
    return Error{ErrorCode::kFailedToParse, "Unknown $jsonSchema keyword: " + std::string(e.name)};
  return row->parse(e, s);
}

Result<void> JsonSchemaParser::CheckWhole(BsonView schema, const JsonSchema& s) {
  if (schema.Has("exclusiveMinimum") && s.minimum_.missing())
    return Error{ErrorCode::kFailedToParse,
                 "$jsonSchema keyword 'minimum' must be a present if exclusiveMinimum is present"};
  if (schema.Has("exclusiveMaximum") && s.maximum_.missing())
    return Error{ErrorCode::kFailedToParse,
                 "$jsonSchema keyword 'maximum' must be a present if exclusiveMaximum is present"};
  return Ok();
}

Result<std::shared_ptr<const JsonSchema>> JsonSchema::Parse(BsonView schema) {
  MAYFLY_TRY(ParseWork::Step());
  auto s = std::make_shared<JsonSchema>();
  ParseWork::Made(sizeof(JsonSchema) + 128);  // with its name and place in its parent
  std::set<std::string_view> seen;
  for (const BsonElement& e : schema) {
    if (!seen.insert(e.name).second)
      return Error{ErrorCode::kFailedToParse,
                   "Duplicate $jsonSchema keyword: " + std::string(e.name)};
    MAYFLY_TRY(JsonSchemaParser::ReadKeyword(e, *s));
  }
  MAYFLY_TRY(JsonSchemaParser::CheckWhole(schema, *s));
  std::stable_sort(s->properties_.begin(), s->properties_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return std::shared_ptr<const JsonSchema>(std::move(s));
}

}  // namespace mayfly
