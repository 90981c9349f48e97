#define OPENSSL_SUPPRESS_DEPRECATED  // RAND_METHOD: the one way to have OpenSSL's generator fail
#include <openssl/rand.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <new>
#include <set>
#include <thread>

#include "protocol/extended_json.h"
#include "protocol/fair_share.h"
#include "protocol/large_memory.h"
#include "server/base/session_registry.h"
#include "server/base/top.h"
#include "server/dispatch/cursor_manager.h"
#include "server/dispatch/operation_registry.h"
#include "server/dispatch/parameters.h"
#include "tests/unit/patience.h"

using namespace mayfly;

namespace {

std::unique_ptr<ClientCursor> MakeCursor(int documents, std::string session = {}) {
  std::vector<BsonDocument> docs;
  for (int i = 0; i < documents; ++i)
    docs.push_back(BuildBson([&](BsonBuilder& b) { b.Append("_id", i); }));
  auto c = std::make_unique<ClientCursor>();
  c->db = "d";
  c->collection = "c";
  c->ns = "d.c";
  c->session = std::move(session);
  c->cursor = std::make_unique<ListCursor>(std::move(docs));
  return c;
}

int Take(ClientCursor& c, Operation& op, int n) {
  std::string bytes;
  BsonArrayBuilder batch(bytes);
  REQUIRE(c.cursor->NextBatch(op, n, kMaxBatchBytes, batch));
  return batch.count();
}

}  // namespace

TEST_CASE("A cursor is given to one getMore at a time, and only to its owner", "[cursor]") {
  SystemClock clock;
  CursorManager cursors(clock);
  Operation op(clock);
  const int64_t id = cursors.Register(MakeCursor(5)).value();
  CHECK(id > 0);
  CHECK(cursors.CheckOut(id + 16, "d", "c", {}, {}, op).error().code == ErrorCode::kCursorNotFound);
  CHECK(cursors.CheckOut(id, "d", "other", {}, {}, op).error().code == ErrorCode::kUnauthorized);
  CHECK(static_cast<int>(
            cursors.CheckOut(id, "d", "c", std::string(16, 's'), {}, op).error().code) == 50738);
  auto c = cursors.CheckOut(id, "d", "c", {}, {}, op);
  REQUIRE(c);
  CHECK(cursors.CheckOut(id, "d", "c", {}, {}, op).error().code == ErrorCode::kCursorInUse);
  CHECK(cursors.totals().pinned == 1);
  CHECK(Take(*c.value(), op, 3) == 3);
  CHECK(cursors.CheckIn(std::move(c).value()));
  c = cursors.CheckOut(id, "d", "c", {}, {}, op);
  REQUIRE(c);
  CHECK(Take(*c.value(), op, 3) == 2);
  CHECK_FALSE(cursors.CheckIn(std::move(c).value()));
  CHECK(cursors.totals().open == 0);
  CHECK(cursors.totals().pinned == 0);
}

TEST_CASE("Killing a cursor closes it, or interrupts the getMore that has it", "[cursor]") {
  SystemClock clock;
  CursorManager cursors(clock);
  Operation op(clock);
  const int64_t idle = cursors.Register(MakeCursor(5)).value();
  CHECK(cursors.Kill(idle, "d", "x") == CursorManager::KillResult::kWrongNamespace);
  CHECK(cursors.Kill(idle, "d", "c") == CursorManager::KillResult::kKilled);
  CHECK(cursors.Kill(idle, "d", "c") == CursorManager::KillResult::kNotFound);
  const int64_t busy = cursors.Register(MakeCursor(5)).value();
  auto c = cursors.CheckOut(busy, "d", "c", {}, {}, op);
  REQUIRE(c);
  CHECK(cursors.Kill(busy, {}, {}) == CursorManager::KillResult::kKilled);
  CHECK(op.kill_code == static_cast<int>(ErrorCode::kCursorKilled));
  CHECK_FALSE(cursors.CheckIn(std::move(c).value()));
  CHECK(cursors.totals().open == 0);
}

TEST_CASE("Idle cursors are shown without a lock: others are opened and closed meanwhile",
          "[cursor]") {
  SystemClock clock;
  CursorManager cursors(clock);
  Operation op(clock);
  std::vector<int64_t> open;
  for (int i = 0; i < 200; ++i) open.push_back(cursors.Register(MakeCursor(2)).value());
  // One that a getMore has is not idle.
  auto busy = cursors.CheckOut(open.back(), "d", "c", {}, {}, op);
  REQUIRE(busy);
  size_t shown = 0;
  cursors.ForEachIdle(std::nullopt, [&](const IdleCursor& c) {
    ++shown;
    CHECK(c.ns == "d.c");
    CHECK(c.id != open.back());
    if (shown > 1) return;
    // In every part of the manager, that of this cursor included.
    for (int i = 0; i < 200; ++i) cursors.Register(MakeCursor(1)).value();
    for (size_t i = 0; i + 1 < open.size(); ++i)
      if (open[i] != c.id) cursors.Kill(open[i], {}, {});
  });
  CHECK(shown >= 1);
  CHECK(shown <= 201);  // what was closed is not shown, what was opened may be
  std::move(busy).value().reset();
}

