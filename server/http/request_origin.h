#pragma once
#include <boost/asio/ip/address.hpp>
#include <span>
#include <string>
#include <string_view>

namespace mayfly {

/// Whether a request for this Host is answered: a page of another site can have its own name point
/// to this machine (DNS rebinding) and would then read what is answered, so names have to be known
/// here. Addresses and loopback names always are. `names`: lower case, without port.
bool KnownHost(std::string_view host, std::span<const std::string> names);

/// How an action was sent to the HTTP endpoint.
struct ActionSender {
  boost::asio::ip::address peer;
  bool tls = false;         ///< the connection it came by
  std::string_view host;    ///< the header Host
  std::string_view origin;  ///< the header Origin; empty: none, or several
  std::string_view content_type;
};

/// Why an action sent to the HTTP endpoint is not carried out; empty when it may be. It must come
/// from a loopback address, to a Host that is a loopback name (a page of another site whose name
/// was bound to this machine has its own), from the page itself (scheme, host and port of Origin
/// are those by which the page was reached), as JSON (a form of another site cannot send that).
std::string_view RefuseAction(const ActionSender& sender);

}  // namespace mayfly
