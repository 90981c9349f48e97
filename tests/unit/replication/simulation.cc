#include "simulation.h"

#include <algorithm>
#include <cstring>

#include "replication/open_units.h"
#include "storage/keys/key_format.h"
#include "storage/write/log_format.h"

namespace mayfly::testing {
namespace {

class SimClock final : public Clock {
 public:
  int64_t us = 0, wall_off_ms = 0;
  Instant Now() const override { return {1'700'000'000'000 + us / 1000 + wall_off_ms}; }
  int64_t MonotonicMicros() const override { return us; }
  void OnJump(std::function<void()>) override {}
};

struct World;

/// Where a member keeps a transaction that has ended.
std::string EndedKey(uint64_t sequence) {
  std::string key = "ended";
  AppendBe64(key, sequence);
  return key;
}

/// Keeps every entry it applies under its index: what members must agree on.
class SimMachine final : public StateMachine {
 public:
  SimMachine(World& world, NodeId id, uint64_t next, LogStore& log, KvStore& kv)
      : world_(world), id_(id), next_(next), log_(log) {
    Load(kv);
  }
  uint64_t KeepLogFrom() override { return open_.first_index(); }
  bool StandsAlone(const CommittedEntry& e) override {
    return e.kind == CommittedEntry::Kind::kData && IsLogEnd(e.data);
  }
  void Prepare(std::span<const CommittedEntry> entries, KvBatch& batch) override {
    open_.Prepare(entries, batch);
    for (const CommittedEntry& e : entries) End(e, batch);
    for (const CommittedEntry& e : entries) {
      std::string key, value;
      AppendBe64(key, e.position.index);
      AppendBe64(value, e.position.term);
      value.push_back(static_cast<char>(e.kind));
      value.append(e.data);
      batch.Put(Keyspace::kRecords, key, value);
    }
  }
  void Applied(std::span<const CommittedEntry> entries) override;
  void StateChanged(const ConsensusState& state) override;

 private:
  void Load(KvStore& kv);
  /// A transaction happens, from what its chunks say in this member's own log.
  void End(const CommittedEntry& e, KvBatch& batch);

  World& world_;
  const NodeId id_;
  uint64_t next_;  ///< index that must come next
  LogStore& log_;
  OpenUnits open_;
};

/// One in chunks, as a ReplicatedCommitter that leads sends it. Its client is patient: it may be
/// open through any fault.
struct SimTransaction {
  static constexpr uint64_t kOrigin = 7;
  enum class State : uint8_t { kOpen, kToGiveUp, kUnknown, kAcknowledged, kRefused };
  uint64_t sequence = 0;
  NodeId at = 0;
  std::string bytes;
  size_t sent = 0;
  std::vector<uint64_t> chunks;
  uint64_t term = 0;
  bool waiting = false;  ///< for an answer
  bool done = false;     ///< nothing more is sent of it
  State state = State::kOpen;
};

struct SimNode {
  NodeId id = 0;
  std::unique_ptr<MemoryKv> kv;
  std::unique_ptr<LogStore> log;
  std::unique_ptr<SimMachine> machine;
  std::unique_ptr<Applier> applier;
  std::unique_ptr<RaftNode> raft;
  int down_until = 0;
  int asleep_until = 0;  ///< a stopped process: nothing is lost, nothing moves
  std::optional<std::pair<int, std::string>> copying;  ///< until step, which checkpoint
  bool up() const { return raft != nullptr; }
};

struct Packet {
  int at;
  uint64_t order;
  NodeId from, to;
  std::string bytes;
};

struct World {
  SimOptions options;
  SimResult result;
  SimClock clock;
  std::mt19937_64 random;
  int step = 0;
  uint64_t packets = 0;
  std::map<NodeId, SimNode> nodes;
  std::vector<Packet> network;
  std::set<std::pair<NodeId, NodeId>> cut;  ///< from, to
  int cut_until = 0;
  std::map<std::string, std::unique_ptr<MemoryKv>> checkpoints;
  std::map<uint64_t, std::pair<uint64_t, std::string>> truth;  ///< index -> term, kind and data
  std::map<uint64_t, NodeId> leaders;                          ///< by term
  std::map<std::string, uint64_t> acknowledged;                ///< data -> index
  std::set<std::string> refused;                               ///< told: was not written
  int proposals = 0;
  std::map<uint64_t, SimTransaction> transactions;  ///< by sequence
  ConsensusConfiguration configuration;             ///< that all are to come to in the end
  std::pair<NodeId, NodeId> replacing{0, 0};        ///< was emptied; the node that lives there now

