#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

struct CommandRequest;
struct CommandRow;
class Operation;

/// Failures on demand, for tests of drivers and applications: `configureFailPoint`, only with
/// `--setParameter enableTestCommands=1`. Names, modes and data are those the drivers'
/// specifications use. Threads: any.
class FailPoints {
 public:
  FailPoints();
  /// The action of `stopReplProducer` and `rsSyncApplyStop`, on a member of a set. Before the first
  /// client.
  void set_stop_applying(std::function<void(bool on)> f) { stop_applying_ = std::move(f); }

  /// One relaxed load, for the hot path.
  bool any() const { return active_.load(std::memory_order_relaxed) != 0; }

  struct Configured {
    int64_t entered = 0;               ///< as Entered, before the change
    std::vector<std::string> ignored;  ///< fields of the data that this fail point does not have
  };
  /// Sets the mode ("off", "alwaysOn", {times: n}, {skip: n}, {activationProbability: p}) and the
  /// data. Fields of the data that mean nothing are taken, as MongoDB takes them (SERVER-51712:
  /// data has no schema; drivers' tests rely on it), and named so that they can be logged. Errors:
  /// FailPointSetFailed 266 for an unknown name; BadValue 2, TypeMismatch 14, FailedToParse 9 for
  /// mode and known fields.
  Result<Configured> Configure(std::string_view name, BsonValue mode, BsonView data);
  /// How often it has fired since the server was started. Errors: FailPointSetFailed 266.
  Result<int64_t> Entered(std::string_view name) const;

  /// Meets the fail point: its data if it is on, `applies` (may be null) says yes to the data, and
  /// the mode lets it fire.
  std::optional<BsonDocument> Fire(std::string_view name,
                                   const std::function<bool(BsonView data)>& applies = {});

 private:
  enum class Mode : uint8_t { kOff, kAlwaysOn, kTimes, kSkip, kProbability };
  struct Point {
    Mode mode = Mode::kOff;
    int64_t left = 0;  ///< of times, or still to skip
    double probability = 0;
    int64_t entered = 0;
    BsonDocument data;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Point, std::less<>> points_;
  std::mt19937_64 random_;
  std::function<void(bool)> stop_applying_;
  std::atomic<int> active_{0};
};

/// `maxTimeAlwaysTimeOut` and `maxTimeNeverTimeOut`, for an operation that has a time limit: the
/// first is MaxTimeMSExpired 50, the second takes the limit away. Call it once the limit is set.
Result<void> FireMaxTime(FailPoints& points, Operation& op);

/// The effect of failCommand on one command.
struct FailCommandAction {
  bool close_connection = false;
  int64_t block_ms = 0;
  std::optional<Error> error;                      ///< instead of running the command
  BsonDocument write_concern_error;                ///< added to the reply; empty: none
  std::optional<std::vector<std::string>> labels;  ///< given: exactly these, even if none
};

/// The action for this command, if failCommand is on for it. `app_name`: of the client;
/// `thread_name`: of its connection, as currentOp shows it ("conn12").
std::optional<FailCommandAction> FireFailCommand(FailPoints& points, const CommandRow& row,
                                                 const CommandRequest& request,
                                                 std::string_view app_name,
                                                 std::string_view thread_name,
                                                 bool internal_client);

}  // namespace mayfly
