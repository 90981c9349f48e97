#pragma once
#include <string>
#include <string_view>

namespace mayfly {

/// The key that limits for one client count by, from "ip:port": the IPv4 address, or the first 64
/// bits of an IPv6 address, because one host usually owns a whole /64. Bytes to compare, not text
/// to show.
std::string ClientOf(std::string_view address);

/// The same for what belongs to a user: the user's, wherever it comes from, because many may share
/// an address. `user`: UserName::Id() or the user's digest, always the same of them for one limit;
/// empty without access control: ClientOf(address).
std::string OwnerOf(std::string_view user, std::string_view address);

}  // namespace mayfly
