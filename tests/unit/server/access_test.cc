#include "server/access/access_control.h"

#include "server/access/login.h"
#include "storage/kv/rocks_kv.h"
#include "storage/storage.h"
#include "storage/write/collection_watch.h"
#include "tests/unit/patience.h"
#include "tests/unit/security/scram_client.h"
#include "tests/unit/server/server_fixture.h"
#include "tests/unit/storage/storage_fixture.h"

using namespace mayfly;
using namespace mayfly::test;
using mayfly::testing::Base64Of;
using mayfly::testing::FromBase64;
using mayfly::testing::ScramClient;
using mayfly::testing::ScratchDir;

namespace {

/// A server with access control and storage.
class GuardedServer {
 public:
  explicit GuardedServer(const std::string& path)
      : server_([](ServerConfig& c) { c.auth = true; }, true) {
    StorageOptions o;
    o.engine = MakeRocksEngine();
    o.path = path;
    o.clock = &server_.clock();
    storage_ = Storage::Open(std::move(o)).value();
    server_.context().set_storage(storage_.get());
    access().Open(*storage_);
    access().parameters().sha256_iterations = 5000;
    access().parameters().sha1_iterations = 5000;
    server_.server().Start();  // its threads look at the storage
  }
  ~GuardedServer() {
    server_.server().Stop(1000);
    access().Close();
    server_.context().set_storage(nullptr);
  }
  AccessControl& access() { return server_.context().access(); }
  Storage& storage() { return *storage_; }
  int port() const { return server_.port(); }
  void limit_memory(int64_t bytes) { server_.context().large_memory().SetLimit(bytes); }

 private:
  TestServer server_;
  std::unique_ptr<Storage> storage_;
};

/// Sends a command, without `$db`, as a driver of one kind does.
using Sender = std::function<BsonDocument(const std::string& command)>;

/// Logs in by SCRAM-SHA-256, with what the server answers at the end.
BsonDocument LogIn(const Sender& send, const std::string& user, const std::string& password) {
  ScramClient client{HashKind::kSha256, user, password};
  const BsonDocument challenge =
      send(R"({"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": ")" +
           Base64Of(client.First()) + R"(", "options": {"skipEmptyExchange": true}})");
  if (!IsOk(challenge)) return challenge;
  const std::string proof = client.Final(std::string(challenge.view()["payload"].BinaryData()));
  return send(R"({"saslContinue": 1, "conversationId": )" +
              std::to_string(challenge.view()["conversationId"].NumberAsInt64()) +
              R"(, "payload": ")" + Base64Of(proof) + R"("})");
}
BsonDocument LogIn(RawClient& c, const std::string& user, const std::string& password) {
  return LogIn(
      [&](std::string command) {
        command.back() = ',';
        return c.Command(command + R"( "$db": "admin"})");
      },
      user, password);
}

/// Sends a command as OP_QUERY on `db`.$cmd.
BsonDocument ByOpQuery(RawClient& c, const std::string& db, const std::string& command) {
  std::string m(16, '\0');
  m.append(4, '\0').append(db + ".$cmd").push_back('\0');
  m.append(4, '\0').append("\xff\xff\xff\xff", 4).append(ParseJson(command).value().bytes());
  StoreLe<int32_t>(m.data(), static_cast<int32_t>(m.size()));
  StoreLe<int32_t>(m.data() + 12, 2004);
  c.Send(m);
  BsonDocument r = c.Reply();
  CHECK(c.header.opcode == 1);  // OP_REPLY
  return r;
}

}  // namespace

