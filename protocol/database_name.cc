#include "protocol/database_name.h"

#include <array>
#include <cstdint>

#include "protocol/utf8.h"

namespace mayfly {
namespace {

/// As on Linux (manual: "Naming Restrictions").
constexpr std::string_view kForbiddenInDatabase("/\\. \"$\0", 7);

constexpr uint8_t kForbidden = 1, kNotAscii = 2;
constexpr std::array<uint8_t, 256> kDatabaseBytes = [] {
  std::array<uint8_t, 256> a{};
  for (const char c : kForbiddenInDatabase) a[static_cast<uint8_t>(c)] = kForbidden;
  for (size_t i = 128; i < 256; ++i) a[i] = kNotAscii;
  return a;
}();

}  // namespace

bool IsDatabaseName(std::string_view db) {
  if (db.empty() || db.size() > kMaxDatabaseName) return false;
  // One look-up a byte: every command comes here.
  uint8_t seen = 0;
  for (const char c : db) seen |= kDatabaseBytes[static_cast<uint8_t>(c)];
  if (seen == 0) [[likely]]
    return true;
  return (seen & kForbidden) == 0 && IsUtf8(db);
}

}  // namespace mayfly
