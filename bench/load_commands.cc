#include "bench/load_commands.h"

#include "bench/load_client.h"

namespace mayfly::bench {

std::string InsertDocuments(std::string_view collection, int64_t first, int64_t count,
                            const InsertOptions& options) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("insert", collection);
    auto docs = b.OpenArray("documents");
    for (int64_t id = first; id < first + count; ++id) {
      auto d = docs.OpenDocument();
      d.Append("_id", id).Append("a", static_cast<int32_t>(id % 1000));
      d.Append("b", options.b_of ? options.b_of(id) : id);
      d.Append("text",
               std::string_view("The quick brown mayfly dances over the quiet stream for the one "
                                "evening that it has, and then is gone without leaving any trace "
                                "behind it."));
      d.Append("n", int32_t{0});
    }
    docs.Done();
    b.Append("ordered", options.ordered);
    if (!options.journal) return;
    auto wc = b.OpenDocument("writeConcern");
    wc.Append("w", 1).Append("j", true);
  });
}

std::string CreateIndexes(std::string_view collection) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("createIndexes", collection);
    auto indexes = b.OpenArray("indexes");
    for (const char* f : {"a", "b"}) {
      auto i = indexes.OpenDocument();
      {
        auto k = i.OpenDocument("key");
        k.Append(f, 1);
      }
      i.Append("name", std::string(f) + "_1");
    }
  });
}

std::string CreateSessionIndexes() {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("createIndexes", "sessions");
    auto indexes = b.OpenArray("indexes");
    {
      auto i = indexes.OpenDocument();
      {
        auto k = i.OpenDocument("key");
        k.Append("at", 1);
      }
      i.Append("name", "at_1").Append("expireAfterSeconds", 0);
    }
    {
      auto i = indexes.OpenDocument();
      {
        auto k = i.OpenDocument("key");
        k.Append("user", 1);
      }
      i.Append("name", "user_1");
    }
  });
}

std::string Drop(std::string_view collection) {
  return Command(kDb, [&](BsonBuilder& b) { b.Append("drop", collection); });
}

std::string FindEqual(std::string_view collection, std::string_view field, int64_t value,
                      int limit) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("find", collection);
    {
      auto f = b.OpenDocument("filter");
      f.Append(field, value);
    }
    if (limit > 0) b.Append("limit", limit).Append("singleBatch", true);
  });
}

std::string FindRange(std::string_view collection, std::string_view field, int64_t from) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("find", collection);
    {
      auto f = b.OpenDocument("filter");
      auto r = f.OpenDocument(field);
      r.Append("$gte", from).Append("$lt", from + 100);
    }
    b.Append("batchSize", 101).Append("singleBatch", true);
  });
}

std::string Increment(std::string_view collection, int64_t id) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("update", collection);
    auto updates = b.OpenArray("updates");
    auto u = updates.OpenDocument();
    {
      auto q = u.OpenDocument("q");
      q.Append("_id", id);
    }
    {
      auto c = u.OpenDocument("u");
      auto inc = c.OpenDocument("$inc");
      inc.Append("n", 1);
    }
  });
}

std::string Ping() {
  return Command("admin", [](BsonBuilder& b) { b.Append("ping", 1); });
}

}  // namespace mayfly::bench
