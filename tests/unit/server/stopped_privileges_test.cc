// What is asked before a command runs, when the asking is ended early: by an interrupt, or because
// there is no room for what is made of the request. Whoever has not seen all of it allows nothing.
#include <catch2/catch.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/extended_json.h"
#include "protocol/large_memory.h"
#include "query/expression/parse_work.h"
#include "server/commands/register.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/authorization.h"
#include "server/dispatch/inner_requests.h"
#include "storage/clock.h"
#include "storage/operation.h"
#include "tests/unit/server/listed_commands.h"

using namespace mayfly;

namespace {

/// More elements than there are steps between two looks at the operation.
constexpr int kMany = 600;

const CommandRow& RowOf(std::string_view name) {
  static CommandRegistry registry;
  if (registry.rows().empty()) RegisterAllCommands(registry);
  const CommandRow* row = registry.Find(name);
  INFO(name);
  REQUIRE(row != nullptr);
  return *row;
}

/// All `actions` but on the database `nobodys` and on system collections; `revokes`: roles of all
/// databases, too.
std::vector<Privilege> MostOf(ActionSet actions, bool revokes) {
  std::vector<Privilege> privileges{{Resource::Cluster(), actions}};
  if (revokes) privileges.push_back({Resource::Database(""), {Action::revokeRole}});
  for (const char* db : {"shop", "other", "admin", "config", "local"})
    privileges.push_back({Resource::Database(db), actions});
  return privileges;
}

enum class Ends { kNever, kInterrupted, kNoRoom };

/// Whether the command would be run, as far as its row's function decides.
bool WouldRun(BsonView body, const std::string& db, const std::vector<Privilege>& privileges,
              Ends ends) {
  static const UserName kAsker{"me", "shop"};
  large_memory::Budget budget;
  if (ends == Ends::kNoRoom) budget.SetLimit(0);
  const large_memory::BudgetScope scope(budget);
  const SystemClock clock;
  Operation op(clock);
  CommandRequest req;
  REQUIRE(ParseCommandFields(body, &req, db));
  const CommandRow& row = RowOf(req.name);
  REQUIRE(row.privileges != nullptr);
  const PrivilegeSet set(privileges);
  ParseWork work(&op);
  if (ends == Ends::kInterrupted) op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  if (ends == Ends::kNoRoom) ParseWork::Made(2 * large_memory::kLarge);
  const Result<void> allowed = row.privileges({req, set, &kAsker});
  // The dispatcher's own look comes behind.
  CHECK(ParseWork::Look().has_value() == (ends == Ends::kNever));
  if (!allowed) return false;
  // A list of entries that cannot be read is refused by the command itself, with this error.
  return (req.name != "applyOps" && req.name != "explain") || !InnerRequests::Of(req).error;
}

/// `command` with kMany of `one` in the array `field`, and `last` behind them if it is not missing.
BsonDocument WithMany(BsonView command, std::string_view field, BsonValue one, BsonValue last) {
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : command) {
      if (e.name != field) {
        b.Append(e);
        continue;
      }
      BsonArrayBuilder list = b.OpenArray(field);
      for (int i = 0; i < kMany; ++i) list.Append(one);
      if (!last.missing()) list.Append(last);
    }
  });
}

/// What somebody may not do who may do the rest (MostOf), as the last element of some list.
constexpr const char* kForbidden = R"({"v": [
  {"$unionWith": "system.users"}, {"$out": {"db": "nobodys", "coll": "x"}},
  {"op": "d", "ns": "nobodys.c", "o": {"_id": 1}},
  {"op": "c", "ns": "nobodys.$cmd", "o": {"drop": "c"}},
  {"role": "read", "db": "nobodys"}, {"user": "x", "db": "nobodys"},
  {"resource": {"db": "nobodys", "collection": ""}, "actions": ["find"]},
  {"insert": 0, "document": {}}, {"delete": 0, "filter": {}},
  {"q": {}, "u": {}, "upsert": true}, {"users": [{"user": "x", "db": "shop"}]}]})";

/// Lists in which something forbidden behind many allowed elements was refused, whatever ended the
/// asking: "aggregate.pipeline".
std::set<std::string> RefusedLists(const std::vector<Privilege>& privileges) {
  const BsonDocument forbidden = ParseJson(kForbidden).value();
  std::set<std::string> lists;
  const auto ask = [&](BsonView command, const std::string& db, const std::string& shown,
                       const BsonElement& field, BsonValue one, auto&& whole) {
    const auto body = [&](BsonValue last) {
      return whole(WithMany(command, field.name, one, last));
    };
    if (!WouldRun(body({}), db, privileges, Ends::kNever)) return;
    for (const BsonElement& last : forbidden.view()["v"].Document()) {
      const BsonDocument bad = body(last.value);
      if (WouldRun(bad, db, privileges, Ends::kNever)) continue;
      INFO(shown << ", " << field.name << ": " << ToRelaxedJson(last.value.Document()));
      CHECK_FALSE(WouldRun(bad, db, privileges, Ends::kInterrupted));
      CHECK_FALSE(WouldRun(bad, db, privileges, Ends::kNoRoom));
      lists.insert(std::string(command.First().name) + "." + std::string(field.name));
    }
  };
  for (const test::ListedCommand& c :
       test::ReadListedCommands(MAYFLY_SOURCE_DIR "/tests/data/privileges.txt")) {
    const BsonDocument command = ParseJson(c.json).value();
    const BsonElement first = command.view().First();
    if (RowOf(first.name).privileges == nullptr) continue;
    const bool names = first.name == "usersInfo" || first.name == "rolesInfo";
    if (first.name == "killAllSessionsByPattern") {
      const BsonDocument anybody;
      ask(command, c.db, c.json, first, anybody.view().AsValue(),
          [](BsonDocument whole) { return whole; });
      continue;
    }
    for (const BsonElement& field : command.view()) {
      const bool list = field.value.IsArray() && !field.value.Document().empty();
      if (list || (names && field.name == first.name))
        ask(command, c.db, c.json, field, list ? field.value.Document().First().value : field.value,
            [](BsonDocument whole) { return whole; });
    }
    if (first.name != "explain" || !first.value.IsDocument()) continue;
    for (const BsonElement& field : first.value.Document())
      if (field.value.IsArray() && !field.value.Document().empty())
        ask(first.value.Document(), c.db, c.json, field, field.value.Document().First().value,
            [](const BsonDocument& inner) {
              return BuildBson([&](BsonBuilder& b) { b.Append("explain", inner); });
            });
  }
  return lists;
}

