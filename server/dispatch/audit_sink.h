#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "server/dispatch/audit_options.h"
#include "storage/clock.h"

namespace mayfly {

/// The destination of audit entries. Never waits for a reader. Threads: one at a time.
class AuditSink {
 public:
  /// Errors: FileNotOpen 38. Of a syslog that is not there: none, it may come.
  static Result<std::unique_ptr<AuditSink>> Open(const AuditOptions& options,
                                                 const std::string& path);
  virtual ~AuditSink() = default;

  /// The state of an entry.
  enum class Outcome : uint8_t { kTaken, kWaits, kRefused };
  /// Writes `entry` from `*done` on, and advances `*done`. kWaits: call again later; kRefused:
  /// never. Then `*why` has the reason.
  virtual Outcome Put(std::string_view entry, size_t* done, std::string* why) = 0;
  /// Longer entries are to be cut before.
  virtual size_t MostBytes() const { return SIZE_MAX; }
  /// Checks for room for later entries; the reason if there is none, or nothing.
  virtual std::string Reserve() { return {}; }
  /// Begins a new file, after renaming the old one unless another program has. The old one's new
  /// path, or nothing. Errors: FileRenameFailed 37, FileNotOpen 38.
  virtual Result<std::string> Rotate(Instant) { return std::string(); }
  virtual bool rotates() const { return false; }  ///< it is a file
  /// For messages: "the audit log /data/audit.json".
  virtual std::string Name() const = 0;
};

}  // namespace mayfly