  bool Chance(int percent) { return static_cast<int>(random() % 100) < percent; }
  int Between(int a, int b) {
    return a + static_cast<int>(random() % static_cast<uint64_t>(b - a + 1));
  }
  void Fail(const std::string& why) {
    if (result.failure.empty()) result.failure = why + " (step " + std::to_string(step) + ")";
  }
  void Digest(uint64_t v) { result.digest = (result.digest ^ v) * 0x100000001b3ull; }

  void Start(SimNode& n) {
    n.log = std::move(LogStore::Open(*n.kv).value());
    if (options.trimming) n.log->set_segment_bytes(512);
    n.machine =
        std::make_unique<SimMachine>(*this, n.id, n.log->applied().index + 1, *n.log, *n.kv);
    n.applier = std::make_unique<Applier>(*n.log, *n.machine,
                                          [this](std::string_view why) { Fail(std::string(why)); });
    RaftNode::Options o;
    o.log = n.log.get();
    o.applier = n.applier.get();
    o.machine = n.machine.get();
    o.clock = &clock;
    o.seed = random();
    NodeId id = n.id;
    o.send = [this, id](NodeId to, std::string_view bytes) { Send(id, to, bytes); };
    o.fatal = [this](std::string_view why) {
      std::fprintf(stderr, "seed %llu: %.*s\n", static_cast<unsigned long long>(options.seed),
                   static_cast<int>(why.size()), why.data());
    };
    o.snapshot = [this, id](uint64_t at_least, NodeId, SnapshotPointer* out) {
      SimNode& donor = nodes[id];
      const LogPosition at = donor.log->applied();
      if (at.index < at_least || Chance(50)) return false;  // "is being made"
      out->position = at;
      out->conf_state = donor.log->stored_conf_state();
      out->data = std::to_string(id) + "@" + std::to_string(at.index);
      checkpoints[out->data] = donor.kv->Copy();
      return true;
    };
    o.resync = [this, id](NodeId, SnapshotPointer p) {
      SimNode& n = nodes.at(id);
      if (!n.copying) n.copying.emplace(step + Between(1, 100), p.data);
    };
    n.raft = std::make_unique<RaftNode>(std::move(o));
    n.raft->is_copying = [this](NodeId other) {
      auto it = nodes.find(other);
      return it != nodes.end() && it->second.copying.has_value();
    };
    n.raft->log_of = [this](NodeId other) {
      auto it = nodes.find(other);
      if (it == nodes.end() || !it->second.up()) return LogPosition{};
      const uint64_t last = it->second.log->last_index();
      return LogPosition{it->second.log->Term(last).value(), last};
    };
    if (!n.raft->Open()) Fail("cannot open");
  }

  void Stop(SimNode& n) {
    for (auto& [sequence, t] : transactions)
      if (t.at == n.id && !t.done) {  // its client is told nothing; the term ends with the leader
        t.done = true;
        if (t.state == SimTransaction::State::kOpen) t.state = SimTransaction::State::kUnknown;
      }
    n.raft.reset();
    n.applier.reset();
    n.machine.reset();
    n.log.reset();
  }

  void Send(NodeId from, NodeId to, std::string_view bytes) {
    if (cut.contains({from, to})) return;
    if (options.faults && Chance(3)) return;
    const int copies = options.faults && Chance(2) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      int delay = Between(0, 2);
      if (options.faults && Chance(5)) delay = Between(3, 60);  // overtaken by what comes later
      network.push_back({step + delay, ++packets, from, to, std::string(bytes)});
    }
  }

