#include "server/execution/retryable_writes.h"

#include "server/execution/write_ops.h"
#include "storage/kv/rocks_kv.h"
#include "storage/storage.h"
#include "tests/unit/server/server_fixture.h"
#include "tests/unit/storage/storage_fixture.h"

using namespace mayfly;
using namespace mayfly::test;
using mayfly::testing::ScratchDir;

namespace {

constexpr char kSession[] = R"("lsid": {"id": {"$uuid": "11111111-2222-4333-8444-555555555555"}})";

/// A server with storage that allows transaction numbers, as a member of a replica set does, and
/// that can be started again on the same directory.
class RetryServer {
 public:
  explicit RetryServer(const std::string& path) : server_([](ServerConfig&) {}, true) {
    StorageOptions o;
    o.engine = MakeRocksEngine();
    o.path = path;
    o.clock = &server_.clock();
    storage_ = Storage::Open(std::move(o)).value();
    server_.context().set_storage(storage_.get());
    server_.context().set_transaction_numbers(true);
    server_.context().settings().enable_test_commands = true;
    server_.server().Start();  // its threads look at the storage
    client_ = std::make_unique<RawClient>(server_.port());
  }
  ~RetryServer() {
    client_.reset();
    server_.server().Stop(1000);
    server_.context().set_storage(nullptr);
  }
  /// A command on database "d" with the session and this transaction number.
  BsonDocument Run(const std::string& command, int64_t txn) {
    return client_->Command(Text(command, txn));
  }
  static std::string Text(const std::string& command, int64_t txn) {
    const bool admin = command.starts_with("{\"bulkWrite\"");
    return command.substr(0, command.size() - 1) + ", " + kSession +
           ", \"txnNumber\": {\"$numberLong\": \"" + std::to_string(txn) + "\"}, \"$db\": \"" +
           (admin ? "admin" : "d") + "\"}";
  }
  BsonDocument Plain(const std::string& command) { return client_->Command(command); }
  int64_t Count(const std::string& filter = "{}") {
    return Plain("{\"count\": \"c\", \"query\": " + filter + ", \"$db\": \"d\"}")
        .view()["n"]
        .NumberAsInt64();
  }
  ServerContext& context() { return server_.context(); }
  int port() const { return server_.port(); }

 private:
  TestServer server_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<RawClient> client_;
};

int64_t N(const BsonDocument& reply) { return reply.view()["n"].NumberAsInt64(); }
std::string Retried(const BsonDocument& reply) {
  std::string out;
  if (reply.view()["retriedStmtIds"].IsArray())
    for (const BsonElement& e : reply.view()["retriedStmtIds"].Document())
      out += std::to_string(e.value.NumberAsInt64()) + " ";
  return out;
}

}  // namespace

TEST_CASE("Statement results are kept in runs", "[retryable]") {
  using Kind = StatementResult::Kind;
  std::string bytes;
  size_t last = 0;
  auto add = [&](Kind kind, int32_t first, int32_t count, const char* json = nullptr) {
    StatementResult r;
    r.kind = kind;
    r.first = first;
    r.count = count;
    if (json) r.document = ParseJson(json).value();
    AppendStatementResult(r, &bytes, &last);
  };
  add(Kind::kInserted, 0, 10);
  add(Kind::kInserted, 10, 5);
  const size_t one_run = bytes.size();
  add(Kind::kInserted, 20, 1);
  add(Kind::kUpserted, 21, 1, R"({"_id": 7})");
  add(Kind::kUpdated, 22, 1);
  add(Kind::kUpdated, 23, 1);
  std::vector<StatementResult> out;
  REQUIRE(ReadStatementResults(bytes, &out));
  REQUIRE(out.size() == 4);
  CHECK(one_run == 9);
  CHECK((out[0].first == 0 && out[0].count == 15));
  CHECK((out[1].first == 20 && out[1].count == 1));
  CHECK(out[2].document.view()["_id"].NumberAsInt64() == 7);
  CHECK((out[3].kind == Kind::kUpdated && out[3].first == 22 && out[3].count == 2));

  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    std::vector<StatementResult> part;
    const bool ok = ReadStatementResults(std::string_view(bytes).substr(0, cut), &part).has_value();
    CHECK((!ok || part.size() < out.size()));
  }
}

