#pragma once
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <mutex>
#include <source_location>
#include <thread>

#include "../patience.h"
#include "../storage/storage_fixture.h"
#include "protocol/bson_builder.h"
#include "replication/consensus.h"
#include "storage/keys/key_format.h"
#include "storage/kv/rocks_kv.h"

namespace mayfly::testing {

/// Rings when a machine of this process has applied something or has heard of a state.
class News {
 public:
  static News& Get() {
    static News news;
    return news;
  }
  void Ring() {
    std::lock_guard l(mutex_);
    ++number_;
    rung_.notify_all();
  }
  /// Until it has rung more often than `*heard`; at most a tenth of a second, since of some things
  /// no machine hears.
  void Wait(uint64_t* heard) {
    std::unique_lock l(mutex_);
    const auto told = [&] { return number_ != *heard; };
    rung_.wait_for(l, std::chrono::milliseconds(100), told);  // clock: polls until a deadline
    *heard = number_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable rung_;
  uint64_t number_ = 0;
};

/// Waits for something that other threads bring about. The deadline is for a broken engine, not for
/// a slow one; the caller's line is told when it is over.
inline bool Eventually(const std::function<bool()>& what, int seconds = 60,
                       std::source_location waits = std::source_location::current()) {
  const test::Deadline deadline(std::chrono::seconds(seconds), waits);
  for (uint64_t heard = 0; !what(); News::Get().Wait(&heard)) {
    if (deadline.Holds()) continue;
    UNSCOPED_INFO(deadline.InVain());
    return false;
  }
  return true;
}

/// Keeps what it applies under its index.
class RecordingMachine final : public StateMachine {
 public:
  void Prepare(std::span<const CommittedEntry> entries, KvBatch& batch) override {
    for (const CommittedEntry& e : entries) {
      std::string key;
      AppendBe64(key, e.position.index);
      std::string value(1, static_cast<char>(e.kind));
      batch.Put(Keyspace::kRecords, key, value, e.data);
    }
  }
  void Applied(std::span<const CommittedEntry> entries) override {
    applied += entries.size();
    News::Get().Ring();
  }
  void StateChanged(const ConsensusState& s) override {
    {
      std::lock_guard l(mutex);
      states.push_back(s);
    }
    News::Get().Ring();
  }
  std::atomic<size_t> applied{0};
  std::mutex mutex;
  std::vector<ConsensusState> states;
};

/// One member: store, machine, engine, and a port that does what the server's `_mayflyMember` does.
class TestMember {
 public:
  explicit TestMember(std::string key = {}, std::string set_name = "rs0")
      : key_(std::move(key)), set_name_(std::move(set_name)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
    REQUIRE(::listen(listener_, 64) == 0);
    socklen_t n = sizeof a;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&a), &n);
    port_ = ntohs(a.sin_port);
    Open();
    thread_ = std::thread([this] { Accept(); });
  }
  ~TestMember() {
    stop_ = true;
    thread_.join();
    ::close(listener_);
    Close();
  }

  void Open() {
    REQUIRE(ApplyPendingResync(*MakeRocksEngine(), dir_.path()));
    KvOptions k;
    k.path = dir_.path();
    k.cache_bytes = 16 << 20;
    kv_ = std::move(OpenRocksKv(k).value());
    machine_ = std::make_unique<RecordingMachine>();
    ConsensusOptions o;
    o.kv = kv_.get();
    o.store = MakeRocksEngine();
    o.clock = &clock_;
    o.machine = machine_.get();
    o.set_name = set_name_;
    o.key = key_;
    o.data_directory = dir_.path();
    o.tick_ms = 10;
    // Longer than a starved machine lets a leader wait for its turn or its disk.
    o.election_ticks = 150;
    o.log_max_bytes = log_max_bytes;
    o.restart = [this] {
      restart_wanted_ = true;
      News::Get().Ring();
    };
    if (std::getenv("MAYFLY_TEST_LOG"))
      o.log = [this](char severity, std::string_view m, std::string_view) {
        std::fprintf(stderr, "%d %c %.*s\n", port_, severity, static_cast<int>(m.size()), m.data());
      };
    auto opened = OpenConsensus(std::move(o));
    if (!opened) FAIL(opened.error().message);
    std::lock_guard l(mutex_);
    engine_ = std::move(opened).value();
    REQUIRE(engine_->Start());
  }
  void Close() {
    std::shared_ptr<Consensus> old;
    {
      std::lock_guard l(mutex_);
      old = std::move(engine_);
    }
    old.reset();
    machine_.reset();
    kv_.reset();
  }
  void Restart() {
    Close();
    restart_wanted_ = false;
    Open();
  }

