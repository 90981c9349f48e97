#include "protocol/bson_check.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "protocol/bson_validate.h"

namespace mayfly::bson_check {
namespace {

bool Wanted() {
#ifdef MAYFLY_CHECK_BSON
  return true;
#else
  const char* v = std::getenv("MAYFLY_CHECK_BSON");
  return v != nullptr && std::string_view(v) == "1";
#endif
}

constexpr size_t kMaxChecked = 1 << 20;

}  // namespace

const bool enabled = Wanted();

void Fail(const char* where, std::string_view what, std::string_view bytes) {
  std::fprintf(stderr, "mayfly: malformed BSON from %s: %.*s; the first bytes:", where,
               static_cast<int>(what.size()), what.data());
  for (char c : bytes.substr(0, 256)) std::fprintf(stderr, " %02x", static_cast<uint8_t>(c));
  std::fputc('\n', stderr);
  std::abort();
}

void DocumentSlow(std::string_view bytes, const char* where) {
  Result<void> valid = ValidateBson(bytes, false);
  if (valid || valid.error().code == ErrorCode::kOverflow) return;
  Fail(where, valid.error().message, bytes);
}

void ValueSlow(BsonValue v, const char* where) {
  if (v.missing() || v.size() > kMaxChecked) return;
  if (v.IsDocument() || v.IsArray()) return DocumentSlow(v.bytes(), where);
  // As the only element of a document, under the empty name.
  std::string bytes(4, '\0');
  bytes.push_back(static_cast<char>(v.type()));
  bytes.push_back('\0');
  bytes.append(v.bytes()).push_back('\0');
  StoreLe<int32_t>(bytes.data(), static_cast<int32_t>(bytes.size()));
  DocumentSlow(bytes, where);
}

}  // namespace mayfly::bson_check
