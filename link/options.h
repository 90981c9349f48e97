#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

/// What mayfly-link was asked for.
struct LinkOptions {
  enum class Action : uint8_t { kRun, kStatus, kPause, kResume };
  Action action = Action::kRun;
  std::string name = "link";   ///< of the link: a target may have several
  std::string source, target;  ///< connection strings
  std::vector<std::string> include,
      exclude;                        ///< "db", "db.*" or "db.collection"; include empty: all
  BsonDocument filter;                ///< of documents; empty: all
  bool filter_expiration = false;     ///< docs/expiry.md C17: expiry's deletes are not sent
  bool filter_deletion = false;       ///< docs/expiry.md C17: deletes and drops are not sent
  bool filter_bypass_expiry = false;  ///< docs/expiry.md C17: documents are sent without deadlines
  bool definitions = true;     ///< collections' options and indexes are copied, and their changes
  std::string version_field;   ///< empty: one direction
  bool source_moved = false;   ///< the source may have other addresses than until now
  bool new_selection = false;  ///< the selection may be another than until now
  int64_t max_documents_per_second = 0;  ///< 0: no limit
  int http_port = 0;                     ///< 0: none
  std::string http_bind_ip = "127.0.0.1";
};

/// Reads the command line and, behind --config, a YAML file with the same names. nullopt: help or
/// the version was asked for, and shown. Errors: BadValue 2, FailedToParse 9;
/// InvalidOptions 72 when that file has a password and others can read it.
Result<std::optional<LinkOptions>> ParseLinkOptions(int argc, char** argv);

/// What the filters that were chosen can do to data, one line each (Couchbase's manual on XDCR
/// filters warns of the same): for the log at start and the status.
std::vector<std::string> WarningsOf(const LinkOptions& options);

}  // namespace mayfly
