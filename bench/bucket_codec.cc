// mayfly_buckets: what the codec of time series makes of metrics like those of a machine's CPU:
// bytes a point and points a second, beside plain BSON and BSON through zstd, on one thread.
// `--hosts` series of ten fields each, every 10 seconds, in buckets of `--points`.
#include <snappy.h>
#include <zstd.h>

#include <time.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <random>

#include "protocol/bson_builder.h"
#include "timeseries/bucket_codec.h"

namespace {

using namespace mayfly;

/// The time of the processor that this thread took: what else the machine does is not counted.
struct Clock {
  static double now() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
  }
};

const char* const kMeasures[] = {"usage_user",   "usage_system",    "usage_idle",    "usage_nice",
                                 "usage_iowait", "usage_irq",       "usage_softirq", "usage_steal",
                                 "usage_guest",  "usage_guest_nice"};
/// What a measurement is: a percentage that walks at random, in steps of a normal distribution of
/// deviation 1, within 0 to 100.
enum class Kind { kInteger, kHundredths, kFull };

struct Host {
  double at[10];
};

double Seconds(double since) { return Clock::now() - since; }

/// All points of all hosts, host by host, as one buffer for each; `arrival`: in order of time.
std::vector<std::string> MakePoints(int hosts, int points, Kind kind, std::string* arrival) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> step(0, 1);
  std::uniform_real_distribution<double> start(0, 100);
  std::vector<Host> state(static_cast<size_t>(hosts));
  for (Host& h : state)
    for (double& v : h.at) v = start(random);
  std::vector<std::string> out(static_cast<size_t>(hosts));
  uint32_t counter = 0x00A0B0;
  for (int i = 0; i < points; ++i) {
    const int64_t seconds = 1'700'000'000 + i * 10;
    for (int h = 0; h < hosts; ++h) {
      std::string& series = out[static_cast<size_t>(h)];
      const size_t begin = series.size();
      BsonBuilder b(series);
      // An ObjectId as drivers make them: the second, a random number of the process, a counter.
      char id[12];
      for (int k = 0; k < 4; ++k) id[k] = static_cast<char>(seconds >> (24 - 8 * k));
      std::memcpy(id + 4, "\x5e\x12\x99\x07\xc4", 5);
      for (int k = 0; k < 3; ++k) id[9 + k] = static_cast<char>(counter >> (16 - 8 * k));
      ++counter;
      b.AppendObjectId("_id", {id, 12});
      b.Append("timestamp", Instant{seconds * 1000});
      {
        BsonBuilder tags = b.OpenDocument("tags");
        tags.Append("hostname", "host_" + std::to_string(h));
        tags.Append("region", "eu-west-1").Append("datacenter", "eu-west-1b");
        tags.Append("rack", std::to_string(h % 97)).Append("os", "Ubuntu16.04LTS");
        tags.Append("arch", "x64").Append("team", "NYC").Append("service", "6");
        tags.Append("service_version", "0").Append("service_environment", "production");
      }
      for (int m = 0; m < 10; ++m) {
        double& v = state[static_cast<size_t>(h)].at[m];
        v = std::min(100.0, std::max(0.0, v + step(random)));
        if (kind == Kind::kInteger)
          b.Append(kMeasures[m], static_cast<int32_t>(v));
        else
          b.Append(kMeasures[m], kind == Kind::kFull ? v : std::round(v * 100) / 100);
      }
      b.Done();
      arrival->append(series, begin);
    }
  }
  return out;
}

void Run(const char* name, Kind kind, int hosts, int points, int in_bucket) {
  std::string arrival;
  const auto series = MakePoints(hosts, points, kind, &arrival);
  const SeriesFields fields{"timestamp", "tags"};
  const double total = static_cast<double>(hosts) * points;
  size_t bson = 0, stored = 0, zstd = 0, columns = 0;
  std::vector<std::vector<BsonView>> views(series.size());
  for (size_t h = 0; h < series.size(); ++h)
    for (size_t at = 0; at < series[h].size(); at += views[h].back().size())
      views[h].emplace_back(series[h].data() + at);
  struct Sealed {
    std::string points;
    BsonValue meta;
  };
  std::vector<Sealed> buckets;
  const auto sealing = Clock::now();
  for (const auto& v : views) {
    for (size_t at = 0; at < v.size(); at += static_cast<size_t>(in_bucket)) {
      const size_t n = std::min(v.size() - at, static_cast<size_t>(in_bucket));
      const BsonValue meta = v[at]["tags"];
      auto b = SealPoints(std::span(v).subspan(at, n), fields, meta);
      buckets.push_back({std::move(b).value(), meta});
    }
  }
  const double seal = Seconds(sealing);
  for (const auto& b : buckets) columns += b.points.size();
  std::string packed(ZSTD_compressBound(16 << 10), '\0');
  // What a collection of documents is on disk, about: blocks of 8 KiB in the order of `_id`, by a
  // compressor like the store's LZ4. Keys and indexes are not counted, on either side.
  for (size_t at = 0; at < arrival.size(); at += 8 << 10) {
    std::string block;
    stored += snappy::Compress(arrival.data() + at, std::min<size_t>(8 << 10, arrival.size() - at),
                               &block);
  }
  for (const std::string& s : series) {
    bson += s.size();
    // The best for zstd: only one host's points in a block.
    for (size_t at = 0; at < s.size(); at += 16 << 10)
      zstd += ZSTD_compress(packed.data(), packed.size(), s.data() + at,
                            std::min<size_t>(16 << 10, s.size() - at), 3);
  }
  std::string out;
  std::vector<size_t> ends;
  const auto reading = Clock::now();
  for (const auto& b : buckets) {
    auto r = BucketReader::Open(b.points, b.meta);
    out.clear();
    ends.clear();
    if (!r.value().Append(0, r.value().count(), nullptr, out, ends).has_value()) std::abort();
  }
  const double read = Seconds(reading);
  double sum = 0;
  const auto one = Clock::now();
  for (const auto& b : buckets) {
    auto r = BucketReader::Open(b.points, {});
    const auto values = r.value().Field("usage_user");
    for (const BsonValue v : *values.value()) sum += v.NumberAsDouble();
  }
  const double field = Seconds(one);
  const double sealed = static_cast<double>(columns) / total;
  std::printf(
      "%-12s bytes a point: BSON %.0f, documents %.1f, zstd host by host %.1f, sealed %.2f: 1/%.1f "
      "of documents, 1/%.1f of zstd\n",
      name, static_cast<double>(bson) / total, static_cast<double>(stored) / total,
      static_cast<double>(zstd) / total, sealed, static_cast<double>(stored) / total / sealed,
      static_cast<double>(zstd) / total / sealed);
  std::printf(
      "%-12s seal %.2f M points/s; unpack %.2f M points/s (%.1f M values/s); one field %.1f M "
      "values/s (%.0f)\n",
      "", total / seal / 1e6, total / read / 1e6, total * 13 / read / 1e6, total / field / 1e6,
      sum);
}

}  // namespace

int main(int argc, char** argv) {
  int hosts = 100, points = 3600, in_bucket = 360;
  CLI::App app("The codec of time series: size and speed");
  app.add_option("--hosts", hosts, "series");
  app.add_option("--samples", points, "points of each");
  app.add_option("--points", in_bucket, "points in a bucket");
  CLI11_PARSE(app, argc, argv);
  Run("integers", Kind::kInteger, hosts, points, in_bucket);
  Run("hundredths", Kind::kHundredths, hosts, points, in_bucket);
  Run("full doubles", Kind::kFull, hosts, points, in_bucket);
}
