#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "storage/write/counter.h"
#include "ttl/ttl_parameters.h"

namespace mayfly {

/// Latencies by powers of two of microseconds, for opLatencies.
struct LatencyHistogram {
  static constexpr int kBuckets = 32;
  Counter operations, total_micros;
  std::array<Counter, kBuckets> buckets;  ///< bucket i: [2^i, 2^(i+1)) us
  /// Less than a microsecond counts in the first bucket, longer than all buckets in the
  /// last.
  void Record(int64_t micros) {
    operations.Add();
    total_micros.Add(micros);
    int b = micros < 1 ? 0 : 63 - __builtin_clzll(static_cast<uint64_t>(micros));
    buckets[b < kBuckets ? b : kBuckets - 1].Add();
  }
};

/// {name: {latency, ops[, histogram: [{micros, count}]]}} as serverStatus and $collStats show it.
void AppendLatency(class BsonBuilder& out, std::string_view name, const LatencyHistogram& h,
                   bool histogram);

/// What serverStatus counts. Threads: any; relaxed atomics.
struct ServerMetrics {
  /// Bytes of one compressor, before and after, in both directions.
  struct Compression {
    Counter compressed_in, compressed_out, decompressed_in, decompressed_out;
  };
  struct {
    Counter insert, query, update, remove, getmore,
        command;  ///< by document for insert, by statement for the others
  } opcounters;
  struct {
    Counter inserted, returned, updated, deleted;
  } documents;
  struct {
    Counter scanned, scanned_objects, collection_scans;
  } query_executor;
  struct {
    Counter sort_total_bytes, sort_spills, sort_keys;
  } query_sort;
  struct {
    Counter bytes_in, bytes_out, physical_bytes_in, physical_bytes_out, requests, slow_dns;
    Compression snappy, zlib, zstd;
  } network;
  /// By the compressor's id in OP_COMPRESSED. REQUIRES: 1 snappy, 2 zlib or 3 zstd.
  Compression& compression(int id) {
    return id == 1 ? network.snappy : id == 2 ? network.zlib : network.zstd;
  }
  struct {
    Counter total_created, rejected, current, active, exhaust_is_master, exhaust_hello,
        awaiting_topology;
  } connections;
  struct {
    Counter regular, warning, message, user, rollovers;
  } asserts;
  struct {
    Counter write_conflicts, scan_and_order, killed_ops, timed_out, disconnected;
  } operation;
  /// Waits for more members than the majority that each write waits for; `default_`: of a write
  /// concern that the client did not send.
  struct {
    Counter waits, wait_micros, wait_timeouts, default_unsatisfiable, default_timeouts;
  } write_concern;
  Counter retried_commands, retried_statements;  ///< of retryable writes
  BatchedDeleteMetrics batched_deletes;
  TtlMetrics ttl;
  LatencyHistogram reads, writes, commands, transactions;
};

}  // namespace mayfly
