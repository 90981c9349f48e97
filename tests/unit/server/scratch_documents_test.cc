#include "server/execution/scratch_documents.h"

#include <catch2/catch.hpp>
#include <string_view>
#include <vector>

#include "tests/unit/server/allocations.h"

using namespace mayfly;

TEST_CASE("A write that keeps one document allocates nothing but that", "[writes]") {
  const size_t before = test::Allocations();
  {
    ScratchDocuments none;
    none.Clear();
    // As each document of an insert that needs no change.
    for (int i = 0; i < 1000; ++i) {
      none.Add();
      none.RemoveLast();
    }
    ScratchDocuments one;
    one.Add().assign("short");
  }
  CHECK(test::Allocations() == before);
  ScratchDocuments again;
  again.Add().assign(1000, 'x');
  const size_t filled = test::Allocations();
  CHECK(filled > before);  // they are counted
  for (int i = 0; i < 10; ++i) {
    again.Clear();
    again.Add().assign(1000, 'y');
  }
  CHECK(test::Allocations() == filled);
}

TEST_CASE("Views of kept documents stay good until they go", "[writes]") {
  ScratchDocuments docs;
  std::vector<std::string_view> views;
  std::vector<std::string> wanted;
  for (size_t i = 0; i < 200; ++i) {
    // Short ones are inside of the string, which therefore must not move.
    wanted.push_back(std::string(i % 40, static_cast<char>('a' + i % 26)));
    views.push_back(docs.Add(wanted.back()));
    docs.Add().assign("for nothing");
    docs.RemoveLast();
  }
  for (size_t i = 0; i < views.size(); ++i) CHECK(views[i] == wanted[i]);
  CHECK(docs.size() == 200);
  docs.Clear();
  CHECK(docs.size() == 0);
  CHECK(docs.Add().empty());
  CHECK(docs.Add().empty());
}
