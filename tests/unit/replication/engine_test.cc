#include "engine_fixture.h"

#include <random>
#include <set>

namespace mayfly {
using testing::ConfigurationOf;
using testing::Eventually;
using testing::TestMember;

namespace {

Result<LogPosition> Initiate(TestMember& m, ConsensusConfiguration c, bool empty = true) {
  return m.Wait<LogPosition>([&](auto done) { m.engine().Initiate(c, empty, done); });
}

struct ThreeMembers {
  explicit ThreeMembers(const std::string& key = {})
      : all{TestMember(key), TestMember(key), TestMember(key)} {
    auto done = Initiate(
        all[0], ConfigurationOf({all[0].AsMember(), all[1].AsMember(), all[2].AsMember()}));
    if (!done) FAIL(done.error().message);
    REQUIRE(Eventually([&] { return Voters() == 3; }));
  }
  int Voters() {
    int n = 0;
    for (const MemberStatus& m : Leader().engine().Status().members) n += m.voter;
    return n;
  }
  TestMember& Leader() {
    TestMember* found = nullptr;
    REQUIRE(Eventually([&] {
      for (TestMember& m : all)
        if (m.Leads()) found = &m;
      return found != nullptr;
    }));
    return *found;
  }
  TestMember& Follower() {
    TestMember& leader = Leader();
    return &leader == &all[0] ? all[1] : all[0];
  }
  /// Asks whoever leads until it takes the change: leadership may move on a starved machine.
  bool Reconfigure(const ConsensusConfiguration& c) {
    return Eventually([&] {
      TestMember& leader = Leader();
      auto done =
          leader.Wait<LogPosition>([&](auto d) { leader.engine().Reconfigure(c, std::move(d)); });
      if (!done) UNSCOPED_INFO(done.error().message);
      return done.has_value();
    });
  }
  bool Same() {
    auto first = all[0].Records();
    return all[1].Records() == first && all[2].Records() == first;
  }
  std::array<TestMember, 3> all;
};

}  // namespace

TEST_CASE("A set of one: initiated once, writes at once, remembers", "[engine]") {
  TestMember m;
  CHECK_FALSE(m.engine().initialised());
  CHECK(m.Propose("too early").error().code == ErrorCode::kNotWritablePrimary);
  REQUIRE(Initiate(m, ConfigurationOf({m.AsMember()})));
  CHECK(Initiate(m, ConfigurationOf({m.AsMember()})).error().code ==
        ErrorCode::kAlreadyInitialized);
  REQUIRE(Eventually([&] { return m.Leads(); }));
  auto one = m.Propose("one");
  REQUIRE(one);
  CHECK(m.Records()[one.value().index] == std::string(1, '\0') + "one");
  auto read = m.Wait<uint64_t>([&](auto done) { m.engine().ReadIndex(done); });
  REQUIRE(read);
  CHECK(read.value() >= one.value().index);
  const NodeId self = m.engine().self();
  m.Restart();
  CHECK(m.engine().self() == self);
  CHECK(m.engine().Status().configuration.payload == "config");
  REQUIRE(Eventually([&] { return m.Leads(); }));
  auto two = m.Propose("two");
  REQUIRE(two);
  CHECK(two.value().index > one.value().index);
  CHECK(two.value().term > one.value().term);

  auto log = m.engine().ReadLog();
  std::vector<std::string> seen;
  for (log->Seek(1); log->Valid(); log->Next())
    if (log->entry().kind == CommittedEntry::Kind::kData) seen.emplace_back(log->entry().data);
  CHECK(seen == std::vector<std::string>{"one", "two"});
  log->SeekToLast();
  REQUIRE(log->Valid());
  CHECK(log->entry().position == two.value());
}

TEST_CASE("Three members agree, and go on without the leader", "[engine]") {
  ThreeMembers set("some shared key");
  for (int i = 0; i < 50; ++i) REQUIRE(set.Leader().Propose("before " + std::to_string(i)));
  REQUIRE(Eventually([&] { return set.Same(); }));
  TestMember& follower = set.Follower();
  CHECK(follower.Propose("not here").error().code == ErrorCode::kNotWritablePrimary);
  CHECK(follower.engine().state().leader_address == set.Leader().address());

  TestMember& old = set.Leader();
  const uint64_t term = old.engine().state().term;
  old.Close();
  REQUIRE(set.Leader().engine().state().term > term);
  for (int i = 0; i < 50; ++i) REQUIRE(set.Leader().Propose("after " + std::to_string(i)));
  old.Open();
  REQUIRE(Eventually([&] { return set.Same(); }));
  // Who is far and who is near is known.
  REQUIRE(Eventually([&] {
    int reachable = 0;
    for (const MemberStatus& m : set.Leader().engine().Status().members)
      reachable += m.reachable && m.durable.index > 0 && m.wall_clock.millis > 0;
    return reachable == 3;
  }));
}

TEST_CASE("Leadership can be handed over, and goes to the higher priority by itself", "[engine]") {
  ThreeMembers set;
  TestMember& first = set.Leader();
  TestMember& second = set.Follower();
  REQUIRE(first.Propose("x"));
  auto handed = first.Wait<void>(
      [&](auto done) { first.engine().StepDown(second.engine().self(), 10'000, false, done); });
  REQUIRE(handed);
  REQUIRE(Eventually([&] { return second.Leads(); }));
  REQUIRE(Eventually([&] { return !first.Leads(); }));

  auto c = second.engine().Status().configuration;
  for (ConsensusMember& m : c.members) m.priority = m.id == first.engine().self() ? 5 : 1;
  auto changed = second.Wait<LogPosition>([&](auto done) { second.engine().Reconfigure(c, done); });
  REQUIRE(changed);
  REQUIRE(Eventually([&] { return first.Leads(); }));
}

TEST_CASE("A member can be left out and another taken in", "[engine]") {
  ThreeMembers set;
  TestMember& leader = set.Leader();
  REQUIRE(leader.Propose("x"));
  TestMember fourth;
  auto c = leader.engine().Status().configuration;
  const NodeId gone = set.Follower().engine().self();
  std::erase_if(c.members, [&](const ConsensusMember& m) { return m.id == gone; });
  c.members.push_back(fourth.AsMember());
  c.payload = "second";
  REQUIRE(set.Reconfigure(c));
  REQUIRE(Eventually([&] {
    auto s = fourth.engine().Status();
    return s.configuration.payload == "second" && fourth.Records() == leader.Records();
  }));
  REQUIRE(Eventually([&] {
    int voters = 0;
    for (const MemberStatus& m : leader.engine().Status().members) voters += m.voter;
    return voters == 3;
  }));
}

TEST_CASE("A member that the log does not reach takes a copy and goes on from there", "[engine]") {
  TestMember first, second;
  REQUIRE(Initiate(first, ConfigurationOf({first.AsMember()}), false));
  REQUIRE(Eventually([&] { return first.Leads(); }));
  for (int i = 0; i < 20; ++i) REQUIRE(first.Propose(std::string(200'000, 'a' + i)));
  auto c = first.engine().Status().configuration;
  c.members.push_back(second.AsMember());
  REQUIRE(first.Wait<LogPosition>([&](auto done) { first.engine().Reconfigure(c, done); }));
  REQUIRE(Eventually([&] { return second.restart_wanted(); }));
  const NodeId self = second.engine().self();
  second.Restart();
  CHECK(second.engine().self() == self);  // what the donor promised is not taken over
  REQUIRE(first.Propose("after the copy"));
  const bool same = Eventually([&] { return second.Records() == first.Records(); });
  const ConsensusStatus one = first.engine().Status(), two = second.engine().Status();
  INFO("first: term " << one.state.term << " last " << one.last.index << " applied "
                      << one.applied.index << "; second: term " << two.state.term << " first "
                      << two.first.index << " last " << two.last.index << " committed "
                      << two.committed.index << " applied " << two.applied.index << " records "
                      << second.Records().size() << " of " << first.Records().size());
  REQUIRE(same);
  // Once a voter it counts.
  REQUIRE(Eventually([&] {
    int voters = 0;
    for (const MemberStatus& m : first.engine().Status().members) voters += m.voter;
    return voters == 2;
  }));
}

TEST_CASE(
    "A second member that needs a copy gets one although the first has made the donor forget its "
    "own",
    "[engine]") {
  TestMember first, second, third;
  REQUIRE(Initiate(first, ConfigurationOf({first.AsMember()}), false));
  REQUIRE(Eventually([&] { return first.Leads(); }));
  REQUIRE(first.Propose("x"));
  for (TestMember* joiner : {&second, &third}) {
    auto c = first.engine().Status().configuration;
    c.members.push_back(joiner->AsMember(1, false));
    REQUIRE(first.Wait<LogPosition>([&](auto done) { first.engine().Reconfigure(c, done); }));
    REQUIRE(Eventually([&] { return joiner->restart_wanted(); },
                       20));  // less than a copy is offered for
    joiner->Restart();
  }
  REQUIRE(Eventually(
      [&] { return second.Records() == first.Records() && third.Records() == first.Records(); }));
}

TEST_CASE("Probes tell who lives at an address; strangers and wrong keys get nowhere", "[engine]") {
  TestMember a("the key"), b("the key"), stranger("another key"), other("the key", "rs1");
  auto probe = [&](TestMember& who) {
    return a.Wait<NodeInfo>([&](auto done) { a.engine().Probe(who.address(), {}, 5000, done); });
  };
  auto info = probe(b);
  REQUIRE(info);
  CHECK(info.value().id == b.engine().self());
  CHECK(info.value().set_name == "rs0");
  CHECK(info.value().set_id.empty());
  CHECK(probe(stranger).error().code == ErrorCode::kAuthenticationFailed);
  auto elsewhere = probe(other);
  REQUIRE(elsewhere);
  CHECK(elsewhere.value().set_name == "rs1");
  auto nobody =
      a.Wait<NodeInfo>([&](auto done) { a.engine().Probe("127.0.0.1:1", {}, 5000, done); });
  CHECK(nobody.error().code == ErrorCode::kHostUnreachable);
}

TEST_CASE("Hostile bytes on the member port disturb nobody", "[engine]") {
  ThreeMembers set("key");
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    TestMember& target = set.all[static_cast<size_t>(round) % 3];
    const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(static_cast<uint16_t>(target.port()));
    REQUIRE(::connect(s, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
    // The command, then what no member sends: sizes of all kinds, cut frames, garbage.
    const BsonDocument body = BuildBson([](BsonBuilder& b) { b.Append("_mayflyMember", 1); });
    std::string bytes;
    for (int32_t v : {static_cast<int32_t>(21 + body.view().size()), 1, 0, 2013, 0})
      bytes.append(reinterpret_cast<const char*>(&v), 4);
    bytes.push_back('\0');
    bytes.append(body.view().data(), body.view().size());
    const uint32_t size = round % 3 == 0 ? 0xFFFF'FFFF : random() % 300;
    bytes.append(reinterpret_cast<const char*>(&size), 4);
    bytes.push_back(static_cast<char>(round % 5));
    for (unsigned i = 0; i < random() % 400; ++i) bytes.push_back(static_cast<char>(random()));
    (void)!::send(s, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::close(s);
    if (round % 10 == 0) REQUIRE(set.Leader().Propose("still here"));
  }
  REQUIRE(Eventually([&] { return set.Same(); }));
}

TEST_CASE("The log is cut by size and what is applied stays", "[engine]") {
  TestMember m;
  REQUIRE(Initiate(m, ConfigurationOf({m.AsMember()})));
  REQUIRE(Eventually([&] { return m.Leads(); }));
  for (int i = 0; i < 40; ++i) REQUIRE(m.Propose(std::string(1 << 20, 'x')));
  const size_t records = m.Records().size();
  m.engine().SetRetention(16 << 20, 0);
  REQUIRE(Eventually([&] { return m.engine().Status().first.index > 10; }));
  const ConsensusStatus s = m.engine().Status();
  CHECK(s.log_bytes <= (17 << 20) + (8 << 20));
  CHECK(m.Records().size() == records);
  auto log = m.engine().ReadLog();
  log->Seek(0);
  REQUIRE(log->Valid());
  CHECK(log->entry().position.index == s.first.index);
  log.reset();
  m.Restart();
  REQUIRE(Eventually([&] { return m.Leads(); }));
  CHECK(m.engine().Status().first.index == s.first.index);
  REQUIRE(m.Propose("goes on"));
}

TEST_CASE("Without a majority one that is left can be forced to lead", "[engine]") {
  ThreeMembers set;
  REQUIRE(set.Leader().Propose("x"));
  REQUIRE(Eventually([&] { return set.Same(); }));
  TestMember& left = set.all[2];
  set.all[0].Close();
  set.all[1].Close();
  REQUIRE(Eventually([&] { return !left.Leads(); }));
  auto c = left.engine().Status().configuration;
  std::erase_if(c.members, [&](const ConsensusMember& m) { return m.id != left.engine().self(); });
  c.payload = "forced";
  auto forced = left.Wait<LogPosition>([&](auto done) { left.engine().ForceReconfigure(c, done); });
  if (!forced) FAIL(forced.error().message);
  REQUIRE(Eventually([&] { return left.Leads(); }));
  REQUIRE(left.Propose("alone"));
  CHECK(left.engine().Status().configuration.payload == "forced");
}

TEST_CASE("A forced configuration makes the same set on every member", "[engine]") {
  ThreeMembers set;
  REQUIRE(set.Leader().Propose("x"));
  REQUIRE(Eventually([&] { return set.Same(); }));
  TestMember& left = set.all[1];
  set.all[0].Close();
  set.all[2].Close();
  REQUIRE(Eventually([&] { return !left.Leads(); }));
  // One of the lost stays in it, one goes, one is new, one does not vote.
  TestMember fresh, silent;
  auto c = left.engine().Status().configuration;
  auto& gone = c.members[left.engine().self() == c.members[0].id ? 1 : 0];
  gone = fresh.AsMember();
  c.members.push_back(silent.AsMember(0, false));
  for (ConsensusMember& m : c.members)
    if (m.id != left.engine().self() && m.id != fresh.engine().self()) m.voter = false;
  c.payload = "forced";
  auto forced = left.Wait<LogPosition>([&](auto done) { left.engine().ForceReconfigure(c, done); });
  if (!forced) FAIL(forced.error().message);
  auto voters = [](TestMember& m) {
    std::set<NodeId> out;
    for (const MemberStatus& s : m.engine().Status().members)
      if (s.voter) out.insert(s.id);
    return out;
  };
  const std::set<NodeId> two{left.engine().self(), fresh.engine().self()};
  REQUIRE(Eventually(
      [&] { return voters(left) == two && voters(fresh) == two && voters(silent) == two; }));
  // Both have to agree from now on, and either may lead by now.
  REQUIRE(Eventually([&] { return left.Propose("with both") || fresh.Propose("with both"); }));
  REQUIRE(Eventually([&] { return fresh.Records() == left.Records(); }));
  TestMember* leader = left.Leads() ? &left : &fresh;
  (leader == &left ? fresh : left).Close();
  REQUIRE(Eventually([&] { return !leader->Leads(); }));
  // The one that was away and stays comes to the same. (Together with the one that was left out it
  // would be a majority of the old set: that is the danger of force.)
  (leader == &left ? fresh : left).Open();
  set.all[2].Open();
  REQUIRE(c.Find(set.all[2].engine().self()) != nullptr);
  CHECK(Eventually([&] { return voters(set.all[2]) == two; }));
}

TEST_CASE("Of two voters the one that is left takes an empty node in the other's place",
          "[engine]") {
  TestMember a;
  auto b = std::make_unique<TestMember>();
  REQUIRE(Initiate(a, ConfigurationOf({a.AsMember(), b->AsMember()})));
  auto votes = [](TestMember& m, size_t n) {
    return Eventually([&] {
      size_t voters = 0;
      for (const MemberStatus& s : m.engine().Status().members) voters += s.voter;
      return voters == n;
    });
  };
  REQUIRE((votes(a, 2) && votes(*b, 2)));
  REQUIRE(a.Propose("x"));
  const NodeId had = b->engine().self();
  b->Empty();
  REQUIRE(b->engine().self() != had);
  REQUIRE(Eventually(
      [&] { return a.engine().Status().configuration.Find(b->engine().self()) != nullptr; }));
  REQUIRE((votes(a, 2) && votes(*b, 2)));
  REQUIRE(Eventually([&] { return a.Leads() || b->Leads(); }));
  REQUIRE((a.Leads() ? a : *b).Propose("y"));
  REQUIRE(Eventually([&] { return a.Records() == b->Records(); }));
}

TEST_CASE("The last vote is not taken away while the next one is still to come", "[engine]") {
  TestMember a, b;
  REQUIRE(Initiate(a, ConfigurationOf({a.AsMember()})));
  REQUIRE(Eventually([&] { return a.Leads(); }));
  auto c = a.engine().Status().configuration;
  // It can never copy anything, because it is not there: it is wanted as a voter and is none.
  b.Close();
  c.members.push_back({12345, b.address(), true, 1});
  REQUIRE(a.Wait<LogPosition>([&](auto done) { a.engine().Reconfigure(c, done); }));
  c.members[0].voter = false;
  REQUIRE(Eventually([&] {
    auto r = a.Wait<LogPosition>([&](auto done) { a.engine().Reconfigure(c, done); });
    return !r && r.error().message.find("no member would be left that votes") != std::string::npos;
  }));
  CHECK(a.Propose("still there"));
  b.Open();
}

TEST_CASE("A member that was removed while it was away hears of it", "[engine]") {
  ThreeMembers set;
  TestMember& gone = set.Follower();
  const NodeId id = gone.engine().self();
  gone.Close();
  auto c = set.Leader().engine().Status().configuration;
  std::erase_if(c.members, [&](const ConsensusMember& m) { return m.id == id; });
  REQUIRE(set.Reconfigure(c));
  REQUIRE(Eventually([&] { return set.Leader().Propose("without it").has_value(); }));
  const uint64_t term = set.Leader().engine().state().term;
  gone.Open();
  REQUIRE(Eventually([&] { return gone.engine().Status().configuration.Find(id) == nullptr; }));
  CHECK(set.Leader().engine().state().term == term);
  // It can be taken in again with what it has.
  c.members.push_back(gone.AsMember());
  REQUIRE(set.Reconfigure(c));
  REQUIRE(Eventually(
      [&] { return set.Same() && gone.engine().Status().configuration.Find(id) != nullptr; }));
}

TEST_CASE("Of two sets that begin with the same members one gets them", "[engine]") {
  TestMember a("key"), b("key"), c("key");
  auto of = [&](const char* id) {
    auto x = ConfigurationOf({a.AsMember(), b.AsMember(), c.AsMember()});
    x.set_id = id;
    return x;
  };
  auto probe = [](TestMember& who, TestMember& whom, const char* id) {
    return who.Wait<NodeInfo>(
        [&](auto done) { who.engine().Probe(whom.address(), id, 5000, done); });
  };
  CHECK(a.engine().Claim("set number 1"));
  CHECK(b.engine().Claim("set number 2"));
  CHECK(probe(b, a, "set number 2").error().code == ErrorCode::kConfigurationInProgress);
  CHECK(probe(b, c, "set number 2"));
  // The lower one takes what the other has asked for, and the other finds out before it begins.
  CHECK(probe(a, b, "set number 1"));
  CHECK(probe(a, c, "set number 1"));
  CHECK(Initiate(b, of("set number 2")).error().code == ErrorCode::kConfigurationInProgress);
  REQUIRE(Initiate(a, of("set number 1")));
  REQUIRE(Eventually([&] {
    return b.engine().Status().configuration.set_id == "set number 1" &&
           c.engine().Status().configuration.set_id == "set number 1";
  }));
  CHECK(probe(c, a, "set number 0").value().set_id == "set number 1");
}

}  // namespace mayfly
