#include "replication/raft_node.h"

#include <catch2/catch.hpp>

#include "simulation.h"

namespace mayfly {
namespace {

class HandClock final : public Clock {
 public:
  Instant Now() const override { return {1'700'000'000'000}; }
  int64_t MonotonicMicros() const override { return micros; }
  void OnJump(std::function<void()>) override {}
  int64_t micros = 1'000'000;
};

/// Knows only what its node is.
class NoMachine final : public StateMachine {
 public:
  void Prepare(std::span<const CommittedEntry>, KvBatch&) override {}
  void Applied(std::span<const CommittedEntry>) override {}
  void StateChanged(const ConsensusState& s) override { role = s.role; }
  ConsensusRole role = ConsensusRole::kUninitialised;
};

/// One node driven by hand; what it sends waits in `sent`.
struct HandNode {
  explicit HandNode(std::unique_ptr<MemoryKv> store, NodeId id = 0) : kv(std::move(store)) {
    log = std::move(LogStore::Open(*kv).value());
    if (id != 0) REQUIRE(log->MakeNodeId(id));
  }
  void Open() {
    applier = std::make_unique<Applier>(*log, machine,
                                        [](std::string_view why) { FAIL(std::string(why)); });
    RaftNode::Options o;
    o.log = log.get();
    o.applier = applier.get();
    o.machine = &machine;
    o.clock = &clock;
    o.seed = log->node();
    o.send = [this](NodeId to, std::string_view m) { sent.emplace_back(to, m); };
    o.fatal = [](std::string_view why) { FAIL(std::string(why)); };
    o.snapshot = [this](uint64_t, NodeId, SnapshotPointer* out) {
      ++copies_offered;
      out->position = log->applied();
      out->conf_state = conf_state;
      out->data = "copy";
      return true;
    };
    o.resync = [this](NodeId, SnapshotPointer p) { told_to_copy.push_back(p.position.index); };
    raft = std::make_unique<RaftNode>(std::move(o));
    REQUIRE(raft->Open());
  }
  ~HandNode() {
    raft.reset();
    if (applier) applier->Stop();
  }
  void Tick() {
    clock.micros += 50'000;
    raft->Tick();
    Settle();
  }
  void Settle() {
    do {
      raft->Applied(log->applied().index);
      raft->Pump();
    } while (applier->Step());
  }
  void Propose(
      const std::string& data,
      std::function<void(Result<LogPosition>)> done = [](Result<LogPosition>) {}) {
    std::vector<Proposal> p;
    p.push_back({data, nullptr, std::move(done)});
    raft->Propose(std::move(p));
    Settle();
  }
  void Receive(HandNode& from) {
    for (auto& [to, m] : std::exchange(from.sent, {})) {
      if (to != log->node()) {
        from.sent.emplace_back(to, std::move(m));
        continue;
      }
      raft->Step(from.log->node(), m);
      Settle();
    }
  }

  HandClock clock;
  NoMachine machine;
  std::unique_ptr<MemoryKv> kv;
  std::unique_ptr<LogStore> log;
  std::unique_ptr<Applier> applier;
  std::unique_ptr<RaftNode> raft;
  std::vector<std::pair<NodeId, std::string>> sent;  ///< what nobody has received yet
  std::string conf_state;
  std::vector<uint64_t> told_to_copy;
  int copies_offered = 0;
};

}  // namespace

/// `depth` groups within each other, of a field that nobody knows.
static std::string Groups(size_t depth) {
  std::string out;
  for (size_t i = 0; i < depth; ++i) out += "\xa3\x06";  // field 100, a group begins
  for (size_t i = 0; i < depth; ++i) out += "\xa4\x06";
  return out;
}
/// A field that holds `value`.
static std::string Field(char number, const std::string& value) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  size_t n = value.size();
  for (; n > 127; n >>= 7) out.push_back(static_cast<char>(n | 128));
  return out.append(1, static_cast<char>(n)) + value;
}

TEST_CASE("Groups within groups in a member's message do not use up the stack", "[replication]") {
  // protobuf skips them by recursion without a bound (RUSTSEC-2024-0437), which ended the process.
  HandNode a(std::make_unique<MemoryKv>(), 1);
  a.Open();
  const size_t depth = GENERATE(1u, 1'000'000u);
  const std::string groups = Groups(depth);
  a.raft->Step(2, groups);
  a.raft->Step(2, Field(7, groups));                        // an entry
  a.raft->Step(2, Field(9, groups));                        // the snapshot,
  a.raft->Step(2, Field(9, Field(2, groups)));              // its metadata,
  a.raft->Step(2, Field(9, Field(2, Field(1, groups))));    // its members
  a.raft->Step(2, Field(7, "") + Field(12, "x") + groups);  // behind fields that it knows
  a.Settle();
  CHECK(a.machine.role == ConsensusRole::kUninitialised);
}

