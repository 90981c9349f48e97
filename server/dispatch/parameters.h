#pragma once
#include <atomic>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "ttl/ttl_parameters.h"

namespace mayfly {

/// One server parameter: a row. Kept as facts plus two functions, so that a parameter may live
/// where it is used.
struct ParameterRow {
  std::string name;
  std::string help;
  bool at_startup = true, at_runtime = true;
  bool test_only = false;
  /// Appends the value under `name`.
  std::function<void(BsonBuilder& out, std::string_view name)> get;
  /// Null: read-only. Runs under the registry's lock; must not block.
  std::function<Result<void>(BsonValue value)> set;
};

/// getParameter, setParameter, --setParameter. Threads: any. Layers below register what they own
/// through the helpers, giving the atomic that they read.
class ParameterRegistry {
 public:
  /// Takes the place of a row with the same name. The functions may be called as long as the
  /// registry lives: what they refer to must outlive it.
  void Add(ParameterRow row);
  /// `changed` runs after each change (any thread, must not block); may be null.
  void AddBool(std::string name, std::atomic<bool>* value, std::string help,
               std::function<void()> changed = {});
  void AddInt(std::string name, std::atomic<int64_t>* value, int64_t low, int64_t high,
              std::string help, std::function<void()> changed = {}, bool int32 = true);
  void AddDouble(std::string name, std::atomic<double>* value, double low, double high,
                 std::string help, std::function<void()> changed = {});
  /// One of `allowed` by its index in `value`.
  void AddEnum(std::string name, std::atomic<int>* value, std::vector<std::string> allowed,
               std::string help, std::function<void()> changed = {});
  void AddReadOnlyInt(std::string name, int64_t value, std::string help);

  /// Sets one and appends `was` (its old value) to `reply` if not null. `startup`: from the command
  /// line. Errors: InvalidOptions 72 "attempted to set unrecognized parameter [x], …", BadValue 2
  /// out of range, TypeMismatch 14, IllegalOperation 20 for one that is only for start-up (or run
  /// time).
  Result<void> Set(std::string_view name, BsonValue value, bool startup, BsonBuilder* reply);
  /// The same from text, as the command line gives it.
  Result<void> SetFromText(std::string_view name, std::string_view text);
  const ParameterRow* Find(std::string_view name) const;
  std::vector<const ParameterRow*> All() const;  ///< sorted by name

 private:
  mutable std::mutex mutex_;
  std::map<std::string, ParameterRow, std::less<>> rows_;
};

/// TypeMismatch 14: the value of a parameter is of another type than `expected`.
Error WrongParameterType(std::string_view name, BsonValue v, std::string_view expected);

/// Parameters the server layer itself reads. Defaults are MongoDB's.
struct ServerParameters {
  std::atomic<int64_t> cursor_timeout_millis{600'000};
  std::atomic<int64_t> client_cursor_monitor_frequency_secs{4};
  std::atomic<int64_t> local_session_timeout_minutes{30};
  std::atomic<int64_t> logical_session_refresh_millis{300'000};
  std::atomic<int64_t> max_time_ms_default{0};
  std::atomic<int64_t> min_snapshot_history_window_secs{300};
  /// For time series: whether, and when, buckets are merged and sealed.
  std::atomic<bool> series_sealing{true};
  std::atomic<int64_t> series_idle_secs{20};
  std::atomic<int64_t> series_open_groups{100'000};
  std::atomic<int64_t> series_cursor_life_secs{1800};
  std::atomic<bool> require_api_version{false};
  std::atomic<bool> enable_test_commands{false};
  std::atomic<bool> audit_fail_closed{false};
  std::atomic<int64_t> audit_refused_per_minute{200};  ///< RefusedCommands::kDefaultLimit
  // At start-up only, and used by RunServer before anything else: see SetUmask there.
  std::atomic<bool> honor_system_umask{false};
  std::atomic<int> process_umask{-1};  ///< -1: not given
  std::atomic<int64_t> internal_query_max_blocking_sort_bytes{100 * 1024 * 1024};
  /// QuerySpec::memory_limit of what clients ask for.
  uint64_t sort_bytes() const {
    return static_cast<uint64_t>(
        internal_query_max_blocking_sort_bytes.load(std::memory_order_relaxed));
  }
  std::atomic<int64_t> internal_document_source_group_max_bytes{100 * 1024 * 1024};
  std::atomic<bool> internal_query_rewrite_time_series{true};
};

}  // namespace mayfly
