// What transactions cost: beside single writes, beside each other, and those who use none.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <random>
#include <thread>

#include "bench/load_client.h"

namespace mayfly::bench {
namespace {

constexpr int64_t kAccounts = 100, kPlain = 20'000;
constexpr std::string_view kBank = "a bank", kLarge = "a large transaction";

/// One connection's session, and where it is in what it says.
struct Client {
  std::string lsid;
  int64_t number = 0;  ///< txnNumber
  size_t step = 0;
  int64_t key = 0;     ///< of the operation that runs
  bool again = false;  ///< it has met another one and begins anew
  std::mt19937_64 random;
};

/// Adds one command to a request, without its session and database.
using Statement = std::function<void(Client&, BsonBuilder&)>;

/// Every connection does the same operation again and again: its statements, one after the other,
/// each by itself as a retryable write, or all of them as one transaction. A transaction that meets
/// another one begins anew.
class Script : public Conversation {
 public:
  Script(int connections, std::vector<Statement> statements, bool transaction)
      : statements_(std::move(statements)), transaction_(transaction) {
    static std::mt19937_64 ids(static_cast<uint64_t>(NowMicros()));
    for (int i = 0; i < connections; ++i) {
      Client c;
      for (int k = 0; k < 16; ++k) c.lsid.push_back(static_cast<char>(ids()));
      c.random.seed(static_cast<uint64_t>(i));
      clients_.push_back(std::move(c));
    }
  }
  int64_t operations() const { return operations_; }
  int64_t begun_anew() const { return begun_anew_; }
  int64_t errors() const { return errors_; }
  size_t requests_each() const { return statements_.size() + (transaction_ ? 1 : 0); }

  bool Idle(size_t connection) const override { return clients_[connection].step == 0; }
  void Next(size_t connection, std::string& message) override {
    Client& c = clients_[connection];
    if (c.step == 0 && !c.again) c.key = next_key_++;
    if (c.step == 0 || !transaction_) ++c.number;
    const bool commit = c.step == statements_.size();
    message = Command(commit ? "admin" : kDb, [&](BsonBuilder& b) {
      if (commit)
        b.Append("commitTransaction", 1);
      else
        statements_[c.step](c, b);
      {
        BsonBuilder lsid = b.OpenDocument("lsid");
        lsid.AppendBinary("id", 4, c.lsid);
      }
      b.Append("txnNumber", c.number);
      if (!transaction_) return;
      b.Append("autocommit", false);
      if (c.step == 0) b.Append("startTransaction", true);
    });
  }
  void Reply(size_t connection, BsonView reply) override {
    Client& c = clients_[connection];
    c.again = false;
    if (reply["ok"].NumberAsDouble() != 1 || !reply["writeErrors"].missing()) {
      const bool conflict = reply["code"].NumberAsInt64() == 112;
      ++(conflict ? begun_anew_ : errors_);
      c.again = conflict;
      c.step = 0;
      return;
    }
    if (++c.step < requests_each()) return;
    c.step = 0;
    ++operations_;
  }

