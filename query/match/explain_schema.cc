#include <array>

#include "query/expression/parse_work.h"
#include "query/match/explanation.h"
#include "query/match/match_internal.h"

namespace mayfly::match {

namespace {

bool Fits(BsonView schema, BsonValue v) {
  Result<std::shared_ptr<const JsonSchema>> parsed = JsonSchema::Parse(schema);
  if (!parsed) return false;
  std::optional<Error> error;
  return parsed.value()->Matches(v, &error) && !error;
}

/// A schema of one keyword and of those that only change what it means.
BsonDocument Rule(BsonView schema, std::string_view keyword) {
  auto also = [&](std::string_view name) {
    if (keyword == "minimum") return name == "exclusiveMinimum";
    if (keyword == "maximum") return name == "exclusiveMaximum";
    if (keyword == "additionalProperties")
      return name == "properties" || name == "patternProperties";
    return keyword == "additionalItems" && name == "items";
  };
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : schema) {
      if (e.name != keyword && !also(e.name)) continue;
      if (e.name == keyword || e.name.starts_with("exclusive") || !e.value.IsDocument()) {
        b.Append(e);
      } else if (keyword == "additionalProperties") {
        // The names count, not what their schemas say.
        BsonBuilder names = b.OpenDocument(e.name);
        for (const BsonElement& p : e.value.Document()) names.OpenDocument(p.name);
      }
    }
  });
}

void AppendHead(const BsonElement& rule, BsonView specified, ExplanationBuilder& out) {
  out.Append("operatorName", rule.name).Append("specifiedAs", specified);
}

/// One entry: a keyword's details about a value that breaks it.
void Simple(const BsonElement& rule, BsonView specified, std::string_view reason, BsonValue v,
            ExplanationBuilder& out) {
  AppendHead(rule, specified, out);
  out.Append("reason", reason).Append("consideredValue", v);
}

void Details(BsonView schema, BsonValue v, ExplanationBuilder& out) {
  ExplanationList details = out.OpenArray("details");
  ExplainSchema(schema, v, details);
}

void Property(std::string_view name, BsonView schema, BsonValue v, ExplanationBuilder& out) {
  out.Append("propertyName", name)
      .Append("title", schema["title"])
      .Append("description", schema["description"]);
  Details(schema, v, out);
}

bool NamedByPattern(BsonView patterns, std::string_view name) {
  for (const BsonElement& p : patterns) {
    if (!ParseWork::Step(CompiledRegex::Cost(p.name))) return false;
    Result<CompiledRegex::Ptr> regex = CompiledRegex::Compile(p.name, "");
    if (!regex) continue;
    Result<bool> found = regex.value()->Matches(name);
    if (found && found.value()) return true;
  }
  return false;
}

BsonView SubDocument(BsonView doc, std::string_view name) {
  BsonValue v = doc[name];
  return v.IsDocument() ? v.Document() : BsonView();
}

void Properties(const BsonElement& rule, BsonView, BsonValue v, ExplanationBuilder& out) {
  const std::string_view k = rule.name;
  out.Append("operatorName", k);
  ExplanationList list = out.OpenArray("propertiesNotSatisfied");
  for (const BsonElement& p : rule.value.Document()) {
    BsonValue member = v.Document()[p.name];
    if (!list.room().GoOn()) break;
    if (member.missing() || Fits(p.value.Document(), member)) continue;
    ExplanationBuilder entry = list.OpenDocument();
    Property(p.name, p.value.Document(), member, entry);
  }
}

void PatternProperties(const BsonElement& rule, BsonView, BsonValue v, ExplanationBuilder& out) {
  const std::string_view k = rule.name;
  out.Append("operatorName", k);
  ExplanationList list = out.OpenArray("details");
  for (const BsonElement& p : rule.value.Document()) {
    Result<CompiledRegex::Ptr> regex = CompiledRegex::Compile(p.name, "");
    if (!regex) continue;
    for (const BsonElement& member : v.Document()) {
      if (!list.room().GoOn()) return;
      Result<bool> named = regex.value()->Matches(member.name);
      if (!named || !named.value() || Fits(p.value.Document(), member.value)) continue;
      ExplanationBuilder entry = list.OpenDocument();
      entry.Append("propertyName", member.name).Append("regexMatched", p.name);
      Details(p.value.Document(), member.value, entry);
    }
  }
}

