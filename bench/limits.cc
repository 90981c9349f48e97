// The floor: what a bare Asio echo and a bare RocksDB do on this machine. Prints rows for RESULTS.md.
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/resource.h>

#include <array>
#include <boost/asio.hpp>
#include <cstdio>
#include <filesystem>
#include <random>
#include <thread>

namespace {
namespace asio = boost::asio;
using asio::ip::tcp;

double Seconds() {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count()) / 1e9;
}
double ThreadCpu() {
  rusage u;
  getrusage(RUSAGE_THREAD, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
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

void EchoLimit(int connections) {
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
  for (int i = 0; i < connections; ++i) asio::co_spawn(client, Ask(acceptor.local_endpoint(), begin + 2, done), asio::detached);
  client.run();
  const double took = Seconds() - begin;
  server.stop();
  t.join();
  std::printf("| Asio coroutine echo of 100 bytes, %d connections | %.0f | %.2f |\n", connections, static_cast<double>(done) / took, cpu * 1e6 / static_cast<double>(done));
}

void RocksLimits(const std::string& path) {
  std::filesystem::remove_all(path);
  rocksdb::Options o;
  o.create_if_missing = true;
  rocksdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.block_cache = rocksdb::NewLRUCache(1 << 30);
  o.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  rocksdb::DB* db = nullptr;
  if (!rocksdb::DB::Open(o, path, &db).ok()) return;
  constexpr int kCount = 1000000;
  const std::string value(200, 'v');
  auto key = [](int i) {
    char k[17];
    std::snprintf(k, sizeof k, "%016d", i);
    return std::string(k, 16);
  };
  double cpu = ThreadCpu();
  double begin = Seconds();
  for (int i = 0; i < kCount; i += 1000) {
    rocksdb::WriteBatch b;
    for (int j = i; j < i + 1000; ++j) b.Put(key(j), value);
    db->Write({}, &b);
  }
  std::printf("| RocksDB batch of 1000 puts, 200 bytes, per document | %.0f | %.2f |\n", kCount / (Seconds() - begin), (ThreadCpu() - cpu) * 1e6 / kCount);
  std::mt19937 random(1);
  std::string out;
  for (int i = 0; i < 200000; ++i) db->Get({}, key(static_cast<int>(random() % kCount)), &out);
  cpu = ThreadCpu();
  begin = Seconds();
  for (int i = 0; i < 300000; ++i) db->Get({}, key(static_cast<int>(random() % kCount)), &out);
  std::printf("| RocksDB get, warm, 1M documents | %.0f | %.2f |\n", 300000 / (Seconds() - begin), (ThreadCpu() - cpu) * 1e6 / 300000);
  cpu = ThreadCpu();
  begin = Seconds();
  for (int i = 0; i < 300000; ++i) db->Put({}, key(static_cast<int>(random() % kCount)), value);
  std::printf("| RocksDB put, 200 bytes, log written | %.0f | %.2f |\n", 300000 / (Seconds() - begin), (ThreadCpu() - cpu) * 1e6 / 300000);
  rocksdb::WriteOptions sync;
  sync.sync = true;
  cpu = ThreadCpu();
  begin = Seconds();
  for (int i = 0; i < 3000; ++i) db->Put(sync, key(i), value);
  std::printf("| RocksDB put, 200 bytes, synced, one writer | %.0f | %.2f |\n", 3000 / (Seconds() - begin), (ThreadCpu() - cpu) * 1e6 / 3000);
  delete db;
  std::filesystem::remove_all(path);
}
}  // namespace

int main(int argc, char** argv) {
  std::printf("| limit | per second | CPU us each |\n| --- | ---: | ---: |\n");
  for (int n : {1, 8, 64}) EchoLimit(n);
  RocksLimits(argc > 1 ? argv[1] : "/tmp/mayfly-limits");
  return 0;
}
