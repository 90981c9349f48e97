#include "protocol/bson_builder.h"

#include <charconv>

namespace mayfly {

std::string_view BsonArrayBuilder::NextName() {
  auto r = std::to_chars(name_, name_ + sizeof name_, n_++);
  return {name_, static_cast<size_t>(r.ptr - name_)};
}

}  // namespace mayfly