TEST_CASE("A change of the members that cannot be read is refused before it is in the log",
          "[replication]") {
  // Once it was committed, every member had to apply it, and ended.
  HandNode a(std::make_unique<MemoryKv>(), 1);
  a.Open();
  const auto append = [&](char kind, const std::string& data) {
    const std::string entry =
        std::string("\x08") + kind + std::string("\x10\x05\x18\x01", 4) + Field(4, data);
    // MsgAppend to 1 from 2 in term 5.
    a.raft->Step(2, std::string("\x08\x03\x10\x01\x18\x02\x20\x05", 8) + Field(7, entry));
    a.Settle();
    return a.log->last_index();
  };
  for (const char kind : {1, 2}) {
    CHECK(append(kind, "\xff") == 0);
    CHECK(append(kind, Groups(1'000'000)) == 0);
    CHECK(append(kind, Field(2, Groups(1'000'000))) == 0);
  }
  CHECK(append(0, "\xff") == 1);
}

TEST_CASE(
    "A proposal whose end is not known fails when the machine knows that the node leads no more",
    "[log]") {
  constexpr NodeId kLeader = 1, kOther = 2;
  ConsensusConfiguration c;
  c.set_id = "twelve bytes";
  c.members = {{kLeader, "a:1", true, 1}};
  c.payload = "config";
  HandNode leader(std::make_unique<MemoryKv>(), kLeader);
  HandNode other(std::make_unique<MemoryKv>(), kOther);
  REQUIRE(BootstrapLog(*leader.log, c, true, leader.clock.Now()));
  leader.Open();
  other.Open();
  for (int i = 0; i < 200 && !leader.raft->state().ready; ++i) leader.Tick();
  c.members.push_back({kOther, "b:1", true, 1});
  leader.raft->Reconfigure(c, [](Result<LogPosition>) {});
  leader.Settle();
  const auto both_vote = [&] {
    const auto members = leader.raft->members();
    return std::count_if(members.begin(), members.end(),
                         [](const RaftNode::Member& m) { return !m.learner; }) == 2;
  };
  for (int i = 0; i < 400 && !both_vote(); ++i) {
    leader.Tick();
    other.Receive(leader);
    other.Tick();
    leader.Receive(other);
  }
  REQUIRE(both_vote());
  REQUIRE(leader.machine.role == ConsensusRole::kLeader);

  std::optional<ErrorCode> failed;
  ConsensusRole then = ConsensusRole::kLeader;
  leader.Propose("nobody else has it", [&](Result<LogPosition> r) {
    failed = r ? ErrorCode::kOk : r.error().code;
    then = leader.machine.role;
  });
  CHECK_FALSE(failed);
  // Nobody answers any more.
  for (int i = 0; i < 400 && !failed; ++i) leader.Tick();
  REQUIRE(failed == ErrorCode::kPrimarySteppedDown);
  CHECK(then != ConsensusRole::kLeader);
}

