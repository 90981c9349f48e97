#include "simulation.h"

#include <catch2/catch.hpp>
#include <cstdlib>

namespace mayfly {
using testing::SimOptions;
using testing::SimResult;
using testing::Simulate;

namespace {

/// MAYFLY_SIM_SEED runs one history again, MAYFLY_SIM_RUNS more of them.
uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* v = std::getenv(name);
  return v ? std::strtoull(v, nullptr, 10) : otherwise;
}

void RunSeeds(SimOptions options, uint64_t runs) {
  const uint64_t one = FromEnvironment("MAYFLY_SIM_SEED", 0);
  const uint64_t first = one ? one : 1;
  const uint64_t last = one ? one : FromEnvironment("MAYFLY_SIM_RUNS", runs);
  int acknowledged = 0, elections = 0, crashes = 0, partitions = 0, copies = 0, sleeps = 0,
      changes = 0, emptied = 0, begun = 0, committed = 0, given_up = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    options.seed = seed;
    const SimResult r = Simulate(options);
    INFO("replay with MAYFLY_SIM_SEED=" << seed << " MAYFLY_SIM nodes=" << options.nodes
                                        << " steps=" << options.steps);
    REQUIRE(r.failure == "");
    acknowledged += r.acknowledged;
    elections += r.elections;
    crashes += r.crashes;
    partitions += r.partitions;
    copies += r.copies;
    sleeps += r.sleeps;
    changes += r.changes;
    emptied += r.emptied;
    begun += r.begun;
    committed += r.committed;
    given_up += r.given_up;
  }
  std::printf(
      "simulated %llu histories of %d members: %d acknowledged, %d elections, %d crashes, %d "
      "partitions, %d copies, %d sleeps, %d changes of members, %d emptied, %d of %d transactions "
      "committed, %d given up\n",
      static_cast<unsigned long long>(last - first + 1), options.nodes, acknowledged, elections,
      crashes, partitions, copies, sleeps, changes, emptied, committed, begun, given_up);
  if (one == 0 && options.faults) {
    // A simulation in which nothing happens proves nothing.
    CHECK(crashes > 0);
    CHECK(partitions > 0);
    CHECK(elections > static_cast<int>(last));
    CHECK(sleeps > 0);
    CHECK((changes > 0) == options.changes);
    CHECK((emptied > 0) == options.changes);
    CHECK((committed > 0) == options.transactions);
    CHECK((given_up > 0) == options.transactions);
    CHECK((begun > committed + given_up) == options.transactions);
  }
}

}  // namespace

TEST_CASE("A set without faults acknowledges everything it is told", "[simulation]") {
  SimOptions o;
  o.faults = false;
  o.trimming = false;
  o.steps = 1000;
  SimResult r = Simulate(o);
  REQUIRE(r.failure == "");
  CHECK(r.acknowledged > 500);
  CHECK(r.copies == 0);
}

TEST_CASE("Equal seeds give equal histories", "[simulation]") {
  SimOptions o;
  o.seed = 42;
  o.steps = 1500;
  SimResult a = Simulate(o), b = Simulate(o);
  CHECK(a.digest == b.digest);
  CHECK(a.acknowledged == b.acknowledged);
  o.seed = 43;
  CHECK(Simulate(o).digest != a.digest);
}

TEST_CASE("The simulation finds out a disk that lies about its syncs", "[simulation]") {
  SimOptions o;
  o.lying_disk = true;
  bool found = false;
  for (o.seed = 1; o.seed <= 20 && !found; ++o.seed) found = !Simulate(o).failure.empty();
  CHECK(found);
}

TEST_CASE("Three members, faults, short logs", "[simulation]") { RunSeeds({}, 12); }

TEST_CASE("Five members, faults, short logs, data from before the set", "[simulation]") {
  SimOptions o;
  o.nodes = 5;
  o.data_is_empty = false;
  RunSeeds(o, 6);
}

TEST_CASE("Three members that leave, come back, lose their votes and are emptied", "[simulation]") {
  SimOptions o;
  o.changes = true;
  RunSeeds(o, 8);
}

TEST_CASE("Three members with transactions open at every fault", "[simulation]") {
  SimOptions o;
  o.transactions = true;
  RunSeeds(o, 12);
}

TEST_CASE("Five members that change, with transactions open at every fault", "[simulation]") {
  SimOptions o;
  o.nodes = 5;
  o.changes = true;
  o.transactions = true;
  RunSeeds(o, 4);
}

TEST_CASE("The simulation finds out a log that is cut through an open transaction",
          "[simulation]") {
  SimOptions o;
  o.transactions = o.forgets_open = true;
  bool found = false;
  for (o.seed = 1; o.seed <= 20 && !found; ++o.seed) found = !Simulate(o).failure.empty();
  CHECK(found);
}

TEST_CASE("Five members that leave, come back, lose their votes and are emptied", "[simulation]") {
  SimOptions o;
  o.nodes = 5;
  o.changes = true;
  o.data_is_empty = false;
  RunSeeds(o, 4);
}

}  // namespace mayfly
