#include "bench/load_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "storage/kv/thread_scheduling.h"

namespace mayfly::bench {

int64_t NowMicros() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

double CpuSeconds(int pid) {
  if (pid == 0) return 0;
  std::ifstream f("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(f, line);
  std::istringstream rest(line.substr(line.rfind(')') + 2));
  std::string field;
  for (int i = 0; i < 11; ++i) rest >> field;
  double user = 0, system = 0;
  rest >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double ThreadSeconds(int pid, std::string_view name) {
  double nanos = 0;
  std::error_code gone;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm"), comm);
    double n = 0;
    if (comm.starts_with(name) && std::ifstream(task.path() / "schedstat") >> n) nanos += n;
  }
  return nanos / 1e9;
}

int64_t ResidentBytes(int pid) {
  if (pid == 0) return 0;
  std::ifstream f("/proc/" + std::to_string(pid) + "/statm");
  int64_t size = 0, resident = 0;
  f >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::string EncodeMessage(BsonView body) {
  std::string m(21, '\0');
  m.append(body.bytes());
  StoreLe<int32_t>(m.data(), static_cast<int32_t>(m.size()));
  StoreLe<int32_t>(m.data() + 4, 1);
  StoreLe<int32_t>(m.data() + 12, 2013);
  return m;
}

namespace {

int Connect(const std::string& host, int port) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, host.c_str(), &a.sin_addr);
  if (connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0) {
    std::perror("connect");
    std::exit(1);
  }
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

void WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EAGAIN) continue;
    if (n <= 0) {
      std::perror("write");
      std::exit(1);
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

/// Whether a reply says ok: 1 and has no writeErrors.
bool ReplyOk(BsonView reply) {
  return reply["ok"].NumberAsInt64() == 1 && !reply.Has("writeErrors");
}

/// The size of the whole reply that begins here; 0: not known yet.
size_t RedisReplySize(const std::string& in, size_t have) {
  size_t end = std::string_view(in.data(), have).find("\r\n");
  if (end == std::string_view::npos) return 0;
  if (in[0] != '$' || in[1] == '-') return end + 2;
  return end + 2 + static_cast<size_t>(std::atoi(in.c_str() + 1)) + 2;
}

struct Connection {
  int fd = -1;
  std::string in;
  size_t have = 0;
  int64_t due = 0;  ///< when the request in flight was due, 0: idle
};

}  // namespace

SyncClient::SyncClient(const std::string& host, int port) : fd_(Connect(host, port)) {}
SyncClient::~SyncClient() { close(fd_); }

BsonDocument SyncClient::Call(std::string_view message, bool must_succeed) {
  WriteAll(fd_, message);
  std::string in;
  char buffer[65536];
  while (in.size() < 4 || in.size() < static_cast<size_t>(LoadLe<int32_t>(in.data()))) {
    ssize_t n = read(fd_, buffer, sizeof buffer);
    if (n <= 0) {
      std::fprintf(stderr, "the server closed the connection\n");
      std::exit(1);
    }
    in.append(buffer, static_cast<size_t>(n));
  }
  BsonDocument reply(BsonView(in.data() + 21));
  if (must_succeed && !ReplyOk(reply)) {
    std::fprintf(
        stderr, "command failed: %.*s\n",
        static_cast<int>(reply.view()["errmsg"].missing() ? 5
                                                          : reply.view()["errmsg"].String().size()),
        reply.view()["errmsg"].missing() ? "write" : reply.view()["errmsg"].String().data());
    std::exit(1);
  }
  return reply;
}

void Histogram::Add(int64_t micros) {
  ++count_;
  max_ = std::max(max_, micros);
  size_t b = micros < 1000
                 ? static_cast<size_t>(std::max<int64_t>(micros, 0))
                 : 1000 + static_cast<size_t>(std::log(static_cast<double>(micros) / 1000.0) /
                                              std::log(1.01));
  ++buckets_[std::min(b, buckets_.size() - 1)];
}

int64_t Histogram::Percentile(double p) const {
  int64_t want = static_cast<int64_t>(std::ceil(static_cast<double>(count_) * p)), seen = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    seen += buckets_[b];
    if (seen >= want && seen > 0)
      return b < 1000 ? static_cast<int64_t>(b)
                      : static_cast<int64_t>(1000 * std::pow(1.01, static_cast<double>(b - 1000)));
  }
  return max_;
}

LoadResult RunLoad(const LoadOptions& o, const std::function<void(int64_t, std::string&)>& next) {
  LoadResult r;
  prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  // what is measured is the server's latency, not how long this thread waits for a processor
  UseShortTimeSlices();
  int epoll = epoll_create1(0);
  std::vector<Connection> connections(static_cast<size_t>(o.connections));
  for (size_t i = 0; i < connections.size(); ++i) {
    Connection& c = connections[i];
    c.fd = Connect(o.host, o.port);
    fcntl(c.fd, F_SETFL, O_NONBLOCK);
    c.in.resize(65536);
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u64 = i;
    epoll_ctl(epoll, EPOLL_CTL_ADD, c.fd, &e);
  }
  std::string message;
  int64_t sent = 0;
  const double cpu = CpuSeconds(o.pid);
  const int64_t begin = NowMicros(), end = begin + static_cast<int64_t>(o.seconds * 1e6);
  int in_flight = 0;
  auto more = [&] {
    return (o.max_operations == 0 || sent < o.max_operations) && NowMicros() < end &&
           !(o.stop && *o.stop);
  };
  auto send = [&](Connection& c, int64_t due) {
    if (o.conversation != nullptr)
      o.conversation->Next(static_cast<size_t>(&c - connections.data()), message);
    else
      next(sent, message);
    ++sent;
    c.due = due;
    ++in_flight;
    WriteAll(c.fd, message);
  };
  std::deque<size_t> idle;
  int64_t next_due = begin;
  const double gap = o.rate > 0 ? 1e6 / o.rate : 0;
  double exact_due = static_cast<double>(begin);
  for (size_t i = 0; i < connections.size(); ++i) {
    if (o.rate > 0)
      idle.push_back(i);
    else if (more())
      send(connections[i], NowMicros());
  }
  epoll_event events[256];
  while (in_flight > 0 || (o.rate > 0 && more())) {
    if (o.rate > 0) {
      int64_t now = NowMicros();
      while (now >= next_due && !idle.empty() && more()) {
        send(connections[idle.front()], next_due);
        idle.pop_front();
        exact_due += gap;
        next_due = static_cast<int64_t>(exact_due);
      }
    }
    // Until the next request is due, asleep: a client that spins takes a core from the server.
    timespec wait{1, 0};
    if (o.rate > 0)
      wait = {0, idle.empty() ? 1'000'000 : std::max<int64_t>(next_due - NowMicros(), 0) * 1000};
    int n = epoll_pwait2(epoll, events, 256, &wait, nullptr);
    for (int k = 0; k < n; ++k) {
      Connection& c = connections[events[k].data.u64];
      ssize_t got = read(c.fd, c.in.data() + c.have, c.in.size() - c.have);
      if (got == 0 || (got < 0 && errno != EAGAIN)) {
        std::fprintf(stderr, "the server closed a connection\n");
        std::exit(1);
      }
      if (got < 0) continue;
      c.have += static_cast<size_t>(got);
      if (c.have < 4) continue;
      size_t size = o.redis ? RedisReplySize(c.in, c.have)
                            : static_cast<size_t>(LoadLe<int32_t>(c.in.data()));
      if (size == 0) continue;
      if (c.in.size() < size) c.in.resize(size);
      if (c.have < size) continue;
      int64_t now = NowMicros();
      r.latency.Add(now - c.due);
      ++r.operations;
      const size_t which = events[k].data.u64;
      if (o.conversation != nullptr)
        o.conversation->Reply(which, BsonView(c.in.data() + 21));
      else if (o.redis ? c.in[0] == '-' : !ReplyOk(BsonView(c.in.data() + 21)))
        ++r.errors;
      c.have = 0;
      --in_flight;
      if (o.rate > 0)
        idle.push_back(which);
      else if (more() || (o.conversation != nullptr && !o.conversation->Idle(which)))
        send(c, now);
    }
  }
  r.seconds = static_cast<double>(NowMicros() - begin) / 1e6;
  r.server_cpu_seconds = CpuSeconds(o.pid) - cpu;
  r.resident_bytes = ResidentBytes(o.pid);
  for (Connection& c : connections) close(c.fd);
  close(epoll);
  return r;
}

LoadResult RunLoadUntil(LoadOptions o, const std::function<void(int64_t, std::string&)>& next,
                        const std::function<bool()>& over, double* seconds) {
  constexpr int64_t kMaxSeconds = 600;
  std::atomic<bool> stop{false};
  const int64_t begin = NowMicros();
  std::thread watch([&] {
    while (!over() && NowMicros() - begin < kMaxSeconds * 1'000'000)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    *seconds = static_cast<double>(NowMicros() - begin) / 1e6;
    stop = true;
  });
  o.seconds = kMaxSeconds;
  o.stop = &stop;
  LoadResult r = RunLoad(o, next);
  watch.join();
  return r;
}

int64_t Count(SyncClient& client, std::string_view collection) {
  return client.Call(Command(kDb, [&](BsonBuilder& b) { b.Append("count", collection); }))
      .view()["n"]
      .NumberAsInt64();
}

}  // namespace mayfly::bench