  void Deliver() {
    std::vector<Packet> due;
    auto later = std::partition(network.begin(), network.end(),
                                [&](const Packet& p) { return p.at > step; });
    due.assign(std::make_move_iterator(later), std::make_move_iterator(network.end()));
    network.erase(later, network.end());
    std::sort(due.begin(), due.end(),
              [](auto& a, auto& b) { return std::pair(a.at, a.order) < std::pair(b.at, b.order); });
    for (Packet& p : due) {
      auto it = nodes.find(p.to);
      if (it == nodes.end() || !it->second.up()) continue;
      if (step < it->second.asleep_until) {
        p.at = it->second.asleep_until;
        network.push_back(std::move(p));
        continue;
      }
      it->second.raft->Step(p.from, p.bytes);
      it->second.raft->Pump();
    }
  }

  void Crash(SimNode& n, int for_steps) {
    ++result.crashes;
    Stop(n);
    n.kv->LosePower(random() % (n.kv->unsynced() + 1));
    n.down_until = step + for_steps;
  }

  void ProposeSomewhere() {
    for (auto& [id, n] : nodes) {
      if (!n.up() || step < n.asleep_until || !n.raft->leads()) continue;
      std::vector<Proposal> batch;
      for (int i = Between(1, 4); i > 0; --i) {
        const std::string data = "p" + std::to_string(++proposals) +
                                 std::string(static_cast<size_t>(Between(0, 40)), 'x');
        batch.push_back({data, nullptr, [this, data](Result<LogPosition> r) {
                           if (r) {
                             acknowledged[data] = r.value().index;
                             ++result.acknowledged;
                           } else if (r.error().code == ErrorCode::kNotWritablePrimary) {
                             refused.insert(data);
                           }
                         }});
      }
      n.raft->Propose(std::move(batch));
      n.raft->Pump();
    }
  }

  void BeginTransaction() {
    SimNode* leader = Leader();
    if (leader == nullptr) return;
    SimTransaction t;
    t.sequence = static_cast<uint64_t>(++result.begun);
    t.at = leader->id;
    // Its first bytes are those of the unit's time, which the end sets.
    t.bytes = std::string(20, '\0');
    while (Chance(90) && t.bytes.size() < 300) t.bytes += std::to_string(random() % 1000);
    t.bytes += ".";
    transactions.emplace(t.sequence, std::move(t));
  }

  /// The next step of each that is open. `patient`: it may stay where it is.
  void Transact(bool patient) {
    for (auto& [sequence, t] : transactions) {
      if (t.done || t.waiting || (patient && !Chance(15))) continue;
      auto it = nodes.find(t.at);
      if (it == nodes.end() || !it->second.up() || step < it->second.asleep_until) continue;
      RaftNode& raft = *it->second.raft;
      const uint64_t term = raft.status().term;
      if (t.term != 0 && t.term != term) {  // a new term says it of every one that is open
        t.done = true;
        if (t.state == SimTransaction::State::kOpen) t.state = SimTransaction::State::kRefused;
        continue;
      }
      if (!raft.leads()) continue;
      if (t.state == SimTransaction::State::kOpen && patient && Chance(5)) {
        t.state = SimTransaction::State::kToGiveUp;
        ++result.given_up;
      }
      Send(t, raft);
    }
  }

  void Send(SimTransaction& t, RaftNode& raft) {
    Proposal p;
    p.term = t.term;
    t.waiting = true;
    const LogEntryHeader unit{SimTransaction::kOrigin, t.sequence};
    const uint64_t sequence = t.sequence;
    if (t.state == SimTransaction::State::kToGiveUp) {
      EncodeLogChunk(unit, 0, kLogChunkGivenUp, {}, p.data);
      p.done = [this, sequence](const Result<LogPosition>& r) {
        transactions[sequence].waiting = false;
        transactions[sequence].done |= r.has_value();
      };
    } else if (t.sent < t.bytes.size()) {
      const size_t size = std::min<size_t>(64, t.bytes.size() - t.sent);
      EncodeLogChunk(unit, 0, t.chunks.size(), std::string_view(t.bytes).substr(t.sent, size),
                     p.data);
      p.done = [this, sequence, size](const Result<LogPosition>& r) {
        SimTransaction& one = transactions[sequence];
        one.waiting = false;
        if (!r) {
          one.state = SimTransaction::State::kToGiveUp;
          return;
        }
        one.term = r.value().term;
        one.chunks.push_back(r.value().index);
        one.sent += size;
      };
    } else {
      EncodeLogEnd(unit, 1, {t.bytes.size(), t.chunks}, false, p.data);
      SetUnitTime(p.data.data() + kLogEntryHeader, t.sequence, 0);
      p.done = [this, sequence](const Result<LogPosition>& r) {
        SimTransaction& one = transactions[sequence];
        one.waiting = false;
        one.done = true;
        const bool never = !r && r.error().code == ErrorCode::kNotWritablePrimary;
        one.state = r       ? SimTransaction::State::kAcknowledged
                    : never ? SimTransaction::State::kRefused
                            : SimTransaction::State::kUnknown;
        if (!never) return;
        one.done = false;  // the log has to say it
        one.state = SimTransaction::State::kToGiveUp;
      };
    }
    std::vector<Proposal> batch;
    batch.push_back(std::move(p));
    raft.Propose(std::move(batch));
    raft.Pump();
  }

