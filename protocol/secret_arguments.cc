#include "protocol/secret_arguments.h"

#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mayfly {
namespace {

constexpr const char* kLeft = "MAYFLY_SECRETS_FD";
constexpr size_t kMaxPassword = 4096;
constexpr size_t kMaxLeft = 32 * 1024;  // a pipe takes twice that without a reader

}  // namespace

Result<std::string> AskPassword(std::string_view what) {
  const std::string question = "Enter the password of the key in " + std::string(what) + ": ";
  const int terminal = ::open("/dev/tty", O_RDWR | O_CLOEXEC);
  if (terminal < 0)
    return Error{
        ErrorCode::kInvalidOptions,
        std::string(what) + ": its password was to be asked for, and there is no terminal"};
  termios before{};
  const bool known = ::tcgetattr(terminal, &before) == 0;
  termios silent = before;
  silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  if (known) ::tcsetattr(terminal, TCSAFLUSH, &silent);
  [[maybe_unused]] ssize_t n = ::write(terminal, question.data(), question.size());
  std::string typed;
  char c = 0;
  while (typed.size() < kMaxPassword && ::read(terminal, &c, 1) == 1 && c != '\n') typed += c;
  if (known) ::tcsetattr(terminal, TCSAFLUSH, &before);
  n = ::write(terminal, "\n", 1);
  ::close(terminal);
  if (typed.empty())
    return Error{ErrorCode::kInvalidOptions, std::string(what) + ": no password was typed"};
  return typed;
}

void HideArguments(int argc, char** argv, const std::vector<std::string_view>& options) {
  for (int i = 1; i < argc; ++i) {
    for (const std::string_view option : options) {
      const std::string_view given = argv[i];
      if (!given.starts_with(option)) continue;
      char* secret = nullptr;
      if (given.size() == option.size()) {
        if (i + 1 < argc && std::string_view(argv[i + 1]).substr(0, 2) != "--") secret = argv[++i];
      } else if (given[option.size()] == '=') {
        secret = argv[i] + option.size() + 1;
      }
      if (secret != nullptr) std::memset(secret, 'x', std::strlen(secret));
      break;
    }
  }
}

bool LeaveSecrets(const std::vector<std::string>& secrets) {
  std::string all;
  for (const std::string& s : secrets) all.append(s).push_back('\0');
  int ends[2];
  if (all.size() > kMaxLeft || ::pipe(ends) != 0) return false;
  const bool written = ::write(ends[1], all.data(), all.size()) == static_cast<ssize_t>(all.size());
  ::close(ends[1]);
  return written && ::setenv(kLeft, std::to_string(ends[0]).c_str(), 1) == 0;
}

std::vector<std::string> TakeLeftSecrets() {
  std::vector<std::string> secrets;
  const char* left = ::getenv(kLeft);
  if (left == nullptr) return secrets;
  const int fd = static_cast<int>(std::strtol(left, nullptr, 10));
  ::unsetenv(kLeft);
  std::string all(kMaxLeft, '\0');
  size_t have = 0;
  for (ssize_t n = 1; n > 0 && have < all.size(); have += static_cast<size_t>(n > 0 ? n : 0))
    n = ::read(fd, all.data() + have, all.size() - have);
  ::close(fd);
  for (size_t at = 0; at < have;) {
    const size_t end = std::min(all.find('\0', at), have);
    secrets.push_back(all.substr(at, end - at));
    at = end + 1;
  }
  return secrets;
}

}  // namespace mayfly
