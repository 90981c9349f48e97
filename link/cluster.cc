#include "link/cluster.h"

#include <mongoc/mongoc.h>

#include <algorithm>
#include <limits>

#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "protocol/secret_file.h"

namespace mayfly {
namespace {

/// What the client library says is the link's to say, where it matters; but for its own errors.
void Say(mongoc_log_level_t level, const char* domain, const char* message, void* data) {
  if (level <= MONGOC_LOG_LEVEL_CRITICAL) mongoc_log_default_handler(level, domain, message, data);
}

/// The client library is begun and ended once a process.
struct ClientLibrary {
  ClientLibrary() {
    mongoc_log_set_handler(&Say, nullptr);
    mongoc_init();
  }
  ~ClientLibrary() { mongoc_cleanup(); }
};

/// How often a cluster's clock is looked at for an answer that came as quickly.
constexpr int kMostLooks = 5;
constexpr int64_t kQuickMillis = 100;
/// Some of these add up without an overflow, and no clock is that far.
constexpr int64_t kFarMillis = int64_t{1} << 58;

/// Codes after which the driver specifications try again (Retryable Writes, Retryable Reads), those
/// of a request or cursor that somebody ended (killOp, killCursors, a session that was idle for too
/// long), and those of a server that has no room now.
constexpr int kTransientCodes[] = {6,    7,     43,    50,    64,    89,    91,    112,  134, 136,
                                   146,  175,   189,   237,   246,   251,   262,   290,  317, 384,
                                   9001, 10107, 11600, 11601, 11602, 13435, 13436, 14031};

bool IsTransient(const bson_error_t& error, const bson_t* reply) {
  if (error.domain != MONGOC_ERROR_SERVER && error.domain != MONGOC_ERROR_WRITE_CONCERN)
    return error.domain != MONGOC_ERROR_COMMAND && error.domain != MONGOC_ERROR_BSON &&
           error.domain != MONGOC_ERROR_CLIENT;
  return mongoc_error_has_label(reply, "RetryableWriteError") ||
         mongoc_error_has_label(reply, "TransientTransactionError") ||
         MayPass(static_cast<ErrorCode>(error.code));
}

ClusterError Failed(const bson_error_t& error, const bson_t* reply) {
  const bool from_server =
      error.domain == MONGOC_ERROR_SERVER || error.domain == MONGOC_ERROR_WRITE_CONCERN;
  const bool refused =
      error.domain == MONGOC_ERROR_CLIENT && error.code == MONGOC_ERROR_CLIENT_AUTHENTICATE;
  const ErrorCode code = from_server ? static_cast<ErrorCode>(error.code)
                         : refused   ? ErrorCode::kAuthenticationFailed
                                     : ErrorCode::kHostUnreachable;
  return {{code, error.message}, IsTransient(error, reply)};
}

}  // namespace

bool MayPass(ErrorCode code) {
  return std::ranges::find(kTransientCodes, static_cast<int>(code)) != std::end(kTransientCodes);
}

int64_t IntOf(BsonView d, std::string_view name) {
  const BsonValue v = d[name];
  return v.IsNumber() ? v.NumberAsInt64() : 0;
}

std::string_view TextOf(BsonValue v) { return v.IsString() ? v.String() : std::string_view(); }

BsonView DocumentOf(BsonValue v) { return v.IsDocument() ? v.Document() : BsonView(); }

int64_t MillisOf(BsonValue v) {
  return v.IsDate() ? std::clamp(v.Date().millis, -kFarMillis, kFarMillis) : 0;
}

ClusterError Malformed(std::string_view what) {
  return {{ErrorCode::kProtocolError, "a reply is not as it must be: " + std::string(what)}, true};
}

ClusterResult<CursorBatch> BatchOf(BsonView reply) {
  const BsonView cursor = DocumentOf(reply["cursor"]);
  BsonValue batch = cursor["firstBatch"];
  if (batch.missing()) batch = cursor["nextBatch"];
  if (!batch.IsArray() || !cursor["id"].IsNumber())
    return Malformed("it has no cursor with a batch and an id");
  for (const BsonElement& e : batch.Document())
    if (!e.value.IsDocument()) return Malformed("its batch has what is no document");
  return CursorBatch{batch.Document(), cursor["id"].NumberAsInt64()};
}

struct Cluster::Impl {
  mongoc_client_t* client = nullptr;
  mongoc_client_session_t* session = nullptr;