 private:
  const std::vector<Statement> statements_;
  const bool transaction_;
  std::vector<Client> clients_;
  int64_t next_key_ = NowMicros();
  int64_t operations_ = 0, begun_anew_ = 0, errors_ = 0;
};

Statement InsertOne(const char* collection) {
  return [collection](Client& c, BsonBuilder& b) {
    b.Append("insert", collection);
    auto docs = b.OpenArray("documents");
    docs.OpenDocument()
        .Append("_id", c.key)
        .Append("n", 0)
        .Append("text",
                std::string_view("The quick brown mayfly dances over the quiet stream for the one "
                                 "evening that it has, and then is gone."));
  };
}

/// Of a document that `id` chooses.
Statement Increment(const char* collection, std::function<int64_t(Client&)> id, int by) {
  return [collection, id = std::move(id), by](Client& c, BsonBuilder& b) {
    b.Append("update", collection);
    auto updates = b.OpenArray("updates");
    auto u = updates.OpenDocument();
    u.OpenDocument("q").Append("_id", id(c));
    auto change = u.OpenDocument("u");
    change.OpenDocument("$inc").Append("n", by);
  };
}

Statement FindOne(const char* collection, std::function<int64_t(Client&)> id) {
  return [collection, id = std::move(id)](Client& c, BsonBuilder& b) {
    b.Append("find", collection);
    b.OpenDocument("filter").Append("_id", id(c));
    b.Append("limit", 1).Append("singleBatch", true);
  };
}

void Fill(SyncClient& client, std::string_view name, int64_t count) {
  client.Call(Command(kDb, [&](BsonBuilder& b) { b.Append("drop", name); }), false);
  for (int64_t first = 0; first < count; first += 1000) {
    client.Call(Command(kDb, [&](BsonBuilder& b) {
      b.Append("insert", name);
      auto docs = b.OpenArray("documents");
      for (int64_t i = first; i < std::min(first + 1000, count); ++i)
        docs.OpenDocument().Append("_id", i).Append("n", 0);
    }));
  }
}

/// Each operation has ten documents of its own: nobody meets another one.
int64_t Own(const Client& c, int i) { return (c.key * 10 + i) % kPlain; }

struct Row {
  std::string name;
  std::vector<Statement> statements;
  bool transaction;
};

std::vector<Statement> TenUpdates() {
  std::vector<Statement> out;
  for (int i = 0; i < 10; ++i)
    out.push_back(Increment(
        "plain", [i](Client& c) { return Own(c, i); }, 1));
  return out;
}

std::vector<Row> Rows() {
  return {
      {"insertOne, retryable", {InsertOne("ins")}, false},
      {"a transaction of one insert", {InsertOne("ins")}, true},
      {"ten updates, retryable", TenUpdates(), false},
      {"ten updates in a transaction", TenUpdates(), true},
      {"a find, an insert and two updates in a transaction",
       {FindOne("plain", [](Client& c) { return Own(c, 0); }), InsertOne("ins"),
        Increment(
            "plain", [](Client& c) { return Own(c, 0); }, 1),
        Increment(
            "plain", [](Client& c) { return Own(c, 1); }, 1)},
       true},
  };
}

/// Rows whose cost is a part of another one's.
struct Share {
  size_t row, of;
  double most;
};
constexpr Share kShares[] = {{1, 0, 1.6}, {3, 2, 0.7}};

void PrintShare(const std::vector<double>& cost, const char* what) {
  const std::vector<Row> rows = Rows();
  for (const Share& s : kShares)
    std::printf("\n%s of \"%s\" are %.2f of those of \"%s\"; at most %.1f are wanted.\n", what,
                rows[s.row].name.c_str(), cost[s.row] / cost[s.of], rows[s.of].name.c_str(),
                s.most);
}

LoadResult RunScript(LoadOptions o, Script& script) {
  o.conversation = &script;
  LoadResult r = RunLoad(o, {});
  if (script.errors() > 0) std::printf("ERRORS: %ld replies were errors\n", script.errors());
  return r;
}

void RunRows(const LoadOptions& base, std::string_view only) {
  std::printf(
      "| workload | connections | operations/s | p50 us a request | p99 us | server CPU us an "
      "operation |\n| --- | ---: | ---: | ---: | ---: | ---: |\n");
  std::vector<double> cost;
  for (const Row& row : Rows()) {
    if (row.name.find(only) == std::string::npos) continue;
    LoadOptions o = base;
    o.connections = 64;
    Script script(o.connections, row.statements, row.transaction);
    const LoadResult r = RunScript(o, script);
    const double n = static_cast<double>(std::max<int64_t>(script.operations(), 1));
    cost.push_back(r.server_cpu_seconds * 1e6 / n);
    std::printf("| %s | %d | %.0f | %ld | %ld | %.2f |\n", row.name.c_str(), o.connections,
                n / r.seconds, r.latency.Percentile(0.5), r.latency.Percentile(0.99), cost.back());
    std::fflush(stdout);
  }
  if (only.empty()) PrintShare(cost, "The CPU microseconds");
}

/// Money goes from account to account: 64 clients, so that they meet.
void RunBank(const LoadOptions& base, SyncClient& client) {
  Fill(client, "accounts", kAccounts);
  LoadOptions o = base;
  o.connections = 64;
  auto any = [](Client& c) { return static_cast<int64_t>(c.random() % kAccounts); };
  Script script(o.connections,
                {Increment("accounts", any, -1), Increment("accounts", any, 1), InsertOne("moves")},
                true);
  const LoadResult r = RunScript(o, script);
  const double n = static_cast<double>(std::max<int64_t>(script.operations(), 1));
  std::printf(
      "\n| a bank: %ld accounts, %d clients | transfers/s | begun anew, a transfer | p99 us a "
      "request | server CPU us a transfer |\n| --- | ---: | ---: | ---: | ---: |\n",
      kAccounts, o.connections);
  std::printf("| two updates and an insert | %.0f | %.2f | %ld | %.2f |\n", n / r.seconds,
              static_cast<double>(script.begun_anew()) / n, r.latency.Percentile(0.99),
              r.server_cpu_seconds * 1e6 / n);
}

constexpr int64_t kMegabytes = 100, kDocument = 20'000, kBatch = 400;
constexpr int64_t kCount = kMegabytes * 1'000'000 / kDocument;  ///< documents of the large one

/// A large transaction commits, beside another client that changes one document again and again.
void RunLarge(const LoadOptions& base, SyncClient& client) {
  Fill(client, "large", 0);
  Fill(client, "beside", 1);
  client.Call(Command(kDb, [](BsonBuilder& b) { b.Append("create", "large"); }));
  std::mt19937_64 random(7);
  std::string text;
  while (text.size() < kDocument) text.push_back(static_cast<char>('a' + random() % 26));
  std::vector<Statement> statements;
  for (int64_t first = 0; first < kCount; first += kBatch)
    statements.push_back([&text, first](Client&, BsonBuilder& b) {
      b.Append("insert", "large");
      auto docs = b.OpenArray("documents");
      for (int64_t i = first; i < std::min(first + kBatch, kCount); ++i)
        docs.OpenDocument().Append("_id", i).Append("text", text);
    });
  const size_t requests = statements.size() + 1;
  Script script(1, std::move(statements), true);
  std::string message;
  for (size_t i = 0; i + 1 < requests; ++i) {
    script.Next(0, message);
    const BsonDocument reply = client.Call(message);
    script.Reply(0, reply.view());
  }
  script.Next(0, message);
  std::atomic<bool> over{false};
  const int64_t began = NowMicros();
  int64_t took = 0;
  std::thread commit([&] {
    const BsonDocument reply = client.Call(message);
    took = NowMicros() - began;
    script.Reply(0, reply.view());
    over = true;
  });
  LoadOptions o = base;
  o.connections = 1;
  double seconds = 0;
  Client none;
  const Statement change = Increment(
      "beside", [](Client&) { return int64_t{0}; }, 1);
  const LoadResult r = RunLoadUntil(
      o,
      [&](int64_t, std::string& m) { m = Command(kDb, [&](BsonBuilder& b) { change(none, b); }); },
      [&] { return over.load(); }, &seconds);
  commit.join();
  if (script.errors() > 0 || r.errors > 0) std::printf("ERRORS\n");
  std::printf(
      "\n| %s of %ld MB | seconds | updates beside it | p50 us | p99 us | slowest us |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: |\n| commit | %.2f | %ld | %ld | %ld | %ld |\n",
      std::string(kLarge).c_str(), kMegabytes, static_cast<double>(took) / 1e6, r.operations,
      r.latency.Percentile(0.5), r.latency.Percentile(0.99), r.latency.max());
  std::fflush(stdout);
}

std::vector<std::pair<std::string, std::function<void(int64_t, std::string&)>>> PlainOperations() {
  auto at = std::make_shared<int64_t>(NowMicros());
  auto random = std::make_shared<std::mt19937_64>(5);
  auto build = [at, random](Statement s) {
    return [at, random, s = std::move(s)](int64_t, std::string& m) {
      Client c;
      c.key = (*at)++;
      c.random.seed((*random)());
      m = Command(kDb, [&](BsonBuilder& b) { s(c, b); });
    };
  };
  // Not those that an open transaction has: they would wait for it.
  auto any = [](Client& c) {
    return 1000 + static_cast<int64_t>(c.random() % static_cast<uint64_t>(kPlain - 1000));
  };
  return {{"find by _id", build(FindOne("plain", any))},
          {"insertOne", build(InsertOne("ins"))},
          {"updateOne $inc", build(Increment("plain", any, 1))}};
}

/// Transactions that have written and wait, for as long as this lives.
class Waiting {
 public:
  Waiting(SyncClient& client, int count) : client_(client) {
    for (int i = 0; i < count; ++i) {
      scripts_.push_back(std::make_unique<Script>(1,
                                                  std::vector<Statement>{Increment(
                                                      "plain", [i](Client&) { return i; }, 1)},
                                                  true));
      std::string m;
      scripts_.back()->Next(0, m);
      const BsonDocument reply = client.Call(m);
      scripts_.back()->Reply(0, reply.view());
    }
  }
  ~Waiting() {
    std::string m;
    for (auto& s : scripts_) {
      s->Next(0, m);
      client_.Call(m);
    }
  }
  Waiting(const Waiting&) = delete;