TEST_CASE("An operation keeps its user, whatever becomes of the login", "[access]") {
  SystemClock clock;
  Operation op(clock);
  LoginState login;
  const auto ann = std::make_shared<UserAccess>();
  ann->user.name = {"ann", "admin"};
  std::weak_ptr<const UserAccess> kept = ann;
  login.Set(ann);
  CHECK(login.digest == UserDigestOf({"ann", "admin"}));
  RunFor(op, login.access);
  // Read again, by the operation itself or by the connection's timer; then nobody.
  const auto again = std::make_shared<UserAccess>();
  again->user.name = {"ann", "admin"};
  login.Set(again);
  login.Forget();
  CHECK(login.digest.empty());
  CHECK(op.user() == ann);
  CHECK(op.user_roles() == &ann->role_documents);
  RunFor(op, nullptr);
  CHECK(op.user().get() == &NobodysAccess());
  CHECK(op.user_roles() == &NobodysAccess().role_documents);
  CHECK(kept.use_count() == 1);  // of the test itself
}

TEST_CASE("Connections of an address are counted until they go", "[access]") {
  UnknownClients clients;
  auto a = clients.Enter("10.0.0.1:1000", 2);
  auto b = clients.Enter("10.0.0.1:1001", 2);
  CHECK(a != nullptr);
  CHECK(b != nullptr);
  CHECK(clients.Enter("10.0.0.1:1002", 2) == nullptr);
  CHECK(clients.Enter("10.0.0.2:1002", 2) != nullptr);
  a.reset();
  CHECK(clients.Enter("10.0.0.1:1002", 2) != nullptr);
}

TEST_CASE("A session's key has its user", "[access]") {
  // Of names that look alike the digests do not.
  CHECK(UserDigestOf({"ann@shop", "admin"}) != UserDigestOf({"ann", "shop@admin"}));
  const std::string id(16, 'i'), digest = UserDigestOf({"ann", "admin"});
  char buffer[kSessionKeyBytes];
  CHECK(SessionKey(id, "", buffer) == id);
  const std::string_view key = SessionKey(id, digest, buffer);
  CHECK(key == id + digest);
  CHECK(SessionUuid(key) == id);
  CHECK(SessionUid(key) == digest);
  CHECK(SessionUid(id).empty());
  CHECK(UuidToString(key) == UuidToString(id));
}

TEST_CASE("The first user is made from this machine, once", "[access]") {
  ScratchDir dir;
  GuardedServer server(dir.path());
  RawClient nobody(server.port());
  CHECK(server.access().LocalhostExceptionOpen());
  CHECK(Code(nobody.Command(R"({"find": "c", "$db": "d"})")) == 13);
  CHECK(IsOk(nobody.Command(R"({"ping": 1, "$db": "admin"})")));
  CHECK(Code(nobody.Command(R"({"createUser": "x", "pwd": "p", "roles": [], "$db": "d"})")) == 13);
  REQUIRE(IsOk(nobody.Command(
      R"({"createUser": "root", "pwd": "p", "roles": ["__system"], "$db": "admin"})")));
  CHECK_FALSE(server.access().LocalhostExceptionOpen());
  CHECK(Code(nobody.Command(R"({"createUser": "x", "pwd": "p", "roles": [], "$db": "admin"})")) ==
        13);
  CHECK(Code(LogIn(nobody, "root", "q")) == 18);
  CHECK(Code(LogIn(nobody, "nobody", "p")) == 18);
  const BsonDocument good = LogIn(nobody, "root", "p");
  REQUIRE(IsOk(good));
  CHECK(good.view()["done"].Truthy());
  CHECK(IsOk(nobody.Command(R"({"find": "c", "$db": "d"})")));
  // Closed for good, also when nobody is left.
  REQUIRE(IsOk(nobody.Command(R"({"dropUser": "root", "$db": "admin"})")));
  CHECK_FALSE(server.access().LocalhostExceptionOpen());
  CHECK(Code(nobody.Command(R"({"find": "c", "$db": "d"})")) == 13);
  CHECK(Code(nobody.Command(R"({"createUser": "x", "pwd": "p", "roles": [], "$db": "admin"})")) ==
        13);
}

