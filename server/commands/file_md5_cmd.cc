#include "query/plan/executor.h"
#include "server/base/md5.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/data_services.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

/// {filemd5: id, root: "fs"}: the MD5 of a file of GridFS, over its chunks in their order. Old
/// drivers compare it with their own.
Result<void> FileMd5(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const BsonValue id = in.Any("filemd5");
  const std::string_view root = in.StringOr("root", "fs");
  in.NotSupported("partialOk");
  in.NotSupported("md5state");
  MAYFLY_TRY(in.Finish());
  const std::string name = std::string(root) + ".chunks";
  MAYFLY_TRY(ValidateNamespace(req.db, name));
  const std::string ns = JoinNamespace(req.db, name);
  ctx.EditReport([&](OperationReport& r) { r.ns = ns; });
  const BsonDocument filter =
      BuildBson([&](BsonBuilder& b) { b.OpenDocument("files_id").Append("$eq", id); });
  const BsonDocument sort = BuildBson([](BsonBuilder& b) { b.Append("n", 1); });
  QuerySpec spec;
  spec.ns = ns;
  spec.coll = ctx.data.storage().catalog().Find(req.db, name);
  spec.filter = filter;
  spec.sort = sort;
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> executor,
             MakeFindExecutor(ctx.data.storage(), ctx.op, spec));
  Md5 md5;
  int32_t chunks = 0;
  for (;;) {
    MAYFLY_TRY(PlanExecutor::State state, executor->Next());
    if (state == PlanExecutor::State::kEof) break;
    MAYFLY_TRY(BsonView chunk, executor->doc());
    const BsonValue n = chunk["n"], data = chunk["data"];
    if (!n.IsNumber() || n.NumberAsInt64() != chunks)
      return Error{ErrorCode::kInternalError,
                   "chunks out of order or missing: expected number " + std::to_string(chunks)};
    if (!data.Is(BsonType::kBinary))
      return Error{ErrorCode::kInternalError, "chunk " + std::to_string(chunks) + " has no data"};
    md5.Add(data.BinaryData());
    ++chunks;
  }
  reply.Append("numChunks", chunks).Append("md5", md5.Hex());
  return Ok();
}

}  // namespace

void RegisterFileMd5(CommandRegistry& registry) {
  registry.Add({.name = "filemd5",
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kWorker,
                .help = "The MD5 of a GridFS file.",
                .run = &FileMd5,
                .privileges = &privileges::FileMd5});
}

}  // namespace mayfly
