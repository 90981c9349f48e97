#include "server/dispatch/data_services.h"

#include <unistd.h>

#include "replication/replica_set.h"
#include "server/dispatch/cluster_parameters.h"
#include "server/dispatch/replication_gate.h"

namespace mayfly {

DataServices::DataServices(SystemClock& clock, Log& log)
    : clock_(clock),
      log_(log),
      snapshot_reads_(
          std::make_unique<SnapshotReads>(clock, settings_.min_snapshot_history_window_secs)),
      cursors_(clock),
      cluster_parameters_(std::make_unique<ClusterParameters>(settings_)),
      started_(clock.Now()) {}

DataServices::~DataServices() = default;

bool DataServices::writable() const { return replica_set_ == nullptr || replica_set_->writable(); }

void DataServices::set_port(int port) {
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  host_and_port_ = std::string(name) + ":" + std::to_string(port);
}

}  // namespace mayfly
