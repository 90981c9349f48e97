#include "server/dispatch/config.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include "protocol/secret_file.h"
#include "server/access/login.h"
#include "server/base/config_file.h"
#include "server/base/environment.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/config_options.h"

namespace mayfly {

unsigned ServerConfig::EffectiveIoThreads() const {
  if (io_threads != 0) return io_threads;
  // Two cores: one io thread beats two (measured). Beyond: a quarter of the cores, the rest works.
  return std::clamp(std::thread::hardware_concurrency() / 4, 1u, 8u);
}

unsigned ServerConfig::EffectiveWorkerThreads() const {
  if (worker_threads != 0) return worker_threads;
  return std::max(4u, 2 * std::thread::hardware_concurrency());
}

bool ServerConfig::IsExempt(std::string_view remote, bool tcp) const {
  if (!tcp)
    return std::find(exempt_sockets.begin(), exempt_sockets.end(), remote) != exempt_sockets.end();
  if (exempt_addresses.empty()) return false;
  const std::optional<IpAddress> address = OriginOf(remote, {}).client;
  return address && std::any_of(exempt_addresses.begin(), exempt_addresses.end(),
                                [&](const AddressRange& r) { return r.Contains(*address); });
}

namespace {

const OptionRow* FindKey(const std::vector<OptionRow>& options, std::string_view key) {
  for (const OptionRow& r : options)
    if (r.key == key) return &r;
  return nullptr;
}

/// The row of a flag as "--port". Null: there is none.
const OptionRow* FindFlag(const std::vector<OptionRow>& options, std::string_view flag) {
  for (const OptionRow& r : options)
    for (std::string_view rest = r.flags; !rest.empty();) {
      const size_t comma = std::min(rest.find(','), rest.size());
      if (rest.substr(0, comma) == flag) return &r;
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  return nullptr;
}

std::string_view DisplayName(const OptionRow& r) {
  if (r.flags.empty()) return r.key;
  size_t at = r.flags.find("--");
  return r.flags.substr(at, r.flags.find(',', at) - at);
}

Result<void> ApplyRow(const OptionRow& row, std::string_view shown, const OptionRow::Values& values,
                      ServerConfig* config) {
  if (!row.why_not.empty()) {
    if (!row.harmless.empty() && !values.empty() && values.back() == row.harmless) return Ok();
    return Error{ErrorCode::kInvalidOptions, std::string(shown) + ": " + std::string(row.why_not)};
  }
  return row.apply(*config, values);
}

/// Shown instead of a password; MongoDB's word.
constexpr std::string_view kHidden = "<password>";

/// The command line without passwords.
std::vector<std::string> WithoutSecrets(std::vector<std::string> argv,
                                        const std::vector<OptionRow>& options) {
  for (size_t i = 1; i < argv.size(); ++i) {
    for (const OptionRow& r : options) {
      if (!r.secret || !argv[i].starts_with(r.flags)) continue;
      if (argv[i].size() == r.flags.size()) {
        if (i + 1 < argv.size() && !argv[i + 1].starts_with("--")) argv[++i] = kHidden;
        break;
      }
      if (argv[i][r.flags.size()] == '=')
        argv[i].replace(r.flags.size() + 1, std::string::npos, kHidden);
    }
  }
  return argv;
}

/// getCmdLineOpts.parsed: dotted keys back into documents.
using Tree = std::map<std::string, std::pair<const OptionRow*, OptionRow::Values>>;
void AppendTree(BsonBuilder& out, const Tree& tree, const std::string& prefix) {
  for (auto it = tree.lower_bound(prefix); it != tree.end() && it->first.starts_with(prefix);) {
    const std::string rest = it->first.substr(prefix.size());
    const size_t dot = rest.find('.');
    if (dot != std::string::npos) {
      const std::string name = rest.substr(0, dot), inner = prefix + name + ".";
      BsonBuilder sub = out.OpenDocument(name);
      AppendTree(sub, tree, inner);
      sub.Done();
      while (it != tree.end() && it->first.starts_with(inner)) ++it;
      continue;
    }
    const auto& [row, values] = it->second;
    const std::string text = row != nullptr && row->secret ? std::string(kHidden)
                             : values.empty()              ? "true"
                                                           : values.back();
    double d = 0;
    std::from_chars(text.data(), text.data() + text.size(), d);
    const OptionRow::Kind kind = row ? row->kind : OptionRow::Kind::kString;
    if (kind == OptionRow::Kind::kSwitch)
      out.Append(rest, text != "false");
    else if (kind == OptionRow::Kind::kInt)
      out.Append(rest, static_cast<int32_t>(d));
    else if (kind == OptionRow::Kind::kDouble)
      out.Append(rest, d);
    else if (kind == OptionRow::Kind::kList && values.size() > 1 && !row->secret) {
      BsonArrayBuilder list = out.OpenArray(rest);
      for (const std::string& v : values) list.Append(v);
      list.Done();
    } else
      out.Append(rest, text);
    ++it;
  }
}

/// A configuration file with a password in it is a file with a secret.
Result<void> CheckHolder(const std::string& path, const OptionRow& row, const std::string& name,
                         const OptionRow::Values& values) {
  if (!row.secret || values.empty() || values.back().empty()) return Ok();
  return CheckSecretFile(path, path + " (it has " + name + ")", SecretReaders::kAnyGroup);
}

/// A line of a configuration file in the format before YAML: a flag with its values.
Result<void> ApplyFlagOfFile(const std::string& path, const std::string& flag,
                             const OptionRow::Values& list, const std::vector<OptionRow>& options,
                             ServerConfig* config, Tree* tree) {
  const std::string where = "Error parsing INI config file '" + path + "': ";
  if (flag == "--verbose") {
    const std::string& v = list.back();
    const bool levels = v.find_first_not_of('v') == std::string::npos;
    config->log.verbosity = levels ? static_cast<int>(std::min<size_t>(5, v.size())) : 1;
    (*tree)["systemLog.verbosity"] = {FindKey(options, "systemLog.verbosity"),
                                      {std::to_string(config->log.verbosity)}};
    return Ok();
  }
  const OptionRow* row = FindFlag(options, flag);
  if (row == nullptr) {
    std::vector<std::string_view> names;
    for (const OptionRow& r : options)
      if (!r.flags.empty()) names.push_back(DisplayName(r));
    std::string m = where + "unrecognised option '" + flag.substr(2) + "'";
    if (auto near = NearestName(flag, names); !near.empty())
      m += "; did you mean '" + std::string(near.substr(2)) + "'?";
    return BadValue(std::move(m));
  }
  if (list.size() > 1 && row->kind != OptionRow::Kind::kList)
    return BadValue(where + "Multiple occurrences of option \"" + flag + "\"");
  MAYFLY_TRY(CheckHolder(path, *row, flag, list));
  // A switch that is off requests nothing.
  if (row->kind == OptionRow::Kind::kSwitch && row->key.empty() && list.back() == "false")
    return Ok();
  MAYFLY_TRY(ApplyRow(*row, flag, list, config));
  if (flag == "--setParameter") {
    for (const auto& [k, v] : config->parameters) (*tree)["setParameter." + k] = {nullptr, {v}};
  } else {
    (*tree)[std::string(row->key.empty() ? flag.substr(2) : row->key)] = {row, list};
  }
  return Ok();
}

/// Applies the configuration file. `tree` collects it for getCmdLineOpts.
Result<void> ApplyFile(const std::string& path, const std::vector<OptionRow>& options,
                       ServerConfig* config, Tree* tree) {
  tree->emplace("config", std::pair<const OptionRow*, OptionRow::Values>{nullptr, {path}});
  MAYFLY_TRY(auto pairs, ReadConfigFile(path));
  for (auto& [key, list] : pairs) {
    if (key.starts_with("--")) {
      MAYFLY_TRY(ApplyFlagOfFile(path, key, list, options, config, tree));
      continue;
    }
    if (key.starts_with("setParameter.")) {
      config->parameters.emplace_back(key.substr(13), list.empty() ? "" : list.back());
      (*tree)[key] = {nullptr, list};
      continue;
    }
    if (key.starts_with("systemLog.component.") && key.ends_with(".verbosity")) {
      const std::string name = key.substr(20, key.size() - 30);
      const LogComponent c = LogComponentByName(name);
      if (c == LogComponent::kDefault)
        return BadValue("Unrecognized option: " + key + ": there is no log component '" + name +
                        "'");
      MAYFLY_TRY(int64_t level, ParseIntOption(key, list.back(), -1, 5));
      config->log.component_verbosity.emplace_back(c, static_cast<int>(level));
      (*tree)[key] = {nullptr, list};
      continue;
    }
    const OptionRow* row = FindKey(options, key);
    if (row == nullptr) {
      std::vector<std::string_view> keys = {"setParameter"};
      for (const OptionRow& r : options)
        if (!r.key.empty()) keys.push_back(r.key);
      std::string m = "Unrecognized option: " + key + " in " + path;
      if (auto near = NearestName(key, keys); !near.empty())
        m += "; did you mean '" + std::string(near) + "'?";
      return BadValue(std::move(m));
    }
    if (list.empty() && !row->secret && !row->restricts) continue;
    MAYFLY_TRY(CheckHolder(path, *row, key, list));
    MAYFLY_TRY(ApplyRow(*row, key, list, config));
    (*tree)[key] = {row, list};
  }
  return Ok();
}

/// A variable that is there and not empty.
std::optional<std::string> Plain(const std::string& name) {
  const char* given = ::getenv(name.c_str());
  if (given == nullptr || *given == '\0') return std::nullopt;
  return std::string(given);
}

/// A variable or, if NAME_FILE is set instead, that file's content. None: neither. A password is
/// hidden afterwards.
Result<std::optional<std::string>> FromVariable(const std::string& name, bool secret,
                                                ServerConfig* config) {
  std::optional<std::string> value = Plain(name);
  if (const auto file = Plain(name + "_FILE")) {
    if (value)
      return BadValue("both " + name + " and " + name + "_FILE are given: leave one of them out");
    MAYFLY_TRY(value, secret ? ReadPasswordFile(*file, name + "_FILE: ") : ReadNameFile(*file));
  } else if (value && secret) {
    config->hidden_variables.emplace_back(name, *value);
    HideVariable(name);
  }
  return value;
}

/// The variables of MongoDB's image. That of the database is for scripts, which are not run here.
Result<void> ApplyRootUser(ServerConfig* config) {
  constexpr std::string_view kKnown[] = {
      "MONGO_INITDB_DATABASE", "MONGO_INITDB_ROOT_PASSWORD", "MONGO_INITDB_ROOT_PASSWORD_FILE",
      "MONGO_INITDB_ROOT_USERNAME", "MONGO_INITDB_ROOT_USERNAME_FILE"};
  for (const auto& [name, value] : VariablesWith("MONGO_INITDB_"))
    if (std::find(std::begin(kKnown), std::end(kKnown), name) == std::end(kKnown))
      return BadValue("Unrecognized variable " + name +
                      ": there are MONGO_INITDB_ROOT_USERNAME and "
                      "MONGO_INITDB_ROOT_PASSWORD, each also with _FILE");
  MAYFLY_TRY(CheckNoScripts("/docker-entrypoint-initdb.d"));
  MAYFLY_TRY(auto user, FromVariable("MONGO_INITDB_ROOT_USERNAME", false, config));
  MAYFLY_TRY(auto password, FromVariable("MONGO_INITDB_ROOT_PASSWORD", true, config));
  if (user.has_value() != password.has_value())
    return BadValue("MONGO_INITDB_ROOT_USERNAME and MONGO_INITDB_ROOT_PASSWORD go together: " +
                    std::string(user ? "the password" : "the name") + " is missing");
  if (user) {
    config->initial_user = *user;
    config->initial_password = *password;
  }
  return Ok();
}

/// Applies the environment: MAYFLYD_… for each flag, and the variables of MongoDB's
/// image.
Result<void> ApplyEnvironment(const std::vector<OptionRow>& options, ServerConfig* config,
                              Tree* tree) {
  std::vector<std::string> names;
  for (const OptionRow& r : options) {
    if (r.flags.empty()) continue;
    const std::string name = VariableOfOption(DisplayName(r));
    names.push_back(name);
    if (r.secret) names.push_back(name + "_FILE");
    MAYFLY_TRY(auto value, r.secret ? FromVariable(name, true, config)
                                    : Result<std::optional<std::string>>(Plain(name)));
    if (!value) continue;
    OptionRow::Values values{*value};
    if (r.flags == "--setParameter") {
      std::istringstream words(*value);
      values.assign(std::istream_iterator<std::string>(words), {});
      for (const std::string& v : values)
        (*tree)["setParameter." + v.substr(0, v.find('='))] = {nullptr,
                                                               {v.substr(v.find('=') + 1)}};
    } else {
      const std::string_view key = r.key.empty() ? DisplayName(r).substr(2) : r.key;
      (*tree)[std::string(key)] = {&r, values};
    }
    auto applied = ApplyRow(r, name, values, config);
    if (!applied && !r.why_not.empty()) return applied.error();
    if (!applied) return Error{applied.error().code, name + ": " + applied.error().message};
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  for (const auto& [name, value] : VariablesWith("MAYFLYD_")) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    std::string m = "Unrecognized variable " + name;
    if (auto near = NearestName(name, known); !near.empty())
      m += "; did you mean '" + std::string(near) + "'?";
    return BadValue(std::move(m));
  }
  return ApplyRootUser(config);
}

Result<void> CheckTls(const ServerConfig& config) {
  const TlsOptions& t = config.tls;
  const bool some = !t.certificate_key_file.empty() || !t.ca_file.empty() || !t.crl_file.empty() ||
                    !t.cluster_file.empty() || !t.cluster_ca_file.empty() ||
                    !t.certificate_key_password.empty() || !t.cluster_password.empty() ||
                    config.ask_certificate_password || config.ask_cluster_password ||
                    t.allow_invalid_certificates || t.allow_invalid_hostnames ||
                    t.allow_connections_without_certificates;
  if (t.mode == TlsMode::kDisabled) {
    if (some)
      return BadValue(
          "need to enable TLS via the tlsMode flag when using TLS configuration "
          "parameters");
    return Ok();
  }
  if (t.certificate_key_file.empty())
    return BadValue("need tlsCertificateKeyFile when TLS is enabled");
  if (t.ca_file.empty() && !t.cluster_ca_file.empty())
    return BadValue("tlsClusterCAFile requires that tlsCAFile is set");
  if (t.ca_file.empty() && !t.crl_file.empty())
    return BadValue("tlsCRLFile requires that tlsCAFile is set");
  return Ok();
}

Result<void> CheckEncryption(BsonView parsed) {
  const BsonValue security = parsed["security"];
  if (!security.IsDocument()) return Ok();
  const BsonView s = security.Document();
  const bool on = s["enableEncryption"].Truthy();
  if (!on && (s["encryptionKeyFile"].Truthy() || s["encryptionRotateFrom"].Truthy()))
    return BadValue("--encryptionKeyFile and --encryptionRotateFrom need --enableEncryption");
  if (on && !s["encryptionKeyFile"].Truthy())
    return BadValue("--enableEncryption needs --encryptionKeyFile");
  return Ok();
}

Result<void> CheckFirstStart(const ServerConfig& config) {
  if (!config.initial_members.empty() && config.repl_set.empty())
    return BadValue("--initialMembers says what a new replica set is made of: it needs --replSet");
  if (config.initial_user.empty() != config.initial_password.empty())
    return BadValue("--initialRootUser and --initialRootPasswordFile go together");
  if (!config.initial_user.empty() && !config.access_control() && !config.transition_to_auth)
    return BadValue(
        "a first user is asked for, and access control is switched off: leave one of them out");
  return Ok();
}

/// Requirements of certificates between members (manual: "Upgrade from Keyfile Authentication to
/// X.509 Authentication").
Result<void> CheckClusterAuth(const ServerConfig& config) {
  const ClusterAuthMode mode = config.tls.cluster_auth;
  if (mode == ClusterAuthMode::kKeyFile) {
    const TlsOptions& o = config.tls;
    if (!o.member_attributes.empty() || !o.member_extension.empty())
      return BadValue(
          "net.tls.clusterAuthX509 says by what in their certificates members know one another: it "
          "needs a clusterAuthMode with certificates (sendKeyFile, sendX509 or x509)");
    return Ok();
  }
  const std::string name = "--clusterAuthMode " + std::string(ClusterAuthModeName(mode));
  if (config.repl_set.empty())
    return BadValue(name + " is how members of a replica set know each other: it needs --replSet");
  if (config.tls.mode == TlsMode::kDisabled)
    return BadValue(name + " needs TLS: set tlsMode, tlsCertificateKeyFile and tlsCAFile");
  if (ShowsCertificate(mode) && config.tls.mode == TlsMode::kAllow)
    return BadValue(
        "cannot have x.509 cluster authentication in allowTLS mode: connections to other members "
        "have no TLS then");
  if (config.tls.ca_file.empty())
    return BadValue(name + " needs tlsCAFile: who may have signed the certificates of members");
  if (TakesKeys(mode) && config.key_file.empty())
    return BadValue(name + " lets members in by the key file too: it needs --keyFile");
  return Ok();
}

/// Checks that involve several options.
Result<void> CheckTogether(const ServerConfig& config) {
  if (config.repl_set.empty()) {
    if (!config.key_file.empty())
      return BadValue(
          "--keyFile is how members of a replica set know each other: it needs --replSet");
    // oplogSize says how large a log would be, and mongod too takes it without one.
    if (config.oplog_min_retention_hours != 0)
      return BadValue("--oplogMinRetentionHours needs --replSet");
  }
  if (config.backup.full && config.backup.folder.empty())
    return BadValue("--full is an option of --backup FOLDER");
  if (!config.backup.folder.empty() && !config.restore.folder.empty())
    return BadValue("--backup and --restore do opposite things: give one of them");
  if (!config.backup.folder.empty() && config.fork)
    return BadValue("--backup ends when it is done, and cannot --fork: leave one of them out");
  if (config.restore.folder.empty() && config.restore.asked_besides)
    return BadValue("--id, --until, --archive and --expiry are options of --restore FOLDER");
  if (!config.restore.folder.empty() && config.fork)
    return BadValue("--restore ends when it is done, and cannot --fork: leave one of them out");
  MAYFLY_TRY(CheckTls(config));
  MAYFLY_TRY(CheckFirstStart(config));
  MAYFLY_TRY(CheckClusterAuth(config));
  if (!config.repl_set.empty() && config.key_file.empty() &&
      config.tls.cluster_auth != ClusterAuthMode::kX509 && config.access_control())
    return BadValue(
        "--keyFile is required when access control is enabled on a replica set: without it anybody "
        "who reaches the port could join the set");
  if (config.transition_to_auth && config.key_file.empty())
    return BadValue("--transitionToAuth must be used with --keyFile");
  if (config.transition_to_auth && config.tls.cluster_auth != ClusterAuthMode::kKeyFile)
    return BadValue(
        "--transitionToAuth must be used with clusterAuthMode keyFile: let the set have its key "
        "file on all members first, certificates come after");
  if (config.auth && config.no_auth)
    return BadValue("--auth and --noauth exclude each other: leave one of them out");
  if (config.transition_to_auth && config.access_control())
    return BadValue("--transitionToAuth lets clients in that have not logged in: leave --auth out");
  if (config.fork && config.log.path.empty())
    return BadValue(
        "--fork has to be used with --logpath: in the background there is no terminal to write to");
  if (config.audit.destination != AuditDestination::kFile) {
    if (!config.audit.path.empty())
      return BadValue("auditPath is for auditDestination file: leave one of them out");
    if (config.audit.format == AuditFormat::kBson)
      return BadValue(
          "auditFormat BSON is for auditDestination file: syslog and console take JSON");
  }
  if (config.audit.destination == AuditDestination::kNone && !config.audit.filter.view().empty())
    return BadValue("auditFilter is given, but auditDestination is none: leave one of them out");
  for (const std::string& ip : config.bind_ips)
    if (ip.find(':') != std::string::npos && ip != "::" && !config.ipv6)
      return BadValue("bind_ip: '" + ip + "' is an IPv6 address; --ipv6 is needed for it");
  return Ok();
}

Error UnknownArgument(const std::string& argument, const std::vector<std::string_view>& known) {
  if (!argument.starts_with('-'))
    return BadValue("Error parsing command line: too many positional options: '" + argument + "'");
  const std::string name = argument.substr(0, argument.find('='));
  std::string m = "Error parsing command line: unrecognised option '" + name + "'";
  if (auto near = NearestName(name, known); !near.empty())
    m += "; did you mean '" + std::string(near) + "'?";
  return BadValue(std::move(m) + " Try 'mayflyd --help' for more information");
}

/// Makes the command line know the option. Its values come into `*values`, which must stay.
CLI::Option* Declare(CLI::App& app, const OptionRow& r, OptionRow::Values* values) {
  CLI::Option* o = nullptr;
  if (r.kind == OptionRow::Kind::kSwitch) {
    o = app.add_flag(std::string(r.flags))->description(std::string(r.help));
  } else {
    o = app.add_option(std::string(r.flags), *values, std::string(r.help))
            ->expected(r.secret ? 0 : 1, 1)
            ->take_all()
            ->multi_option_policy(r.kind == OptionRow::Kind::kList
                                      ? CLI::MultiOptionPolicy::TakeAll
                                      : CLI::MultiOptionPolicy::TakeLast);
    o->type_name(r.kind == OptionRow::Kind::kInt || r.kind == OptionRow::Kind::kDouble ? "N"
                                                                                       : "TEXT");
  }
  if (!r.why_not.empty()) o->group("");  // not in --help
  return o;
}

}  // namespace

Result<ConfigOutcome> ParseConfig(const std::vector<std::string>& argv) {
  const std::vector<OptionRow> options = MakeOptions();
  ConfigOutcome out;
  ServerConfig& config = out.config;
  config.argv = argv;
  config.shown_argv = WithoutSecrets(argv, options);

  CLI::App app{"mayflyd: a document database server that speaks MongoDB's protocol", "mayflyd"};
  app.allow_extras();
  app.set_help_flag("");
  bool help = false, version = false;
  std::string config_path;
  app.add_flag("-h,--help", help, "show this text");
  app.add_flag("--version", version, "show the version");
  app.add_option("-f,--config", config_path, "configuration file (YAML, mongod.conf keys)");
  auto* verbose_option =
      app.add_flag("-v,--verbose")->description("more detail in the log; -vvvvv for the most");
  auto* environment = app.add_flag("--environment")
                          ->description(
                              "variables MAYFLYD_… are options, too, and "
                              "MONGO_INITDB_ROOT_USERNAME and _PASSWORD make the first "
                              "user (containers)");
  std::vector<OptionRow::Values> values(options.size());
  std::vector<CLI::Option*> cli(options.size(), nullptr);
  std::vector<std::string_view> flag_names = {"--help", "--version", "--config", "--verbose",
                                              "--environment"};
  for (size_t i = 0; i < options.size(); ++i) {
    const OptionRow& r = options[i];
    if (r.flags.empty()) continue;
    flag_names.push_back(DisplayName(r));
    cli[i] = Declare(app, r, &values[i]);
  }
  try {
    std::vector<std::string> args(argv.rbegin(), argv.rend() - (argv.empty() ? 0 : 1));
    app.parse(args);
  } catch (const CLI::ParseError& e) {
    return BadValue(std::string("Error parsing command line: ") + e.what());
  }
  if (help) {
    out.action = ConfigOutcome::Action::kPrint;
    out.text = app.help();
    return out;
  }
  if (version) {
    out.action = ConfigOutcome::Action::kPrint;
    // mongod's line comes first: test harnesses look for it to learn what the server can do.
    out.text = "db version v" + std::string(kCompatibleVersion) + "\nmayflyd version v" +
               std::string(kMayflyVersion) + "\n";
    return out;
  }
  if (const auto extra = app.remaining(); !extra.empty())
    return UnknownArgument(extra.front(), flag_names);

  Tree tree;
  if (!config_path.empty()) {
    MAYFLY_TRY(ApplyFile(config_path, options, &config, &tree));
  }
  if (environment->count() > 0) {
    MAYFLY_TRY(ApplyEnvironment(options, &config, &tree));
    tree["environment"] = {nullptr, {"true"}};
  }
  for (size_t i = 0; i < options.size(); ++i) {
    if (cli[i] == nullptr || cli[i]->count() == 0) continue;
    const OptionRow& r = options[i];
    const OptionRow::Values given = r.kind == OptionRow::Kind::kSwitch
                                        ? OptionRow::Values{"true"}
                                        : values[i];  // a secret: none
    MAYFLY_TRY(ApplyRow(r, DisplayName(r), given, &config));
    if (r.flags == "--setParameter") {
      for (const auto& [k, v] : config.parameters) tree["setParameter." + k] = {nullptr, {v}};
    } else {
      tree[std::string(r.key.empty() ? DisplayName(r).substr(2) : r.key)] = {&r, given};
    }
  }
  if (verbose_option->count() > 0) {
    config.log.verbosity = static_cast<int>(std::min<size_t>(5, verbose_option->count()));
    tree["systemLog.verbosity"] = {FindKey(options, "systemLog.verbosity"),
                                   {std::to_string(config.log.verbosity)}};
  }
  MAYFLY_TRY(CheckTogether(config));
  config.parsed = BuildBson([&](BsonBuilder& b) { AppendTree(b, tree, ""); });
  MAYFLY_TRY(CheckEncryption(config.parsed.view()));
  return out;
}

}  // namespace mayfly
