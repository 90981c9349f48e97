#include "protocol/bson_builder.h"

#include <charconv>

#include "protocol/bson_check.h"

namespace mayfly {

std::string_view TruncateAtNul(std::string_view text) {
  if (bson_check::enabled) bson_check::Fail("a builder", "a NUL in a name", text);
  return text.substr(0, text.find('\0'));
}

std::string_view BsonArrayBuilder::NextName() {
  auto r = std::to_chars(name_, name_ + sizeof name_, n_++);
  return {name_, static_cast<size_t>(r.ptr - name_)};
}

}  // namespace mayfly