/// Many names of one's own, and behind them another one, to which the only operation writes.
BsonDocument BulkWriteOf(std::string_view last) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("bulkWrite", 1);
    b.OpenArray("ops").OpenDocument().Append("insert", 13'500).OpenDocument("document");
    BsonArrayBuilder names = b.OpenArray("nsInfo");
    for (int i = 0; i < 13'500; ++i) names.OpenDocument().Append("ns", "shop.c");
    names.OpenDocument().Append("ns", last);
  });
}

}  // namespace

TEST_CASE("Whoever has not seen all of a request allows nothing", "[privileges]") {
  std::set<std::string> lists;
  for (const ActionSet without :
       {ActionSet{}, ActionSet{Action::insert, Action::impersonate}, ActionSet{Action::remove}})
    for (const bool revokes : {true, false}) {
      ActionSet actions = ActionSet::All();
      actions -= without;
      lists.merge(RefusedLists(MostOf(actions, revokes)));
    }
  // All that are gone through element by element.
  for (const char* list :
       {"aggregate.pipeline", "applyOps.applyOps", "bulkWrite.ops", "create.pipeline",
        "createRole.privileges", "createRole.roles", "createUser.roles",
        "grantPrivilegesToRole.privileges", "grantRolesToRole.roles", "grantRolesToUser.roles",
        "killAllSessionsByPattern.killAllSessionsByPattern", "revokePrivilegesFromRole.privileges",
        "revokeRolesFromRole.roles", "revokeRolesFromUser.roles", "rolesInfo.rolesInfo",
        "update.updates", "updateRole.privileges", "updateUser.roles", "usersInfo.usersInfo"}) {
    INFO(list);
    CHECK(lists.contains(list));
  }
}

TEST_CASE("A bulkWrite whose names are not all seen is not run", "[privileges]") {
  const std::vector<Privilege> own{{Resource::Collection("shop", "c"), {Action::insert}}};
  const BsonDocument allowed = BulkWriteOf("shop.c"), bad = BulkWriteOf("admin.system.users");
  CHECK(WouldRun(allowed, "admin", own, Ends::kNever));
  for (const Ends ends : {Ends::kNever, Ends::kInterrupted, Ends::kNoRoom}) {
    CAPTURE(static_cast<int>(ends));
    CHECK_FALSE(WouldRun(bad, "admin", own, ends));
  }
}

TEST_CASE("Whether a bulkWrite writes to users is known, or an error", "[privileges]") {
  const BsonDocument body = BulkWriteOf("admin.system.users");
  const BsonDocument name = ParseJson(R"({"ns": "shop.c"})").value(),
                     users = ParseJson(R"({"ns": "admin.system.roles"})").value();
  CommandRequest as_field, as_sequence;
  REQUIRE(ParseCommandFields(body, &as_field, "admin"));
  const BsonDocument command = ParseJson(R"({"bulkWrite": 1})").value();
  REQUIRE(ParseCommandFields(command, &as_sequence, "admin"));
  as_sequence.sequences = {{"nsInfo", std::vector<BsonView>(kMany, name.view())}};
  as_sequence.sequences[0].documents.push_back(users.view());
  const CommandRow& row = RowOf("bulkWrite");
  {
    const Result<UsersCollections> field = UsersWritten(row, as_field),
                                   sequence = UsersWritten(row, as_sequence);
    REQUIRE(field);
    CHECK((field.value().users && !field.value().roles));
    REQUIRE(sequence);
    CHECK((sequence.value().roles && !sequence.value().users));
  }
  const SystemClock clock;
  Operation op(clock);
  op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  for (const CommandRequest* req : {&as_field, &as_sequence}) {
    ParseWork work(&op);
    const Result<UsersCollections> stopped = UsersWritten(row, *req);
    REQUIRE_FALSE(stopped);
    CHECK(stopped.error().code == ErrorCode::kInterrupted);
  }
}

TEST_CASE("A parse for which there was no room once stays refused", "[privileges]") {
  large_memory::Budget budget;
  budget.SetLimit(0);
  const large_memory::BudgetScope scope(budget);
  std::optional<ParseWork> outer(nullptr);
  ParseWork::Made(2 * large_memory::kLarge);
  for (int i = 0; i < 3; ++i) {
    const Result<void> look = ParseWork::Look();
    REQUIRE_FALSE(look);
    CHECK(look.error().code == ErrorCode::kExceededMemoryLimit);
    CHECK_FALSE(ParseWork::Step());
  }
  {
    // Another one within it, and room that has become free.
    budget.SetLimit(int64_t{1} << 30);
    ParseWork inner(nullptr);
    CHECK_FALSE(ParseWork::Look());
    CHECK_FALSE(ParseWork::Step());
  }
  CHECK_FALSE(ParseWork::Look());
  outer.reset();
  // The next one begins anew.
  const ParseWork next(nullptr);
  CHECK(ParseWork::Look());
  CHECK(ParseWork::Step());
}