void AdditionalProperties(const BsonElement& rule, BsonView schema, BsonValue v,
                          ExplanationBuilder& out) {
  const std::string_view k = rule.name;
  const BsonView properties = SubDocument(schema, "properties");
  const BsonView patterns = SubDocument(schema, "patternProperties");
  out.Append("operatorName", k);
  out.Append("specifiedAs", BuildBson([&](BsonBuilder& b) { b.Append(rule); }));
  if (rule.value.IsDocument()) {
    for (const BsonElement& member : v.Document()) {
      if (!out.room().GoOn()) return;
      if (properties.Has(member.name) || NamedByPattern(patterns, member.name) ||
          Fits(rule.value.Document(), member.value))
        continue;
      out.Append("reason", "at least one additional property did not match the subschema")
          .Append("failingProperty", member.name);
      Details(rule.value.Document(), member.value, out);
      return;
    }
    return;
  }
  ExplanationList list = out.OpenArray("additionalProperties");
  for (const BsonElement& member : v.Document()) {
    if (!list.room().GoOn()) break;
    if (!properties.Has(member.name) && !NamedByPattern(patterns, member.name))
      list.Append(member.name);
  }
}

void Required(const BsonElement& rule, BsonView, BsonValue v, ExplanationBuilder& out) {
  AppendHead(rule, BuildBson([&](BsonBuilder& b) { b.Append(rule); }), out);
  ExplanationList list = out.OpenArray("missingProperties");
  for (const BsonElement& name : rule.value.Document()) {
    if (!list.room().GoOn()) break;
    if (!v.Document().Has(name.value.String())) list.Append(name.value.String());
  }
}

void Dependencies(const BsonElement& rule, BsonView, BsonValue v, ExplanationBuilder& out) {
  const std::string_view k = rule.name;
  out.Append("operatorName", k);
  ExplanationList list = out.OpenArray("failingDependencies");
  for (const BsonElement& d : rule.value.Document()) {
    if (!list.room().GoOn()) break;
    if (!v.Document().Has(d.name)) continue;
    if (d.value.IsDocument()) {
      if (Fits(d.value.Document(), v)) continue;
      ExplanationBuilder entry = list.OpenDocument();
      entry.Append("conditionalProperty", d.name);
      Details(d.value.Document(), v, entry);
      continue;
    }
    std::vector<std::string_view> missing;
    for (const BsonElement& name : d.value.Document())
      if (!v.Document().Has(name.value.String())) missing.push_back(name.value.String());
    if (missing.empty()) continue;
    ExplanationBuilder entry = list.OpenDocument();
    entry.Append("conditionalProperty", d.name);
    ExplanationList names = entry.OpenArray("missingProperties");
    for (std::string_view m : missing) names.Append(m);
  }
}

void Items(const BsonElement& rule, BsonView schema, BsonValue v, ExplanationBuilder& out) {
  const std::string_view k = rule.name;
  const BsonValue items = schema["items"];
  const size_t fixed = items.IsArray() ? static_cast<size_t>(items.Document().Count()) : size_t{0};
  out.Append("operatorName", k);
  size_t i = 0;
  for (const BsonElement& member : v.Document()) {
    const size_t at = i++;
    if (!out.room().GoOn()) break;
    BsonValue sub = rule.value;
    if (k == "items" && items.IsArray()) {
      if (at >= fixed) break;
      sub = items.Document()[std::to_string(at)];
    } else if (k == "additionalItems" && at < fixed) {
      continue;
    }
    if (sub.IsDocument() && Fits(sub.Document(), member.value)) continue;
    out.Append("reason", k == "items" ? "At least one item did not match the sub-schema"
                                      : "found additional items");
    out.Append("itemIndex", static_cast<int32_t>(at));
    if (sub.IsDocument()) Details(sub.Document(), member.value, out);
    return;
  }
}

