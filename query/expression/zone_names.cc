#include "query/expression/zone_names.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace mayfly {
namespace {

/// No name of a zone is longer ("America/Argentina/ComodRivadavia" has 32 bytes), and no database
/// has more.
constexpr size_t kMaxName = 64, kMaxNames = 10'000;
/// "America/Argentina/Salta".
constexpr int kMaxDepth = 2;

/// The letters of names: files like "zone.tab", "leap-seconds.list" have others as well.
bool IsSpelledLikeZone(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && std::ranges::all_of(name, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '+' || c == '-' || c == '/';
  });
}

/// Sorted. The folder is the one that the library reads: TZDIR, or the system's.
std::vector<std::string> ReadNames() {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  const char* given = std::getenv("TZDIR");
  const fs::path root = given != nullptr && *given != '\0' ? given : "/usr/share/zoneinfo";
  std::error_code ec;
  fs::recursive_directory_iterator at(root, fs::directory_options::skip_permission_denied, ec);
  for (; !ec && at != fs::recursive_directory_iterator() && names.size() < kMaxNames;
       at.increment(ec)) {
    const std::string name = at->path().lexically_relative(root).string();
    std::error_code unknown;
    if (at->is_directory(unknown)) {
      // The same zones once more, without and with leap seconds.
      if (at.depth() >= kMaxDepth || name == "posix" || name == "right")
        at.disable_recursion_pending();
    } else if (IsSpelledLikeZone(name) && !name.starts_with("posix") &&
               at->is_regular_file(unknown)) {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

bool IsZoneName(std::string_view name) {
  static const std::vector<std::string> names = ReadNames();
  return IsSpelledLikeZone(name) && std::ranges::binary_search(names, name, std::ranges::less{});
}

}  // namespace mayfly
