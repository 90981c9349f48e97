// The mass expiry on a Redis server: keys that expire in the same second, with paced reads before
// and during.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "bench/load_client.h"

namespace mayfly::bench {
namespace {

class RedisClient {
 public:
  RedisClient(const std::string& host, int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, host.c_str(), &a.sin_addr);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0) {
      std::perror("connect");
      std::exit(1);
    }
  }
  ~RedisClient() { close(fd_); }
  RedisClient(const RedisClient&) = delete;
  /// Sends commands, waits for as many one-line replies, returns the last one.
  std::string Call(const std::string& commands, int replies) {
    for (size_t at = 0; at < commands.size();) {
      ssize_t n = write(fd_, commands.data() + at, commands.size() - at);
      if (n <= 0) std::exit(1);
      at += static_cast<size_t>(n);
    }
    std::string last, line;
    char buffer[65536];
    while (replies > 0) {
      ssize_t n = read(fd_, buffer, sizeof buffer);
      if (n <= 0) std::exit(1);
      for (ssize_t i = 0; i < n; ++i) {
        line.push_back(buffer[i]);
        if (buffer[i] != '\n') continue;
        last = std::exchange(line, {});
        if (last[0] == '-') {
          std::fprintf(stderr, "redis: %s", last.c_str());
          std::exit(1);
        }
        --replies;
      }
    }
    return last;
  }

 private:
  int fd_;
};

}  // namespace

void RunRedisReap(const LoadOptions& base, int64_t keys) {
  constexpr int64_t kReadable = 100000;
  RedisClient client(base.host, base.port);
  client.Call("FLUSHALL\r\n", 1);
  const std::string value(150, 'x');
  auto fill = [&](const char* prefix, int64_t count, const std::string& options) {
    for (int64_t first = 0; first < count; first += 1000) {
      std::string batch;
      for (int64_t i = first; i < first + 1000; ++i)
        batch += std::string("SET ") + prefix + std::to_string(i) + " " + value + options + "\r\n";
      client.Call(batch, 1000);
    }
  };
  auto size = [&] { return std::atoll(client.Call("DBSIZE\r\n", 1).c_str() + 1); };
  fill("kept", kReadable, "");
  fill("s", keys, "");
  std::mt19937_64 random(7);
  auto read = [&](int64_t, std::string& m) {
    m = "GET kept" + std::to_string(random() % kReadable) + "\r\n";
  };
  LoadOptions o = base;
  o.redis = true;
  o.connections = 16;
  o.rate = 10000;
  o.seconds = 5;
  LoadResult before = RunLoad(o, read);
  // All in the same millisecond, some seconds ahead, so that setting it takes no part in what
  // follows.
  const int64_t at = std::chrono::duration_cast<std::chrono::milliseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count() +
                     std::max<int64_t>(keys / 100, 3000);
  for (int64_t first = 0; first < keys; first += 1000) {
    std::string batch;
    for (int64_t i = first; i < first + 1000; ++i)
      batch += "PEXPIREAT s" + std::to_string(i) + " " + std::to_string(at) + "\r\n";
    client.Call(batch, 1000);
  }
  auto now = [] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  if (now() >= at) std::printf("ERROR: the load was not in before the deadline\n");
  while (now() < at) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const double cpu = CpuSeconds(base.pid);
  double seconds = 0;
  LoadResult during = RunLoadUntil(
      o, read, [&] { return size() <= kReadable; }, &seconds);
  const double used = CpuSeconds(base.pid) - cpu;
  std::printf(
      "| Redis, mass expiry of %ld keys | keys/s | server CPU us/key | read p50 us | p99 us | "
      "p99.9 us | max us |\n",
      keys);
  std::printf("| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  std::printf("| before: reads at 10k/s |  |  | %ld | %ld | %ld | %ld |\n",
              before.latency.Percentile(0.5), before.latency.Percentile(0.99),
              before.latency.Percentile(0.999), before.latency.max());
  std::printf("| during: reads at 10k/s | %.0f | %.2f (reads included) | %ld | %ld | %ld | %ld |\n",
              static_cast<double>(keys) / seconds, used * 1e6 / static_cast<double>(keys),
              during.latency.Percentile(0.5), during.latency.Percentile(0.99),
              during.latency.Percentile(0.999), during.latency.max());
}

}  // namespace mayfly::bench
