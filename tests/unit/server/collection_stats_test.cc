#include "server/execution/aggregate_stages.h"
#include "server/execution/write_ops.h"
#include "server/http/local_command.h"
#include "storage/catalog/catalog.h"
#include "storage/storage.h"
#include "tests/unit/server/server_fixture.h"
#include "tests/unit/storage/storage_fixture.h"

using namespace mayfly;
using namespace mayfly::test;
using mayfly::testing::ScratchDir;

namespace {

/// A server with two documents in d.c, one of which expires in a minute.
class OneExpires {
 public:
  OneExpires() : server_([](ServerConfig&) {}, true) {
    StorageOptions o;
    o.engine = MakeRocksEngine();
    o.path = dir_.path();
    o.clock = &server_.clock();
    storage_ = Storage::Open(std::move(o)).value();
    server_.context().set_storage(storage_.get());
    server_.server().Start();  // its threads look at the storage
    Operation op(server_.clock());
    REQUIRE(storage_->catalog().GetOrCreate(op, "d", "c"));
    for (const bool expires : {false, true}) {
      WriteCommand insert(WriteServicesOf(server_.context()), op, "d", "c");
      if (expires) insert.set_expiry({ExpirySetting::Kind::kAfter, 60});
      REQUIRE(insert.Open());
      const BsonDocument document = BuildBson([&](BsonBuilder& b) { b.Append("_id", expires); });
      const std::vector<BsonView> one{document.view()};
      REQUIRE(insert.Insert(one, [](size_t, Error) { return false; }).value() == 1);
    }
  }
  ~OneExpires() {
    server_.server().Stop(1000);
    server_.context().set_storage(nullptr);
  }

  /// The answer to a command for `d`, or what it fails with, an hour later. `killed`: by then.
  Result<BsonDocument> Run(std::string_view json, bool killed) {
    LocalOperation local(server_.context(), server_.server().executor(), nullptr);
    Late(local.op, killed);
    const BsonDocument body = ParseJson(json).value();
    CommandRequest req;
    REQUIRE(ParseCommandFields(body, &req, "d"));
    std::string bytes;
    BsonBuilder reply(bytes);
    const CommandRow* row = server_.context().commands().Find(req.name);
    REQUIRE((row != nullptr && row->run != nullptr));
    MAYFLY_TRY(row->run(local.ctx, req, reply));
    reply.Done();
    return BsonDocument(BsonView(bytes));
  }
  /// The document of `$collStats`.
  Result<BsonDocument> Stage(std::string_view spec, bool killed) {
    Operation op(server_.clock());
    Late(op, killed);
    MAYFLY_TRY(std::vector<BsonDocument> made,
               AggregateStageDocuments(server_.context(), nullptr, op, "$collStats", "d", "c",
                                       ParseJson(spec).value()));
    REQUIRE(made.size() == 1);
    return std::move(made[0]);
  }

 private:
  static void Late(Operation& op, bool killed) {
    op.now.millis += 3'600'000;
    if (killed) op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  }

  ScratchDir dir_;
  TestServer server_;
  std::unique_ptr<Storage> storage_;
};

}  // namespace

TEST_CASE("Counting what is hidden for the statistics of a collection ends with the operation",
          "[stats]") {
  OneExpires t;
  const auto stopped = [](const Result<BsonDocument>& answer) {
    return !answer && answer.error().code == ErrorCode::kInterrupted;
  };
  for (const char* command :
       {R"({"collStats": "c"})", R"({"dbStats": 1})", R"({"dataSize": "d.c"})"}) {
    INFO(command);
    const Result<BsonDocument> answer = t.Run(command, false);
    REQUIRE(answer);
    for (const char* count : {"count", "objects", "numObjects"})
      if (const BsonValue n = answer.value().view()[count]; !n.missing())
        CHECK(n.NumberAsInt64() == 1);
    CHECK(stopped(t.Run(command, true)));
  }
  for (const char* spec : {R"({"storageStats": {}})", R"({"count": {}})",
                           R"({"storageStats": {"scale": 2}, "count": {}})"}) {
    INFO(spec);
    const Result<BsonDocument> answer = t.Stage(spec, false);
    REQUIRE(answer);
    const BsonView stats = answer.value().view();
    if (const BsonValue count = stats["count"]; !count.missing()) CHECK(count.NumberAsInt64() == 1);
    if (const BsonValue s = stats["storageStats"]; s.IsDocument())
      CHECK(s.Document()["count"].NumberAsInt64() == 1);
    CHECK(stopped(t.Stage(spec, true)));
  }
  // What counts nothing goes on.
  CHECK(t.Stage(R"({"latencyStats": {}})", true));
}
