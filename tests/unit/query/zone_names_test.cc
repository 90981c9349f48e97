#include "query/expression/zone_names.h"

#include <catch2/catch.hpp>
#include <string>

#include "query/expression/date_util.h"

using namespace mayfly;

TEST_CASE("Only names of the zone database are zones", "[expression][zones]") {
  for (const std::string name :
       {"Europe/Berlin", "America/Argentina/Buenos_Aires", "America/New_York", "Etc/GMT+12",
        "Etc/UTC", "America/Port-au-Prince"}) {
    CAPTURE(name);
    CHECK(IsZoneName(name));
    CHECK(ZoneInfo::Find(name));
  }
  // A path to a zone is no name: there are any number of them.
  for (const std::string name : {"",
                                 "Europe",
                                 "Europe/",
                                 "/Europe/Berlin",
                                 "Europe//Berlin",
                                 "Europe/./Berlin",
                                 "Asia/../Europe/Berlin",
                                 "europe/berlin",
                                 "EUROPE/BERLIN",
                                 "Europe/Nowhere",
                                 "/usr/share/zoneinfo/Europe/Berlin",
                                 "posix/Europe/Berlin",
                                 "right/Europe/Berlin",
                                 "posixrules",
                                 "zone.tab",
                                 "tzdata.zi",
                                 "leap-seconds.list",
                                 "Fixed/UTC+01:00:00",
                                 "libc:localtime",
                                 "file:Europe/Berlin",
                                 "Europe/Berlin ",
                                 "Europe\\Berlin"}) {
    CAPTURE(name);
    CHECK_FALSE(IsZoneName(name));
    const auto found = ZoneInfo::Find(name);
    REQUIRE_FALSE(found);
    CHECK(static_cast<int>(found.error().code) == 40485);
  }
  CHECK_FALSE(IsZoneName(std::string("Europe/Berlin\0", 14)));
  CHECK_FALSE(IsZoneName(std::string(10'000'000, 'B')));
}

TEST_CASE("What is no name of the zone database and yet a zone", "[expression][zones]") {
  for (const std::string name : {"UTC", "GMT", "Z", "+02", "-0530", "+05:30"}) {
    CAPTURE(name);
    CHECK(ZoneInfo::Find(name));
  }
  CHECK(ZoneInfo::Find("-05:30").value().OffsetMillis(0) == -330 * 60'000);
  CHECK(ZoneInfo::Find("Etc/GMT+3").value().OffsetMillis(0) == -180 * 60'000);
}
