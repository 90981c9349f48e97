#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "server/http/activity_history.h"
#include "server/http/http_login.h"
#include "server/http/page_files.h"
#include "server/http/request_origin.h"
#include "tests/unit/scratch_dir.h"

namespace mayfly {
namespace {

using boost::asio::ip::make_address;

TEST_CASE("a file with a scraper's token holds a token of RFC 6750", "[http]") {
  mayfly::testing::ScratchDir dir;
  std::filesystem::create_directories(dir.path());
  const std::string path = dir.path() + "/token";
  const auto read = [&](std::string_view text) {
    std::ofstream(path, std::ios::binary) << text;
    std::filesystem::permissions(path, std::filesystem::perms(0600));
    return ReadTokenFile(path);
  };
  const auto refused = [&](std::string_view text, std::string_view says,
                           ErrorCode code = ErrorCode::kBadValue) {
    const auto got = read(text);
    CAPTURE(text);
    REQUIRE(!got);
    CHECK(got.error().code == code);
    CHECK(got.error().message.find(says) != std::string::npos);
    CHECK(got.error().message.find(path) != std::string::npos);
    // What is refused is not shown.
    if (text.size() > 10) CHECK(got.error().message.find(text) == std::string::npos);
  };
  const std::string all = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+/==";
  const auto whole = read(all);
  REQUIRE(whole);
  CHECK(whole.value() == all);
  // The end of its line is none of it, in any system's way.
  CHECK(read("0123456789abcdef\n").value() == "0123456789abcdef");
  CHECK(read("0123456789abcdef\r\n\n").value() == "0123456789abcdef");
  CHECK(read(std::string(4096, 'x')).value().size() == 4096);
  refused("0123456789abcde", "at least 16 characters");
  refused("0123456789abcde\n", "at least 16 characters");
  refused("", "is empty");
  refused("\n", "is empty");
  for (const std::string_view bad : {" ", "\t", "\n", "\"", ",", "%", "\xc3\xa4"})
    refused("01234567" + std::string(bad) + "89abcdef", "only letters, digits");
  refused(std::string_view("0123456789abcdef\0", 17), "only letters, digits");
  refused("0123456789abcdef ", "only letters, digits");
  refused(std::string(4097, 'x'), "larger than 4096 bytes", ErrorCode::kInvalidOptions);
  std::filesystem::remove(path);
  const auto none = ReadTokenFile(path);
  REQUIRE(!none);
  CHECK(none.error().code == ErrorCode::kInvalidOptions);
}

TEST_CASE("quantiles are read off buckets by powers of two", "[http]") {
  std::array<int64_t, LatencyHistogram::kBuckets> b{};
  CHECK(Quantile(b, 0.99) == 0);
  b[3] = 100;  // 8 … 16 us
  CHECK(Quantile(b, 0.5) == 12);
  CHECK(Quantile(b, 0.99) == 15);
  b[10] = 100;  // 1024 … 2048 us
  CHECK(Quantile(b, 0.25) == 12);
  CHECK(Quantile(b, 0.75) == 1536);
}

TEST_CASE("the history counts what changed since the sample before", "[http]") {
  ServerMetrics m;
  ActivityHistory h;
  m.ttl.deleted_documents.Add(1000);
  m.reads.Record(10);
  constexpr int64_t kStart = 1'700'000'040'000;  // the begin of a minute
  CHECK(h.Take(m, kStart).reaped == 0);          // what was before does not count
  m.ttl.deleted_documents.Add(5);
  for (int i = 0; i < 100; ++i) m.reads.Record(20);
  const ActivityHistory::Sample s = h.Take(m, kStart + 1000);
  CHECK(s.reaped == 5);
  CHECK(s.reads == 100);
  CHECK(s.read_p99_micros > 16);
  CHECK(s.read_p99_micros <= 32);
  CHECK(s.writes == 0);
  CHECK(s.write_p99_micros == 0);

  m.ttl.deleted_documents.Add(7);
  h.Take(m, kStart + 61'000);
  const auto minutes = h.Slots(0);
  REQUIRE(minutes.size() == 2);
  CHECK(minutes[0].start_millis == kStart);
  CHECK(minutes[0].reaped == 5);
  CHECK(minutes[1].start_millis == kStart + 60'000);
  CHECK(minutes[1].reaped == 7);
  CHECK(h.Slots(2).size() == 1);
  CHECK(h.Slots(2)[0].reaped == 12);

  // A clock that goes back adds to the newest slot; the ring keeps its size.
  m.ttl.deleted_documents.Add(1);
  h.Take(m, kStart - 3'600'000);
  CHECK(h.Slots(0).back().reaped == 8);
  for (int i = 2; i < 200; ++i) h.Take(m, kStart + i * 60'000);
  CHECK(h.Slots(0).size() == ActivityHistory::kSlots);
  CHECK(h.Slots(0).back().start_millis == kStart + 199 * 60'000);
}

TEST_CASE("actions are taken from the page on this machine only", "[http]") {
  const ActionSender page{.peer = make_address("127.0.0.1"),
                          .host = "localhost:28017",
                          .origin = "http://localhost:28017",
                          .content_type = "application/json"};
  const auto refused = [&](auto change) {
    ActionSender sender = page;
    change(sender);
    return !RefuseAction(sender).empty();
  };
  const auto at = [&](const char* host, const char* origin, bool tls = false) {
    return refused([&](ActionSender& s) { s.host = host, s.origin = origin, s.tls = tls; });
  };
  const auto from = [&](const char* peer) {
    return refused([&](ActionSender& s) { s.peer = make_address(peer); });
  };
  const auto as = [&](const char* type) {
    return refused([&](ActionSender& s) { s.content_type = type; });
  };
  CHECK(RefuseAction(page).empty());
  CHECK_FALSE(at("[::1]:28017", "http://[::1]:28017"));
  CHECK_FALSE(from("::ffff:127.0.0.1"));
  CHECK_FALSE(as("application/json; charset=utf-8"));
  CHECK(from("10.0.0.7"));
  CHECK(from("::ffff:10.0.0.7"));
  // Another site in the same browser; one whose name was bound to this machine; a form.
  const char* host = "localhost:28017";
  CHECK(at(host, "http://evil.example"));
  CHECK(at(host, "http://localhost:3000"));
  CHECK(at("evil.example:28017", "http://evil.example:28017"));
  CHECK(at("localhost.evil.example", "http://localhost.evil.example"));
  CHECK(at(host, ""));
  CHECK(at(host, "null"));
  CHECK(as("text/plain"));
  CHECK(at("", "http://"));
  // Issue 29: the scheme is the one by which the page was reached.
  CHECK(at(host, "https://localhost:28017"));
  CHECK(at("[::1]:28017", "https://[::1]:28017"));
  CHECK_FALSE(at(host, "https://localhost:28017", true));
  CHECK(at(host, "http://localhost:28017", true));
  CHECK(at(host, "https://localhost:3000", true));
  CHECK(at(host, "HTTPS://localhost:28017", true));
  CHECK(at(host, "https://localhost", true));
  CHECK(at(host, "https://localhost:28017/", true));
  CHECK(at(host, "https://x@localhost:28017", true));
  // The scheme's own port is left out by browsers, in Host and in Origin.
  CHECK_FALSE(at("localhost", "http://localhost"));
  CHECK_FALSE(at("localhost:80", "http://localhost"));
  CHECK_FALSE(at("localhost:443", "https://localhost", true));
  CHECK(at("localhost:443", "http://localhost"));
  CHECK(at("localhost:80", "https://localhost", true));
  CHECK(at("localhost:180", "http://localhost:1"));
}

TEST_CASE("the page is in the program and loads nothing from elsewhere", "[http]") {
  for (const char* path : {"/", "/app.js", "/style.css"}) {
    const PageFile* f = FindPageFile(path);
    REQUIRE(f != nullptr);
    CHECK(f->content.size() > 500);
    CHECK(f->content.find("https://") == std::string_view::npos);
  }
  CHECK(FindPageFile("/etc/passwd") == nullptr);
  CHECK(FindPageFile("") == nullptr);
}

}  // namespace
}  // namespace mayfly
