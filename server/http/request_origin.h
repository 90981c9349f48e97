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

/// Why an action sent to the HTTP endpoint is not carried out; empty when it may be. It must come
/// from a loopback address, to a Host that is a loopback name (a page of another site whose name
/// was bound to this machine has its own), from the page itself (Origin is that Host), as JSON (a
/// form of another site cannot send that).
std::string_view RefuseAction(const boost::asio::ip::address& peer, std::string_view host,
                              std::string_view origin, std::string_view content_type);

}  // namespace mayfly
