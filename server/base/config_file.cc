#include "server/base/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>
#include <sstream>

#include "protocol/secret_file.h"

namespace mayfly {

namespace {

using Pairs = std::vector<std::pair<std::string, std::vector<std::string>>>;

/// An alias may contain itself, or expand to ever more others.
constexpr int kMaxYamlDepth = 10;
constexpr size_t kMaxPairs = 2000;

/// A key or a plain value. A null byte would end a path, and the name of a field of getCmdLineOpts,
/// in their middle.
Result<std::string> YamlText(const YAML::Node& node, const std::string& path) {
  std::string text = node.as<std::string>();
  if (text.find('\0') != std::string::npos)
    return Error{ErrorCode::kBadValue, "Error parsing YAML config file '" + path + "': line " +
                                           std::to_string(node.Mark().line + 1) +
                                           " holds a null byte"};
  return text;
}

Result<void> Flatten(const YAML::Node& node, const std::string& prefix, const std::string& path,
                     Pairs* out, int depth = 0) {
  if (depth > kMaxYamlDepth || out->size() > kMaxPairs)
    return Error{ErrorCode::kBadValue, path + ": it holds too much, or an alias of what it is in"};
  for (const auto& entry : node) {
    MAYFLY_TRY(const std::string name, YamlText(entry.first, path));
    const std::string key = prefix + name;
    const YAML::Node& value = entry.second;
    for (const auto& [seen, v] : *out)
      if (seen == key) return Error{ErrorCode::kBadValue, path + ": '" + key + "' is given twice"};
    switch (value.Type()) {
      case YAML::NodeType::Map:
        if (auto r = Flatten(value, key + ".", path, out, depth + 1); !r) return r;
        break;
      case YAML::NodeType::Scalar: {
        MAYFLY_TRY(std::string text, YamlText(value, path));
        out->push_back({key, {std::move(text)}});
        break;
      }
      case YAML::NodeType::Sequence: {
        std::vector<std::string> list;
        for (const auto& item : value) {
          if (list.size() > kMaxPairs)
            return Error{ErrorCode::kBadValue, path + ": '" + key + "' lists too much"};
          if (!item.IsScalar())
            return Error{ErrorCode::kBadValue, path + ": '" + key + "' may only list plain values"};
          MAYFLY_TRY(std::string text, YamlText(item, path));
          list.push_back(std::move(text));
        }
        out->push_back({key, std::move(list)});
        break;
      }
      default:
        out->push_back({key, {}});
        break;
    }
  }
  return Ok();
}

std::string_view Trimmed(std::string_view s) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = s.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(kBlank) - first + 1);
}

bool IsFlagName(std::string_view s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  });
}

/// The format before YAML, which mongod still takes: a line `name = value` for each flag, and
/// comments after '#'. None: the text is not of that format.
std::optional<Pairs> ReadFlags(std::string_view text) {
  Pairs out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = Trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const size_t equal = line.find('=');
    if (equal == std::string_view::npos || out.size() > kMaxPairs) return std::nullopt;
    const std::string_view name = Trimmed(line.substr(0, equal));
    const std::string_view value = Trimmed(line.substr(equal + 1));
    if (!IsFlagName(name) || value.find('\0') != std::string_view::npos) return std::nullopt;
    const std::string key = "--" + std::string(name);
    auto same = std::find_if(out.begin(), out.end(), [&](const auto& p) { return p.first == key; });
    if (same == out.end()) same = out.insert(out.end(), {key, {}});
    same->second.emplace_back(value);
  }
  return out;
}

}  // namespace

Result<Pairs> ReadConfigFile(const std::string& path) {
  std::ifstream in(path);
  if (!in)
    return Error{ErrorCode::kFileNotOpen,
                 "Error opening config file '" + path + "': " + WhyUnreadable(path, errno)};
  std::stringstream text;
  text << in.rdbuf();
  Pairs out;
  try {
    YAML::Node root = YAML::Load(text.str());
    if (root.IsNull()) return out;
    if (!root.IsMap()) {
      if (auto flags = ReadFlags(text.view())) return *flags;
      return Error{ErrorCode::kBadValue,
                   "Error parsing YAML config file '" + path + "': it must hold keys and values"};
    }
    MAYFLY_TRY(Flatten(root, "", path, &out));
  } catch (const YAML::Exception& e) {
    if (auto flags = ReadFlags(text.view())) return *flags;
    return Error{ErrorCode::kBadValue,
                 "Error parsing YAML config file '" + path + "': " + e.what()};
  }
  return out;
}

}  // namespace mayfly
