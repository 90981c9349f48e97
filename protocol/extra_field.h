#pragma once
#include <string_view>

#include "protocol/bson_builder.h"

/// An extra field shown in documents beside their own fields. A field with its name, or with its
/// name and any number of '_' after it, is shown with one more '_'. So the way back is unique, and
/// no document conflicts with another one.
namespace mayfly {

/// Whether a field's own name is `extra`, or `extra` followed by '_'s.
inline bool IsLikeExtraField(std::string_view name, std::string_view extra) {
  return name.starts_with(extra) &&
         name.find_first_not_of('_', extra.size()) == std::string_view::npos;
}

/// The fields of a document as they are shown beside `extra`.
inline void AppendBesideExtraField(BsonView document, std::string_view extra, BsonBuilder& out) {
  std::string name;
  for (const BsonElement& e : document) {
    if (!IsLikeExtraField(e.name, extra)) [[likely]] {
      out.Append(e);
      continue;
    }
    name.assign(e.name);
    name += '_';
    out.Append(name, e.value);
  }
}

}  // namespace mayfly
