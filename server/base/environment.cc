#include "server/base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "protocol/secret_file.h"

namespace mayfly {
namespace {

constexpr size_t kMaxSmallFile = 4096;

bool Upper(char c) { return c >= 'A' && c <= 'Z'; }

/// Without the line end. Errors: BadValue 2 when nothing is left.
Result<std::string> Line(std::string text, const std::string& path) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty()) return Error{ErrorCode::kBadValue, path + " is empty"};
  return text;
}

}  // namespace

std::string VariableOfOption(std::string_view flag) {
  flag.remove_prefix(std::min(flag.find_first_not_of('-'), flag.size()));
  std::string out = "MAYFLYD_";
  for (size_t i = 0; i < flag.size(); ++i) {
    // A word begins at a capital: behind a small letter, or before one.
    const bool begins =
        Upper(flag[i]) && i > 0 && flag[i - 1] != '_' &&
        (!Upper(flag[i - 1]) || (i + 1 < flag.size() && !Upper(flag[i + 1]) && flag[i + 1] != '_'));
    if (begins) out += '_';
    out += static_cast<char>(std::toupper(static_cast<unsigned char>(flag[i])));
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> VariablesWith(std::string_view prefix) {
  std::vector<std::pair<std::string, std::string>> out;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string_view one = *at;
    const size_t equals = one.find('=');
    if (equals == std::string_view::npos || !one.starts_with(prefix)) continue;
    out.emplace_back(one.substr(0, equals), one.substr(equals + 1));
  }
  std::sort(out.begin(), out.end());
  return out;
}

void HideVariable(const std::string& name) {
  char* value = ::getenv(name.c_str());
  if (value == nullptr) return;
  std::memset(value, 'x', std::strlen(value));
  ::unsetenv(name.c_str());
}

Result<std::string> ReadPasswordFile(const std::string& path, std::string_view what) {
  MAYFLY_TRY(std::string text, ReadSecretFile(path, std::string(what) + path, kMaxSmallFile));
  return Line(std::move(text), path);
}

Result<std::string> ReadNameFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxSmallFile + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || (in.fail() && !in.eof()))
    return Error{ErrorCode::kFileNotOpen, path + ": cannot be read: " + WhyUnreadable(path, errno)};
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxSmallFile)
    return Error{ErrorCode::kBadValue, path + " is larger than 4 KiB: it holds no name"};
  return Line(std::move(text), path);
}

Result<void> CheckNoScripts(const std::string& directory) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(directory, none)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".js" && extension != ".sh") continue;
    return Error{ErrorCode::kInvalidOptions,
                 entry.path().string() +
                     " is not run: there is no shell here. Take it away, and run it with mongosh "
                     "once the server is up"};
  }
  return Ok();
}

}  // namespace mayfly
