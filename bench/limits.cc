// The floor: what a bare Asio echo and a bare RocksDB do on this machine. Prints rows for
// RESULTS.md.
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/perf_level.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/resource.h>

#include <array>
#include <boost/asio.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

namespace {
namespace asio = boost::asio;
using asio::ip::tcp;

double Seconds() {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                 std::chrono::steady_clock::now().time_since_epoch())
                                 .count()) /
         1e9;
}
double ThreadCpu() {
  rusage u;
  getrusage(RUSAGE_THREAD, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

asio::awaitable<void> Echo(tcp::socket s) {
  std::array<char, 4096> data;
  try {
    for (;;) {
      size_t n = co_await s.async_read_some(asio::buffer(data), asio::use_awaitable);
      co_await asio::async_write(s, asio::buffer(data, n), asio::use_awaitable);
    }
  } catch (const boost::system::system_error&) {
  }
}
asio::awaitable<void> Listen(tcp::acceptor& a) {
  for (;;) {
    tcp::socket s = co_await a.async_accept(asio::use_awaitable);
    s.set_option(tcp::no_delay(true));
    asio::co_spawn(a.get_executor(), Echo(std::move(s)), asio::detached);
  }
}
asio::awaitable<void> Ask(tcp::endpoint to, double until, long& done) {
  tcp::socket s(co_await asio::this_coro::executor);
  co_await s.async_connect(to, asio::use_awaitable);
  s.set_option(tcp::no_delay(true));
  std::array<char, 100> data{};
  while (Seconds() < until) {
    co_await asio::async_write(s, asio::buffer(data), asio::use_awaitable);
    co_await asio::async_read(s, asio::buffer(data), asio::use_awaitable);
    ++done;
  }
}

void EchoLimit(int connections, double seconds) {
  asio::io_context server(1), client(1);
  tcp::acceptor acceptor(server, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  asio::co_spawn(server, Listen(acceptor), asio::detached);
  double cpu = 0;
  std::thread t([&] {
    server.run();
    cpu = ThreadCpu();
  });
  long done = 0;
  const double begin = Seconds();
  for (int i = 0; i < connections; ++i)
    asio::co_spawn(client, Ask(acceptor.local_endpoint(), begin + seconds, done), asio::detached);
  client.run();
  const double took = Seconds() - begin;
  server.stop();
  t.join();
  std::printf("| Asio coroutine echo of 100 bytes, %d connections | %.0f | %.2f |\n", connections,
              static_cast<double>(done) / took, cpu * 1e6 / static_cast<double>(done));
}

/// Prints one row: `count` times `work`, which runs `each` operations.
template <class F>
void Measure(const char* name, int count, int each, F&& work) {
  const double cpu = ThreadCpu(), begin = Seconds();
  for (int i = 0; i < count; ++i) work(i);
  const double n = static_cast<double>(count) * each;
  std::printf("| %s | %.0f | %.2f |\n", name, n / (Seconds() - begin),
              (ThreadCpu() - cpu) * 1e6 / n);
  std::fflush(stdout);
}

void RocksLimits(const std::string& path, bool brief) {
  std::filesystem::remove_all(path);
  // Perf counters cost as much as what they count; the server has them off too.
  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable);
  rocksdb::Options o;
  o.create_if_missing = o.create_missing_column_families = true;
  rocksdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.block_cache = rocksdb::NewLRUCache(1 << 30);
  o.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const char* name : {"default", "records", "indexes"}) families.emplace_back(name, o);
  std::vector<rocksdb::ColumnFamilyHandle*> cf;
  rocksdb::DB* db = nullptr;
  if (!rocksdb::DB::Open(o, path, families, &cf, &db).ok()) return;
  const int documents = brief ? 300000 : 1000000, few = brief ? 100000 : 300000;
  const std::string value(200, 'v');
  auto key = [](int i) {
    char k[17];
    std::snprintf(k, sizeof k, "%016d", i);
    return std::string(k, 16);
  };
  rocksdb::ColumnFamilyHandle* records = cf[1];
  Measure("RocksDB batch of 1000 puts, 200 bytes, per document", documents / 1000, 1000,
          [&](int n) {
            rocksdb::WriteBatch b;
            for (int j = n * 1000; j < n * 1000 + 1000; ++j) b.Put(records, key(j), value);
            db->Write({}, &b);
          });
  std::mt19937 random(1);
  auto any = [&] { return static_cast<int>(random() % static_cast<unsigned>(documents)); };
  rocksdb::PinnableSlice out;
  auto get = [&](int) {
    out.Reset();
    db->Get({}, records, key(any()), &out);
  };
  for (int i = 0; i < few; ++i) get(i);
  Measure("RocksDB get, warm", few, 1, get);
  Measure("RocksDB iterator, seek and one entry, warm", few / 2, 1, [&](int) {
    const std::string upper = key(documents);
    const rocksdb::Slice bound = upper;
    rocksdb::ReadOptions ro;
    ro.iterate_upper_bound = &bound;
    std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(ro, records));
    it->Seek(key(any()));
  });
  {
    std::unique_ptr<rocksdb::Iterator> it(db->NewIterator({}, records));
    it->SeekToFirst();
    Measure("RocksDB iterator, next", few, 1, [&](int) { it->Next(); });
  }
  Measure("RocksDB get of 100 neighbours, each", few / 100, 100, [&](int) {
    const int first = any();
    for (int j = 0; j < 100; ++j) {
      out.Reset();
      db->Get({}, records, key(first + j), &out);
    }
  });
  Measure("RocksDB put, 200 bytes, log written", few, 1,
          [&](int) { db->Put({}, records, key(any()), value); });
  Measure("RocksDB one document and two index entries in one batch, log written", few, 1,
          [&](int n) {
            rocksdb::WriteBatch b;
            b.Put(records, key(documents + n), value);
            b.Put(cf[2], "a" + key(n % 1000) + key(n), "");
            b.Put(cf[2], "b" + key(n) + key(n), "");
            db->Write({}, &b);
          });
  rocksdb::WriteOptions sync;
  sync.sync = true;
  Measure("RocksDB put, 200 bytes, synced, one writer", brief ? 1000 : 3000, 1,
          [&](int n) { db->Put(sync, records, key(n), value); });
  for (auto* h : cf) db->DestroyColumnFamilyHandle(h);
  delete db;
  std::filesystem::remove_all(path);
}
}  // namespace

int main(int argc, char** argv) {
  const bool brief = argc > 2 && std::string_view(argv[2]) == "--short";
  std::printf("| limit | per second | CPU us each |\n| --- | ---: | ---: |\n");
  for (int n : {1, 8, 64}) EchoLimit(n, brief ? 1 : 2);
  RocksLimits(argc > 1 ? argv[1] : "/tmp/mayfly-limits", brief);
  return 0;
}