TEST_CASE("A retried write happens once and answers as the first time, also after a restart",
          "[retryable]") {
  ScratchDir dir;
  const std::string insert =
      R"({"insert": "c", "documents": [{"_id": 1, "x": 0}, {"_id": 2, "x": 0}]})";
  const std::string inc =
      R"({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}},
         {"q": {"_id": 9}, "u": {"$inc": {"x": 5}}, "upsert": true}, {"q": {"x": 77}, "u": {"$inc": {"x": 1}}}]})";
  const std::string fam =
      R"({"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"x": 1}}, "new": true, "fields": {"x": 1, "_id": 0}})";
  const std::string take =
      R"({"findAndModify": "c", "query": {}, "sort": {"_id": 1}, "remove": true})";
  const std::string erase = R"({"delete": "c", "deletes": [{"q": {}, "limit": 1}]})";
  const std::string bulk =
      R"({"bulkWrite": 1, "nsInfo": [{"ns": "d.c"}], "ops": [{"insert": 0, "document": {"_id": 50}},
         {"insert": 0, "document": {"_id": 51}}, {"update": 0, "filter": {"_id": 50}, "updateMods": {"$inc": {"x": 1}}},
         {"update": 0, "filter": {"_id": 60}, "updateMods": {"$inc": {"x": 1}}, "upsert": true}, {"delete": 0, "filter": {"_id": 51}}]})";
  for (bool restart : {false, true}) {
    DYNAMIC_SECTION((restart ? "after a restart" : "at once")) {
      auto server = std::make_unique<RetryServer>(dir.path());
      auto again = [&] {
        if (!restart) return;
        server.reset();
        server = std::make_unique<RetryServer>(dir.path());
      };
      CHECK(N(server->Run(insert, 1)) == 2);
      again();
      BsonDocument r = server->Run(insert, 1);
      CHECK(IsOk(r));
      CHECK(N(r) == 2);
      CHECK(Retried(r) == "0 1 ");
      CHECK(r.view()["writeErrors"].missing());

      r = server->Run(inc, 2);
      CHECK(N(r) == 2);
      again();
      r = server->Run(inc, 2);
      CHECK(N(r) == 2);
      CHECK(r.view()["nModified"].NumberAsInt64() == 1);
      CHECK(r.view().FindPath("upserted.0._id").NumberAsInt64() == 9);
      CHECK(r.view().FindPath("upserted.0.index").NumberAsInt64() == 1);
      CHECK(Retried(r) == "0 1 ");  // the third changed nothing: it is tried again
      CHECK(server->Count(R"({"x": 1})") == 1);
      CHECK(server->Count(R"({"x": 5})") == 1);

      const BsonDocument first = server->Run(fam, 3);
      again();
      r = server->Run(fam, 3);
      CHECK(r.view()["retriedStmtId"].NumberAsInt64() == 0);
      CHECK(r.view()["value"].BinaryEquals(first.view()["value"]));
      CHECK(r.view()["lastErrorObject"].BinaryEquals(first.view()["lastErrorObject"]));
      CHECK(r.view().FindPath("value.x").NumberAsInt64() == 2);
      // The same number for another kind of write.
      CHECK(Code(server->Run(take, 3)) == 40606);

      r = server->Run(take, 4);
      CHECK(r.view().FindPath("value._id").NumberAsInt64() == 1);
      again();
      r = server->Run(take, 4);
      CHECK(r.view().FindPath("value._id").NumberAsInt64() == 1);
      CHECK(server->Count() == 2);

      CHECK(N(server->Run(erase, 5)) == 1);
      again();
      r = server->Run(erase, 5);
      CHECK(N(r) == 1);
      CHECK(Retried(r) == "0 ");
      CHECK(server->Count() == 1);

      const BsonDocument bulk_first = server->Run(bulk, 6);
      again();
      r = server->Run(bulk, 6);
      CHECK(r.view()["cursor"].BinaryEquals(bulk_first.view()["cursor"]));
      for (const char* n :
           {"nErrors", "nInserted", "nMatched", "nModified", "nUpserted", "nDeleted"})
        CHECK(r.view()[n].BinaryEquals(bulk_first.view()[n]));
      CHECK(Retried(r) == "0 1 2 3 4 ");

      // A number that is gone by.
      CHECK(Code(server->Run(insert, 5)) == 225);
      again();
      CHECK(Code(server->Run(insert, 5)) == 225);
    }
  }
}