 private:
  SyncClient& client_;
  std::vector<std::unique_ptr<Script>> scripts_;
};

constexpr int kWaiting = 100;

void PrintBeside(const char* unit, const std::vector<double>& none,
                 const std::vector<double>& some) {
  std::printf(
      "\n| beside open transactions | %s, none | %s, %d | more |\n| --- | ---: | ---: | ---: |\n",
      unit, unit, kWaiting);
  const auto plain = PlainOperations();
  for (size_t i = 0; i < plain.size(); ++i)
    std::printf("| %s | %.2f | %.2f | %+.1f%% |\n", plain[i].first.c_str(), none[i], some[i],
                100 * (some[i] / none[i] - 1));
  std::fflush(stdout);
}

void RunBeside(const LoadOptions& base, SyncClient& client) {
  constexpr int kRounds = 5;
  LoadOptions o = base;
  o.connections = 16;
  o.seconds = base.seconds / 2;
  const auto plain = PlainOperations();
  std::vector<std::vector<double>> of[2];
  of[0].resize(plain.size());
  of[1].resize(plain.size());
  // They take turns: what else the machine does falls on all of them alike.
  for (int round = 0; round < kRounds; ++round)
    for (size_t some = 0; some < 2; ++some) {
      Waiting waiting(client, some != 0 ? kWaiting : 0);
      for (size_t i = 0; i < plain.size(); ++i) {
        const LoadResult r = RunLoad(o, plain[i].second);
        if (r.errors > 0) std::printf("ERRORS: %ld of %ld\n", r.errors, r.operations);
        of[some][i].push_back(r.server_cpu_seconds * 1e6 /
                              static_cast<double>(std::max<int64_t>(r.operations, 1)));
      }
    }
  std::vector<double> median[2];
  for (size_t some = 0; some < 2; ++some)
    for (auto& list : of[some]) {
      std::sort(list.begin(), list.end());
      median[some].push_back(list[list.size() / 2]);
    }
  PrintBeside("server CPU us", median[0], median[1]);
}

void RunInstructions(LoadOptions o, SyncClient& client, const std::string& out_file,
                     std::string_view only) {
  if (o.max_operations == 0) o.max_operations = 2000;
  o.seconds = 60;
  o.connections = 8;
  std::printf("| workload | instructions an operation |\n| --- | ---: |\n");
  std::vector<double> cost;
  for (const Row& row : Rows()) {
    if (row.name.find(only) == std::string::npos) continue;
    Script script(o.connections, row.statements, row.transaction);
    o.conversation = &script;
    const double each = CountInstructions(o, out_file, {});
    cost.push_back(each * static_cast<double>(script.requests_each()));
    if (script.errors() > 0) std::printf("ERRORS: %ld replies were errors\n", script.errors());
    std::printf("| %s | %.0f |\n", row.name.c_str(), cost.back());
    std::fflush(stdout);
  }
  if (!only.empty()) return;
  PrintShare(cost, "The instructions");
  o.conversation = nullptr;
  std::vector<double> of[2];
  for (int some = 0; some < 2; ++some) {
    Waiting waiting(client, some != 0 ? kWaiting : 0);
    for (const auto& [name, next] : PlainOperations())
      of[some].push_back(CountInstructions(o, out_file, next));
  }
  PrintBeside("instructions", of[0], of[1]);
}

}  // namespace

void RunTransactions(const LoadOptions& base, const std::string& out_file, std::string_view only) {
  SyncClient client(base.host, base.port);
  Fill(client, "plain", kPlain);
  Fill(client, "ins", 0);
  Fill(client, "moves", 0);
  for (const char* name : {"ins", "moves"})
    client.Call(Command(kDb, [&](BsonBuilder& b) { b.Append("create", name); }));
  if (!out_file.empty()) return RunInstructions(base, client, out_file, only);
  RunRows(base, only);
  if (only.empty()) RunBeside(base, client);
  if (kBank.find(only) != std::string_view::npos) RunBank(base, client);
  if (kLarge.find(only) != std::string_view::npos) RunLarge(base, client);
}

}  // namespace mayfly::bench
