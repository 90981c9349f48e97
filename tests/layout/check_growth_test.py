#!/usr/bin/env python3
"""scripts/lib/check_growth.py finds what grows without being charged, or works without end, however it is written, and
nothing in what is well made."""

from cases import Cases


def operator(body):
    return f"Result<Value> Op(const EvalArgs& a) {{\n{body}\n}}\n"


# what: (name of the file, text)
FAULTS = {
    "a vector in a loop": ("ops.cc", operator("  for (auto v : list) all.push_back(v);")),
    "text in a loop": ("ops.cc", operator("  std::string s;\n  for (auto v : list) s += v.String();")),
    "text of the caller": (
        "ops.cc",
        "void Op(const EvalArgs& a, std::string* text) {\n  while (more) {\n    *text += Next();\n  }\n}\n",
    ),
    "a size by number": ("ops.cc", operator("  all.resize(n);")),
    "a vector by number": ("ops.cc", operator("  std::vector<Value> all(n);")),
    "text by number": ("ops.cc", operator("  return Value::String(std::string(n, ' '));")),
    "a variable of text by number": ("ops.cc", operator("  std::string s(n, ' ');")),
    "a table": (
        "ops.cc",
        operator("  std::unordered_map<std::string, int> seen;\n  for (auto v : list) {\n    seen[v.name] = 1;\n  }"),
    ),
    "a value in one go": ("ops.cc", operator("  return BuildArray(list);")),
    "a vector of all elements": ("ops.cc", operator("  auto all = Elements(v);")),
    "a sort": ("ops.cc", operator("  std::sort(all.begin(), all.end());")),
    "a search that may take the square": ("ops.cc", operator("  auto at = text.find(t);")),
    "the square by hand": (
        "ops.cc",
        operator("  for (auto x : a) {\n    for (auto y : b) {\n      if (x == y) ++n;\n    }\n  }"),
    ),
    "a helper": (
        "ops.cc",
        "std::string Help(BsonValue v) {\n  std::string s;\n  for (auto e : v) s += e.name;\n  return s;\n}\n"
        + operator("  return Value::String(Help(v));"),
    ),
    "an accumulator that says nothing": (
        "accumulator.cc",
        "  Result<void> Add(Value v) {\n    values_.push_back(v);\n  }\n",
    ),
    "a stage that collects": (
        "stage.cc",
        "  Result<StreamState> GetNext(StreamDocument* out) override {\n"
        "    while (true) {\n      all_.emplace_back(in.doc);\n    }\n  }\n",
    ),
    "a stage's table": (
        "stage.cc",
        "  Result<void> Fill() {\n    std::map<std::string, int> seen;\n"
        "    while (true) {\n      seen[key] = 1;\n    }\n  }\n",
    ),
}
CLEAN = {
    "charged": (
        "ops.cc",
        operator("  GrowingArray out(a.ctx);\n  for (auto v : list) {\n    MAYFLY_TRY(out.Append(v));\n  }"),
    ),
    "said to be bounded": (
        "ops.cc",
        operator("  // bounded: by the arguments\n  for (auto v : list) all.push_back(v);"),
    ),
    "numbers": ("ops.cc", operator("  int64_t n = 0;\n  for (auto v : list) n += v;")),
    "a fixed size": ("ops.cc", operator("  all.resize(kMost);")),
    "the square, interrupted": (
        "ops.cc",
        operator("  for (auto x : a) {\n    for (auto y : b) {\n      MAYFLY_TRY(pace.Step(1));\n    }\n  }"),
    ),
    "text that does not grow in a loop": (
        "ops.cc",
        operator("  std::string s;\n  s += \"x\";\n  for (auto v : list) ++n;"),
    ),
    "a charged helper": (
        "ops.cc",
        "std::string Help(BsonValue v, Charge& charge) {\n  std::string s;\n"
        "  for (auto e : v) s += e.name;\n  return s;\n}\n" + operator("  Help(v, charge);"),
    ),
    "an accumulator that tells": (
        "accumulator.cc",
        "  Result<void> Add(Value v, int64_t* memory) {\n    values_.push_back(v);\n    *memory += 16;\n  }\n",
    ),
    "a stage that holds": (
        "stage.cc",
        "  Result<void> Fill() {\n    while (true) {\n"
        "      all_.push_back(x);\n      MAYFLY_TRY(hold_.Set(bytes));\n    }\n  }\n",
    ),
    "what parses a stage": (
        "stage.cc",
        "Result<void> ParseXStage(StageParser& p, BsonValue spec) {\n  for (auto e : spec) all.push_back(e);\n}\n",
    ),
}

cases = Cases("check_growth.py")
cases.all(FAULTS, CLEAN, lambda case: {"query/" + case[0]: "namespace mayfly {\nnamespace {\n" + case[1] + "}\n}\n"})
cases.end()
