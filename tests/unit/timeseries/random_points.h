#pragma once
#include <bit>
#include <random>
#include <string>
#include <vector>

#include "protocol/bson_builder.h"

/// Random documents of all BSON types, for the tests of buckets. What comes out depends on the seed
/// alone.
class RandomPoints {
 public:
  explicit RandomPoints(uint64_t seed) : random_(seed) {}

  uint64_t Below(uint64_t n) { return random_() % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

  /// A point: a date `t` (mostly), meta `m`, and fields a to e that are like those of other points.
  mayfly::BsonDocument Point(int64_t millis) {
    return mayfly::BuildBson([&](mayfly::BsonBuilder& b) {
      if (OneIn(2)) b.AppendObjectId("_id", Id());
      b.Append("t", mayfly::Instant{millis});
      if (!OneIn(8)) b.Append("m", "host");
      const bool same_order = !OneIn(5);
      for (int i = 0; i < 5; ++i) {
        const int f = same_order ? i : static_cast<int>(Below(5));
        const char name[2] = {static_cast<char>('a' + f), 0};
        if (!OneIn(6)) Value(b, name, f, 3);
      }
    });
  }

  /// One value of a field; field 0 has whole numbers only, 1 doubles, 2 texts and documents, others
  /// anything.
  void Value(mayfly::BsonBuilder& b, std::string_view name, int field, int depth) {
    if (field == 0) return Number(b, name, Below(2));
    if (field == 1) return Number(b, name, OneIn(9) ? Below(5) : 2);
    if (field == 2 && !OneIn(3)) return Any(b, name, 8 + Below(3), depth);
    Any(b, name, Below(21), depth);
  }

  /// `kind` 0 … 20: one for each type that BSON has.
  void Any(mayfly::BsonBuilder& b, std::string_view name, uint64_t kind, int depth) {
    using mayfly::BsonType;
    if (kind < 5) return Number(b, name, kind);
    if (depth == 0 && (kind == 9 || kind == 10)) kind = 8;
    switch (kind) {
      case 5:
        b.Append(name, OneIn(2));
        return;
      case 6:
        b.AppendNull(name);
        return;
      case 7:
        b.Append(name, mayfly::Instant{static_cast<int64_t>(Integer())});
        return;
      case 8:
        b.Append(name, Text());
        return;
      case 9: {
        mayfly::BsonBuilder d = b.OpenDocument(name);
        for (const char* f : {"x", "y", "x"})
          if (OneIn(2)) Any(d, f, Below(21), depth - 1);
        return;
      }
      case 10: {
        auto a = b.OpenArray(name);
        for (uint64_t n = Below(4); n > 0; --n) Any(a.raw(), a.NextName(), Below(21), depth - 1);
        return;
      }
      case 11:
        b.AppendTimestamp(name, Integer());
        return;
      case 12:
        b.AppendObjectId(name, Id());
        return;
      case 13:
        b.AppendBinary(name, static_cast<uint8_t>(Below(2)), Text());
        return;
      case 14:
        b.AppendRegex(name, OneIn(2) ? "^a" : "b.", OneIn(2) ? "" : "im");
        return;
      case 15:
        b.AppendStringLike(OneIn(2) ? BsonType::kCode : BsonType::kSymbol, name, Text());
        return;
      case 16:
        b.Append(name, mayfly::BsonValue(BsonType::kMinKey, "", 0));
        return;
      case 17:
        b.Append(name, mayfly::BsonValue(BsonType::kMaxKey, "", 0));
        return;
      case 18:
        b.Append(name, mayfly::BsonValue(BsonType::kUndefined, "", 0));
        return;
      case 19: {
        const std::string bytes = std::string("\x04\0\0\0a.b\0", 8) + Id();
        b.Append(name, mayfly::BsonValue(BsonType::kDbPointer, bytes.data(),
                                         static_cast<uint32_t>(bytes.size())));
        return;
      }
      default: {
        // Length, code, scope {}.
        const std::string bytes("\x0f\0\0\0\x02\0\0\0f\0\x05\0\0\0\0", 15);
        b.Append(name, mayfly::BsonValue(BsonType::kCodeWithScope, bytes.data(), 15));
      }
    }
  }

 private:
  void Number(mayfly::BsonBuilder& b, std::string_view name, uint64_t kind) {
    if (kind == 0) {
      b.Append(name, static_cast<int32_t>(Integer()));
    } else if (kind == 1) {
      b.Append(name, static_cast<int64_t>(Integer()));
    } else if (kind == 4) {
      b.AppendDecimal(name, {Below(1000), OneIn(2) ? 0x303C000000000000 : random_()});
    } else {
      b.Append(name, Double());
    }
  }
  double Double() {
    switch (Below(9)) {
      case 0:
        return -0.0;
      case 1:
        return std::bit_cast<double>(0x7FF8000000000000 | Below(3));  // NaN with a payload
      case 2:
        return std::bit_cast<double>(random_());
      case 3:
        return OneIn(2) ? HUGE_VAL : -HUGE_VAL;
      case 4:
        return static_cast<double>(Below(5));
      default:
        return static_cast<double>(Below(10'000)) / 100;
    }
  }
  uint64_t Integer() {
    switch (Below(8)) {
      case 0:
        return random_();
      case 1:
        return OneIn(2) ? uint64_t{1} << 63 : ~(uint64_t{1} << 63);
      default:
        return Below(9) - 4;
    }
  }
  std::string Id() { return std::string("\x65\x01\x02\x03hosts\0\0", 11) + Letter(); }
  std::string Text() {
    if (OneIn(9)) return std::string("a\0b\xC3\xA9", 5);
    return std::string(Below(4) == 0 ? Below(300) : Below(3), Letter());
  }
  char Letter() { return static_cast<char>('a' + Below(3)); }

  std::mt19937_64 random_;
};
