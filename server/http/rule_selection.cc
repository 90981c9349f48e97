#include "server/http/rule_selection.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace mayfly {

namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool Contains(std::string_view text, std::string_view part) {
  return std::search(text.begin(), text.end(), part.begin(), part.end(),
                     [](char a, char b) { return Lower(a) == Lower(b); }) != text.end();
}

struct Ranked {
  BsonView rule;
  size_t place;  ///< in ttlStatus
  bool calm;     ///< active, without an error
  int64_t pending, lag, next;

  auto Order() const { return std::tuple(calm, -pending, -lag, next, place); }
};

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = Lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

void AppendRuleSelection(BsonView rules, std::string_view filter, BsonBuilder& out) {
  std::map<std::string_view, int64_t> states;
  int64_t total = 0, pending = 0, lag = 0;
  std::vector<Ranked> chosen;
  std::string name;
  for (const BsonElement& e : rules) {
    const BsonView r = e.value.Document();
    const std::string_view state = r["state"].String();
    Ranked k{r,
             chosen.size(),
             state == "active" && r["lastError"].missing(),
             r["pending"].NumberAsInt64(),
             r["lagMillis"].NumberAsInt64(),
             INT64_MAX};
    if (r["nextDeadline"].IsDate()) k.next = r["nextDeadline"].Date().millis;
    ++total;
    ++states[state];
    pending += k.pending;
    lag = std::max(lag, k.lag);
    if (!filter.empty()) {
      name.assign(r["ns"].String()).append(".").append(r["index"].String());
      if (!Contains(name, filter)) continue;
    }
    chosen.push_back(k);
  }
  const size_t matching = chosen.size();
  if (matching > kRulesShown) {
    std::nth_element(chosen.begin(), chosen.begin() + kRulesShown, chosen.end(),
                     [](const Ranked& a, const Ranked& b) { return a.Order() < b.Order(); });
    chosen.resize(kRulesShown);
    std::sort(chosen.begin(), chosen.end(),
              [](const Ranked& a, const Ranked& b) { return a.place < b.place; });
  }
  {
    BsonArrayBuilder list = out.OpenArray("rules");
    for (const Ranked& k : chosen) list.Append(k.rule);
  }
  BsonBuilder t = out.OpenDocument("ruleTotals");
  t.Append("rules", total).Append("matching", static_cast<int64_t>(matching));
  t.Append("shown", static_cast<int64_t>(chosen.size()));
  {
    BsonBuilder s = t.OpenDocument("states");
    // check_names: the server's own words
    for (const auto& [state, n] : states) s.Append(state, n);
  }
  t.Append("pending", pending).Append("lagMillis", lag);
}

std::string QueryValue(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const size_t equals = pair.find('=');
    if (pair.substr(0, equals) != name || equals == std::string_view::npos) continue;
    std::string out;
    for (size_t i = equals + 1; i < pair.size(); ++i) {
      const int high = pair[i] == '%' && i + 2 < pair.size() ? HexDigit(pair[i + 1]) : -1;
      const int low = high >= 0 ? HexDigit(pair[i + 2]) : -1;
      if (low >= 0) {
        out.push_back(static_cast<char>(high * 16 + low));
        i += 2;
      } else {
        out.push_back(pair[i] == '+' ? ' ' : pair[i]);
      }
    }
    return out;
  }
  return {};
}

}  // namespace mayfly