  /// Transactions that the log may not have heard the last of.
  std::string Undone() const {
    std::string out;
    for (const auto& [sequence, t] : transactions)
      if (!t.done)
        out += "; " + std::to_string(sequence) + " of node " + std::to_string(t.at) + ", term " +
               std::to_string(t.term) + ", state " + std::to_string(static_cast<int>(t.state)) +
               (t.waiting ? ", waits" : "");
    return out;
  }

  /// Of each transaction all members have all, or none has anything.
  void CheckTransactions() {
    std::map<uint64_t, int> ends;
    for (auto& [index, what] : truth) {
      const std::string_view data = std::string_view(what.second).substr(1);
      if (what.second[0] == static_cast<char>(CommittedEntry::Kind::kData) && IsLogEnd(data))
        ++ends[ReadLogEntryHeader(data).value().sequence];
    }
    for (auto& [sequence, t] : transactions) {
      const std::string name = "transaction " + std::to_string(sequence);
      const int times = ends[sequence];
      if (times > 1) Fail(name + " happened more than once");
      if (t.state == SimTransaction::State::kAcknowledged && times == 0) Fail(name + " is lost");
      if (times > 0 && (t.state == SimTransaction::State::kRefused ||
                        t.state == SimTransaction::State::kToGiveUp))
        Fail(name + " was given up and yet happened");
      result.committed += times;
      for (auto& [id, n] : nodes) {
        const MemoryKv::MapPtr kept = n.kv->map(Keyspace::kRecords);
        auto it = kept->find(EndedKey(sequence));
        if ((it != kept->end()) != (times > 0))
          Fail(name + " is " + (times > 0 ? "not on" : "on") + " node " + std::to_string(id));
      }
    }
    for (auto& [id, n] : nodes)
      if (n.machine->KeepLogFrom() != UINT64_MAX)
        Fail("node " + std::to_string(id) + " keeps its log from " +
             std::to_string(n.machine->KeepLogFrom()) + " for what is over" + Undone());
  }

  void Faults() {
    if (step >= cut_until) cut.clear();
    if (cut.empty() && random() % 150 == 0) {
      ++result.partitions;
      cut_until = step + Between(20, 400);
      const int kind = Between(0, 2);
      const NodeId lonely = Any().id;
      for (auto& [a, x] : nodes)
        for (auto& [b, y] : nodes) {
          if (a == b) continue;
          const bool across = (a == lonely) != (b == lonely);
          if (kind == 0 && across) cut.insert({a, b});
          if (kind == 1 && a == lonely) cut.insert({a, b});  // one way
          if (kind == 2 && (a % 2) != (b % 2)) cut.insert({a, b});
        }
    }
    if (random() % 200 == 0) {
      SimNode& n = Any();
      if (n.up()) Crash(n, Between(1, 300));
    }
    if (random() % 300 == 0) {
      ++result.sleeps;
      Any().asleep_until = step + Between(10, 400);
    }
    if (random() % 500 == 0) clock.wall_off_ms += Between(-7'200'000, 7'200'000);
    if (random() % 1500 == 0)
      for (auto& [id, n] : nodes)
        if (n.up()) Crash(n, Between(1, 50));
    if (random() % 400 == 0)
      for (auto& [id, n] : nodes)
        if (n.up() && n.raft->leads()) {
          n.raft->StepDown(0, Between(10, 500), Chance(30), [](Result<void>) {});
          n.raft->Pump();
        }
  }

