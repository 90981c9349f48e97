#include "replication/archive_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

extern char** environ;

namespace mayfly {
namespace {

constexpr size_t kKeptOutput = 1024;
constexpr int kLookAtRunMillis = 100;
constexpr auto kGrace = std::chrono::seconds(2);
constexpr std::string_view kPlace = "{}";

Error Failed(std::string what) { return {ErrorCode::kInternalError, std::move(what)}; }

/// The end of what a command wrote, in one line.
std::string Shown(std::string output) {
  while (!output.empty() && (output.back() == '\n' || output.back() == ' ')) output.pop_back();
  for (char& c : output)
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = ' ';
  return output.empty() ? "it wrote nothing" : "it wrote: " + output;
}

/// Starts it as the leader of a group of its own, which inherits no descriptor but these.
Result<pid_t> Spawn(std::vector<std::string>& words, int output) {
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  if (::posix_spawn_file_actions_init(&actions) != 0) return Failed("no memory for a process");
  if (::posix_spawnattr_init(&attributes) != 0) {
    ::posix_spawn_file_actions_destroy(&actions);
    return Failed("no memory for a process");
  }
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, 1);
  ::posix_spawn_file_actions_adddup2(&actions, output, 2);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t child = 0;
  const int code = ::posix_spawnp(&child, argv[0], &actions, &attributes, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (code != 0) return Failed("cannot start " + words[0] + ": " + std::strerror(code));
  return child;
}

/// Reads available output, a bounded part of it, and keeps its end. False: no more comes.
bool Drain(int fd, std::string& output) {
  constexpr int kMostReads = 64;  // the pipe's size four times: a command may write without end
  char buffer[4096];
  for (int i = 0; i < kMostReads; ++i) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    output.append(buffer, static_cast<size_t>(n));
    if (output.size() > kKeptOutput) output.erase(0, output.size() - kKeptOutput);
  }
  return true;
}

}  // namespace

Result<std::vector<std::string>> SplitCommandLine(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0 && c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
      in_word = true;
    } else if (c == '\\' && quote != '\'' && i + 1 < line.size()) {
      word += line[++i];
      in_word = true;
    } else if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (quote != 0)
    return Error{ErrorCode::kBadValue,
                 "the command has a quote that does not end: " + std::string(line)};
  if (in_word) words.push_back(std::move(word));
  if (words.empty() || words[0].empty())
    return Error{ErrorCode::kBadValue, "the command names no program"};
  return words;
}

Result<void> RunArchiveCommand(const std::vector<std::string>& words, const std::string& file,
                               int64_t seconds, const std::function<bool()>& stop) {
  std::vector<std::string> with_file = words;
  bool placed = false;
  for (size_t i = 1; i < with_file.size(); ++i)
    for (size_t at = 0; (at = with_file[i].find(kPlace, at)) != std::string::npos;
         at += file.size()) {
      with_file[i].replace(at, kPlace.size(), file);
      placed = true;
    }
  if (!placed) with_file.push_back(file);
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return Failed(std::string("no pipe: ") + std::strerror(errno));
  // This end alone: a command that writes fast would fail where the other did not wait for room.
  ::fcntl(pipe[0], F_SETFL, O_NONBLOCK);
  const auto child = Spawn(with_file, pipe[1]);
  ::close(pipe[1]);
  if (!child) {
    ::close(pipe[0]);
    return child.error();
  }
  const pid_t pid = child.value();
  using Steady = std::chrono::steady_clock;
  const auto begun = Steady::now();
  const auto until = begun + std::chrono::seconds(seconds);
  std::optional<Steady::time_point> asked;  ///< when it got SIGTERM
  bool stopped = false, open = true;
  std::string output;
  int status = 0;
  for (;;) {
    pollfd p{pipe[0], POLLIN, 0};
    ::poll(&p, open ? 1 : 0, kLookAtRunMillis);
    open = open && Drain(pipe[0], output);
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    if (ended == pid || (ended < 0 && errno != EINTR)) break;
    const auto now = Steady::now();
    stopped = stopped || stop();
    if (!asked && (stopped || now > until)) {
      asked = now;
      ::kill(-pid, SIGTERM);
    } else if (asked && now > *asked + kGrace) {
      ::kill(-pid, SIGKILL);
    }
  }
  if (asked) ::kill(-pid, SIGKILL);  // what it started
  Drain(pipe[0], output);
  ::close(pipe[0]);
  if (stopped) return Error{ErrorCode::kInterruptedAtShutdown, "the server is shutting down"};
  if (asked)
    return Failed(words[0] + " did not end within " + std::to_string(seconds) + " seconds; " +
                  Shown(std::move(output)));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Ok();
  return Failed(words[0] +
                (WIFEXITED(status) ? " ended with status " + std::to_string(WEXITSTATUS(status))
                                   : " was ended by signal " + std::to_string(WTERMSIG(status))) +
                "; " + Shown(std::move(output)));
}

}  // namespace mayfly