  ~Impl() {
    if (session != nullptr) mongoc_client_session_destroy(session);
    if (client != nullptr) mongoc_client_destroy(client);
  }
  /// The session of all commands; made with the first, since that asks the server.
  bool Begin(bson_error_t* error) {
    if (session == nullptr) session = mongoc_client_start_session(client, nullptr, error);
    return session != nullptr;
  }
};

Cluster::Cluster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Cluster::~Cluster() = default;

Result<std::unique_ptr<Cluster>> Cluster::Open(const std::string& uri,
                                               const std::string& application) {
  static ClientLibrary library;
  bson_error_t error;
  mongoc_uri_t* parsed = mongoc_uri_new_with_error(uri.c_str(), &error);
  if (parsed == nullptr)
    return Error{ErrorCode::kFailedToParse, std::string("the connection string: ") + error.message};
  if (const char* key =
          mongoc_uri_get_option_as_utf8(parsed, MONGOC_URI_TLSCERTIFICATEKEYFILE, nullptr)) {
    auto own = CheckSecretFile(key, std::string("tlsCertificateKeyFile: ") + key,
                               SecretReaders::kAnyGroup);
    if (!own) {
      mongoc_uri_destroy(parsed);
      return own.error();
    }
  }
  mongoc_uri_set_option_as_utf8(parsed, MONGOC_URI_APPNAME, application.c_str());
  // A link waits and tries again itself; a command without an answer by then is lost.
  if (!mongoc_uri_has_option(parsed, MONGOC_URI_SOCKETTIMEOUTMS))
    mongoc_uri_set_option_as_int32(parsed, MONGOC_URI_SOCKETTIMEOUTMS, 60'000);
  if (!mongoc_uri_has_option(parsed, MONGOC_URI_SERVERSELECTIONTIMEOUTMS))
    mongoc_uri_set_option_as_int32(parsed, MONGOC_URI_SERVERSELECTIONTIMEOUTMS, 5'000);
  mongoc_uri_set_option_as_bool(parsed, MONGOC_URI_SERVERSELECTIONTRYONCE, false);
  auto impl = std::make_unique<Impl>();
  impl->client = mongoc_client_new_from_uri_with_error(parsed, &error);
  mongoc_uri_destroy(parsed);
  if (impl->client == nullptr)
    return Error{ErrorCode::kFailedToParse, std::string("the connection string: ") + error.message};
  mongoc_client_set_error_api(impl->client, MONGOC_ERROR_API_VERSION_2);
  return std::unique_ptr<Cluster>(new Cluster(std::move(impl)));
}

ClusterResult<BsonDocument> Cluster::Run(std::string_view db, BsonView command, bool write) {
  // The client library takes a C string, which would be another database.
  if (db.find('\0') != std::string_view::npos)
    return ClusterError{{ErrorCode::kInvalidNamespace, "a database's name has a NUL"}, false};
  bson_error_t error;
  bson_t reply = BSON_INITIALIZER, opts = BSON_INITIALIZER, body;
  bson_init_static(&body, reinterpret_cast<const uint8_t*>(command.data()), command.size());
  bool done = impl_->Begin(&error) && mongoc_client_session_append(impl_->session, &opts, &error);
  if (done && write) {
    mongoc_write_concern_t* concern = mongoc_write_concern_new();
    mongoc_write_concern_set_wmajority(concern, 60'000);
    mongoc_write_concern_append(concern, &opts);
    mongoc_write_concern_destroy(concern);
  }
  if (done) {
    bson_destroy(&reply);
    const std::string name(db);
    done = write ? mongoc_client_write_command_with_opts(impl_->client, name.c_str(), &body, &opts,
                                                         &reply, &error)
                 : mongoc_client_command_with_opts(impl_->client, name.c_str(), &body, nullptr,
                                                   &opts, &reply, &error);
  }
  std::optional<ClusterError> failed;
  BsonDocument out;
  if (!done) {
    failed = Failed(error, &reply);
  } else {
    const std::string_view bytes(reinterpret_cast<const char*>(bson_get_data(&reply)), reply.len);
    if (auto valid = ValidateBsonPrefix(bytes, false, kMaxMessageDepth); !valid)
      failed = ClusterError{valid.error(), true};
    else
      out = BsonDocument(std::string(bytes));
  }
  bson_destroy(&reply);
  bson_destroy(&opts);
  if (failed) return std::move(*failed);
  return out;
}

ClusterResult<BsonDocument> Cluster::Command(std::string_view db, BsonView command) {
  return Run(db, command, false);
}

ClusterResult<BsonDocument> Cluster::Write(std::string_view db, BsonView command) {
  return Run(db, command, true);
}

ClusterResult<BsonDocument> Cluster::WriteTogether(
    const std::function<ClusterResult<BsonDocument>()>& make) {
  bson_error_t error;
  bson_t reply = BSON_INITIALIZER;
  mongoc_write_concern_t* concern = mongoc_write_concern_new();
  mongoc_write_concern_set_wmajority(concern, 60'000);
  mongoc_transaction_opt_t* options = mongoc_transaction_opts_new();
  mongoc_transaction_opts_set_write_concern(options, concern);
  const bool begun = impl_->Begin(&error) &&
                     mongoc_client_session_start_transaction(impl_->session, options, &error);
  mongoc_transaction_opts_destroy(options);
  mongoc_write_concern_destroy(concern);
  if (!begun) return Failed(error, &reply);
  ClusterResult<BsonDocument> done = make();
  if (done) done = Run("admin", done.value(), false);
  if (!done || IntOf(done.value(), "nErrors") > 0) {
    // The server may have aborted it already.
    (void)mongoc_client_session_abort_transaction(impl_->session, nullptr);
    return done;
  }
  if (!mongoc_client_session_commit_transaction(impl_->session, &reply, &error)) {
    const ClusterError failed = Failed(error, &reply);
    bson_destroy(&reply);
    return failed;
  }
  bson_destroy(&reply);
  return done;
}

ClusterResult<Cluster::Facts> Cluster::Ask() {
  using Clock = std::chrono::system_clock;
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
        .count();
  };
  Facts facts;
  BsonDocument hello;
  // A clock is known to half the time of the answer: the quickest of some counts.
  int64_t quickest = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kMostLooks && quickest > kQuickMillis; ++i) {
    const int64_t before = now();
    MAYFLY_TRY(hello, Command("admin", BuildBson([](BsonBuilder& b) { b.Append("hello", 1); })));
    const int64_t took = now() - before;
    const BsonValue there = hello.view()["localTime"];
    if (took >= quickest || !there.IsDate()) continue;
    quickest = took;
    facts.clock_skew_millis = MillisOf(there) - before - took / 2;
  }
  const BsonView h = hello;
  facts.set = TextOf(h["setName"]);
  if (h["hosts"].IsArray())
    for (const BsonElement& e : h["hosts"].Document())
      if (e.value.IsString()) facts.hosts.emplace_back(e.value.String());
  if (h["operationTime"].Is(BsonType::kTimestamp))
    facts.cluster_time = h["operationTime"].Timestamp();
  if (facts.hosts.empty()) {
    const mongoc_host_list_t* list = mongoc_uri_get_hosts(mongoc_client_get_uri(impl_->client));
    for (; list != nullptr; list = list->next) facts.hosts.emplace_back(list->host_and_port);
  }
  MAYFLY_TRY(BsonDocument build,
             Command("admin", BuildBson([](BsonBuilder& b) { b.Append("buildInfo", 1); })));
  facts.mayfly = build.view()["mayfly"].IsDocument();
  return facts;
}

}  // namespace mayfly
