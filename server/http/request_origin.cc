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

/// Whether a page that was reached at `host` has this Origin (RFC 6454: scheme, host and port; the
/// scheme's own port is left out, which a client may write into Host all the same).
bool IsOriginOf(std::string_view origin, bool tls, std::string_view host) {
  const std::string_view scheme = tls ? "https://" : "http://", port = tls ? ":443" : ":80";
  if (!origin.starts_with(scheme)) return false;
  origin.remove_prefix(scheme.size());
  const auto without = [&](std::string_view s) {
    // Only a port: the address in "[::1:80]" ends with a bracket.
    if (s.ends_with(port)) s.remove_suffix(port.size());
    return s;
  };
  return without(origin) == without(host);
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

std::string_view RefuseAction(const ActionSender& sender) {
  const boost::asio::ip::address& peer = sender.peer;
  const bool mapped = peer.is_v6() && peer.to_v6().is_v4_mapped();
  const bool loopback =
      mapped
          ? boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, peer.to_v6()).is_loopback()
          : peer.is_loopback();
  if (!loopback) return "actions are taken from this machine only";
  const std::string_view name = HostName(sender.host);
  if (name != "localhost" && name != "127.0.0.1" && name != "[::1]")
    return "actions need a loopback name in Host";
  if (!IsOriginOf(sender.origin, sender.tls, sender.host))
    return sender.tls ? "actions are taken from the page itself only: Origin must be https:// and "
                        "the Host of the request"
                      : "actions are taken from the page itself only: Origin must be http:// and "
                        "the Host of the request";
  if (sender.content_type.substr(0, sender.content_type.find(';')) != "application/json")
    return "actions are sent as application/json";
  return {};
}

}  // namespace mayfly
