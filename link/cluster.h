#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

/// Why a command of a cluster failed.
struct ClusterError {
  Error error;
  bool transient = false;  ///< the same may work when it is tried again: a lost link, a failover
};
template <class T>
using ClusterResult =
    boost::outcome_v2::basic_result<T, ClusterError, boost::outcome_v2::policy::all_narrow>;

/// Whether what failed with this code may work when it is tried again, so that it says nothing of
/// the document or command: a failover, a request that somebody ended, a full disk.
bool MayPass(ErrorCode code);

// What the other side sends is valid BSON, but may have any type in any place.

/// A number of a document; 0 where there is none.
int64_t IntOf(BsonView d, std::string_view name);
/// A text; empty where there is none.
std::string_view TextOf(BsonValue v);
/// A document; the empty one where there is none.
BsonView DocumentOf(BsonValue v);
/// Milliseconds of a date, cut to what can be added and subtracted; 0 where there is none.
int64_t MillisOf(BsonValue v);
/// A reply that is not as it must be. ProtocolError 17, transient: another member may answer next.
ClusterError Malformed(std::string_view what);
/// What a reply of `find` and the like brings.
struct CursorBatch {
  BsonView documents;  ///< an array, and each of its elements is a document
  int64_t cursor = 0;  ///< for the next batch; 0: it was the last one
};
/// As a view of the reply. Errors: Malformed. A batch that cannot be read never counts as empty:
/// documents would be left out, or removed because they seem to be gone.
ClusterResult<CursorBatch> BatchOf(BsonView reply);

/// One side of a link: a client of a cluster that speaks MongoDB's protocol. It finds the primary,
/// and finds it again after a failover. Threads: one.
class Cluster {
 public:
  /// `uri`: a connection string. `application`: shown by the servers' logs and currentOp. Connects
  /// only with the first command. Errors: FailedToParse 9.
  static Result<std::unique_ptr<Cluster>> Open(const std::string& uri,
                                               const std::string& application);
  ~Cluster();

  /// Runs it on the primary, in this client's one session, so that a cursor's getMore is of the
  /// session of its command. The reply is valid BSON. Errors: the server's code; HostUnreachable 6
  /// (transient) when there is no reply.
  ClusterResult<BsonDocument> Command(std::string_view db, BsonView command);
  /// The same with write concern majority; repeated once by the client library when the link fails.
  ClusterResult<BsonDocument> Write(std::string_view db, BsonView command);
  /// bulkWrite as one transaction with write concern majority: all of it or nothing, and one commit
  /// for all. `make` gives the command, and may read before that in the same transaction; it must
  /// run a command, or give one that is not empty. A reply whose `nErrors` is not 0 says that
  /// nothing was written. Errors: of `make`, as Write's, in each case with nothing written (but
  /// when the answer to the commit is lost); IllegalOperation 20 of a standalone server.
  ClusterResult<BsonDocument> WriteTogether(
      const std::function<ClusterResult<BsonDocument>()>& make);

  /// What the other side is.
  struct Facts {
    std::vector<std::string> hosts;  ///< "host:port" of its members, or of the server itself
    std::string set;                 ///< empty: a standalone server
    bool mayfly = false;             ///< keeps deadlines of documents, and shows them
    uint64_t cluster_time = 0;       ///< the newest operation
    int64_t clock_skew_millis = 0;   ///< its wall clock less this machine's
  };
  /// Asks for them now. Blocking. Errors: as Command's.
  ClusterResult<Facts> Ask();

 private:
  struct Impl;
  explicit Cluster(std::unique_ptr<Impl> impl);
  ClusterResult<BsonDocument> Run(std::string_view db, BsonView command, bool write);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mayfly
