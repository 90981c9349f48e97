#pragma once
#include <boost/asio/ip/address.hpp>
#include <string_view>

namespace mayfly {

/// Why an action sent to the HTTP endpoint is not carried out; empty when it may be. It must come
/// from a loopback address, to a Host that is a loopback name (a page of another site whose name
/// was bound to this machine has its own), from the page itself (Origin is that Host), as JSON (a
/// form of another site cannot send that).
std::string_view RefuseAction(const boost::asio::ip::address& peer, std::string_view host,
                              std::string_view origin, std::string_view content_type);

}  // namespace mayfly
