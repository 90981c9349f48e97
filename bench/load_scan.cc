// A collection larger than the memory the server may use: scans and sorts of all of it, with the
// server's peak memory during each.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "bench/load_client.h"

namespace mayfly::bench {
namespace {

/// Peak of resident memory since the last ResetPeak, in bytes.
int64_t PeakBytes(int pid) {
  std::ifstream f("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(f, line);)
    if (line.starts_with("VmHWM:")) return std::strtoll(line.c_str() + 6, nullptr, 10) * 1024;
  return 0;
}
void ResetPeak(int pid) { std::ofstream("/proc/" + std::to_string(pid) + "/clear_refs") << "5"; }

}  // namespace

void RunScan(const LoadOptions& o, int64_t documents) {
  SyncClient client(o.host, o.port);
  client.Call(Command(kDb, [&](BsonBuilder& b) { b.Append("drop", "large"); }), false);
  std::printf(
      "| %ld documents, 230 bytes each | seconds | documents/s | server CPU s | peak RSS MiB |\n| "
      "--- | ---: | ---: | ---: | ---: |\n",
      documents);
  auto row = [&](const char* name, auto&& work) {
    ResetPeak(o.pid);
    const double cpu = CpuSeconds(o.pid);
    const int64_t begin = NowMicros();
    work();
    const double seconds = static_cast<double>(NowMicros() - begin) / 1e6;
    std::printf("| %s | %.1f | %.0f | %.1f | %.0f |\n", name, seconds,
                static_cast<double>(documents) / seconds, CpuSeconds(o.pid) - cpu,
                static_cast<double>(PeakBytes(o.pid)) / 1048576);
    std::fflush(stdout);
  };
  auto expect = [&](const BsonDocument& reply, std::string_view path, int64_t want) {
    const int64_t got = reply.view().FindPath(path).NumberAsInt64();
    if (got == want) return;
    std::fprintf(stderr, "wrong answer: %.*s is %ld, not %ld\n", static_cast<int>(path.size()),
                 path.data(), got, want);
    std::exit(1);
  };
  row("insertMany(1000)", [&] {
    uint64_t random = 1;
    for (int64_t first = 0; first < documents; first += 1000)
      client.Call(Command(kDb, [&](BsonBuilder& b) {
        b.Append("insert", "large");
        auto docs = b.OpenArray("documents");
        for (int64_t i = first; i < std::min(first + 1000, documents); ++i) {
          random = random * 6364136223846793005u + 1442695040888963407u;
          auto d = docs.OpenDocument();
          d.Append("_id", i)
              .Append("r", static_cast<int64_t>(random >> 16))
              .Append("g", static_cast<int32_t>(i % 1000));
          d.Append("text", std::string_view("The quick brown mayfly dances over the quiet stream "
                                            "for the one evening that it has, and then is gone "
                                            "without leaving any trace behind it, but for the eggs "
                                            "that lie on the bed of the stream."));
        }
      }));
  });
  auto aggregate = [&](auto&& stages) {
    return client.Call(Command(kDb, [&](BsonBuilder& b) {
      b.Append("aggregate", "large");
      {
        auto p = b.OpenArray("pipeline");
        stages(p);
      }
      b.OpenDocument("cursor");
    }));
  };
  row("count of a filter without an index", [&] {
    expect(client.Call(Command(kDb,
                               [&](BsonBuilder& b) {
                                 b.Append("count", "large");
                                 auto q = b.OpenDocument("query");
                                 q.Append("g", 7);
                               })),
           "n", documents / 1000);
  });
  row("group by 1000 values", [&] {
    BsonDocument reply = aggregate([](BsonArrayBuilder& p) {
      {
        auto s = p.OpenDocument();
        auto g = s.OpenDocument("$group");
        g.Append("_id", "$g");
        auto n = g.OpenDocument("n");
        n.Append("$sum", 1);
      }
      {
        auto s = p.OpenDocument();
        s.Append("$count", "groups");
      }
    });
    expect(reply, "cursor.firstBatch.0.groups", std::min<int64_t>(documents, 1000));
  });
  auto sorted = [&](const char* name, int64_t limit) {
    row(name, [&] {
      client.Call(Command(kDb, [&](BsonBuilder& b) {
        b.Append("find", "large");
        {
          auto s = b.OpenDocument("sort");
          s.Append("r", 1);
        }
        if (limit > 0)
          b.Append("limit", limit);
        else
          b.Append("skip", documents - 100);
        b.Append("singleBatch", true);
      }));
    });
  };
  sorted("sort by a random field, the first 100", 100);
  sorted("sort by a random field, all, the last 100 shown", 0);
}

}  // namespace mayfly::bench
