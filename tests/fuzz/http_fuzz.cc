// The HTTP endpoint as far as it goes without a socket: requests as the server reads them, where
// they say they come from, their query strings, and the body of an action.
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/beast/http.hpp>
#include <cstdint>
#include <string>

#include "fuzz_util.h"
#include "protocol/extended_json.h"
#include "server/http/http_api.h"
#include "server/http/request_origin.h"
#include "server/http/rule_selection.h"

namespace {

using namespace mayfly;
namespace http = boost::beast::http;

constexpr uint64_t kMost = 16 * 1024;  ///< header and body, as http_server.cc has them

void Query(std::string_view query) {
  for (std::string_view name : {"filter", "range", "", "a"}) {
    const std::string value = QueryValue(query, name);
    Require(value.size() <= query.size(), "a decoded value is no longer than the query");
  }
}

void Selection(std::string_view filter) {
  static const BsonDocument status = ParseJson(R"({"rules": [
      {"ns": "db.c", "kind": "ttlIndex", "index": "at_1", "state": "active", "pending": 7, "lagMillis": 3},
      {"ns": "db.É", "kind": "document", "index": "$document", "state": "paused"}]})")
                                         .value();
  std::string bytes;
  BsonBuilder out(bytes);
  AppendRuleSelection(status.view()["rules"].Document(), filter, out);
  out.Done();
  Require(ValidateBson(bytes, false).has_value(), "a selection of rules is a document");
}

void Origin(std::string_view host, std::string_view origin, std::string_view type) {
  ActionSender sender{.peer = boost::asio::ip::make_address("127.0.0.1"),
                      .host = host,
                      .origin = origin,
                      .content_type = type};
  const bool page = (host.starts_with("localhost") || host.starts_with("127.0.0.1") ||
                     host.starts_with("[::1]")) &&
                    type.starts_with("application/json");
  for (const bool tls : {false, true}) {
    sender.tls = tls;
    if (!RefuseAction(sender).empty()) continue;
    Require(page, "only the page itself may act");
    // But for the scheme's own port, which either of the two may leave out.
    const std::string own = (tls ? "https://" : "http://") + std::string(host);
    Require(own.starts_with(origin) || origin.starts_with(own), "only by its own scheme and name");
  }
  sender.peer = boost::asio::ip::make_address("10.0.0.1");
  Require(!RefuseAction(sender).empty(), "nobody acts from elsewhere");
}

void Request(std::string_view input) {
  http::request_parser<http::string_body> parser;
  parser.body_limit(kMost);
  parser.header_limit(kMost);
  parser.eager(false);
  boost::system::error_code ec;
  // In two parts, as sockets deliver.
  size_t at = 0;
  for (size_t end : {input.size() / 2, input.size()}) {
    while (at < end && !parser.is_done()) {
      const size_t n = parser.put(boost::asio::buffer(input.data() + at, end - at), ec);
      // As http::async_read does: what it has used is not given again, and when it needs more it
      // gets more.
      at += n;
      if (ec == http::error::need_more || n == 0) break;
      if (ec) return;
      if (!parser.is_header_done()) continue;
      if (parser.chunked()) return;  // refused by the server
      parser.eager(true);
    }
  }
  if (!parser.is_header_done()) return;
  const HttpRequest& request = parser.get();
  Require(request.body().size() <= kMost, "a body has its limit");
  const auto target = request.target();
  const std::string_view whole(target.data(), target.size());
  const size_t mark = whole.find('?');
  if (mark != std::string_view::npos) Query(whole.substr(mark + 1));
  auto text = [&](http::field f) {
    const auto v = request[f];
    return std::string_view(v.data(), v.size());
  };
  Origin(text(http::field::host), text(http::field::origin), text(http::field::content_type));
  (void)ParseJson(request.body());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 48 * 1024) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  Request(input);
  Query(input);
  Selection(QueryValue(input, "filter"));
  Selection(input.substr(0, std::min<size_t>(input.size(), 200)));
  const size_t a = input.find('\n');
  if (a != std::string_view::npos) {
    const size_t b = std::min(input.find('\n', a + 1), input.size());
    Origin(input.substr(0, a), input.substr(a + 1, b - a - 1),
           b < input.size() ? input.substr(b + 1) : std::string_view());
  }
  return 0;
}