TEST_CASE("A retry does what the first try did not come to", "[retryable]") {
  ScratchDir dir;
  RetryServer server(dir.path());
  // The second document fails at first; then what stood in its way is gone.
  REQUIRE(IsOk(server.Plain(R"({"insert": "c", "documents": [{"_id": 2}], "$db": "d"})")));
  const std::string insert =
      R"({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}], "stmtIds": [5, 7, 6]})";
  BsonDocument r = server.Run(insert, 1);
  CHECK(N(r) == 1);
  CHECK(r.view().FindPath("writeErrors.0.index").NumberAsInt64() == 1);
  REQUIRE(IsOk(
      server.Plain(R"({"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}], "$db": "d"})")));
  r = server.Run(insert, 1);
  CHECK(N(r) == 3);
  CHECK(Retried(r) == "5 ");
  CHECK(server.Count() == 3);
  r = server.Run(insert, 1);
  CHECK(Retried(r) == "5 7 6 ");
  CHECK(Code(server.Run(R"({"insert": "c", "documents": [{"_id": 9}], "stmtIds": [1, 2]})", 2)) ==
        16);
}

TEST_CASE("A statement id that is there twice is refused, and nothing is done twice",
          "[retryable]") {
  ScratchDir dir;
  RetryServer server(dir.path());
  REQUIRE(IsOk(server.Plain(R"({"insert": "c", "documents": [{"_id": 0, "x": 0}], "$db": "d"})")));
  for (const char* ids : {"[1, 1]", "[1, {\"$numberLong\": \"1\"}]", "[1, 1.0]", "[2, 2]"}) {
    const std::string tail = std::string(", \"stmtIds\": ") + ids + "}";
    INFO(ids);
    CHECK(Code(server.Run(R"({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}])" + tail, 1)) ==
          2);
    CHECK(Code(server.Run(R"({"update": "c", "updates": [
                {"q": {"_id": 0}, "u": {"$inc": {"x": 1}}},
                {"q": {"_id": 0}, "u": {"$inc": {"x": 1}}}])" +
                              tail,
                          1)) == 2);
    CHECK(Code(server.Run(R"({"delete": "c", "deletes": [
                {"q": {"_id": 0}, "limit": 1}, {"q": {"_id": 1}, "limit": 1}])" +
                              tail,
                          1)) == 2);
    CHECK(Code(server.Run(R"({"bulkWrite": 1, "nsInfo": [{"ns": "d.c"}], "ops": [
                {"insert": 0, "document": {"_id": 1}},
                {"update": 0, "filter": {"_id": 0}, "updateMods": {"$inc": {"x": 1}}}])" +
                              tail,
                          1)) == 2);
  }
  // Three, out of order.
  CHECK(Code(server.Run(R"({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}],
                            "stmtIds": [3, 1, 3]})",
                        1)) == 2);
  CHECK(server.Count() == 1);
  CHECK(server.Count(R"({"x": 0})") == 1);
  // The number is as good as new.
  CHECK(N(server.Run(R"({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}],
                         "stmtIds": [1, 0]})",
                     1)) == 2);
  // An id of another command of the number is what was done then.
  BsonDocument r = server.Run(R"({"update": "c", "updates": [
      {"q": {"_id": 0}, "u": {"$inc": {"x": 1}}}, {"q": {"_id": 0}, "u": {"$inc": {"x": 1}}}],
      "stmtIds": [1, 2]})",
                              1);
  CHECK(Retried(r) == "1 ");
  CHECK(server.Count(R"({"x": 1})") == 1);
}

