#include "storage/catalog/index_kind.h"

#include <cmath>

#include "storage/catalog/catalog_types.h"
#include "storage/catalog/index_keys.h"

namespace mayfly {
namespace {

constexpr std::string_view kWildcardField = "$**";

constexpr IndexKind kKinds[] = {
    {IndexKindId::kOrdinary, "", true, &ExtractOrdinaryKeys},
    {IndexKindId::kHashed, "hashed", false, nullptr},
    {IndexKindId::kText, "text", false, nullptr},
    {IndexKindId::k2d, "2d", false, nullptr},
    {IndexKindId::k2dSphere, "2dsphere", false, nullptr},
    {IndexKindId::kGeoHaystack, "geoHaystack", false, nullptr},
    {IndexKindId::kWildcard, kWildcardField, false, nullptr},
    {IndexKindId::kUnknown, "unknown", false, nullptr},
};
constexpr bool KindsStandByTheirNumber() {
  for (size_t i = 0; i < std::size(kKinds); ++i)
    if (static_cast<size_t>(kKinds[i].id) != i) return false;
  return std::size(kKinds) == static_cast<size_t>(IndexKindId::kUnknown) + 1;
}
static_assert(KindsStandByTheirNumber());

Error Cannot(std::string message) { return {ErrorCode::kCannotCreateIndex, std::move(message)}; }

Result<void> CheckFieldName(std::string_view name) {
  if (name.empty()) return Cannot("Index keys cannot contain an empty field name");
  if (name.front() == '.' || name.back() == '.' || name.find("..") != std::string_view::npos)
    return Cannot("Index key contains an illegal field name: an empty part in '" +
                  std::string(name) + "'");
  if (name == kWildcardField || name.ends_with(".$**")) return Ok();
  // References of DBRefs are the only names with a dollar.
  const bool dbref = name.ends_with(".$id") || name.ends_with(".$ref") || name.ends_with(".$db");
  if ((name.front() == '$' || name.find(".$") != std::string_view::npos) && !dbref)
    return Cannot("Index key contains an illegal field name: field name starts with '$'.");
  return Ok();
}

}  // namespace

const IndexKind& OrdinaryIndex() { return kKinds[0]; }

const IndexKind& FindIndexKind(std::string_view name) {
  for (const IndexKind& k : kKinds)
    if (k.name == name && k.id != IndexKindId::kUnknown) return k;
  return kKinds[static_cast<size_t>(IndexKindId::kUnknown)];
}

const IndexKind& KindOfKey(std::span<const IndexField> fields) {
  for (const IndexField& f : fields)
    if (!f.special.empty()) return FindIndexKind(f.special);
  return OrdinaryIndex();
}

Result<std::vector<IndexField>> ParseIndexKey(BsonView key) {
  std::vector<IndexField> fields;
  if (key.empty()) return Cannot("Index keys cannot be an empty object");
  for (const BsonElement& e : key) {
    MAYFLY_TRY(CheckFieldName(e.name));
    for (const IndexField& f : fields)
      if (f.path == e.name)
        return Cannot("The field '" + std::string(e.name) + "' appears twice in the index key");
    IndexField f;
    f.path = e.name;
    if (e.name == kWildcardField || e.name.ends_with(".$**")) f.special = kWildcardField;
    if (e.value.IsNumber()) {
      const double d = e.value.NumberAsDouble();
      if (d == 0 || std::isnan(d)) return Cannot("Values in the index key pattern cannot be 0.");
      f.descending = d < 0;
    } else if (e.value.IsString()) {
      f.special = e.value.String();
      if (f.special.empty())
        return Cannot("Values in the index key pattern cannot be empty strings");
    } else {
      return Cannot("Values in v:2 index key pattern cannot be of type " +
                    std::string(BsonTypeName(e.value.type())) +
                    ". Only numbers > 0, numbers < 0, and strings are allowed.");
    }
    fields.push_back(std::move(f));
    if (fields.size() > kMaxIndexFields)
      return Cannot("Index key pattern has more than " + std::to_string(kMaxIndexFields) +
                    " fields");
  }
  return fields;
}

}  // namespace mayfly
