#include "link/options.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "link/selection.h"
#include "protocol/extended_json.h"
#include "protocol/secret_file.h"

namespace mayfly {
namespace {

/// Whether a connection string has a password: of a user, or of a key.
bool HasPassword(const std::string& uri) {
  const size_t begin = uri.find("://");
  if (begin == std::string::npos) return false;
  const std::string authority = uri.substr(begin + 3, uri.find('/', begin + 3) - begin - 3);
  const size_t at = authority.rfind('@'), colon = authority.find(':');
  return (at != std::string::npos && colon < at) ||
         CLI::detail::to_lower(uri).find("keypassword=") != std::string::npos ||
         CLI::detail::to_lower(uri).find("keyfilepassword=") != std::string::npos;
}

/// A file of options with a password in it is a file with a secret. Reads it once more, so it is no
/// pipe, whose writer is gone.
Result<void> CheckConfigFile(const CLI::App& app) {
  const CLI::Option* option = app.get_config_ptr();
  if (option == nullptr || option->count() == 0) return Ok();
  const std::string path = option->results().front();
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return Ok();
  bool secret = false;
  for (const CLI::ConfigItem& item : app.get_config_formatter()->from_file(path))
    secret = secret || std::ranges::any_of(item.inputs, HasPassword);
  if (!secret) return Ok();
  return CheckSecretFile(path, path + " (it has a password)", SecretReaders::kAnyGroup);
}

}  // namespace

Result<std::optional<LinkOptions>> ParseLinkOptions(int argc, char** argv) {
  LinkOptions o;
  std::string action = "run", filter;
  CLI::App app{
      "mayfly-link: replicates documents with their deadlines from one cluster to another"};
  app.set_version_flag("--version", MAYFLY_VERSION);
  app.set_help_flag("-h,--help", "show this text");
  app.set_config("-f,--config", "", "file with these options (key = value)");
  app.add_option("action", action, "run (default), status, pause or resume");
  app.add_option("--name", o.name, "name of the link (link)");
  app.add_option("--source", o.source, "connection string of the set that is read");
  app.add_option("--target", o.target, "connection string of the cluster that is written to")
      ->required();
  app.add_option("--include", o.include, "only these: db, db.* or db.collection; may be repeated");
  app.add_option("--exclude", o.exclude, "not these; may be repeated");
  app.add_option("--filter", filter, "only documents that match, as JSON");
  app.add_flag("--filterExpiration", o.filter_expiration, "do not send what expiry removes");
  app.add_flag("--filterDeletion", o.filter_deletion, "do not send deletes and drops");
  app.add_flag("--filterBypassExpiry", o.filter_bypass_expiry, "send without deadlines");
  app.add_flag("--definitions,!--noDefinitions", o.definitions,
               "copy options of collections and indexes, and follow their changes (default)");
  app.add_option("--versionField", o.version_field,
                 "field with the date of the last change, for links in both directions");
  app.add_flag("--sourceMoved", o.source_moved,
               "the source is the one of until now, at other addresses");
  app.add_flag("--newSelection", o.new_selection,
               "copy again where --include, --exclude or --filter are others than until now");
  app.add_option("--maxDocumentsPerSecond", o.max_documents_per_second, "0: no limit (default)");
  app.add_option("--httpPort", o.http_port, "port for /metrics, /status, /healthz (none)");
  app.add_option("--httpBindIp", o.http_bind_ip, "address for --httpPort (127.0.0.1)");
  try {
    app.parse(argc, argv);
    MAYFLY_TRY(CheckConfigFile(app));
  } catch (const CLI::Success& e) {
    app.exit(e);
    return std::optional<LinkOptions>();
  } catch (const CLI::ParseError& e) {
    return Error{ErrorCode::kBadValue, e.what()};
  }
  if (action == "status")
    o.action = LinkOptions::Action::kStatus;
  else if (action == "pause")
    o.action = LinkOptions::Action::kPause;
  else if (action == "resume")
    o.action = LinkOptions::Action::kResume;
  else if (action != "run")
    return Error{ErrorCode::kBadValue,
                 "unknown action '" + action + "': there are run, status, pause and resume"};
  if (o.action != LinkOptions::Action::kRun) return std::optional(std::move(o));
  if (o.source.empty()) return Error{ErrorCode::kBadValue, "--source is missing"};
  if (o.name.empty() || o.name.size() > 128 || o.name.find('\0') != std::string::npos)
    return Error{ErrorCode::kBadValue, "--name must have 1 to 128 characters"};
  if (o.max_documents_per_second < 0 || o.http_port < 0 || o.http_port > 65535)
    return Error{ErrorCode::kBadValue,
                 "--maxDocumentsPerSecond must not be negative, --httpPort at most 65535"};
  if (!o.version_field.empty() &&
      (o.version_field[0] == '$' || o.version_field.find('.') != std::string::npos ||
       o.version_field == "_id"))
    return Error{ErrorCode::kBadValue, "--versionField must be a top-level field other than _id"};
  if (!filter.empty()) {
    MAYFLY_TRY(o.filter, ParseJson(filter));
    MAYFLY_TRY(EventMatch(o.filter));
  }
  MAYFLY_TRY(Selection::Make(o.include, o.exclude));
  return std::optional(std::move(o));
}

std::vector<std::string> WarningsOf(const LinkOptions& o) {
  std::vector<std::string> out;
  if (o.filter_expiration)
    out.emplace_back(
        "filterExpiration: what expires at the source stays at the target until a rule of the "
        "target removes it: data that should be gone may be kept. A second copy (after a lost "
        "history) removes no documents, because it cannot tell deletes from expiry");
  if (o.filter_deletion)
    out.emplace_back(
        "filterDeletion: what is deleted at the source stays at the target: data that should be "
        "gone may be kept");
  if (o.filter_bypass_expiry)
    out.emplace_back(
        std::string("filterBypassExpiry: documents lose their own deadlines on the way; at the "
                    "target they expire only by what is there: a limit, expiry.field") +
        (o.definitions
             ? ", and the TTL indexes and clustered collections that are carried, because "
               "--noDefinitions is not given"
             : " or a TTL index"));
  if (o.filter_bypass_expiry && !o.filter_expiration)
    out.emplace_back(
        "filterBypassExpiry without filterExpiration: what expires at the source is still deleted "
        "at the target");
  if (!o.filter.view().empty())
    out.emplace_back(
        "filter: a document that no longer matches stays at the target as it was when it did");
  if (!o.version_field.empty())
    out.emplace_back(
        "versionField: with links in both directions the document with the later date wins, with "
        "its deadline, so a deadline can become the other side's shorter one");
  return out;
}

}  // namespace mayfly
