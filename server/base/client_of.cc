#include "server/base/client_of.h"

#include <arpa/inet.h>

namespace mayfly {

std::string ClientOf(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return std::string(address);
  std::string host(address.substr(0, colon));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  in6_addr v6;
  if (host.find(':') == std::string::npos || inet_pton(AF_INET6, host.c_str(), &v6) != 1)
    return host;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return host;
  return std::string(reinterpret_cast<const char*>(v6.s6_addr), 8);
}

std::string OwnerOf(std::string_view user, std::string_view address) {
  return user.empty() ? ClientOf(address) : "user " + std::string(user);
}

}  // namespace mayfly