  SimNode& Any() {
    return std::next(nodes.begin(), static_cast<int>(random() % nodes.size()))->second;
  }

  SimNode* Leader() {
    for (auto& [id, n] : nodes)
      if (n.up() && step >= n.asleep_until && n.raft->leads()) return &n;
    return nullptr;
  }

  void Reconfigure(SimNode& leader, const ConsensusConfiguration& c) {
    leader.raft->Reconfigure(c, [this](Result<LogPosition> r) { result.changes += r.has_value(); });
    leader.raft->Pump();
  }

  /// What people do to a configuration, one voter at a time.
  void ChangeSomething() {
    SimNode* leader = Leader();
    // Taking a vote from the others while one has lost everything takes more than people should do.
    if (!leader || replacing.second != 0) return;
    ConsensusConfiguration c = leader->raft->configuration();
    const int kind = Between(0, 2);
    if (kind == 0 && c.members.size() > 2) {
      c.members.erase(c.members.begin() + Between(0, static_cast<int>(c.members.size()) - 1));
    } else if (kind == 1) {
      for (const ConsensusMember& m : configuration.members)
        if (!c.Find(m.id)) {
          c.members.push_back(m);
          break;
        }
    } else {
      ConsensusMember& m = c.members[random() % c.members.size()];
      int voters = 0;
      for (const ConsensusMember& x : c.members) voters += x.voter;
      if (m.voter && voters <= 2) return;
      m.voter = !m.voter;
    }
    Reconfigure(*leader, c);
  }

  /// The data directory of a follower is emptied: another node lives there from now on
  /// (Engine::ReplaceStranger). Only where everybody counts: two that are emptied at the same time
  /// may be all that had something.
  void EmptySomebody() {
    SimNode* leader = Leader();
    if (!leader || replacing.second != 0 ||
        leader->raft->configuration().members.size() != configuration.members.size())
      return;
    if (leader->raft->status().pending_conf || leader->raft->status().joint) return;
    for (const RaftNode::Member& m : leader->raft->members())
      if (!m.voter || m.matched + 200 < leader->raft->status().last_index) return;
    SimNode& lost = Any();
    if (lost.id == leader->id || !lost.up() || !leader->raft->configuration().Find(lost.id)) return;
    ++result.emptied;
    replacing = {lost.id, 100 + static_cast<NodeId>(result.emptied)};
    Stop(lost);
    nodes.erase(replacing.first);
    SimNode& n = nodes[replacing.second];
    n.id = replacing.second;
    n.kv = std::make_unique<MemoryKv>();
    if (!std::move(LogStore::Open(*n.kv).value())->MakeNodeId(n.id)) Fail("node id");
    for (ConsensusMember& m : configuration.members)
      if (m.id == replacing.first) m.id = n.id;
    n.kv->lies = options.lying_disk;
    Start(n);
  }

  void Changes() {
    if (step < options.steps && random() % 120 == 0) ChangeSomething();
    if (step < options.steps && random() % 150 == 0) EmptySomebody();
    SimNode* leader = step % 20 == 0 ? Leader() : nullptr;
    if (!leader) return;
    ConsensusConfiguration c = leader->raft->configuration();
    if (replacing.second != 0) {
      if (c.Find(replacing.second)) {
        replacing = {0, 0};
        return;
      }
      bool there = false;
      for (ConsensusMember& m : c.members)
        if (m.id == replacing.first) {
          m.id = replacing.second;
          there = true;
        }
      if (!there) {
        replacing = {0, 0};  // removed meanwhile
        return;
      }
      Reconfigure(*leader, c);
    } else if (step > options.steps) {
      // All back, all with their votes.
      for (const ConsensusMember& m : configuration.members) {
        auto now = std::find_if(c.members.begin(), c.members.end(),
                                [&](const ConsensusMember& x) { return x.id == m.id; });
        if (now != c.members.end() && now->voter) continue;
        if (now == c.members.end())
          c.members.push_back(m);
        else
          now->voter = true;
        return Reconfigure(*leader, c);
      }
    }
  }

