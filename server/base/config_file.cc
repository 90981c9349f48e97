#include "server/base/config_file.h"

#include <yaml-cpp/yaml.h>

#include <fstream>
#include <sstream>

namespace mayfly {

namespace {

using Pairs = std::vector<std::pair<std::string, std::vector<std::string>>>;

/// An alias may stand for what it is in, or for ever more of others.
constexpr int kMostDepth = 10;
constexpr size_t kMostPairs = 2000;

Result<void> Flatten(const YAML::Node& node, const std::string& prefix, const std::string& path,
                     Pairs* out, int depth = 0) {
  if (depth > kMostDepth || out->size() > kMostPairs)
    return Error{ErrorCode::kBadValue, path + ": it holds too much, or an alias of what it is in"};
  for (const auto& entry : node) {
    const std::string key = prefix + entry.first.as<std::string>();
    const YAML::Node& value = entry.second;
    for (const auto& [seen, v] : *out)
      if (seen == key) return Error{ErrorCode::kBadValue, path + ": '" + key + "' is given twice"};
    switch (value.Type()) {
      case YAML::NodeType::Map:
        if (auto r = Flatten(value, key + ".", path, out, depth + 1); !r) return r;
        break;
      case YAML::NodeType::Scalar:
        out->push_back({key, {value.as<std::string>()}});
        break;
      case YAML::NodeType::Sequence: {
        std::vector<std::string> list;
        for (const auto& item : value) {
          if (list.size() > kMostPairs)
            return Error{ErrorCode::kBadValue, path + ": '" + key + "' lists too much"};
          if (!item.IsScalar())
            return Error{ErrorCode::kBadValue, path + ": '" + key + "' may only list plain values"};
          list.push_back(item.as<std::string>());
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

}  // namespace

Result<Pairs> ReadConfigFile(const std::string& path) {
  std::ifstream in(path);
  if (!in)
    return Error{ErrorCode::kFileNotOpen,
                 "Error opening config file '" + path + "': " + std::strerror(errno)};
  std::stringstream text;
  text << in.rdbuf();
  Pairs out;
  try {
    YAML::Node root = YAML::Load(text.str());
    if (root.IsNull()) return out;
    if (!root.IsMap())
      return Error{ErrorCode::kBadValue,
                   "Error parsing YAML config file '" + path + "': it must hold keys and values"};
    MAYFLY_TRY(Flatten(root, "", path, &out));
  } catch (const YAML::Exception& e) {
    return Error{ErrorCode::kBadValue,
                 "Error parsing YAML config file '" + path + "': " + e.what()};
  }
  return out;
}

}  // namespace mayfly