TEST_CASE("What waits for a handover that fails goes in front of what comes later", "[log]") {
  constexpr NodeId kLeader = 1, kSilent = 2, kThird = 3;
  ConsensusConfiguration c;
  c.set_id = "twelve bytes";
  c.members = {{kLeader, "a:1", true, 1}};
  c.payload = "config";
  HandNode leader(std::make_unique<MemoryKv>(), kLeader);
  HandNode silent(std::make_unique<MemoryKv>(), kSilent);
  HandNode third(std::make_unique<MemoryKv>(), kThird);
  REQUIRE(BootstrapLog(*leader.log, c, true, leader.clock.Now()));
  leader.Open();
  silent.Open();
  third.Open();
  for (int i = 0; i < 200 && !leader.raft->state().ready; ++i) leader.Tick();
  c.members.push_back({kSilent, "b:1", true, 1});
  c.members.push_back({kThird, "c:1", true, 0});
  leader.raft->Reconfigure(c, [](Result<LogPosition>) {});
  leader.Settle();
  auto talk = [&](std::initializer_list<HandNode*> others) {
    leader.Tick();
    for (HandNode* other : others) {
      other->Receive(leader);
      other->Tick();
      leader.Receive(*other);
    }
  };
  const auto voters = [&] {
    const auto members = leader.raft->members();
    return std::ranges::count_if(members, [](const RaftNode::Member& m) { return !m.learner; });
  };
  for (int i = 0; i < 400 && voters() < 3; ++i) talk({&silent, &third});
  REQUIRE(voters() == 3);

  bool given_up = false;
  leader.raft->StepDown(kSilent, 5'000, false, [&](Result<void> r) { given_up = !r; });
  std::vector<std::pair<std::string, uint64_t>> done;
  auto propose = [&](const std::string& what) {
    leader.Propose(what, [&, what](Result<LogPosition> r) {
      done.emplace_back(what, r ? r.value().index : 0);
    });
  };
  propose("waits");
  // Something comes at each step, so also between the end of the transfer, which is in a tick, and
  // the next look at what waits.
  size_t proposed = 1;
  for (int i = 0; i < 400 && (!given_up || done.empty()); ++i) {
    talk({&third});
    propose(std::to_string(proposed++));
    leader.raft->Poll();
    leader.Settle();
  }
  for (int i = 0; i < 100 && done.size() < proposed; ++i) talk({&third});
  REQUIRE(given_up);
  REQUIRE(leader.machine.role == ConsensusRole::kLeader);
  REQUIRE(done.size() == proposed);
  CHECK(done.front().first == "waits");
  for (size_t i = 1; i < done.size(); ++i) {
    CHECK(done[i].first == std::to_string(i));
    CHECK(done[i].second > done[i - 1].second);
  }
}

TEST_CASE(
    "A member that has taken its copy goes on from there although it was asked to take a newer one "
    "meanwhile",
    "[log]") {
  constexpr NodeId kLeader = 1, kJoiner = 2;
  ConsensusConfiguration c;
  c.set_id = "twelve bytes";
  c.members = {{kLeader, "a:1", true, 1}};
  c.payload = "config";
  HandNode leader(std::make_unique<MemoryKv>(), kLeader);
  // The log begins behind what nobody has: whoever joins needs a copy.
  REQUIRE(BootstrapLog(*leader.log, c, false, leader.clock.Now()));
  leader.Open();
  leader.conf_state = RaftNode::ConfState({kLeader}, {kJoiner});
  for (int i = 0; i < 200 && !leader.raft->state().ready; ++i) leader.Tick();
  REQUIRE(leader.raft->state().ready);
  leader.Propose("one");

  auto joiner = std::make_unique<HandNode>(std::make_unique<MemoryKv>(), kJoiner);
  joiner->Open();
  bool copying = false;
  LogPosition end;
  leader.raft->is_copying = [&](NodeId) { return copying; };
  leader.raft->log_of = [&](NodeId) { return end; };
  auto talk = [&](int ticks) {
    for (int i = 0; i < ticks; ++i) {
      leader.Tick();
      joiner->Receive(leader);
      leader.Receive(*joiner);
    }
  };
  c.members.push_back({kJoiner, "b:1", false, 1});
  leader.raft->Reconfigure(c, [](Result<LogPosition>) {});
  leader.Settle();
  talk(20);
  REQUIRE(joiner->told_to_copy.size() >= 1);
  const uint64_t first_copy = joiner->told_to_copy.front();
  auto copy = leader.kv->Copy();

  // It takes the copy and lets go of it, while the leader has not heard that it copies: it is asked
  // to take another one, of now.
  leader.Propose("two");
  const int offered = leader.copies_offered;
  for (int i = 0; i < 100 && leader.copies_offered == offered; ++i) talk(1);
  REQUIRE(leader.copies_offered > offered);
  bool waits = false;
  for (const RaftNode::Member& m : leader.raft->members())
    waits |= m.id == kJoiner && m.in_snapshot && m.pending_snapshot > first_copy;
  REQUIRE(waits);

  // It is back with the first one, and says so.
  joiner.reset();
  leader.sent.clear();
  REQUIRE(AdoptCheckpoint(*copy, kJoiner, {}));
  joiner = std::make_unique<HandNode>(std::move(copy));
  joiner->Open();
  end = {joiner->log->Term(joiner->log->last_index()).value(), joiner->log->last_index()};
  CHECK(end.index == first_copy);
  const int before = leader.copies_offered;
  talk(40);
  CHECK(joiner->told_to_copy.empty());
  CHECK(leader.copies_offered == before);
  CHECK(joiner->log->applied().index == leader.log->applied().index);
  leader.Propose("three");
  talk(5);
  CHECK(joiner->log->applied().index == leader.log->applied().index);
}

}  // namespace mayfly