  void Housekeeping() {
    for (auto& [id, n] : nodes) {
      if (!n.up() && step >= n.down_until) Start(n);
      if (!n.up() || step < n.asleep_until) continue;
      if (n.copying && step >= n.copying->first) {
        std::unique_ptr<MemoryKv> copy = checkpoints[n.copying->second]->Copy();
        n.copying.reset();
        HardState own = n.log->hard_state();
        // As the engine does: what came meanwhile may have made the copy useless.
        auto adopted = AdoptCheckpoint(*copy, id, own);
        if (!adopted) return Fail("copy: " + adopted.error().message);
        if (adopted.value().index <= n.raft->status().commit) continue;
        ++result.copies;
        Stop(n);
        n.kv = std::move(copy);
        Start(n);
      }
      if (options.trimming && random() % 60 == 0)
        n.raft->Trim(4096, 0, options.forgets_open ? UINT64_MAX : n.machine->KeepLogFrom());
      if ((step + static_cast<int>(id)) % 5 == 0) n.raft->Tick();
      if (!options.faults || Chance(70))
        while (n.applier->Step()) {
        }
      n.raft->Applied(n.log->applied().index);
      // What waited for a handover that came to nothing goes on, as in the engine's loop.
      n.raft->Poll();
      n.raft->Pump();
    }
  }

  void Run() {
    random.seed(options.seed);
    configuration.set_id = std::string(12, 's');
    configuration.payload = "payload";
    for (int i = 1; i <= options.nodes; ++i) {
      ConsensusMember m;
      m.id = static_cast<NodeId>(i);
      m.address = "n" + std::to_string(i);
      m.priority = i == 2 ? 2 : 1;
      configuration.members.push_back(m);
      SimNode& n = nodes[m.id];
      n.id = m.id;
      n.kv = std::make_unique<MemoryKv>();
      auto log = std::move(LogStore::Open(*n.kv).value());
      if (!log->MakeNodeId(m.id)) Fail("node id");
    }
    auto first = std::move(LogStore::Open(*nodes[1].kv).value());
    if (!BootstrapLog(*first, configuration, options.data_is_empty, clock.Now())) Fail("bootstrap");
    for (auto& [id, n] : nodes) n.kv->lies = options.lying_disk;
    for (auto& [id, n] : nodes) Start(n);
    nodes[1].raft->Campaign();
    nodes[1].raft->Pump();
    const int quiet =
        options.changes ? 3000
                        : 1200;  // at the end nothing fails, and everybody has to come to the same
    for (step = 0; step < options.steps + quiet && result.failure.empty(); ++step) {
      clock.us += 10'000;
      if (step == options.steps) {
        options.faults = false;
        cut.clear();
        for (auto& [id, n] : nodes) n.down_until = n.asleep_until = 0;
      }
      if (options.faults && step > 100) Faults();
      Deliver();
      Housekeeping();
      if (options.changes && step > 300) Changes();
      if (step < options.steps && Chance(40)) ProposeSomewhere();
      if (!options.transactions) continue;
      if (step < options.steps && Chance(3)) BeginTransaction();
      Transact(step < options.steps);
    }
    Check();
    if (options.transactions && result.failure.empty()) CheckTransactions();
    for (auto& [id, n] : nodes) Stop(n);
  }

