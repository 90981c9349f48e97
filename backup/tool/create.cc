#include <mongoc/mongoc.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "backup/tool/actions.h"

namespace mayfly {
namespace {

constexpr std::chrono::milliseconds kLook{500};
std::atomic<bool> interrupted{false};

Error Failed(const bson_error_t& error) {
  const bool from_server = error.domain == MONGOC_ERROR_SERVER;
  return {from_server ? static_cast<ErrorCode>(error.code) : ErrorCode::kHostUnreachable,
          error.message};
}

/// A document of the client library, freed with it.
class Doc {
 public:
  Doc() { bson_init(&b_); }
  ~Doc() { bson_destroy(&b_); }
  Doc(const Doc&) = delete;
  bson_t* get() { return &b_; }

 private:
  bson_t b_;
};

/// The server of the connection string, with two clients: one asks for the progress of the other's
/// command.
class Server {
 public:
  ~Server() {
    if (pool_ == nullptr) return;
    for (mongoc_client_t* c : {works_, asks_})
      if (c != nullptr) mongoc_client_pool_push(pool_, c);
    mongoc_client_pool_destroy(pool_);
  }

  Result<void> Open(const std::string& uri) {
    static const bool begun = [] {
      // Its warnings, such as of a connection that has ended, are nothing for who reads a terminal:
      // what fails is said by this program.
      mongoc_log_set_handler(
          [](mongoc_log_level_t level, const char* domain, const char* text, void*) {
            if (level <= MONGOC_LOG_LEVEL_CRITICAL) std::fprintf(stderr, "%s: %s\n", domain, text);
          },
          nullptr);
      mongoc_init();
      return true;
    }();
    (void)begun;
    bson_error_t error;
    mongoc_uri_t* parsed = mongoc_uri_new_with_error(uri.c_str(), &error);
    if (parsed == nullptr)
      return Error{ErrorCode::kFailedToParse,
                   std::string("the connection string: ") + error.message};
    mongoc_uri_set_option_as_utf8(parsed, MONGOC_URI_APPNAME, "mayfly-backup");
    // The command may take hours; the other client checks that its server is alive.
    mongoc_uri_set_option_as_int32(parsed, MONGOC_URI_SOCKETTIMEOUTMS, 0);
    if (!mongoc_uri_has_option(parsed, MONGOC_URI_SERVERSELECTIONTIMEOUTMS))
      mongoc_uri_set_option_as_int32(parsed, MONGOC_URI_SERVERSELECTIONTIMEOUTMS, 10'000);
    pool_ = mongoc_client_pool_new_with_error(parsed, &error);
    mongoc_uri_destroy(parsed);
    if (pool_ == nullptr) return Failed(error);
    mongoc_client_pool_set_error_api(pool_, MONGOC_ERROR_API_VERSION_2);
    works_ = mongoc_client_pool_pop(pool_);
    asks_ = mongoc_client_pool_pop(pool_);
    mongoc_server_description_t* chosen =
        mongoc_client_select_server(works_, false, mongoc_client_get_read_prefs(works_), &error);
    if (chosen == nullptr) return Failed(error);
    id_ = mongoc_server_description_id(chosen);
    mongoc_server_description_destroy(chosen);
    return Ok();
  }

  /// On the one server. `asks`: by the client for questions.
  Result<void> Command(bool asks, const bson_t* command, bson_t* reply) {
    Doc opts;
    BSON_APPEND_INT32(opts.get(), "serverId", static_cast<int32_t>(id_));
    bson_error_t error;
    bson_destroy(reply);
    mongoc_client_t* client = asks ? asks_ : works_;
    if (!mongoc_client_command_with_opts(client, "admin", command, nullptr, opts.get(), reply,
                                         &error))
      return Failed(error);
    return Ok();
  }

 private:
  mongoc_client_pool_t* pool_ = nullptr;
  mongoc_client_t *works_ = nullptr, *asks_ = nullptr;
  uint32_t id_ = 0;
};

/// The running backup as currentOp has it.
struct Running {
  int64_t op_id = 0, done = 0, total = 0;
};
Running Find(Server& server, const std::string& path) {
  for (const bool own : {false, true}) {  // without the right to see all: one's own
    Doc command, reply;
    BSON_APPEND_INT32(command.get(), "currentOp", 1);
    if (own) BSON_APPEND_BOOL(command.get(), "$ownOps", true);
    bson_iter_t it, list;
    if (!server.Command(true, command.get(), reply.get()) ||
        !bson_iter_init_find(&it, reply.get(), "inprog") || !bson_iter_recurse(&it, &list))
      continue;
    while (bson_iter_next(&list)) {
      auto at = [&](const char* field, bson_iter_t* found) {
        bson_iter_t one;
        return bson_iter_recurse(&list, &one) && bson_iter_find_descendant(&one, field, found);
      };
      bson_iter_t v;
      if (!at("command.backup", &v) || !at("command.path", &v) || !BSON_ITER_HOLDS_UTF8(&v) ||
          path != bson_iter_utf8(&v, nullptr))
        continue;
      Running r;
      if (at("opid", &v)) r.op_id = bson_iter_as_int64(&v);
      if (at("progress.done", &v)) r.done = bson_iter_as_int64(&v);
      if (at("progress.total", &v)) r.total = bson_iter_as_int64(&v);
      return r;
    }
  }
  return {};
}

void Kill(Server& server, int64_t op_id) {
  Doc command, reply;
  BSON_APPEND_INT32(command.get(), "killOp", 1);
  BSON_APPEND_INT64(command.get(), "op", op_id);
  (void)server.Command(true, command.get(), reply.get());
}

int64_t Number(const bson_t* reply, const char* name) {
  bson_iter_t it;
  return bson_iter_init_find(&it, reply, name) ? bson_iter_as_int64(&it) : 0;
}

void Print(const bson_t* reply) {
  bson_iter_t it;
  const char* id = bson_iter_init_find(&it, reply, "id") && BSON_ITER_HOLDS_UTF8(&it)
                       ? bson_iter_utf8(&it, nullptr)
                       : "";
  std::printf(
      "made the backup %s: %lld files, %lld MB, of which %lld files, %lld MB were copied, in "
      "%.1f s\n",
      id, static_cast<long long>(Number(reply, "files")),
      static_cast<long long>(Number(reply, "bytes") >> 20),
      static_cast<long long>(Number(reply, "filesCopied")),
      static_cast<long long>(Number(reply, "bytesCopied") >> 20),
      static_cast<double>(Number(reply, "durationMillis")) / 1000);
}

}  // namespace

Result<void> CreateBackup(const BackupToolOptions& options) {
  Server server;
  MAYFLY_TRY(server.Open(options.uri));
  Doc command, reply;
  BSON_APPEND_INT32(command.get(), "backup", 1);
  BSON_APPEND_UTF8(command.get(), "path", options.path.c_str());
  if (options.full) BSON_APPEND_BOOL(command.get(), "incremental", false);
  if (options.rate > 0) BSON_APPEND_INT64(command.get(), "rateBytesPerSecond", options.rate);
  ::signal(SIGINT, [](int) { interrupted = true; });
  ::signal(SIGTERM, [](int) { interrupted = true; });
  std::mutex mutex;
  std::condition_variable ended;
  Result<void> outcome = Ok();
  bool done = false;
  std::thread worker([&] {
    Result<void> r = server.Command(false, command.get(), reply.get());
    std::lock_guard l(mutex);
    outcome = std::move(r);
    done = true;
    ended.notify_all();
  });
  {
    std::unique_lock l(mutex);
    while (!ended.wait_for(l, kLook, [&] { return done; })) {
      l.unlock();
      const Running r = Find(server, options.path);
      if (r.total > 0)
        std::fprintf(stderr, "\r%lld of %lld MB", static_cast<long long>(r.done >> 20),
                     static_cast<long long>(r.total >> 20));
      if (interrupted && r.op_id != 0) Kill(server, r.op_id);
      l.lock();
    }
  }
  worker.join();
  std::fprintf(stderr, "\n");
  MAYFLY_TRY(outcome);
  Print(reply.get());
  return Ok();
}

}  // namespace mayfly
