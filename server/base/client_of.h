#pragma once
#include <string>
#include <string_view>

namespace mayfly {

/// The key that limits for one client count by, from "ip:port": the IPv4 address, or the first 64
/// bits of an IPv6 address, because one host usually owns a whole /64. Bytes to compare, not text
/// to show.
std::string ClientOf(std::string_view address);

}  // namespace mayfly
