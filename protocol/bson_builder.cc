#include "protocol/bson_builder.h"

#include "protocol/bson_check.h"

namespace mayfly {

std::string_view TruncateAtNul(std::string_view text) {
  if (bson_check::enabled) bson_check::Fail("a builder", "a NUL in a name", text);
  return text.substr(0, text.find('\0'));
}

void BsonArrayBuilder::Carry() {
  uint32_t at = digits_;
  while (at > 0 && name_[at - 1] == '9') name_[--at] = '0';
  if (at > 0) {
    ++name_[at - 1];
    return;
  }
  // It was all nines: one digit more, as many as an int has at the most.
  name_[0] = '1';
  name_[digits_++] = '0';
}

}  // namespace mayfly
