#include "storage/catalog/namespace.h"

#include <catch2/catch.hpp>

using namespace mayfly;

TEST_CASE("Names that MongoDB refuses are refused with InvalidNamespace", "[namespace]") {
  struct Case {
    std::string db, collection;
    bool read, create;
  };
  const Case cases[] = {
      {"db", "c", true, true},
      {"db", "a.b.c", true, true},
      {"db", "système", true, true},
      {"", "c", false, false},
      {"a.b", "c", false, false},
      {"a b", "c", false, false},
      {"a$b", "c", false, false},
      {"a/b", "c", false, false},
      {"a\\b", "c", false, false},
      {"a\"b", "c", false, false},
      {"a*<>:|?b", "c", true, true},
      {std::string("a\0b", 3), "c", false, false},
      {std::string(63, 'd'), "c", true, true},
      {std::string(64, 'd'), "c", false, false},
      {"db", "", false, false},
      {"db", ".c", false, false},
      {"db", "c.", false, false},
      {"db", "a$b", false, false},
      {"db", std::string("a\0b", 3), false, false},
      {"db", std::string(252, 'c'), true, true},
      {"db", std::string(253, 'c'), false, false},
      {"db", "system.profile", true, true},
      {"db", "system.other", true, false},
      {"db", "system.views", true, false},
      {"db", "system.users", true, true},
      {"admin", "system.users", true, true},
      {"db", "systemx", true, true},
      {"db", "system.buckets.w", true, false},
      {"db", "system.buckets", true, false},
  };
  for (const Case& c : cases) {
    CAPTURE(c.db, c.collection);
    auto read = ValidateNamespace(c.db, c.collection);
    auto create = ValidateNewNamespace(c.db, c.collection);
    CHECK(read.has_value() == c.read);
    CHECK(create.has_value() == c.create);
    if (!read) CHECK(read.error().code == ErrorCode::kInvalidNamespace);
    if (!create) CHECK(create.error().code == ErrorCode::kInvalidNamespace);
  }
}
