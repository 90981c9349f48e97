#pragma once
#include <string>
#include <string_view>

namespace mayfly {

/// Who counts as one client, of "ip:port": the address without its port; of IPv6 the first 64 bits,
/// of which a host has all addresses to choose from. Bytes to compare, not text to show.
std::string ClientOf(std::string_view address);

}  // namespace mayfly
