#include "server/base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "server/base/log_redaction.h"

namespace mayfly {

namespace {
constexpr size_t kRingLines = 1024;
thread_local std::string thread_context = "thread";
}  // namespace

struct Log::Sink {
  std::mutex mutex;
  std::shared_ptr<spdlog::sinks::sink> out;
};

Log::Log(const LogOptions& options, const Clock& clock)
    : options_(options), clock_(clock), sink_(std::make_unique<Sink>()), quiet_(options.quiet) {
  for (auto& s : set_) s = -1;
  SetVerbosity(LogComponent::kDefault, options.verbosity);
  for (auto [c, level] : options.component_verbosity) SetVerbosity(c, level);
}

Log::~Log() { Flush(); }

namespace {

Result<std::shared_ptr<spdlog::sinks::sink>> OpenFile(const std::string& path, bool truncate) {
  // Tried by hand first: the reason then comes as an errno, not as an exception's text.
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0)
    return Error{ErrorCode::kFileNotOpen,
                 "Can't open log file " + path + ": " + std::generic_category().message(errno)};
  ::close(fd);
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, truncate);
    sink->set_pattern("%v");
    return std::shared_ptr<spdlog::sinks::sink>(std::move(sink));
  } catch (const std::exception& e) {
    return Error{ErrorCode::kFileNotOpen, "Can't open log file " + path + ": " + e.what()};
  }
}

}  // namespace

std::atomic<bool>& LogRedaction() {
  static std::atomic<bool> on{false};
  return on;
}

Result<void> RenameLogAway(const std::string& path, Instant now) {
  MAYFLY_TRY(RenameLogTo(path, now));
  return Ok();
}

Result<std::string> RenameLogTo(const std::string& path, Instant now) {
  std::error_code ec;
  // Only files are renamed: a device or a pipe (/dev/null, /dev/stdout) belongs to others as well.
  // For a link (such as /dev/stdout), its target is.
  std::string file = path;
  if (std::filesystem::is_symlink(path, ec)) {
    const std::filesystem::path target = std::filesystem::canonical(path, ec);
    if (ec) return std::string();
    file = target.string();
  }
  if (!std::filesystem::is_regular_file(file, ec)) return std::string();
  if (std::filesystem::file_size(file, ec) == 0) return std::string();
  std::string stamp = FormatTimestamp(now, TimestampFormat::kIso8601Utc).substr(0, 19);
  for (char& c : stamp)
    if (c == ':') c = '-';
  std::string to = file + "." + stamp;
  for (int i = 1; std::filesystem::exists(to, ec); ++i)
    to = file + "." + stamp + "." + std::to_string(i);
  std::filesystem::rename(file, to, ec);
  if (ec)
    return Error{ErrorCode::kFileRenameFailed,
                 "Failed to rename \"" + file + "\" to \"" + to + "\": " + ec.message()};
  return to;
}

Result<std::unique_ptr<Log>> Log::Open(const LogOptions& options, const Clock& clock) {
  std::unique_ptr<Log> log(new Log(options, clock));
  if (options.path.empty()) {
    auto sink = std::make_shared<spdlog::sinks::stdout_sink_mt>();
    sink->set_pattern("%v");
    log->sink_->out = std::move(sink);
  } else {
    if (!options.append) {
      MAYFLY_TRY(RenameLogAway(options.path, clock.Now()));
    }
    MAYFLY_TRY(log->sink_->out, OpenFile(options.path, false));
  }
  return log;
}

void LogException(Log& log, std::string_view where) {
  try {
    const std::string what = CurrentExceptionText();
    log.Write(LogSeverity::kError, LogComponent::kControl, 9000105,
              "An exception ended what a thread was doing",
              BuildBson([&](BsonBuilder& b) { b.Append("where", where).Append("error", what); }));
  } catch (...) {
    // An exception out of a catch block would end the thread, and with it the process.
  }
}

void Log::SetThreadContext(std::string name) {
  // The first thread's name is that of the process.
  if (gettid() != getpid()) pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  thread_context = std::move(name);
}

void Log::Write(LogSeverity s, LogComponent c, int id, std::string_view msg, BsonView attr,
                std::string_view ctx) {
  if (!Enabled(s, c)) return;
  if (ctx.empty()) ctx = thread_context;
  counts_[static_cast<size_t>(s)].fetch_add(1, std::memory_order_relaxed);
  BsonDocument redacted;
  if (!attr.empty() &&
      (LogRedaction().load(std::memory_order_relaxed) || TellsOfCredentials(id, attr))) {
    redacted = RedactAttributes(id, attr);
    attr = redacted;
  }
  BsonDocument without;
  if (!attr.empty() && QuotesSecretInError(attr)) [[unlikely]] {
    without = WithoutSecretErrors(attr);
    attr = without;
  }
  const Instant now = clock_.Now();
  std::string json = FormatLogJson(now, options_.timestamps, s, c, id, ctx, msg, attr);
  std::string text;
  if (!options_.json) text = FormatLogText(now, options_.timestamps, s, c, id, ctx, msg, attr);
  {
    std::lock_guard l(sink_->mutex);
    if (sink_->out) {
      try {
        sink_->out->log(
            spdlog::details::log_msg("", spdlog::level::info, options_.json ? json : text));
        sink_->out->flush();
      } catch (const std::exception&) {
        // A full disk must not take the server with it; the ring below still has the line.
      }
    }
  }
  std::lock_guard l(ring_mutex_);
  ring_.push_back(std::move(json));
  ++ring_total_;
  if (ring_.size() > kRingLines) ring_.pop_front();
}

void Log::Flush() {
  std::lock_guard l(sink_->mutex);
  if (sink_->out) sink_->out->flush();
}

Result<void> Log::Rotate() {
  if (options_.path.empty()) return Ok();
  std::lock_guard l(sink_->mutex);
  sink_->out->flush();
  if (options_.rename_on_rotate) {
    MAYFLY_TRY(RenameLogAway(options_.path, clock_.Now()));
  }
  MAYFLY_TRY(sink_->out, OpenFile(options_.path, false));
  return Ok();
}

std::vector<std::string> Log::RecentLines(size_t* total) const {
  std::lock_guard l(ring_mutex_);
  *total = ring_total_;
  return {ring_.begin(), ring_.end()};
}

std::vector<std::string> Log::StartupWarnings() const {
  std::lock_guard l(ring_mutex_);
  return startup_warnings_;
}

void Log::AddStartupWarning(LogComponent c, int id, std::string_view msg) {
  Write(LogSeverity::kWarning, c, id, msg);
  std::lock_guard l(ring_mutex_);
  startup_warnings_.push_back(ring_.back());
}

void Log::SetVerbosity(LogComponent c, int level) {
  set_[static_cast<size_t>(c)] = level;
  const int base = std::max(0, set_[0].load());
  for (size_t i = 0; i < effective_.size(); ++i)
    effective_[i] = set_[i] < 0 ? base : set_[i].load();
}

int Log::verbosity(LogComponent c) const { return set_[static_cast<size_t>(c)]; }

}  // namespace mayfly