void Combined(const BsonElement& rule, BsonView, BsonValue v, ExplanationBuilder& out) {
  const std::string_view k = rule.name;
  out.Append("operatorName", k);
  std::vector<int32_t> fit;
  int32_t n = 0;
  for (const BsonElement& s : rule.value.Document()) {
    if (!out.room().GoOn()) break;
    if (Fits(s.value.Document(), v)) fit.push_back(n);
    ++n;
  }
  if (k == "oneOf" && fit.size() > 1) {
    out.Append("reason", "more than one subschema matched");
    ExplanationList list = out.OpenArray("matchingSchemaIndexes");
    for (int32_t i : fit) list.Append(i);
    return;
  }
  ExplanationList list = out.OpenArray("schemasNotSatisfied");
  n = 0;
  for (const BsonElement& s : rule.value.Document()) {
    const int32_t at = n++;
    if (!list.room().GoOn()) break;
    if (Fits(s.value.Document(), v)) continue;
    ExplanationBuilder entry = list.OpenDocument();
    entry.Append("index", at);
    Details(s.value.Document(), v, entry);
  }
}

/// Keywords whose entries list the parts that fail.
struct CompositeKeyword {
  std::string_view name;
  void (*explain)(const BsonElement& rule, BsonView schema, BsonValue v, ExplanationBuilder& out);
};
constexpr CompositeKeyword kComposites[] = {{"properties", &Properties},
                                            {"patternProperties", &PatternProperties},
                                            {"additionalProperties", &AdditionalProperties},
                                            {"required", &Required},
                                            {"dependencies", &Dependencies},
                                            {"items", &Items},
                                            {"additionalItems", &Items},
                                            {"allOf", &Combined},
                                            {"anyOf", &Combined},
                                            {"oneOf", &Combined}};

bool Composite(const BsonElement& rule, BsonView schema, BsonValue v, ExplanationBuilder& out) {
  for (const CompositeKeyword& c : kComposites) {
    if (c.name != rule.name) continue;
    c.explain(rule, schema, v, out);
    return true;
  }
  return false;
}

void One(const BsonElement& rule, BsonView schema, BsonView alone, BsonValue v,
         ExplanationBuilder& out) {
  if (Composite(rule, schema, v, out)) return;
  const std::string_view k = rule.name;
  if (k == "bsonType" || k == "type") {
    Simple(rule, alone, "type did not match", v, out);
    out.Append("consideredType", BsonTypeName(v.type()));
    return;
  }
  if (k == "minProperties" || k == "maxProperties") {
    AppendHead(rule, alone, out);
    out.Append("reason", "specified number of properties was not satisfied")
        .Append("numberOfProperties", static_cast<int32_t>(v.Document().Count()));
    return;
  }
  struct Text {
    std::string_view keyword, reason;
  };
  static constexpr Text kTexts[] = {
      {"enum", "value was not found in enum"},
      {"minimum", "comparison failed"},
      {"maximum", "comparison failed"},
      {"multipleOf", "considered value is not a multiple of the specified value"},
      {"minLength", "specified string length was not satisfied"},
      {"maxLength", "specified string length was not satisfied"},
      {"pattern", "regular expression did not match"},
      {"minItems", "array did not match specified length"},
      {"maxItems", "array did not match specified length"},
      {"uniqueItems", "found a duplicate item"},
      {"not", "child expression matched"}};
  for (const Text& t : kTexts)
    if (t.keyword == k) return Simple(rule, alone, t.reason, v, out);
  Simple(rule, alone, "rule was not satisfied", v, out);
}

/// The order in which rules are reported, whatever the order in which they were written.
constexpr std::array kOrder = {"type",
                               "bsonType",
                               "enum",
                               "minimum",
                               "maximum",
                               "multipleOf",
                               "minLength",
                               "maxLength",
                               "pattern",
                               "properties",
                               "required",
                               "minProperties",
                               "maxProperties",
                               "minItems",
                               "maxItems",
                               "uniqueItems",
                               "items",
                               "additionalItems",
                               "patternProperties",
                               "additionalProperties",
                               "dependencies",
                               "allOf",
                               "anyOf",
                               "oneOf",
                               "not"};

}  // namespace

void ExplainSchema(BsonView schema, BsonValue value, ExplanationList& rules) {
  for (std::string_view keyword : kOrder) {
    BsonValue rule = schema[keyword];
    if (rule.missing()) continue;
    if (!rules.room().GoOn()) return;
    const BsonDocument alone = Rule(schema, keyword);
    if (!rules.room().TakeCopy(alone.view().size())) return;
    if (Fits(alone, value)) continue;
    ExplanationBuilder entry = rules.OpenDocument();
    One({keyword, rule}, schema, alone, value, entry);
  }
}

}  // namespace mayfly::match