TEST_CASE("Many statements of one number stay retryable and cheap", "[retryable]") {
  ScratchDir dir;
  auto server = std::make_unique<RetryServer>(dir.path());
  // Upserts are kept one by one: they fill chunk rows.
  std::string update = R"({"update": "c", "updates": [)";
  constexpr int kMany = 600;
  for (int i = 0; i < kMany; ++i)
    update += (i ? ", " : "") + std::string("{\"q\": {\"_id\": ") + std::to_string(i) +
              "}, \"u\": {\"$inc\": {\"x\": 1}}, \"upsert\": true}";
  update += "]}";
  CHECK(N(server->Run(update, 1)) == kMany);
  server = nullptr;
  server = std::make_unique<RetryServer>(dir.path());
  BsonDocument r = server->Run(update, 1);
  CHECK(N(r) == kMany);
  CHECK(r.view()["upserted"].Document()["599"].Document()["_id"].NumberAsInt64() == 599);
  CHECK(server->Count(R"({"x": 1})") == kMany);
  auto rows = [&] {
    int n = 0;
    auto it = server->context().storage().kv().NewIterator(Keyspace::kCatalog,
                                                           {.lower = "txn/", .upper = "txn0"});
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      CHECK(it->value().size() < 4096);
      ++n;
    }
    return n;
  };
  CHECK(rows() > 2);
  // The next number takes their place.
  CHECK(N(server->Run(R"({"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]})", 2)) == 1);
  CHECK(rows() == 1);
}