  /// As if the directory had been emptied while it was down.
  void Empty() {
    Close();
    std::filesystem::remove_all(dir_.path());
    std::filesystem::create_directories(dir_.path());
    Open();
  }

  bool up() {
    std::lock_guard l(mutex_);
    return engine_ != nullptr;
  }
  Consensus& engine() { return *engine_; }
  KvStore& kv() { return *kv_; }
  RecordingMachine& machine() { return *machine_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }
  bool restart_wanted() const { return restart_wanted_; }
  ConsensusMember AsMember(double priority = 1, bool voter = true) {
    return {engine_->self(), address(), voter, priority};
  }
  bool Leads() { return up() && engine_->state().ready; }
  std::map<uint64_t, std::string> Records() {
    std::map<uint64_t, std::string> out;
    auto it = kv_->NewIterator(Keyspace::kRecords, {});
    for (it->SeekToFirst(); it->Valid(); it->Next())
      out[LoadBe64(it->key().data())] = std::string(it->value());
    return out;
  }
  Result<LogPosition> Propose(const std::string& data) {
    auto p = std::make_shared<std::promise<Result<LogPosition>>>();
    auto f = p->get_future();
    engine_->Propose({data, nullptr, [p](Result<LogPosition> r) { p->set_value(std::move(r)); }});
    if (f.wait_until(test::Deadline().at) != std::future_status::ready)
      return Error{ErrorCode::kInternalError, "no answer"};
    return f.get();
  }
  /// Runs one of the engine's calls and waits for its answer.
  template <class R, class F>
  Result<R> Wait(F&& call) {
    auto p = std::make_shared<std::promise<Result<R>>>();
    auto f = p->get_future();
    call([p](Result<R> r) { p->set_value(std::move(r)); });
    if (f.wait_until(test::Deadline().at) != std::future_status::ready)
      return Error{ErrorCode::kInternalError, "no answer"};
    return f.get();
  }
  uint64_t log_max_bytes = 1 << 30;

 private:
  void Accept() {
    while (!stop_) {
      pollfd p{listener_, POLLIN, 0};
      if (::poll(&p, 1, 20) <= 0) continue;
      const int s = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (s < 0) continue;
      char head[4];
      int32_t size = 0;
      if (::recv(s, head, 4, MSG_WAITALL) == 4) std::memcpy(&size, head, 4);
      std::string rest(size > 4 && size < 4096 ? static_cast<size_t>(size) - 4 : 0, '\0');
      if (rest.empty() ||
          ::recv(s, rest.data(), rest.size(), MSG_WAITALL) != static_cast<ssize_t>(rest.size())) {
        ::close(s);
        continue;
      }
      std::string reply;
      const BsonDocument body = BuildBson([](BsonBuilder& b) { b.Append("ok", 1.0); });
      for (int32_t v : {static_cast<int32_t>(21 + body.view().size()), 1, 1, 2013, 0})
        reply.append(reinterpret_cast<const char*>(&v), 4);
      reply.push_back('\0');
      reply.append(body.view().data(), body.view().size());
      std::lock_guard l(mutex_);
      if (!engine_ || ::send(s, reply.data(), reply.size(), MSG_NOSIGNAL) < 0) {
        ::close(s);
        continue;
      }
      HandedConnection handed;
      handed.socket = s;
      engine_->AdoptConnection(std::move(handed));
    }
  }

  ScratchDir dir_;
  SystemClock clock_;
  const std::string key_, set_name_;
  int listener_ = -1, port_ = 0;
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<RecordingMachine> machine_;
  std::mutex mutex_;
  std::shared_ptr<Consensus> engine_;
  std::atomic<bool> stop_{false}, restart_wanted_{false};
  std::thread thread_;
};

inline ConsensusConfiguration ConfigurationOf(std::vector<ConsensusMember> members,
                                              std::string payload = "config") {
  ConsensusConfiguration c;
  c.set_id = "twelve bytes";
  c.members = std::move(members);
  c.payload = std::move(payload);
  return c;
}

}  // namespace mayfly::testing