TEST_CASE("A login may come as OP_QUERY", "[access]") {
  ScratchDir dir;
  GuardedServer server(dir.path());
  RawClient c(server.port());
  REQUIRE(
      IsOk(c.Command(R"({"createUser": "root", "pwd": "p", "roles": ["root"], "$db": "admin"})")));
  const Sender send = [&](const std::string& command) { return ByOpQuery(c, "admin", command); };
  CHECK(IsOk(send(R"({"buildinfo": 1})")));
  CHECK(Code(LogIn(send, "root", "q")) == 18);
  CHECK(Code(c.Command(R"({"find": "c", "$db": "d"})")) == 13);
  CHECK(Code(LogIn([&](const std::string& command) { return ByOpQuery(c, "other", command); },
                   "root", "p")) == 18);  // a user of another database
  const BsonDocument good = LogIn(send, "root", "p");
  REQUIRE(IsOk(good));
  CHECK(good.view()["done"].Truthy());
  CHECK(IsOk(c.Command(R"({"find": "c", "$db": "d"})")));
  // The others are as they were, whoever asks.
  for (const char* command : {R"({"find": "c"})", R"({"saslStartX": 1})", R"({"logout": 1})",
                              R"({"createUser": "x", "pwd": "p", "roles": []})"})
    CHECK(Code(send(command)) == 352);
  // A greeting with a login in it.
  RawClient other(server.port());
  ScramClient client{HashKind::kSha256, "root", "p"};
  const BsonDocument hello = ByOpQuery(
      other, "admin",
      R"({"isMaster": 1, "speculativeAuthenticate": {"saslStart": 1, "mechanism": "SCRAM-SHA-256",
          "db": "admin", "payload": ")" +
          Base64Of(client.First()) + R"("}})");
  REQUIRE(IsOk(hello));
  CHECK(hello.view().FindPath("speculativeAuthenticate.conversationId").IsNumber());
}

TEST_CASE("Whatever changes users or roles raises the generation", "[access]") {
  ScratchDir dir;
  GuardedServer server(dir.path());
  RawClient c(server.port());
  REQUIRE(IsOk(
      c.Command(R"({"createUser": "root", "pwd": "p", "roles": ["__system"], "$db": "admin"})")));
  REQUIRE(IsOk(LogIn(c, "root", "p")));
  uint64_t last = server.access().users().generation();
  auto raised = [&](std::string_view command) {
    CAPTURE(command);
    const BsonDocument reply = c.Command(command);
    REQUIRE(IsOk(reply));
    REQUIRE(reply.view()["writeErrors"].missing());
    const uint64_t now = server.access().users().generation();
    return std::exchange(last, now) < now;
  };
  CHECK(raised(R"({"createRole": "r", "privileges": [], "roles": [], "$db": "admin"})"));
  CHECK(raised(R"({"insert": "system.users", "documents": [{"_id": "d.x"}], "$db": "admin"})"));
  CHECK(raised(
      R"({"update": "system.users", "updates": [{"q": {"_id": "d.x"}, "u": {"$set": {"a": 1}}}], "$db": "admin"})"));
  CHECK(raised(
      R"({"delete": "system.users", "deletes": [{"q": {"_id": "d.x"}, "limit": 1}], "$db": "admin"})"));
  CHECK(raised(
      R"({"applyOps": [{"op": "i", "ns": "admin.system.roles", "o": {"_id": "d.y"}}], "$db": "admin"})"));
  // Of all definitions only that of the roles' collection changes what roles come to.
  uint64_t place = server.access().stored().PlaceOfRoles();
  const auto moved = [&] {
    const uint64_t now = server.access().stored().PlaceOfRoles();
    return std::exchange(place, now) != now;
  };
  REQUIRE(IsOk(c.Command(R"({"create": "other", "$db": "admin"})")));
  CHECK_FALSE(moved());
  CHECK(raised(
      R"({"createIndexes": "system.roles", "indexes": [{"key": {"at": 1}, "name": "at", "expireAfterSeconds": 60}], "$db": "admin"})"));
  CHECK(moved());
  CHECK_FALSE(moved());
  SystemClock clock;
  Operation op(clock);
  REQUIRE(server.storage().catalog().Drop(op, "admin", "system.roles"));
  CHECK(moved());
  CHECK(server.access().users().generation() > last);
  last = server.access().users().generation();
  CHECK_FALSE(raised(R"({"insert": "c", "documents": [{"_id": 1}], "$db": "admin"})"));
}

