#include "server/dispatch/config.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <map>
#include <thread>

#include "server/base/config_file.h"
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

namespace {

using Kind = OptionRow::Kind;
using Values = OptionRow::Values;

Error Bad(std::string message) { return {ErrorCode::kBadValue, std::move(message)}; }

const OptionRow* FindKey(const std::vector<OptionRow>& options, std::string_view key) {
  for (const OptionRow& r : options)
    if (r.key == key) return &r;
  return nullptr;
}

std::string_view DisplayName(const OptionRow& r) {
  if (r.flags.empty()) return r.key;
  size_t at = r.flags.find("--");
  return r.flags.substr(at, r.flags.find(',', at) - at);
}

Result<void> ApplyRow(const OptionRow& row, std::string_view shown, const Values& values,
                      ServerConfig* config) {
  if (!row.why_not.empty()) {
    if (!row.harmless.empty() && !values.empty() && values.back() == row.harmless) return Ok();
    return Error{ErrorCode::kInvalidOptions, std::string(shown) + ": " + std::string(row.why_not)};
  }
  return row.apply(*config, values);
}

/// getCmdLineOpts.parsed: dotted keys back into documents.
using Tree = std::map<std::string, std::pair<const OptionRow*, Values>>;
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
    const std::string text = values.empty() ? "true" : values.back();
    double d = 0;
    std::from_chars(text.data(), text.data() + text.size(), d);
    const Kind kind = row ? row->kind : Kind::kString;
    if (kind == Kind::kSwitch)
      out.Append(rest, text != "false");
    else if (kind == Kind::kInt)
      out.Append(rest, static_cast<int32_t>(d));
    else if (kind == Kind::kDouble)
      out.Append(rest, d);
    else
      out.Append(rest, text);
    ++it;
  }
}

/// Takes over what the configuration file says. `tree` collects it for getCmdLineOpts.
Result<void> ApplyFile(const std::string& path, const std::vector<OptionRow>& options,
                       ServerConfig* config, Tree* tree) {
  tree->emplace("config", std::pair<const OptionRow*, Values>{nullptr, {path}});
  MAYFLY_TRY(auto pairs, ReadConfigFile(path));
  for (auto& [key, list] : pairs) {
    if (key.starts_with("setParameter.")) {
      config->parameters.emplace_back(key.substr(13), list.empty() ? "" : list.back());
      (*tree)[key] = {nullptr, list};
      continue;
    }
    if (key.starts_with("systemLog.component.") && key.ends_with(".verbosity")) {
      const std::string name = key.substr(20, key.size() - 30);
      const LogComponent c = LogComponentByName(name);
      if (c == LogComponent::kDefault)
        return Bad("Unrecognized option: " + key + ": there is no log component '" + name + "'");
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
      return Bad(std::move(m));
    }
    if (list.empty()) continue;
    MAYFLY_TRY(ApplyRow(*row, key, list, config));
    (*tree)[key] = {row, list};
  }
  return Ok();
}

/// What no option can see by itself.
Result<void> CheckTogether(const ServerConfig& config) {
  if (config.repl_set.empty()) {
    if (!config.key_file.empty())
      return Bad("--keyFile is how members of a replica set know each other: it needs --replSet");
    if (config.oplog_size_mb != 0 || config.oplog_min_retention_hours != 0)
      return Bad("--oplogSize and --oplogMinRetentionHours need --replSet");
  }
  if (config.fork && config.log.path.empty())
    return Bad(
        "--fork has to be used with --logpath: in the background there is no terminal to write to");
  if (!config.audit && !config.audit_path.empty())
    return Bad("auditPath is given, but auditDestination is none: leave one of them out");
  for (const std::string& ip : config.bind_ips)
    if (ip.find(':') != std::string::npos && ip != "::" && !config.ipv6)
      return Bad("bind_ip: '" + ip + "' is an IPv6 address; --ipv6 is needed for it");
  return Ok();
}

Error UnknownArgument(const std::string& argument, const std::vector<std::string_view>& known) {
  if (!argument.starts_with('-'))
    return Bad("Error parsing command line: too many positional options: '" + argument + "'");
  const std::string name = argument.substr(0, argument.find('='));
  std::string m = "Error parsing command line: unrecognised option '" + name + "'";
  if (auto near = NearestName(name, known); !near.empty())
    m += "; did you mean '" + std::string(near) + "'?";
  return Bad(std::move(m) + " Try 'mayflyd --help' for more information");
}

/// Makes the command line know the option. Its values come into `*values`, which must stay.
CLI::Option* Declare(CLI::App& app, const OptionRow& r, Values* values) {
  CLI::Option* o = nullptr;
  if (r.kind == Kind::kSwitch) {
    o = app.add_flag(std::string(r.flags))->description(std::string(r.help));
  } else {
    o = app.add_option(std::string(r.flags), *values, std::string(r.help))
            ->expected(1)
            ->take_all()
            ->multi_option_policy(r.kind == Kind::kList ? CLI::MultiOptionPolicy::TakeAll
                                                        : CLI::MultiOptionPolicy::TakeLast);
    o->type_name(r.kind == Kind::kInt || r.kind == Kind::kDouble ? "N" : "TEXT");
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
  std::vector<Values> values(options.size());
  std::vector<CLI::Option*> cli(options.size(), nullptr);
  std::vector<std::string_view> flag_names = {"--help", "--version", "--config", "--verbose"};
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
    return Bad(std::string("Error parsing command line: ") + e.what());
  }
  if (help) {
    out.action = ConfigOutcome::Action::kPrint;
    out.text = app.help();
    return out;
  }
  if (version) {
    out.action = ConfigOutcome::Action::kPrint;
    out.text = "mayflyd version v" + std::string(kMayflyVersion) + "\nanswers as MongoDB " +
               std::string(kCompatibleVersion) + "\n";
    return out;
  }
  if (const auto extra = app.remaining(); !extra.empty())
    return UnknownArgument(extra.front(), flag_names);

  Tree tree;
  if (!config_path.empty()) {
    MAYFLY_TRY(ApplyFile(config_path, options, &config, &tree));
  }
  for (size_t i = 0; i < options.size(); ++i) {
    if (cli[i] == nullptr || cli[i]->count() == 0) continue;
    const OptionRow& r = options[i];
    const Values given = r.kind == Kind::kSwitch ? Values{"true"} : values[i];
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
  return out;
}

}  // namespace mayfly