TEST_CASE("What is kept for a session goes when nobody has used it for long", "[retryable]") {
  ScratchDir dir;
  RetryServer server(dir.path());
  REQUIRE(IsOk(server.Run(R"({"insert": "c", "documents": [{"_id": 1}]})", 1)));
  ServerContext& context = server.context();
  auto sweep = [&] {
    Operation op(context.clock());
    return SweepTransactions(context, op, 1800'000).value();
  };
  context.clock().Freeze(true);
  context.clock().Advance(1801'000);
  // The session is in use again.
  REQUIRE(IsOk(server.Plain("{\"ping\": 1, " + std::string(kSession) + ", \"$db\": \"d\"}")));
  CHECK(sweep() == 0);
  context.sessions().EndAll();
  CHECK(sweep() == 1);
  CHECK(sweep() == 0);
  CHECK(N(server.Run(R"({"insert": "c", "documents": [{"_id": 2}]})", 1)) == 1);
}

TEST_CASE("Writes that change many documents cannot be retried", "[retryable]") {
  ScratchDir dir;
  RetryServer server(dir.path());
  REQUIRE(IsOk(server.Run(R"({"insert": "c", "documents": [{"_id": 1}]})", 1)));
  BsonDocument r = server.Run(
      R"({"update": "c", "updates": [{"q": {}, "u": {"$set": {"y": 1}}, "multi": true}]})", 2);
  CHECK(r.view().FindPath("writeErrors.0.code").NumberAsInt64() == 72);
  r = server.Run(R"({"delete": "c", "deletes": [{"q": {}, "limit": 0}]})", 3);
  CHECK(r.view().FindPath("writeErrors.0.code").NumberAsInt64() == 72);
  r = server.Run(
      R"({"bulkWrite": 1, "nsInfo": [{"ns": "d.c"}], "ops": [{"delete": 0, "filter": {}, "multi": true}]})",
      4);
  CHECK(r.view().FindPath("cursor.firstBatch.0.code").NumberAsInt64() == 72);
  CHECK(server.Count() == 1);
  CHECK(server.Count(R"({"y": 1})") == 0);
  // And what is no write at all, or a transaction.
  CHECK(Code(server.Run(R"({"find": "c"})", 5)) == 50768);
  CHECK(
      Code(server.Run(
          R"({"insert": "c", "documents": [{"_id": 5}], "autocommit": false, "startTransaction": true})",
          5)) == 20);
}

TEST_CASE("A statement that was done is told of once, also behind one that was not",
          "[retryable]") {
  ScratchDir dir;
  RetryServer server(dir.path());
  REQUIRE(IsOk(server.Plain(R"({"insert": "c", "documents": [{"_id": 1}], "$db": "d"})")));
  const std::string bulk =
      R"({"bulkWrite": 1, "ordered": false, "nsInfo": [{"ns": "d.c"}], "ops": [{"insert": 0, "document": {"_id": 1}},
         {"insert": 0, "document": {"_id": 2}}, {"insert": 0, "document": {"_id": 3}}]})";
  const std::string insert =
      R"({"insert": "c", "ordered": false, "documents": [{"_id": 1}, {"_id": 4}, {"_id": 5}]})";
  for (int i = 0; i < 2; ++i) {
    BsonDocument r = server.Run(bulk, 1);
    CHECK(r.view()["nInserted"].NumberAsInt64() == 2);
    CHECK(r.view()["nErrors"].NumberAsInt64() == 1);
    CHECK(r.view().FindPath("cursor.firstBatch.0.code").NumberAsInt64() == 11000);
    CHECK(Retried(r) == (i == 0 ? "" : "1 2 "));
  }
  for (int i = 0; i < 2; ++i) {
    BsonDocument r = server.Run(insert, 2);
    CHECK(N(r) == 2);
    CHECK(r.view().FindPath("writeErrors.0.index").NumberAsInt64() == 0);
    CHECK(Retried(r) == (i == 0 ? "" : "1 2 "));
  }
  CHECK(server.Count() == 5);
}

