#pragma once
#include <string>
#include <string_view>

#include "protocol/system_names.h"

namespace mayfly {

/// A namespace as clients know it: that of the time series for that of its buckets.
inline std::string ShownNamespace(std::string_view ns) {
  const size_t dot = ns.find('.');
  if (dot == std::string_view::npos || !ns.substr(dot + 1).starts_with(kBucketsPrefix))
    return std::string(ns);
  return std::string(ns.substr(0, dot + 1)).append(ns.substr(dot + 1 + kBucketsPrefix.size()));
}

}  // namespace mayfly
