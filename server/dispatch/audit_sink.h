#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "server/dispatch/audit_options.h"
#include "storage/clock.h"

namespace mayfly {

/// What takes the entries of an audit log. Never waits for a reader. Threads: one at a time.
class AuditSink {
 public:
  /// Errors: FileNotOpen 38. Of a syslog that is not there: none, it may come.
  static Result<std::unique_ptr<AuditSink>> Open(const AuditOptions& options,
                                                 const std::string& path);
  virtual ~AuditSink() = default;

  /// What has become of an entry.
  enum class Outcome : uint8_t { kTaken, kWaits, kRefused };
  /// Hands over `entry` from `*done` on, which it moves on. kWaits: later again, from there;
  /// kRefused: never. Then `*why` says why.
  virtual Outcome Put(std::string_view entry, size_t* done, std::string* why) = 0;
  /// Longer entries are to be cut before.
  virtual size_t MostBytes() const { return SIZE_MAX; }
  /// Whether there is room for what comes next; the reason why not, or nothing.
  virtual std::string Reserve() { return {}; }
  /// Begins a new file, after renaming the old one unless another program has. The old one's new
  /// path, or nothing. Errors: FileRenameFailed 37, FileNotOpen 38.
  virtual Result<std::string> Rotate(Instant) { return std::string(); }
  virtual bool rotates() const { return false; }  ///< it is a file
  /// For messages: "the audit log /data/audit.json".
  virtual std::string Name() const = 0;
};

}  // namespace mayfly
