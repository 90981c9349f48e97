#include <openssl/opensslv.h>

#include "protocol/bson_view.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/config.h"

namespace mayfly {

namespace {

Result<void> BuildInfo(CommandContext&, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  // `version` is the release whose behaviour is answered: drivers, shells and tools branch on it.
  reply.Append("version", kCompatibleVersion).Append("gitVersion", MAYFLY_GIT_VERSION);
  reply.OpenArray("modules").Done();
  reply.Append("allocator", "jemalloc")
      .Append("javascriptEngine", "none")
      .Append("sysInfo", "deprecated");
  {
    BsonArrayBuilder v = reply.OpenArray("versionArray");
    for (int n : kCompatibleVersionArray) v.Append(n);
  }
  {
    BsonBuilder ssl = reply.OpenDocument("openssl");
    ssl.Append("running", OPENSSL_VERSION_TEXT).Append("compiled", OPENSSL_VERSION_TEXT);
  }
  {
    BsonBuilder env = reply.OpenDocument("buildEnvironment");
    env.Append("cc", "g++ " __VERSION__)
        .Append("target_arch", "x86_64")
        .Append("target_os", "linux");
  }
  reply.Append("bits", int32_t{64});
#ifdef MAYFLY_OPTIMIZED_BUILD
  reply.Append("debug", false);
#else
  reply.Append("debug", true);
#endif
  reply.Append("maxBsonObjectSize", kMaxBsonUserSize);
  {
    BsonArrayBuilder engines = reply.OpenArray("storageEngines");
    engines.Append("rocksdb");
  }
  BsonBuilder own = reply.OpenDocument("mayfly");
  own.Append("version", kMayflyVersion);
  return Ok();
}

}  // namespace

void RegisterBuildInfo(CommandRegistry& registry) {
  registry.Add({.name = "buildInfo",
                .aliases = {"buildinfo"},
                .flags = kNoAuth | kSecondaryOk,
                .help = "Version and build of the server.",
                .run = &BuildInfo});
}

}  // namespace mayfly
