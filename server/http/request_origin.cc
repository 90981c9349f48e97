#include "server/http/request_origin.h"

#include <boost/algorithm/string/case_conv.hpp>

namespace mayfly {

namespace {

/// "127.0.0.1:28017" -> "127.0.0.1"; "[::1]:28017" -> "[::1]".
std::string_view HostName(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end == std::string_view::npos ? std::string_view() : host.substr(0, end + 1);
  }
  return host.substr(0, host.find(':'));
}

}  // namespace

bool KnownHost(std::string_view host, std::span<const std::string> names) {
  std::string name = boost::algorithm::to_lower_copy(std::string(HostName(host)));
  if (name.ends_with('.')) name.pop_back();
  if (name == "localhost") return true;
  for (const std::string& known : names)
    if (name == known) return true;
  if (name.starts_with('[')) name = name.substr(1, name.size() - 2);
  boost::system::error_code ec;
  boost::asio::ip::make_address(name, ec);
  return !ec;
}

std::string_view RefuseAction(const boost::asio::ip::address& peer, std::string_view host,
                              std::string_view origin, std::string_view content_type) {
  const bool mapped = peer.is_v6() && peer.to_v6().is_v4_mapped();
  const bool loopback =
      mapped
          ? boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, peer.to_v6()).is_loopback()
          : peer.is_loopback();
  if (!loopback) return "actions are taken from this machine only";
  const std::string_view name = HostName(host);
  if (name != "localhost" && name != "127.0.0.1" && name != "[::1]")
    return "actions need a loopback name in Host";
  const size_t scheme = origin.starts_with("http://") ? 7 : origin.starts_with("https://") ? 8 : 0;
  if (scheme == 0 || origin.substr(scheme) != host)
    return "actions are taken from the page itself only";
  if (content_type.substr(0, content_type.find(';')) != "application/json")
    return "actions are sent as application/json";
  return {};
}

}  // namespace mayfly
