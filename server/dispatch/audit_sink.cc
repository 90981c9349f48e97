#include "server/dispatch/audit_sink.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "server/base/log_redaction.h"

namespace mayfly {
namespace {

std::string SystemError() { return std::generic_category().message(errno); }

AuditSink::Outcome WriteAll(int fd, std::string_view entry, size_t* done, std::string* why) {
  while (*done < entry.size()) {
    const ssize_t n = ::write(fd, entry.data() + *done, entry.size() - *done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      *why = n < 0 ? SystemError() : "nothing was written";
      return AuditSink::Outcome::kWaits;
    }
    *done += static_cast<size_t>(n);
  }
  return AuditSink::Outcome::kTaken;
}

class FileSink : public AuditSink {
 public:
  FileSink(std::string path, bool rename) : path_(std::move(path)), rename_(rename) {}
  ~FileSink() override { Close(); }

  Result<void> OpenFile() {
    const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
      return Error{ErrorCode::kFileNotOpen,
                   "Can't open the audit log " + path_ + ": " + SystemError()};
    Close();
    fd_ = fd;
    return Ok();
  }
  Outcome Put(std::string_view entry, size_t* done, std::string* why) override {
    return WriteAll(fd_, entry, done, why);
  }
  std::string Reserve() override {
    struct stat s;
    if (::fstat(fd_, &s) != 0) return SystemError();
    if (!S_ISREG(s.st_mode) || s.st_size + kLeastRoom <= reserved_) return {};
    if (::fallocate(fd_, FALLOC_FL_KEEP_SIZE, s.st_size, kRoom) != 0) {
      if (errno == EOPNOTSUPP || errno == ENOSYS) return {};  // then the entry itself will tell
      return SystemError();
    }
    reserved_ = s.st_size + kRoom;
    return {};
  }
  Result<std::string> Rotate(Instant now) override {
    std::string old;
    if (rename_) {
      MAYFLY_TRY(old, RenameLogTo(path_, now));
    }
    MAYFLY_TRY(OpenFile());
    return old;
  }
  bool rotates() const override { return true; }
  std::string Name() const override { return "the audit log " + path_; }

 private:
  static constexpr off_t kRoom = 1 << 20, kLeastRoom = 256 << 10;

  void Close() {
    if (fd_ < 0) return;
    struct stat s;
    // Gives back what was reserved behind the end.
    if (reserved_ > 0 && ::fstat(fd_, &s) == 0) [[maybe_unused]]
      const int cut = ::ftruncate(fd_, s.st_size);
    ::close(fd_);
    reserved_ = 0;
  }
  const std::string path_;
  const bool rename_;
  int fd_ = -1;
  off_t reserved_ = 0;  ///< up to where the file has its place on the disk
};

class ConsoleSink : public AuditSink {
 public:
  Outcome Put(std::string_view entry, size_t* done, std::string* why) override {
    return WriteAll(STDOUT_FILENO, entry, done, why);
  }
  std::string Name() const override { return "the audit log on standard output"; }
};

/// RFC 3164's local form: one datagram per entry. Connects again when the daemon has restarted.
class SyslogSink : public AuditSink {
 public:
  explicit SyslogSink(std::string socket) : path_(std::move(socket)) {}
  ~SyslogSink() override { Close(); }

  Outcome Put(std::string_view entry, size_t* done, std::string* why) override {
    while (entry.ends_with('\n')) entry.remove_suffix(1);
    std::string message = "<14>mayflyd[" + std::to_string(::getpid()) + "]: ";  // user.info
    message += entry;
    for (int attempt = 0; attempt < 2; ++attempt) {
      if (fd_ < 0 && !Connect()) break;
      if (::send(fd_, message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
        *done = entry.size();
        return Outcome::kTaken;
      }
      if (errno == EMSGSIZE) {
        *why = "an entry of " + std::to_string(entry.size()) + " bytes is too long for syslog";
        return Outcome::kRefused;
      }
      if (errno == EAGAIN || errno == ENOBUFS) break;
      const int failed = errno;
      Close();
      errno = failed;
    }
    *why = path_ + ": " + SystemError();
    return Outcome::kWaits;
  }
  size_t MostBytes() const override { return kLongest; }
  std::string Name() const override { return "syslog at " + path_; }

 private:
  static constexpr size_t kLongest = 64 << 10;  // what a datagram holds wherever that was looked at

  bool Connect() {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    if (path_.size() >= sizeof to.sun_path) {
      errno = ENAMETOOLONG;
      return false;
    }
    std::memcpy(to.sun_path, path_.data(), path_.size());
    fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd_ < 0) return false;
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0) return true;
    const int failed = errno;
    Close();
    errno = failed;
    return false;
  }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  const std::string path_;
  int fd_ = -1;
};

}  // namespace

Result<std::unique_ptr<AuditSink>> AuditSink::Open(const AuditOptions& options,
                                                   const std::string& path) {
  if (options.destination == AuditDestination::kConsole)
    return std::unique_ptr<AuditSink>(new ConsoleSink);
  if (options.destination == AuditDestination::kSyslog)
    return std::unique_ptr<AuditSink>(new SyslogSink(options.syslog_socket));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ec;
  if (!folder.empty()) std::filesystem::create_directories(folder, ec);
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "Can't make the folder of the audit log " + path + ": " + ec.message()};
  auto file = std::make_unique<FileSink>(path, options.rename_on_rotate);
  MAYFLY_TRY(file->OpenFile());
  return std::unique_ptr<AuditSink>(std::move(file));
}

}  // namespace mayfly
