#!/usr/bin/env python3
"""scripts/lib/check_names.py finds the faults it was made for, as they once stood in the code, and nothing in how they
stand there now."""

from cases import Cases

FAULTS = {
    "a computed name": '''Result<Value> SetField(const EvalArgs& a) {
  std::string_view name = a.view(0).String();
  b.Append(name, value);
}''',
    "the string itself": '''void F(BsonBuilder& b, BsonValue v) { b.OpenDocument(v.String()); }''',
    "an element made by hand": '''void F() { fields.push_back({key.String(), value}); }''',
    "the source of a stage": '''Result<void> ParseUnionWithStage(StageParser& p, BsonValue spec) {
  std::string collection;
  collection = spec.String();
}''',
    "by way of a variable, beside checked paths": '''Result<void> ParseLookupStage(StageParser& p, BsonValue spec) {
  std::string text(e.value.String());
  if (e.name == "from") {
    lookup.from = text;
  } else {
    MAYFLY_TRY(lookup.as_path, ParseFieldPath(text));
  }
}''',
    "the name of an index": '''Result<void> SetClustered() {
  c.clustered_index_name = k.StringOr("name", "_id_");
}''',
    "what a view reads": '''void F() { a.view_on = in.OptString("viewOn"); }''',
    "a path to a parser": '''void F() { Result<void> r = parser.Exclude(path.String()); }''',
    "a namespace by MAYFLY_TRY": '''Result<void> F() { MAYFLY_TRY(a.ns, in.String("x")); }''',
    "a database of another name": '''Result<void> F() { a.target_db = in.String("x"); }''',
    "a name that is put together": '''void F() { b.Append(StrCat("a.", v.String()), 1); }''',
    "a name that was put together": '''void F() {
  std::string field = "a." + std::string(v.String());
  b.Append(field, 1);
}''',
    "a helper that takes a name": '''void Write(BsonBuilder& b, std::string_view name) {
  b.Append(name, 1);
}
void F() { Write(b, v.String()); }''',
    "past the door": '''void F() { out.append(name).push_back('\\0'); }''',
}
CLEAN = {
    "looked at": '''Result<void> F() {
  std::string_view name = v.String();
  if (name.find('\\0') != name.npos) return Bad();
  b.Append(name, 1);
}''',
    "a namespace that is validated": '''Result<void> F() {
  collection = spec.String();
  MAYFLY_TRY(ValidateNamespace(db, collection));
}''',
    "a value": '''void F() { b.Append("name", v.String()); array.Append(v.String()); }''',
    "said to be checked": '''void F() {
  std::string_view name = v.String();
  // check_names: Parse has looked
  b.Append(name, 1);
}''',
    "a helper that looks": '''Result<void> Write(BsonBuilder& b, std::string_view name) {
  if (name.find('\\0') != name.npos) return Bad();
  b.Append(name, 1);
}
void F() { Write(b, v.String()); }''',
    "a literal of the same name": '''void F() {
  std::string index(v.String());
  b.Append("index", index);
}''',
    "a comparison": '''void F() { b.Append(v.String() == "x" ? "a" : "b", 1); }''',
}

cases = Cases("check_names.py")
cases.all(FAULTS, CLEAN, lambda text: {"case.cc": "namespace mayfly {\nnamespace {\n" + text + "\n}\n}\n"})
cases.end()
