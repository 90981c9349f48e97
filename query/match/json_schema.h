#pragma once
#include <bitset>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/value.h"
#include "query/expression/regex.h"

namespace mayfly {

/// A compiled `$jsonSchema`: JSON Schema draft 4 as MongoDB's manual limits and extends it
/// (bsonType; no $ref, format, default, definitions, id, integer). Immutable; threads: any.
class JsonSchema {
 public:
  /// Errors: FailedToParse 9 (unknown keyword, bad value), TypeMismatch 14 (wrong type), BadValue 2
  /// (unknown type name).
  static Result<std::shared_ptr<const JsonSchema>> Parse(BsonView schema);

  /// Whether `v` satisfies the schema. A regular expression that exceeds its limits, and an
  /// operation that is to stop (ParseWork::Asked), set `*error` and count as no match.
  bool Matches(BsonValue v, std::optional<Error>* error) const;

 private:
  using Ptr = std::shared_ptr<const JsonSchema>;
  struct Dependency {
    std::string field;
    std::vector<std::string> required;
    Ptr schema;  // null: `required` counts
  };
  friend class JsonSchemaParser;

  bool MatchesNumber(BsonValue v) const;
  bool MatchesString(BsonValue v, std::optional<Error>* error) const;
  bool MatchesObject(BsonView doc, std::optional<Error>* error) const;
  bool MatchesArray(BsonView array, std::optional<Error>* error) const;
  /// Whether two items of an array are equal.
  Result<bool> RepeatsItem(BsonView array) const;

  std::optional<std::bitset<256>> types_;
  std::optional<std::vector<Value>> enum_;  // sorted, fields of documents in name order
  std::vector<Ptr> all_of_, any_of_, one_of_;
  Ptr not_;
  Value minimum_, maximum_, multiple_of_;
  bool exclusive_minimum_ = false, exclusive_maximum_ = false;
  std::optional<int64_t> min_length_, max_length_, min_items_, max_items_, min_properties_,
      max_properties_;
  CompiledRegex::Ptr pattern_;
  std::vector<std::string> required_;
  std::vector<std::pair<std::string, Ptr>> properties_;  // sorted by name
  std::vector<std::pair<CompiledRegex::Ptr, Ptr>> pattern_properties_;
  bool additional_properties_ = true;
  Ptr additional_properties_schema_;
  std::vector<Dependency> dependencies_;
  bool unique_items_ = false;
  Ptr items_;                              // one schema for every item
  std::optional<std::vector<Ptr>> tuple_;  // items: [ … ]
  bool additional_items_ = true;
  Ptr additional_items_schema_;
};

/// `{$type: …}`'s set of types from a number, an alias or an array of both. `operand` names the
/// operator for messages. Errors: BadValue 2, TypeMismatch 14, FailedToParse 9 (empty array).
Result<std::bitset<256>> ParseTypeSet(BsonValue operand, std::string_view name);

/// A non-negative integer for $size, minLength and the like. Errors (FailedToParse 9): "Expected a
/// number in: …".
Result<int64_t> ParseNonNegativeInt(const BsonElement& e);

}  // namespace mayfly