TEST_CASE("Fail points on retryable writes", "[retryable][failpoint]") {
  ScratchDir dir;
  RetryServer server(dir.path());
  const std::string insert = R"({"insert": "c", "documents": [{"_id": 1}]})";
  REQUIRE(IsOk(server.Plain(R"({"create": "c", "$db": "d"})")));
  auto fail = [&](const std::string& name, const std::string& data) {
    REQUIRE(IsOk(server.Plain("{\"configureFailPoint\": \"" + name +
                              "\", \"mode\": {\"times\": 1}, \"data\": " + data +
                              ", \"$db\": \"admin\"}")));
  };
  SECTION("an error before the commit leaves nothing behind") {
    fail("onPrimaryTransactionalWrite",
         R"({"failBeforeCommitExceptionCode": 11602, "closeConnection": false})");
    const BsonDocument r = server.Run(insert, 1);
    CHECK(Code(r) == 11602);
    CHECK(r.view().FindPath("errorLabels.0").String() == "RetryableWriteError");
    CHECK(server.Count() == 0);
    CHECK(N(server.Run(insert, 1)) == 1);
  }
  SECTION("documents are counted, not units of them") {
    const std::string mode = R"({"configureFailPoint": "onPrimaryTransactionalWrite", "mode": )";
    REQUIRE(IsOk(server.Plain(mode + R"({"skip": 2}, "data": {"failBeforeCommitExceptionCode": 8,
                                        "closeConnection": false}, "$db": "admin"})")));
    CHECK(N(server.Run(R"({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]})", 1)) == 2);
    CHECK(Code(server.Run(R"({"insert": "c", "documents": [{"_id": 3}]})", 2)) == 8);
    REQUIRE(IsOk(server.Plain(mode + R"("off", "$db": "admin"})")));
    CHECK(server.Count() == 2);
  }
  SECTION("a connection that closes before the commit: the retry does it") {
    fail("onPrimaryTransactionalWrite", R"({"failBeforeCommitExceptionCode": 1})");
    RawClient doomed(server.port());
    doomed.Send(RawClient::Message(RetryServer::Text(insert, 1)));
    CHECK(doomed.Closed());
    CHECK(server.Count() == 0);
    const BsonDocument r = server.Run(insert, 1);
    CHECK(N(r) == 1);
    CHECK(Retried(r).empty());
  }
  SECTION("a connection that closes after the commit: the retry knows") {
    fail("onPrimaryTransactionalWrite", "{}");
    RawClient doomed(server.port());
    doomed.Send(RawClient::Message(RetryServer::Text(insert, 1)));
    CHECK(doomed.Closed());
    const BsonDocument r = server.Run(insert, 1);
    CHECK(N(r) == 1);
    CHECK(Retried(r) == "0 ");
  }
  SECTION("errors to retry are marked for writes with a number only") {
    fail("failCommand", R"({"failCommands": ["insert"], "errorCode": 10107})");
    BsonDocument r = server.Run(insert, 1);
    CHECK(r.view().FindPath("errorLabels.0").String() == "RetryableWriteError");
    CHECK(r.view().FindPath("errorLabels.1").String() == "NoWritesPerformed");
    fail("failCommand", R"({"failCommands": ["insert"], "errorCode": 10107})");
    CHECK(server.Plain(R"({"insert": "c", "documents": [{"_id": 3}], "$db": "d"})")
              .view()["errorLabels"]
              .missing());
    fail("failCommand", R"({"failCommands": ["insert"], "errorCode": 10107, "errorLabels": []})");
    CHECK(server.Run(insert, 2).view()["errorLabels"].missing());
  }
  SECTION("a failed write concern comes with the result of the write") {
    fail(
        "failCommand",
        R"({"failCommands": ["insert"], "writeConcernError": {"code": 91, "errmsg": "shutdown"}})");
    const BsonDocument r = server.Run(insert, 1);
    CHECK(IsOk(r));
    CHECK(N(r) == 1);
    CHECK(r.view().FindPath("writeConcernError.code").NumberAsInt64() == 91);
    CHECK(r.view().FindPath("errorLabels.0").String() == "RetryableWriteError");
  }
}

TEST_CASE("Tries of one write at the same time: one does it, the other answers from it",
          "[retryable]") {
  ScratchDir dir;
  RetryServer server(dir.path());
  REQUIRE(IsOk(server.Plain(R"({"insert": "c", "documents": [{"_id": 1, "x": 0}], "$db": "d"})")));
  constexpr int kClients = 4;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kClients; ++i) clients.push_back(std::make_unique<RawClient>(server.port()));
  // The filter needs a scan, so each runs on a worker thread.
  for (int txn = 1; txn <= 30; ++txn) {
    for (auto& c : clients)
      c->Send(RawClient::Message(RetryServer::Text(
          R"({"findAndModify": "c", "query": {"x": {"$gte": 0}}, "update": {"$inc": {"x": 1}}, "new": true})",
          txn)));
    int done = 0;
    for (auto& c : clients) {
      const BsonDocument r = c->Reply();
      CHECK(IsOk(r));
      CHECK(r.view().FindPath("value.x").NumberAsInt64() == txn);
      done += r.view()["retriedStmtId"].missing() ? 1 : 0;
    }
    CHECK(done == 1);
  }
}

// A driver retries the command that failed, not a statement within one that did not.
TEST_CASE("errors that drivers retry end a write command", "[retryable]") {
  for (int32_t code : {6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})
    CHECK(EndsCommand({static_cast<ErrorCode>(code), ""}));
  CHECK(EndsCommand({ErrorCode::kMaxTimeMSExpired, ""}));
  CHECK_FALSE(EndsCommand({ErrorCode::kDuplicateKey, ""}));
  CHECK_FALSE(EndsCommand({ErrorCode::kBadValue, ""}));
}