// Each waited for the memory of the other's former privileges (146) until one of them reconnected.
TEST_CASE("Logins that wait for one another's memory after a change find it", "[access]") {
  ScratchDir dir;
  GuardedServer server(dir.path());
  RawClient root(server.port()), ann(server.port()), bob(server.port());
  REQUIRE(IsOk(root.Command(
      R"({"createUser": "root", "pwd": "p", "roles": ["__system"], "$db": "admin"})")));
  REQUIRE(IsOk(LogIn(root, "root", "p")));
  for (const std::string name : {"ann", "bob"}) {
    std::string privileges;
    for (size_t i = 0; i < kMaxPrivileges; ++i)
      privileges += std::string(i == 0 ? "" : ", ") +
                    R"({"resource": {"db": "d", "collection": ")" + name + "'s collection " +
                    std::to_string(i) + R"("}, "actions": ["find"]})";
    REQUIRE(IsOk(root.Command(R"({"createRole": ")" + name + R"(", "roles": [], "privileges": [)" +
                              privileges + R"(], "$db": "admin"})")));
    REQUIRE(IsOk(root.Command(R"({"createUser": ")" + name + R"(", "pwd": "p", "roles": [")" +
                              name + R"("], "$db": "admin"})")));
  }
  // Of this the large sets of all may take 6.75 MB: there is room for two of 3.2 MB, and not for a
  // third.
  server.limit_memory(72 << 20);
  REQUIRE(IsOk(LogIn(ann, "ann", "p")));
  REQUIRE(IsOk(LogIn(bob, "bob", "p")));
  REQUIRE(
      IsOk(root.Command(R"({"createRole": "r", "privileges": [], "roles": [], "$db": "admin"})")));
  const Deadline deadline;
  int waited = 0;
  for (RawClient* c : {&ann, &bob, &ann}) {
    const std::string name = c == &bob ? "bob" : "ann";
    int64_t code = 146;
    while (code == 146 && deadline.Holds()) {
      code = Code(c->Command(R"({"find": ")" + name + R"('s collection 7", "$db": "d"})"));
      waited += code == 146 ? 1 : 0;
    }
    CHECK(code == 0);
  }
  // What nobody uses is let go of after a while, which may come before anyone has to wait.
  if (waited == 0) WARN("nobody had to wait for memory");
}

TEST_CASE("A user who is dropped and made again is another one", "[access]") {
  ScratchDir dir;
  GuardedServer server(dir.path());
  RawClient root(server.port()), ann(server.port());
  REQUIRE(IsOk(root.Command(
      R"({"createUser": "root", "pwd": "p", "roles": ["__system"], "$db": "admin"})")));
  REQUIRE(IsOk(LogIn(root, "root", "p")));
  const std::string make =
      R"({"createUser": "ann", "pwd": "a", "roles": ["__system"], "$db": "admin"})";
  REQUIRE(IsOk(root.Command(make)));
  REQUIRE(IsOk(LogIn(ann, "ann", "a")));
  CHECK(IsOk(ann.Command(R"({"find": "c", "$db": "d"})")));
  CHECK(Code(LogIn(ann, "root", "p")) == 17);
  REQUIRE(IsOk(root.Command(R"({"dropUser": "ann", "$db": "admin"})")));
  REQUIRE(IsOk(root.Command(make)));
  CHECK(Code(ann.Command(R"({"find": "c", "$db": "d"})")) == 13);
}