  void Check() {
    uint64_t applied = 0;
    int leading = 0, voters = 0;
    for (auto& [id, n] : nodes) {
      if (!n.up()) return Fail("node " + std::to_string(id) + " is down at the end");
      applied = std::max(applied, n.log->applied().index);
      leading += n.raft->leads();
      if (n.raft->leads())
        for (const RaftNode::Member& m : n.raft->members()) voters += m.voter;
    }
    if (std::getenv("MAYFLY_SIM_SHOW"))
      for (auto& [id, n] : nodes) {
        const mf_status st = n.raft->status();
        std::printf(
            "node %d role %d term %d last %d first %d commit %d applied %d pending %d joint %d\n",
            (int)id, st.role, (int)st.term, (int)st.last_index, (int)st.first_index, (int)st.commit,
            (int)st.applied, st.pending_conf, st.joint);
        if (st.role == 2)
          for (auto& m : n.raft->members())
            std::printf("   %d matched %d voter %d learner %d active %d snap %d %d\n", (int)m.id,
                        (int)m.matched, m.voter, m.learner, m.active, m.in_snapshot,
                        (int)m.pending_snapshot);
      }
    if (leading != 1) Fail(std::to_string(leading) + " leaders at the end");
    if (voters != options.nodes) Fail(std::to_string(voters) + " voters at the end");
    for (auto& [id, n] : nodes) {
      if (n.log->applied().index != applied)
        Fail("node " + std::to_string(id) + " is behind at the end: " +
             std::to_string(n.log->applied().index) + " of " + std::to_string(applied));
      // Everything that was ever applied anywhere is here.
      const MemoryKv::MapPtr kept = n.kv->map(Keyspace::kRecords);
      const MemoryKv::Map& records = *kept;
      for (auto& [index, what] : truth) {
        std::string key, value;
        AppendBe64(key, index);
        AppendBe64(value, what.first);
        value += what.second;
        auto it = records.find(key);
        if (it == records.end() || it->second != value)
          Fail("node " + std::to_string(id) + " differs at " + std::to_string(index));
      }
    }
    std::map<std::string, int> seen;
    for (auto& [index, what] : truth) ++seen[what.second.substr(1)];
    for (auto& [data, index] : acknowledged) {
      auto it = truth.find(index);
      if (it == truth.end() || it->second.second.substr(1) != data) Fail("lost: " + data);
      if (seen[data] != 1) Fail("applied more than once: " + data);
    }
    for (const std::string& data : refused)
      if (seen.contains(data)) Fail("refused and yet written: " + data);
    if (acknowledged.empty()) Fail("nothing was ever acknowledged");
  }
};

void SimMachine::Applied(std::span<const CommittedEntry> entries) {
  open_.Applied();
  for (const CommittedEntry& e : entries) {
    const uint64_t index = e.position.index;
    if (index != next_)
      world_.Fail("node " + std::to_string(id_) + " applies " + std::to_string(index) + " where " +
                  std::to_string(next_) + " comes next");
    next_ = index + 1;
    std::string what(1, static_cast<char>(e.kind));
    what.append(e.data);
    auto [it, fresh] = world_.truth.emplace(index, std::pair(e.position.term, what));
    if (!fresh && it->second != std::pair(e.position.term, what))
      world_.Fail("members disagree at " + std::to_string(index));
    world_.Digest(index * 31 + e.position.term * 7 + id_ + e.data.size());
  }
}

void SimMachine::Load(KvStore& kv) {
  if (!open_.Load(kv)) world_.Fail("open units are damaged");
}

void SimMachine::End(const CommittedEntry& e, KvBatch& batch) {
  if (e.kind != CommittedEntry::Kind::kData || !IsLogEnd(e.data)) return;
  const uint64_t sequence = ReadLogEntryHeader(e.data).value().sequence;
  const std::string name =
      "node " + std::to_string(id_) + ", transaction " + std::to_string(sequence);
  const Result<std::string> whole = JoinFromLog(e.data, *log_.Cursor(true));
  if (!whole) return world_.Fail(name + ": " + whole.error().message);
  constexpr size_t kFirst = kLogEntryHeader + 20;
  if (whole.value().substr(kFirst) != world_.transactions[sequence].bytes.substr(20))
    world_.Fail(name + " is not what was sent");
  batch.Put(Keyspace::kRecords, EndedKey(sequence), "1");
}

void SimMachine::StateChanged(const ConsensusState& state) {
  if (state.role != ConsensusRole::kLeader) return;
  auto [it, fresh] = world_.leaders.emplace(state.term, id_);
  if (fresh) ++world_.result.elections;
  if (it->second != id_) world_.Fail("two leaders in term " + std::to_string(state.term));
}

}  // namespace

SimResult Simulate(const SimOptions& options) {
  World world;
  world.options = options;
  world.Run();
  return world.result;
}

}  // namespace mayfly::testing
