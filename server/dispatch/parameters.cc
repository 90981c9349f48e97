#include "server/dispatch/parameters.h"

#include <charconv>
#include <cmath>

#include "protocol/extended_json.h"
#include "server/dispatch/arg_reader.h"

namespace mayfly {

namespace {

Error OutOfRange(const std::string& name, const std::string& value, const std::string& bound) {
  return {ErrorCode::kBadValue,
          "Invalid value for parameter " + name + ": " + value + " is not " + bound};
}

}  // namespace

Error WrongParameterType(std::string_view name, BsonValue v, std::string_view expected) {
  return TypeMismatch("Invalid value for parameter " + std::string(name) + ": wrong type '" +
                      std::string(BsonTypeName(v.type())) + "', expected " + std::string(expected));
}

void ParameterRegistry::Add(ParameterRow row) {
  std::lock_guard l(mutex_);
  std::string name = row.name;
  rows_.insert_or_assign(std::move(name), std::move(row));
}

void ParameterRegistry::AddBool(std::string name, std::atomic<bool>* value, std::string help,
                                std::function<void()> changed) {
  Add({.name = name,
       .help = std::move(help),
       .get = [value](BsonBuilder& out, std::string_view n) { out.Append(n, value->load()); },
       .set = [value, name, changed = std::move(changed)](BsonValue v) -> Result<void> {
         if (!v.Is(BsonType::kBool) && !v.IsNumber()) return WrongParameterType(name, v, "bool");
         *value = v.Truthy();
         if (changed) changed();
         return Ok();
       }});
}

void ParameterRegistry::AddInt(std::string name, std::atomic<int64_t>* value, int64_t low,
                               int64_t high, std::string help, std::function<void()> changed,
                               bool int32) {
  if (int32) high = std::min<int64_t>(high, INT32_MAX);
  Add({.name = name,
       .help = std::move(help),
       .get =
           [value, int32](BsonBuilder& out, std::string_view n) {
             if (int32)
               out.Append(n, static_cast<int32_t>(value->load()));
             else
               out.Append(n, value->load());
           },
       .set = [value, name, low, high, changed = std::move(changed)](BsonValue v) -> Result<void> {
         int64_t n = 0;
         if (!v.IsNumber()) return WrongParameterType(name, v, "a number");
         if (!v.ExactInt64(&n)) {
           const double d = v.NumberAsDouble();
           // A fraction is dropped, as in MongoDB; a value that is not a number is refused.
           if (std::isnan(d) || std::abs(d) > 9e18)
             return Error{ErrorCode::kBadValue, "Invalid value for parameter " + name + ": " +
                                                    ToRelaxedJson(v) + " is not a whole number"};
           n = v.NumberAsInt64();
         }
         if (n < low)
           return OutOfRange(name, std::to_string(n),
                             "greater than or equal to " + std::to_string(low));
         if (n > high)
           return OutOfRange(name, std::to_string(n),
                             "less than or equal to " + std::to_string(high));
         *value = n;
         if (changed) changed();
         return Ok();
       }});
}

void ParameterRegistry::AddDouble(std::string name, std::atomic<double>* value, double low,
                                  double high, std::string help, std::function<void()> changed) {
  Add({.name = name,
       .help = std::move(help),
       .get = [value](BsonBuilder& out, std::string_view n) { out.Append(n, value->load()); },
       .set = [value, name, low, high, changed = std::move(changed)](BsonValue v) -> Result<void> {
         if (!v.IsNumber()) return WrongParameterType(name, v, "a number");
         const double d = v.NumberAsDouble();
         if (!(d >= low))
           return OutOfRange(name, ToRelaxedJson(v),
                             "greater than or equal to " + std::to_string(low));
         if (!(d <= high))
           return OutOfRange(name, ToRelaxedJson(v),
                             "less than or equal to " + std::to_string(high));
         *value = d;
         if (changed) changed();
         return Ok();
       }});
}

void ParameterRegistry::AddEnum(std::string name, std::atomic<int>* value,
                                std::vector<std::string> allowed, std::string help,
                                std::function<void()> changed) {
  auto names = std::make_shared<const std::vector<std::string>>(std::move(allowed));
  Add({.name = name,
       .help = std::move(help),
       .get = [value, names](BsonBuilder& out,
                             std::string_view n) { out.Append(n, (*names)[value->load()]); },
       .set = [value, name, names, changed = std::move(changed)](BsonValue v) -> Result<void> {
         if (!v.IsString()) return WrongParameterType(name, v, "a string");
         std::string all;
         for (size_t i = 0; i < names->size(); ++i) {
           if ((*names)[i] == v.String()) {
             *value = static_cast<int>(i);
             if (changed) changed();
             return Ok();
           }
           all += (i ? ", \"" : "\"") + (*names)[i] + "\"";
         }
         return Error{ErrorCode::kBadValue, "Invalid value for parameter " + name + ": \"" +
                                                std::string(v.String()) + "\" is not one of " +
                                                all};
       }});
}

void ParameterRegistry::AddReadOnlyInt(std::string name, int64_t value, std::string help) {
  Add({.name = std::move(name),
       .help = std::move(help),
       .at_startup = false,
       .at_runtime = false,
       .get = [value](BsonBuilder& out, std::string_view n) {
         out.Append(n, static_cast<int32_t>(value));
       }});
}

const ParameterRow* ParameterRegistry::Find(std::string_view name) const {
  std::lock_guard l(mutex_);
  auto it = rows_.find(name);
  return it == rows_.end() ? nullptr : &it->second;
}

std::vector<const ParameterRow*> ParameterRegistry::All() const {
  std::lock_guard l(mutex_);
  std::vector<const ParameterRow*> out;
  for (const auto& [name, row] : rows_) out.push_back(&row);
  return out;
}

Result<void> ParameterRegistry::Set(std::string_view name, BsonValue value, bool startup,
                                    BsonBuilder* reply) {
  const ParameterRow* row = Find(name);
  if (row == nullptr) {
    std::vector<std::string_view> names;
    for (const ParameterRow* r : All()) names.push_back(r->name);
    std::string m = "attempted to set unrecognized parameter [" + std::string(name) +
                    "], use help:true to see options ";
    if (auto near = NearestName(name, names); !near.empty())
      m += "(did you mean \"" + std::string(near) + "\"?)";
    return Error{ErrorCode::kInvalidOptions, std::move(m)};
  }
  if (!row->set || (startup ? !row->at_startup : !row->at_runtime))
    return Error{ErrorCode::kIllegalOperation, "not allowed to change [" + row->name + "] at " +
                                                   (startup ? "startup" : "runtime")};
  std::lock_guard l(mutex_);
  if (reply == nullptr) return row->set(value);
  std::string old;
  BsonBuilder was(old);
  row->get(was, "was");
  was.Done();
  MAYFLY_TRY(row->set(value));
  reply->AppendAll(BsonView(old.data()));
  return Ok();
}

Result<void> ParameterRegistry::SetFromText(std::string_view name, std::string_view text) {
  if (text.starts_with('{')) {
    MAYFLY_TRY(const BsonDocument document, ParseJson(text));
    const BsonDocument holder = BuildBson([&](BsonBuilder& b) { b.Append("v", document.view()); });
    return Set(name, holder.view()["v"], true, nullptr);
  }
  BsonDocument doc = BuildBson([&](BsonBuilder& b) {
    int64_t n = 0;
    double d = 0;
    auto whole = [&](auto& out) {
      auto [p, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
      return ec == std::errc() && p == text.data() + text.size();
    };
    if (text == "true" || text == "false")
      b.Append("v", text == "true");
    else if (whole(n))
      b.Append("v", n);
    else if (whole(d))
      b.Append("v", d);
    else
      b.Append("v", text);
  });
  return Set(name, doc.view()["v"], true, nullptr);
}

}  // namespace mayfly
