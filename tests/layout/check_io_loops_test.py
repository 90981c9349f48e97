#!/usr/bin/env python3
"""scripts/lib/check_io_loops.py finds what goes over a client's data on an io thread, however it is written, and
nothing in commands that are well made."""

from cases import Cases, look

SHORT_ROW = 'void Register(CommandRegistry& registry) { registry.Add({.name = "c", .run = C}); }\n'
WORKER_ROW = 'void Register(CommandRegistry& registry) { registry.Add({.name = "c", .flags = kWorker, .run = C}); }\n'
ASYNC_ROW = 'void Register(CommandRegistry& registry) { registry.Add({.name = "c", .run_async = C}); }\n'


def command(body):
    return f"Result<void> C(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {{\n{body}\n}}\n"


# what: (text of a file, text of another file or None)
FAULTS = {
    "elements": (command("  for (const BsonElement& e : list) Use(e);") + SHORT_ROW, None),
    "the body, by auto": (command("  for (const auto& e : req.body) Use(e);") + SHORT_ROW, None),
    "a document, by auto": (command("  for (auto e : value.Document()) Use(e);") + SHORT_ROW, None),
    "a variable of BSON, by auto": (
        command("  BsonView list = Get();\n  for (auto e : list) Use(e);") + SHORT_ROW,
        None,
    ),
    "an iterator": (
        command("  for (auto it = req.body.begin(); it != req.body.end(); ++it) Use(*it);") + SHORT_ROW,
        None,
    ),
    "a cursor": (command("  while (r.Next()) Use(r);") + SHORT_ROW, None),
    "a vector of all": (command("  auto all = ToVector(list);") + SHORT_ROW, None),
    "a sort": (command("  std::sort(ids.begin(), ids.end());") + SHORT_ROW, None),
    "a filter": (command("  MAYFLY_TRY(auto f, CompileFilter(filter));") + SHORT_ROW, None),
    "a lambda": (
        '''void Register(CommandRegistry& registry) {
  registry.Add({.name = "c",
                .run = [](CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) -> Result<void> {
    for (const BsonElement& e : req.body) Use(e);
    return Ok();
  }});
}
''',
        None,
    ),
    "behind a move under a condition": (
        command("  if (big) co_await ctx.MoveToWorker();\n  for (const BsonElement& e : list) Use(e);") + ASYNC_ROW,
        None,
    ),
    "behind a block that moves": (
        command("  if (big) {\n    co_await ctx.MoveToWorker();\n  }\n  for (const BsonElement& e : list) Use(e);")
        + ASYNC_ROW,
        None,
    ),
    "before a move": (
        command("  for (const BsonElement& e : list) Use(e);\n  co_await ctx.MoveToWorker();") + ASYNC_ROW,
        None,
    ),
    "in a function of the same file": (
        "void Help(BsonView list) {\n  for (const BsonElement& e : list) Use(e);\n}\n"
        + command("  Help(req.body);")
        + SHORT_ROW,
        None,
    ),
    "in a function of another file": (
        command("  Help(req.body);") + SHORT_ROW,
        "void Help(BsonView list) {\n  for (const BsonElement& e : list) Use(e);\n}\n",
    ),
    "in a method": (
        command("  reader.Help(req.body);") + SHORT_ROW,
        "void Reader::Help(BsonView list) {\n  for (const BsonElement& e : list) Use(e);\n}\n",
    ),
}
CLEAN = {
    "on a worker by its row": (command("  for (const BsonElement& e : list) Use(e);") + WORKER_ROW, None),
    "behind a move": (
        command("  co_await ctx.MoveToWorker();\n  for (const BsonElement& e : list) Use(e);") + ASYNC_ROW,
        None,
    ),
    "behind a move that may fail": (
        command("  MAYFLY_CO_TRY(co_await ctx.MoveToWorkerWithRoom());\n  Help(list);") + ASYNC_ROW,
        "void Help(BsonView list) {\n  for (const BsonElement& e : list) Use(e);\n}\n",
    ),
    "in a block that moves": (
        command("  if (big) {\n    co_await ctx.MoveToWorker();\n    for (const BsonElement& e : list) Use(e);\n  }")
        + ASYNC_ROW,
        None,
    ),
    "over something of ours": (command("  for (const auto& row : kRows) Use(row);") + SHORT_ROW, None),
    "in a comment": (command("  // for (const BsonElement& e : list)") + SHORT_ROW, None),
}

def files(texts):
    return {f"case{i}.cc": "namespace mayfly {\n" + text + "}\n" for i, text in enumerate(t for t in texts if t)}


cases = Cases("check_io_loops.py")
cases.all(FAULTS, CLEAN, files)
# The table is whole where the commands are registered: an allowance that nothing needs is a fault.
got = look("check_io_loops.py", {"server/commands/register.cc": command("") + SHORT_ROW})
cases(got.returncode == 1 and "nothing needs the allowance" in got.stdout, "an allowance that nothing needs", got)
cases.end()
