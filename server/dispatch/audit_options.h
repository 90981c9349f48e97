#pragma once
#include <cstdint>
#include <string>

#include "protocol/bson_builder.h"
#include "protocol/error.h"

namespace mayfly {

/// Where the audit log goes (auditLog.destination).
enum class AuditDestination : uint8_t { kNone, kFile, kConsole, kSyslog };
/// What an entry in a file looks like (auditLog.format).
enum class AuditFormat : uint8_t { kJson, kBson };

/// Where and how the audit log is written; fixed at start, but for the filter.
struct AuditOptions {
  AuditDestination destination = AuditDestination::kFile;
  AuditFormat format = AuditFormat::kJson;
  std::string path;  ///< of the file
  bool rename_on_rotate = true;
  std::string syslog_socket = "/dev/log";
  BsonDocument filter;  ///< which entries are written; empty: all
};

/// Longer filters are refused: each entry is matched.
inline constexpr size_t kMaxAuditFilter = 16 * 1024;

/// A filter as the command line and the configuration file give it: extended JSON, and as in the
/// shell names without quotes, text in single quotes and /patterns/. In a pattern `\\` stands for
/// one backslash. Errors: FailedToParse 9; BadValue 2 beyond kMaxAuditFilter.
Result<BsonDocument> ParseAuditFilter(std::string_view text);

}  // namespace mayfly