TEST_CASE("Idle cursors close by the clock; those of sessions and noCursorTimeout do not",
          "[cursor]") {
  SystemClock clock;
  CursorManager cursors(clock);
  REQUIRE(cursors.Register(MakeCursor(5)));
  REQUIRE(cursors.Register(MakeCursor(5, std::string(16, 's'))));
  auto forever = MakeCursor(5);
  forever->no_timeout = true;
  REQUIRE(cursors.Register(std::move(forever)));
  CHECK(cursors.totals().no_timeout == 1);
  CHECK(cursors.Sweep(600'000) == 0);
  clock.Advance(600'001);
  CHECK(cursors.Sweep(600'000) == 1);
  CHECK(cursors.totals().open == 2);
  CHECK(cursors.totals().timed_out == 1);
  CHECK(cursors.KillSession(std::string(16, 's')) == 1);
  CHECK(cursors.KillNamespace("d", "") == 1);
  CHECK(cursors.totals().open == 0);
  CHECK(cursors.totals().no_timeout == 0);
}

TEST_CASE("Ending a session closes its cursors and no others, also one that is in use",
          "[cursor]") {
  SystemClock clock;
  CursorManager cursors(clock);
  Operation op(clock);
  const std::string mine(16, 'm'), theirs(16, 't');
  int64_t busy = 0;
  for (int i = 0; i < 100; ++i) {
    busy = cursors.Register(MakeCursor(5, mine)).value();
    REQUIRE(cursors.Register(MakeCursor(5, theirs)));
    REQUIRE(cursors.Register(MakeCursor(5)));
  }
  auto c = cursors.CheckOut(busy, "d", "c", mine, {}, op);
  REQUIRE(c);
  CHECK(cursors.KillSession(std::string(16, 'x')) == 0);
  CHECK(cursors.KillSession(mine) == 100);
  CHECK(cursors.KillSession(mine) == 0);
  CHECK(op.kill_code == static_cast<int>(ErrorCode::kCursorKilled));
  CHECK(cursors.totals().open == 201);
  CHECK_FALSE(cursors.CheckIn(std::move(c).value()));
  CHECK(cursors.totals().open == 200);
  // Those that were read to the end or killed one by one are forgotten with them.
  const int64_t last = cursors.Register(MakeCursor(5, mine)).value();
  CHECK(cursors.Kill(last, {}, {}) == CursorManager::KillResult::kKilled);
  CHECK(cursors.KillSession(mine) == 0);
  CHECK(cursors.KillSessions([&](std::string_view id) { return id == theirs; }) == 100);
  CHECK(cursors.KillSession(theirs) == 0);
  CHECK(cursors.totals().open == 100);
}

namespace {

/// Sets large_memory's limit for one test.
struct MemoryLimit {
  explicit MemoryLimit(int64_t bytes) { large_memory::SetLimit(bytes); }
  ~MemoryLimit() { large_memory::SetLimit(before); }
  const int64_t before = large_memory::Limit();
};

std::unique_ptr<ClientCursor> CursorOf(std::string address, size_t bytes = 0) {
  auto c = MakeCursor(1);
  c->address = std::move(address);
  if (bytes > 0) REQUIRE(c->cursor->HoldParsed(bytes));
  return c;
}

}  // namespace

TEST_CASE("A getMore that ends by an exception leaves nothing of its cursor", "[cursor]") {
  SystemClock clock;
  CursorManager cursors(clock);
  std::vector<uint64_t> killed;
  cursors.set_kill_operation([&](uint64_t op) { killed.push_back(op); });
  const int64_t id = cursors.Register(MakeCursor(5)).value();
  {
    Operation op(clock, 7);
    try {
      const CheckedOutCursor c = cursors.CheckOut(id, "d", "c", {}, {}, op).value();
      CHECK(cursors.totals().pinned == 1);
      throw std::bad_alloc();
    } catch (const std::bad_alloc&) {
    }
  }
  // Here its operation is gone: killCursors would write into it.
  CHECK(cursors.Kill(id, {}, {}) == CursorManager::KillResult::kNotFound);
  CHECK(killed.empty());
  CHECK(cursors.totals().open == 0);
  CHECK(cursors.totals().pinned == 0);
}

TEST_CASE("What the parsed form of a cursor holds itself is not charged again", "[cursor]") {
  constexpr size_t kMb = size_t{1} << 20;
  const int64_t used = large_memory::Used();
  {
    const auto c = MakeCursor(1);
    REQUIRE(c->cursor->HoldParsed(10 * kMb, 8 * kMb));
    CHECK(large_memory::Used() - used == static_cast<int64_t>(2 * kMb));
    // To the client all of it counts.
    CHECK(c->cursor->bytes() >= 10 * kMb);
    CHECK(c->cursor->held_bytes() == 10 * kMb);
  }
  CHECK(large_memory::Used() == used);
}

TEST_CASE("Open cursors are limited by their number, for each client and for all", "[cursor]") {
  MemoryLimit limit(64 << 20);
  SystemClock clock;
  const int64_t used = large_memory::Used();
  {
    CursorManager cursors(clock);
    const int64_t all = CursorLimits::MostCursors(), one = CursorLimits::MostOfClient();
    CHECK(one < all);
    int64_t last = 0;
    for (int64_t i = 0; i < one; ++i)
      last = cursors.Register(CursorOf("10.0.0.1:" + std::to_string(i))).value();
    auto refused = cursors.Register(CursorOf("10.0.0.1:99999"));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kExceededMemoryLimit);
    CHECK(cursors.totals().open == one);
    CHECK(cursors.totals().total_opened == one);
    // One that closes makes room; other clients have theirs, until all is taken.
    CHECK(cursors.Kill(last, {}, {}) == CursorManager::KillResult::kKilled);
    CHECK(cursors.Register(CursorOf("10.0.0.1:1")));
    CHECK(cursors.Register(CursorOf("[2001:db8::1]:1")));
    for (int64_t i = 1; i < all - one; ++i)
      REQUIRE(cursors.Register(CursorOf("10.1." + std::to_string(i) + ".1:1")));
    CHECK_FALSE(cursors.Register(CursorOf("10.2.0.1:1")));
    // The server's own are not refused.
    CHECK(cursors.Register(CursorOf("")));
    // Small ones count to the memory of the process too.
    CHECK(large_memory::Used() - used > 4000 * 3000);
    cursors.KillAll();
    CHECK(cursors.Register(CursorOf("10.2.0.1:1")));
  }
  CHECK(large_memory::Used() == used);
}

TEST_CASE("Open cursors count for their user, and never all for a few", "[cursor]") {
  MemoryLimit limit(64 << 20);
  SystemClock clock;
  CursorManager cursors(clock);
  const auto open = [&](const std::string& user, const std::string& address) {
    auto c = CursorOf(address);
    c->user = user;
    return cursors.Register(std::move(c));
  };
  // One address, many users: each has its own share.
  const int64_t all = CursorLimits::MostCursors(), one = CursorLimits::MostOfClient();
  int64_t taken = 0;
  const auto take_all = [&](const std::string& user) {
    int64_t n = 0;
    while (n < all && open(user, "10.0.0." + std::to_string(n % 200) + ":1")) ++n;
    taken += n;
    return n;
  };
  CHECK(take_all("admin.ann") == one);
  CHECK(open("admin.root", "10.0.0.1:1"));
  ++taken;
  // However much others take, whoever has few finds room.
  for (int i = 0; i < 5; ++i) take_all("mine.u" + std::to_string(i));
  CHECK(taken < all);
  for (int64_t i = 0; i < 3; ++i) CHECK(open("admin.root", "10.0.0.1:1"));
  const auto refused = open("admin.ann", "10.0.0.99:1");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kExceededMemoryLimit);
  CHECK(refused.error().message.find("this user") != std::string::npos);
  cursors.KillAll();
}

TEST_CASE("What a cursor keeps counts once, also what large_memory knows already", "[cursor]") {
  MemoryLimit limit(64 << 20);
  SystemClock clock;
  struct Sorted final : ServerCursor {
    explicit Sorted(size_t n) : bytes(n) { (void)hold.Set(n); }
    Result<void> NextBatch(Operation&, int64_t, size_t, BsonArrayBuilder&) override { return Ok(); }
    bool Exhausted() const override { return false; }
    void AddKept(large_memory::Kept* kept) const override { kept->Add(bytes, hold); }
    const size_t bytes;
    large_memory::Hold hold;
  };
  constexpr size_t kMb = 1 << 20;
  const int64_t used = large_memory::Used();
  {
    CursorManager cursors(clock);
    auto open = [&](std::string address, size_t bytes) {
      auto c = CursorOf(std::move(address));
      c->cursor = std::make_unique<Sorted>(bytes);
      return cursors.Register(std::move(c));
    };
    CHECK(open("10.0.0.1:1", 12 * kMb));
    CHECK(large_memory::Used() - used >= static_cast<int64_t>(12 * kMb));
    CHECK(large_memory::Used() - used < static_cast<int64_t>(14 * kMb));
    // A quarter is what one client may keep; others still have theirs.
    CHECK_FALSE(open("10.0.0.1:2", 8 * kMb));
    CHECK(open("10.0.0.2:1", 8 * kMb));
    // Small ones count too.
    int n = 0;
    while (n < 100 && open("10.0.0.1:3", kMb / 2)) ++n;
    CHECK(n > 3);
    CHECK(n < 12);
  }
  CHECK(large_memory::Used() == used);
}

TEST_CASE("Open cursors are limited by what they take", "[cursor]") {
  MemoryLimit limit(64 << 20);
  SystemClock clock;
  const int64_t used = large_memory::Used();
  {
    CursorManager cursors(clock);
    constexpr size_t kMb = 1 << 20;
    // The only cursor of a client may be a large one; a second one has to fit.
    const int64_t first = cursors.Register(CursorOf("10.0.0.1:1", 20 * kMb)).value();
    CHECK(large_memory::Used() - used >= static_cast<int64_t>(20 * kMb));
    CHECK(large_memory::Used() - used < static_cast<int64_t>(22 * kMb));
    auto refused = cursors.Register(CursorOf("10.0.0.1:2", kMb / 2));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kExceededMemoryLimit);
    // All together no more than half of the memory for large values, of however many clients.
    CHECK(cursors.Register(CursorOf("10.0.0.2:1", 4 * kMb)));
    CHECK_FALSE(cursors.Register(CursorOf("10.0.0.3:1", 8 * kMb)));
    CHECK(cursors.Kill(first, {}, {}) == CursorManager::KillResult::kKilled);
    CHECK(cursors.Register(CursorOf("10.0.0.3:1", 8 * kMb)));
    // Many small ones are counted as well: 16 MB are one client's.
    int n = 0;
    while (cursors.Register(CursorOf("10.0.0.1:3", kMb / 2))) ++n;
    CHECK(n > 20);
    CHECK(n < 32);
  }
  CHECK(large_memory::Used() == used);
}

// Two users with a quarter each had all the memory of cursors.
TEST_CASE("Whoever has few cursors finds memory, however much others have", "[cursor]") {
  MemoryLimit limit(256 << 20);
  SystemClock clock;
  constexpr size_t kMb = 1 << 20;
  CursorManager cursors(clock);
  const auto open = [&](const std::string& user, size_t bytes) {
    auto c = CursorOf("10.0.0.1:1", bytes);
    c->user = user;
    return cursors.Register(std::move(c));
  };
  const auto take_all = [&](const std::string& user) {
    int n = 0;
    while (n < 1000 && open(user, kMb)) ++n;
    return n;
  };
  const int first = take_all("mine.a"), second = take_all("mine.b"), third = take_all("mine.c");
  CHECK(first > 50);
  CHECK(second > 20);
  CHECK(third > 10);
  CHECK(open("admin.root", 6 * kMb));
  CHECK(open("admin.root", kMb / 2));
  cursors.KillAll();
  // Large ones, the only cursors of their users.
  int n = 0;
  while (n < 20 && open("mine.u" + std::to_string(n), 30 * kMb)) ++n;
  CHECK(n == 3);
  CHECK(open("admin.root", 16 * kMb));
  cursors.KillAll();
}

TEST_CASE("A fair share", "[cursor]") {
  // `most` 100, of one owner 50.
  const auto fits = [](int64_t owner, int64_t all, bool only = false) {
    return FitsFairShare(owner, all, 100, 50, only);
  };
  CHECK(fits(50, 50));
  CHECK_FALSE(fits(51, 51));
  CHECK(fits(75, 75, true));
  CHECK_FALSE(fits(76, 76, true));
  CHECK(fits(25, 75));
  CHECK_FALSE(fits(26, 76));
  CHECK(fits(12, 87));
  CHECK_FALSE(fits(14, 87));
  CHECK(fits(1, 99));
  CHECK_FALSE(fits(1, 100));
  CHECK_FALSE(fits(1, 101, true));
}

TEST_CASE("The first batch keeps the cursor only when there is more", "[cursor]") {
  SystemClock clock;
  CursorManager cursors(clock);
  Operation op(clock);
  for (auto [documents, batch, open] : {std::tuple{3, 5, 0}, {3, 3, 0}, {3, 2, 1}, {3, 0, 2}}) {
    BsonDocument reply = BuildBson([&, d = documents, n = batch](BsonBuilder& b) {
      REQUIRE(ReplyFirstBatch(cursors, op, MakeCursor(d), n, b));
    });
    CHECK(cursors.totals().open == open);
    CHECK((reply.view().FindPath("cursor.id").Int64() != 0) == (batch < documents));
    CHECK(reply.view().FindPath("cursor.firstBatch").Document().Count() ==
          std::min(batch, documents));
  }
}

TEST_CASE("A batch ends before it is too large for a document, but is never empty", "[cursor]") {
  SystemClock clock;
  Operation op(clock);
  std::vector<BsonDocument> docs;
  for (int i = 0; i < 4; ++i)
    docs.push_back(BuildBson([&](BsonBuilder& b) { b.Append("x", std::string(1000, 'x')); }));
  ListCursor c(std::move(docs));
  std::string bytes;
  BsonArrayBuilder first(bytes);
  REQUIRE(c.NextBatch(op, 100, 2500, first));
  CHECK(first.count() == 2);
  std::string more;
  BsonArrayBuilder second(more);
  REQUIRE(c.NextBatch(op, 100, 10, second));
  CHECK(second.count() == 1);
}

TEST_CASE("A list that waits for its reader is charged", "[cursor]") {
  large_memory::Budget budget;
  const large_memory::BudgetScope scope(budget);
  std::vector<BsonDocument> docs;
  docs.push_back(BuildBson([&](BsonBuilder& b) { b.Append("x", std::string(3 << 20, 'x')); }));
  large_memory::Hold hold;
  REQUIRE(hold.Set(docs[0].view().size()));
  const int64_t held = budget.used();
  CHECK(held >= 3 << 20);
  {
    const ListCursor c(std::move(docs), nullptr, std::move(hold));
    CHECK(budget.used() == held);
    CHECK(c.bytes() >= 3 << 20);
    CHECK(static_cast<int64_t>(c.held_bytes()) == held);
  }
  CHECK(budget.used() == 0);
}

TEST_CASE("Sessions are looked through by their owner; an error ends it", "[session]") {
  SessionRegistry sessions;
  const std::string ann(kSessionUidBytes, 'a'), bob(kSessionUidBytes, 'b');
  const auto key = [](int n, const std::string& digest) {
    std::string id(kSessionIdBytes, '\0');
    std::memcpy(id.data(), &n, sizeof n);
    return id + digest;
  };
  for (int n = 0; n < 100; ++n) {
    REQUIRE(sessions.Use(key(n, ann), {1000 + n}));
    REQUIRE(sessions.Use(key(n, bob), {5000}));
  }
  std::set<int64_t> seen;
  const auto of_ann = [&](std::string_view k) { return SessionUid(k) == ann; };
  REQUIRE(sessions.ForEach(of_ann, [&](std::string_view k, Instant last) -> Result<void> {
    CHECK(SessionUid(k) == ann);
    seen.insert(last.millis);
    return Ok();
  }));
  CHECK(seen.size() == 100);
  int calls = 0;
  const Result<void> ended = sessions.ForEach(of_ann, [&](std::string_view, Instant) {
    return ++calls == 3 ? Result<void>(large_memory::TooMuch()) : Ok();
  });
  REQUIRE_FALSE(ended);
  CHECK(ended.error().code == ErrorCode::kExceededMemoryLimit);
  CHECK(calls == 3);
}

TEST_CASE("Sessions end when unused, and tell", "[session]") {
  SessionRegistry sessions;
  std::vector<std::string> ended;
  sessions.OnEnd([&](std::string_view id) { ended.emplace_back(id); });
  const std::string a(16, 'a'), b(16, 'b');
  REQUIRE(sessions.Use(a, {1000}));
  REQUIRE(sessions.Use(b, {1000}));
  REQUIRE(sessions.Use(b, {5000}));
  CHECK(sessions.size() == 2);
  CHECK(sessions.Sweep({5999}, 5000) == 0);
  CHECK(sessions.Sweep({6000}, 5000) == 1);
  CHECK(ended == std::vector<std::string>{a});
  CHECK(sessions.End(b));
  CHECK_FALSE(sessions.End(b));
  auto fresh = sessions.Start({1});
  REQUIRE(fresh);
  CHECK(fresh.value()->id().size() == 16);
}

TEST_CASE("Sessions count for their user, and those in use do not end for others", "[session]") {
  SessionRegistry sessions;
  std::map<std::string, SessionUse> in_use;
  std::vector<std::string> ended;
  sessions.OnEnd([&](std::string_view id) { ended.emplace_back(id); });
  const std::string ann(kSessionUidBytes, 'a'), bob(kSessionUidBytes, 'b');
  const auto key = [](int64_t n, const std::string& uid) {
    std::string id(kSessionIdBytes, '\0');
    std::memcpy(id.data(), &n, sizeof n);
    return id + uid;
  };
  const auto begin = [&](int64_t n, const std::string& uid, std::string_view address) {
    return sessions.Use(key(n, uid), {1000}, address);
  };
  const int64_t share = SessionRegistry::kMaxClientSessions;
  const auto use = [&](int64_t n, const std::string& uid) {
    in_use.emplace(key(n, uid), sessions.Find(key(n, uid)));
  };
  // The first of each have a cursor, a transaction or a command that runs.
  REQUIRE(begin(0, bob, "10.0.0.1:1"));
  use(0, bob);
  for (int64_t i = 0; i < share; ++i)
    REQUIRE(begin(i, ann, i % 2 == 0 ? "10.0.0.1:1" : "10.0.0.2:1"));
  // More than are passed over at once when all were found to be in use.
  for (int64_t i = 0; i < 20'000; ++i) use(i, ann);
  CHECK(ended.empty());
  // From the same address as before: ann loses her own, bob nothing.
  for (int64_t i = 0; i < 1000; ++i) REQUIRE(begin(share + i, ann, "10.0.0.1:1"));
  CHECK(ended.size() == 1000);
  for (const std::string& id : ended) {
    CHECK(SessionUid(id) == ann);
    CHECK_FALSE(in_use.contains(id));
  }
  REQUIRE(begin(1, bob, "10.0.0.1:1"));
  CHECK(ended.size() == 1000);
  // All of hers are in use: new ones are refused, and none ends.
  for (const auto& [id, last] : sessions.List())
    if (SessionUid(id) == ann) in_use.emplace(id, sessions.Find(id));
  for (int64_t i = 0; i < 3; ++i) {
    const auto refused = begin(3 * share + i, ann, "10.0.0.3:1");
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kTooManyLogicalSessions);
  }
  CHECK(begin(share, ann, "10.0.0.3:1"));  // one that she has already
  CHECK(begin(2, bob, "10.0.0.3:1"));
  CHECK(ended.size() == 1000);
  // One of them is in use no more: it is found, wherever it stands.
  const std::string idle = key(share - 7, ann);
  in_use.erase(idle);
  bool found = false;
  for (int64_t i = 0; i < share / 1024 + 2 && !found; ++i)
    found = begin(4 * share + i, ann, "10.0.0.3:1").has_value();
  CHECK(found);
  CHECK(ended.size() == 1001);
  CHECK(ended.back() == idle);
}

TEST_CASE("Sessions of one owner that begin and end leave nothing behind", "[session]") {
  SessionRegistry sessions;
  const auto key = [](int64_t n) {
    std::string id(kSessionIdBytes, '\0');
    std::memcpy(id.data(), &n, sizeof n);
    return id;
  };
  const int64_t share = SessionRegistry::kMaxClientSessions;
  for (int64_t i = 0; i < share; ++i) REQUIRE(sessions.Use(key(i), {1000}, "10.0.0.1:1"));
  // They would make the limit forget those that live.
  REQUIRE(sessions.End(key(0)));
  for (int64_t i = 1; i < 3 * share; ++i) {
    REQUIRE(sessions.Use(key(-i), {1000}, "10.0.0.1:1"));
    REQUIRE(sessions.End(key(-i)));
  }
  for (int64_t i = 0; i < 1000; ++i) REQUIRE(sessions.Use(key(share + i), {1000}, "10.0.0.1:1"));
  CHECK(sessions.size() == static_cast<size_t>(share));
}

TEST_CASE("A session that somebody has begun to use does not end to make room", "[session]") {
  SessionRegistry sessions;
  const auto key = [](int64_t n) {
    std::string id(kSessionIdBytes, '\0');
    std::memcpy(id.data(), &n, sizeof n);
    return id;
  };
  const int64_t share = SessionRegistry::kMaxClientSessions;
  for (int64_t i = 0; i < share; ++i) REQUIRE(sessions.Use(key(i), {1000 + i}, "10.0.0.1:1"));
  std::atomic<bool> over{false};
  std::atomic<int64_t> uses{0};
  int64_t lost = 0;
  // It is the one that was unused for the longest, again and again.
  std::jthread ending([&] {
    const test::Deadline deadline;
    for (int64_t i = 0; i < 20'000 || (uses == 0 && deadline.Holds()); ++i)
      (void)sessions.Use(key(share + i), {share}, "10.0.0.1:1");
    over = true;
  });
  while (!over) {
    const SessionPtr s = sessions.Use(key(0), {1000}, "10.0.0.1:1").value();
    const SessionUse use(s);
    if (s->ended()) continue;  // as the dispatcher: once more
    ++uses;
    std::this_thread::yield();
    lost += s->ended() ? 1 : 0;
  }
  ending.join();
  CHECK(uses > 0);
  CHECK(lost == 0);
}

// Issue 29: the find of a session that ended while it ran left a cursor that nothing ever closed.
TEST_CASE("A cursor whose session has ended before it is there is closed", "[cursor][session]") {
  SystemClock clock;
  CursorManager cursors(clock);
  SessionRegistry sessions;
  sessions.OnEnd([&](std::string_view id) { cursors.KillSession(id); });
  Operation op(clock);
  const std::string key(kSessionIdBytes, 's');
  const SessionPtr s = sessions.Use(key, {1000}).value();
  const auto of_session = [&] {
    auto c = MakeCursor(5, key);
    c->session_use = SessionUse(s);
    return c;
  };
  REQUIRE(cursors.Register(of_session()));
  CHECK(cursors.totals().open == 1);
  CHECK(s->in_use());
  CHECK(sessions.End(key));
  CHECK(cursors.totals().open == 0);
  CHECK_FALSE(s->in_use());
  const int64_t id = cursors.Register(of_session()).value();
  CHECK(cursors.totals().open == 0);
  CHECK(cursors.CheckOut(id, "d", "c", key, {}, op).error().code == ErrorCode::kCursorNotFound);
  CHECK_FALSE(s->in_use());
}

TEST_CASE("A cursor counts its batches once, and as one of more than one batch", "[cursor]") {
  SystemClock clock;
  CursorManager cursors(clock);
  Operation op(clock);
  auto made = MakeCursor(5);
  made->batches = 1;
  const int64_t id = cursors.Register(std::move(made)).value();
  for (const int64_t batches : {2, 3}) {
    auto c = cursors.CheckOut(id, "d", "c", {}, {}, op);
    REQUIRE(c);
    Take(*c.value(), op, 1);
    cursors.CountBatch(*c.value());
    CHECK(c.value()->batches == batches);
    CHECK(cursors.CheckIn(std::move(c).value()));
    CHECK(cursors.totals().more_than_one_batch == 1);
  }
}

// Issue 29: nobody asked OpenSSL whether it had made random bytes, and ids were zeros when not.
TEST_CASE("Ids of sessions, users and cursors are random whatever OpenSSL's generator does",
          "[session][cursor]") {
  static const RAND_METHOD kFails{
      .seed = nullptr,
      .bytes = [](unsigned char*, int) { return 0; },
      .cleanup = nullptr,
      .add = nullptr,
      .pseudorand = [](unsigned char*, int) { return 0; },
      .status = [] { return 0; },
  };
  const auto restore = [](const RAND_METHOD* method) { RAND_set_rand_method(method); };
  std::unique_ptr<const RAND_METHOD, decltype(restore)> own(RAND_get_rand_method(), restore);
  REQUIRE(RAND_set_rand_method(&kFails) == 1);
  std::set<std::string> uuids;
  std::set<int64_t> cursor_ids;
  SystemClock clock;
  for (int i = 0; i < 8; ++i) {
    uuids.insert(NewUuidBytes().value());
    CursorManager cursors(clock);
    // The first id of a shard: with zeros it is the same each time.
    cursor_ids.insert(cursors.Register(MakeCursor(1)).value());
  }
  own.reset();
  CHECK(uuids.size() == 8);
  CHECK(cursor_ids.size() == 8);
}

TEST_CASE("One client cannot use up the sessions of all", "[session]") {
  SessionRegistry sessions;
  auto begin = [&](int64_t n, std::string_view address) {
    std::string id(16, '\0');
    std::memcpy(id.data(), &n, sizeof n);
    return sessions.Use(id, {1000}, address);
  };
  const int64_t share = SessionRegistry::kMaxClientSessions;
  for (int64_t i = 0; i < share; ++i)
    REQUIRE(begin(i, "10.0.0.1:" + std::to_string(1000 + i % 60000)));
  const size_t all = sessions.size();
  CHECK(begin(share + 2, "10.0.0.2:1"));
  CHECK(begin(share + 3, "[2001:db8::1]:1"));
  CHECK(sessions.size() == all + 2);
  // Another server in this process counts its own.
  SessionRegistry elsewhere;
  elsewhere.OnEnd([](std::string_view) { FAIL("it has room"); });
  for (const char id : {'a', 'b'}) CHECK(elsewhere.Use(std::string(16, id), {1000}, "10.0.0.1:1"));
  CHECK(elsewhere.size() == 2);
  // One that the client still uses stays; another one of its own makes room.
  const SessionPtr used = begin(0, "10.0.0.1:1").value();
  used->Touch({2000});
  std::vector<std::string> ended;
  sessions.OnEnd([&](std::string_view id) { ended.emplace_back(id); });
  for (int64_t i = 0; i < 1000; ++i) REQUIRE(begin(share + 10 + i, "10.0.0.1:1"));
  CHECK(sessions.size() == all + 2);
  CHECK(ended.size() == 1000);
  CHECK_FALSE(used->ended());
  CHECK(sessions.Find(used->id()) == used);
  // Many that ended by themselves are passed over.
  const auto id = [](int64_t n) {
    return std::string(reinterpret_cast<const char*>(&n), 8) + std::string(8, '\0');
  };
  int64_t gone = 0;
  for (int64_t i = 1; i < 12'000; ++i) gone += sessions.End(id(i)) ? 1 : 0;
  REQUIRE(gone > 10'000);
  for (int64_t i = 0; i < gone + 1000; ++i) REQUIRE(begin(2 * share + i, "10.0.0.1:1"));
  CHECK(sessions.size() == all + 2);
  CHECK(sessions.Sweep({10'000}, 5000) == share + 2);
  CHECK(begin(share, "10.0.0.1:1"));
}

TEST_CASE("killOp reaches the running operation and wakes what waits", "[operation]") {
  SystemClock clock;
  OperationRegistry ops;
  ClientSlot slot(ops, "", ops.NextConnectionId());
  CHECK(slot.desc == "conn1");
  Operation op(clock, ops.NextOperationId());
  CHECK_FALSE(ops.Kill(op.id));
  BsonDocument command = BuildBson([](BsonBuilder& b) { b.Append("find", "c"); });
  slot.Begin(op, "find", "d", command.view(), nullptr, {}, 0);
  CHECK(ops.ActiveCount() == 1);
  bool woken = false;
  CHECK(slot.SetKillWaker([&] { woken = true; }));
  CHECK(ops.Kill(op.id));
  CHECK(woken);
  CHECK(op.CheckInterrupt().error().code == ErrorCode::kInterrupted);
  CHECK_FALSE(slot.SetKillWaker([] {}));
  slot.End();
  CHECK(ops.ActiveCount() == 0);
}

TEST_CASE("Parameters keep to their types and ranges, and answer what they were", "[parameter]") {
  ParameterRegistry p;
  std::atomic<int64_t> number{60};
  std::atomic<bool> flag{true};
  std::atomic<int> mode{0};
  int changes = 0;
  p.AddInt("ttlMonitorSleepSecs", &number, 1, INT32_MAX, "", [&] { ++changes; });
  p.AddBool("ttlMonitorEnabled", &flag, "");
  p.AddEnum("ttlMonitorMode", &mode, {"precise", "interval"}, "");
  p.AddReadOnlyInt("fixed", 3, "");
  struct Case {
    const char* name;
    const char* json;
    int code;  // 0: fine
  };
  const auto c =
      GENERATE(values<Case>({{"ttlMonitorSleepSecs", R"({"v": 5})", 0},
                             {"ttlMonitorSleepSecs", R"({"v": 5.7})", 0},
                             {"ttlMonitorSleepSecs", R"({"v": 0})", 2},
                             {"ttlMonitorSleepSecs", R"({"v": -1})", 2},
                             {"ttlMonitorSleepSecs", R"({"v": 3000000000})", 2},
                             {"ttlMonitorSleepSecs", R"({"v": {"$numberDouble": "NaN"}})", 2},
                             {"ttlMonitorSleepSecs", R"({"v": "5"})", 14},
                             {"ttlMonitorEnabled", R"({"v": 0})", 0},
                             {"ttlMonitorEnabled", R"({"v": "no"})", 14},
                             {"ttlMonitorMode", R"({"v": "interval"})", 0},
                             {"ttlMonitorMode", R"({"v": "sometimes"})", 2},
                             {"fixed", R"({"v": 1})", 20},
                             {"ttlMonitorSleepSec", R"({"v": 1})", 72}}));
  CAPTURE(c.name, c.json);
  BsonDocument v = ParseJson(c.json).value();
  std::string bytes;
  BsonBuilder reply(bytes);
  auto r = p.Set(c.name, v.view()["v"], false, &reply);
  reply.Done();
  REQUIRE(r.has_value() == (c.code == 0));
  if (!r) {
    CHECK(static_cast<int>(r.error().code) == c.code);
    CHECK_THAT(r.error().message, Catch::Matchers::Contains(c.name));
    CHECK(number == 60);
  } else {
    CHECK(BsonView(bytes.data()).Has("was"));
  }
}

TEST_CASE("What is no name of a namespace is counted with others, not kept", "[top]") {
  Top top;
  Top::Entry* const others = top.Find(std::string(15 << 20, 'x'));
  CHECK(top.Find("d." + std::string(Top::kMaxNameBytes - 1, 'x')) == others);
  CHECK(top.Find(std::string("d.a\0b", 5)) == others);
  CHECK(top.Find("d.\xFF") == others);
  CHECK(top.Peek(Top::kOthers) == others);
  CHECK(top.Find("d." + std::string(Top::kMaxNameBytes - 2, 'x')) != others);
}

TEST_CASE("All that top keeps has room in a reply", "[top]") {
  Top top;
  for (size_t i = 0; i < Top::kMaxNamespaces + 10; ++i) {
    std::string ns = "d." + std::to_string(i);
    ns.resize(Top::kMaxNameBytes, 'x');
    top.Find(ns);
  }
  const BsonDocument totals = BuildBson([&](BsonBuilder& b) { top.Append(b); });
  CHECK(totals.view().size() < static_cast<uint32_t>(kMaxBsonUserSize));
}
