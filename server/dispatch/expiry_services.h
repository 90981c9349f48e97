#pragma once
#include <functional>
#include <mutex>

#include "server/dispatch/data_services.h"

namespace mayfly {

class TtlControls;
class TtlMonitor;
struct TtlRule;
struct TtlRuleFigures;

/// The services of expiry commands besides the data. Part of a ServerContext. Threads: as
/// DataServices.
class ExpiryServices : public DataServices {
 public:
  using DataServices::DataServices;

  /// REQUIRES: set_ttl_controls was called.
  TtlControls& ttl_controls() { return *ttl_controls_; }
  void set_ttl_controls(TtlControls* c) { ttl_controls_ = c; }
  TtlParameters& ttl_settings() { return ttl_settings_; }

  /// Set once there is storage, before the first client; stopped before it goes.
  TtlMonitor* ttl_monitor = nullptr;
  /// The TTL monitor's facts about a rule; empty without a monitor (tests).
  std::function<TtlRuleFigures(const TtlRule& rule)> ttl_figures;
  /// A figure of serverStatus that takes long to find in a large server.
  struct SlowFigure {
    std::mutex mutex;
    int64_t good_until = 0;  ///< Clock::MonotonicMicros
    double value = 0;
  } ttl_beyond_horizon;

 private:
  TtlControls* ttl_controls_ = nullptr;
  TtlParameters ttl_settings_;
};

}  // namespace mayfly
