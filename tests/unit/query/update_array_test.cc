// Array operators, positional paths and arrayFilters.
#include "query/expression/parse_work.h"
#include "storage/operation.h"
#include "tests/unit/query/counting_clock.h"
#include "tests/unit/query/update_test_util.h"

namespace mayfly {
namespace {

const UpdateRow kPushRows[] = {
    {"{_id: 1}", "{$push: {a: 1}}", "{_id: 1, a: [1]}"},
    {"{_id: 1, a: []}", "{$push: {a: 1}}", "{_id: 1, a: [1]}"},
    {"{_id: 1, a: [1], b: 2}", "{$push: {a: 1}}", "{_id: 1, a: [1, 1], b: 2}"},
    {"{_id: 1, a: [0,1,2,3,4,5,6,7,8,9]}", "{$push: {a: 10}}",
     "{_id: 1, a: [0,1,2,3,4,5,6,7,8,9,10]}"},
    {"{_id: 1, a: [1]}", "{$push: {a: [2, 3]}}", "{_id: 1, a: [1, [2, 3]]}"},
    {"{_id: 1, a: [1]}", "{$push: {a: {x: 1}}}", "{_id: 1, a: [1, {x: 1}]}"},
    {"{_id: 1, a: [1]}", "{$push: {a: {$each: [2, 3]}}}", "{_id: 1, a: [1, 2, 3]}"},
    {"{_id: 1, a: [1]}", "{$push: {a: {$each: []}}}", "="},
    {"{_id: 1, a: [1]}", "{$push: {a: {$each: [2], $each: [3]}}}",
     "error 2 Only one $each is supported."},
    {"{_id: 1, a: []}", "{$push: {a: {$each: [], $sort: {k: 1, l: 1, k: -1}}}}",
     "error 2 The $sort pattern has the field 'k' twice"},
    {"{_id: 1}", "{$push: {a: {$each: []}}}", "{_id: 1, a: []}"},
    {"{_id: 1}", "{$push: {'a.b': 1}}", "{_id: 1, a: {b: [1]}}"},
    {"{_id: 1, a: {b: [1]}}", "{$push: {'a.b': 2}}", "{_id: 1, a: {b: [1, 2]}}"},
    {"{_id: 1, a: [[1], [2]]}", "{$push: {'a.1': 3}}", "{_id: 1, a: [[1], [2, 3]]}"},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [3, 4], $position: 0}}}",
     "{_id: 1, a: [3, 4, 1, 2]}"},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [3], $position: 1}}}", "{_id: 1, a: [1, 3, 2]}"},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [3], $position: 9}}}", "{_id: 1, a: [1, 2, 3]}"},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [3], $position: -1}}}", "{_id: 1, a: [1, 3, 2]}"},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [3], $position: -9}}}", "{_id: 1, a: [3, 1, 2]}"},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [3, 4], $slice: 3}}}", "{_id: 1, a: [1, 2, 3]}"},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [3, 4], $slice: -3}}}", "{_id: 1, a: [2, 3, 4]}"},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [3], $slice: -9}}}", "{_id: 1, a: [1, 2, 3]}"},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [3], $slice: 0}}}", "{_id: 1, a: []}"},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [], $slice: -1}}}", "{_id: 1, a: [2]}"},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [], $slice: 5}}}", "="},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [3], $slice: {$numberLong: '-2'}}}}",
     "{_id: 1, a: [2, 3]}"},
    {"{_id: 1, a: [1, 2]}", "{$push: {a: {$each: [3], $slice: -2.0}}}", "{_id: 1, a: [2, 3]}"},
    {"{_id: 1, a: [3, 1]}", "{$push: {a: {$each: [2], $sort: 1}}}", "{_id: 1, a: [1, 2, 3]}"},
    {"{_id: 1, a: [3, 1]}", "{$push: {a: {$each: [2], $sort: -1}}}", "{_id: 1, a: [3, 2, 1]}"},
    {"{_id: 1, a: [3, 'x', null]}", "{$push: {a: {$each: [], $sort: 1}}}",
     "{_id: 1, a: [null, 3, 'x']}"},
    {"{_id: 1, a: [{k: 2, v: 'a'}, {k: 1, v: 'b'}]}",
     "{$push: {a: {$each: [{k: 2, v: 'c'}], $sort: {k: 1}}}}",
     "{_id: 1, a: [{k: 1, v: 'b'}, {k: 2, v: 'a'}, {k: 2, v: 'c'}]}"},
    {"{_id: 1, a: [{k: 2, v: 'a'}, {k: 1, v: 'b'}]}",
     "{$push: {a: {$each: [{k: 2, v: 'c'}], $sort: {k: 1, v: -1}}}}",
     "{_id: 1, a: [{k: 1, v: 'b'}, {k: 2, v: 'c'}, {k: 2, v: 'a'}]}"},
    {"{_id: 1, a: [{k: {x: 2}}, {k: {x: 1}}]}", "{$push: {a: {$each: [], $sort: {'k.x': 1}}}}",
     "{_id: 1, a: [{k: {x: 1}}, {k: {x: 2}}]}"},
    {"{_id: 1, a: [{k: 2}, {v: 1}]}", "{$push: {a: {$each: [], $sort: {k: 1}}}}",
     "{_id: 1, a: [{v: 1}, {k: 2}]}"},
    {"{_id: 1, a: [5, 8]}", "{$push: {a: {$each: [7], $sort: -1, $slice: 2, $position: 0}}}",
     "{_id: 1, a: [8, 7]}"},
    {"{_id: 1, a: 1}", "{$push: {a: 1}}",
     "error 2 The field 'a' must be an array but is of type int in document {_id: 1}"},
    {"{_id: 1, a: {b: null}}", "{$push: {'a.b': 1}}",
     "error 2 The field 'a.b' must be an array but is of type null in document {_id: 1}"},
    {"{_id: 1}", "{$push: {a: {$each: 1}}}",
     "error 2 The argument to $each in $push must be an array but it was of type: int"},
    {"{_id: 1}", "{$push: {a: {$each: [1], $foo: 1}}}",
     "error 2 Unrecognized clause in $push: $foo"},
    {"{_id: 1}", "{$push: {a: {$each: [1], $slice: 'x'}}}",
     "error 2 The value for $slice must be an integer value but was given type: string"},
    {"{_id: 1}", "{$push: {a: {$each: [1], $slice: 1.5}}}", "error 2 $slice must be an integer"},
    {"{_id: 1}", "{$push: {a: {$each: [1], $position: 'x'}}}",
     "error 2 The value for $position must be an integer value, not of type: string"},
    {"{_id: 1}", "{$push: {a: {$each: [1], $position: 1.5}}}",
     "error 2 $position must be an integer"},
    {"{_id: 1}", "{$push: {a: {$each: [1], $sort: 2}}}",
     "error 2 The $sort element value must be either 1 or -1"},
    {"{_id: 1}", "{$push: {a: {$each: [1], $sort: 'x'}}}", "error 2 The $sort is invalid"},
    {"{_id: 1}", "{$push: {a: {$each: [1], $sort: {}}}}", "error 2 The $sort pattern is empty"},
    {"{_id: 1}", "{$push: {a: {$each: [1], $sort: {b: 0}}}}",
     "error 2 The $sort element value must be either 1 or -1"},
    {"{_id: 1}", "{$push: {a: {$each: [1], $sort: {'': 1}}}}",
     "error 2 The $sort field cannot be empty"},
    {"{_id: 1}", "{$push: {a: {$each: [1], $sort: {'b..c': 1}}}}",
     "error 2 has an empty part: b..c"},
    {"{_id: 1}", "{$push: {a: {$slice: 1}}}", "{_id: 1, a: [{$slice: 1}]}"},
    {"{_id: 1}", "{$pushAll: {a: [1]}}", "error 9 Unknown modifier: $pushAll."},
};

const UpdateRow kAddToSetRows[] = {
    {"{_id: 1}", "{$addToSet: {a: 1}}", "{_id: 1, a: [1]}"},
    {"{_id: 1, a: [1]}", "{$addToSet: {a: 2}}", "{_id: 1, a: [1, 2]}"},
    {"{_id: 1, a: [1]}", "{$addToSet: {a: 1}}", "="},
    {"{_id: 1, a: [1]}", "{$addToSet: {a: 1.0}}", "="},
    {"{_id: 1, a: [1]}", "{$addToSet: {a: [1]}}", "{_id: 1, a: [1, [1]]}"},
    {"{_id: 1, a: [{x: 1, y: 2}]}", "{$addToSet: {a: {x: 1, y: 2}}}", "="},
    {"{_id: 1, a: [{x: 1, y: 2}]}", "{$addToSet: {a: {y: 2, x: 1}}}",
     "{_id: 1, a: [{x: 1, y: 2}, {y: 2, x: 1}]}"},
    {"{_id: 1, a: [1]}", "{$addToSet: {a: {$each: [1, 2, 2, 3]}}}", "{_id: 1, a: [1, 2, 3]}"},
    {"{_id: 1, a: [1, 1]}", "{$addToSet: {a: {$each: [1, 2, 3, 4, 5, 6, 7, 8, 8]}}}",
     "{_id: 1, a: [1, 1, 2, 3, 4, 5, 6, 7, 8]}"},
    {"{_id: 1, a: [1]}", "{$addToSet: {a: {$each: []}}}", "="},
    {"{_id: 1}", "{$addToSet: {a: {$each: []}}}", "{_id: 1, a: []}"},
    {"{_id: 1}", "{$addToSet: {a: {$each: [1, 1]}}}", "{_id: 1, a: [1]}"},
    {"{_id: 1, a: {b: [1]}}", "{$addToSet: {'a.b': 2}}", "{_id: 1, a: {b: [1, 2]}}"},
    {"{_id: 1, a: 'x'}", "{$addToSet: {a: 1}}",
     "error 2 Cannot apply $addToSet to non-array field. Field named 'a' has non-array type "
     "string"},
    {"{_id: 1}", "{$addToSet: {a: {$each: 1}}}",
     "error 14 The argument to $each in $addToSet must be an array but it was of type int"},
    {"{_id: 1}", "{$addToSet: {a: {$each: [1], $slice: 1}}}",
     "error 2 Found unexpected fields after $each in $addToSet"},
};

const UpdateRow kPopRows[] = {
    {"{_id: 1, a: [1, 2, 3]}", "{$pop: {a: 1}}", "{_id: 1, a: [1, 2]}"},
    {"{_id: 1, a: [1, 2, 3]}", "{$pop: {a: -1}}", "{_id: 1, a: [2, 3]}"},
    {"{_id: 1, a: [1]}", "{$pop: {a: 1}}", "{_id: 1, a: []}"},
    {"{_id: 1, a: []}", "{$pop: {a: 1}}", "="},
    {"{_id: 1}", "{$pop: {a: 1}}", "="},
    {"{_id: 1, a: [1, 2]}", "{$pop: {a: 1.0}}", "{_id: 1, a: [1]}"},
    {"{_id: 1, a: 1}", "{$pop: {a: 1}}",
     "error 14 Path 'a' contains an element of non-array type 'int'"},
    {"{_id: 1, a: {b: 'x'}}", "{$pop: {'a.b': 1}}",
     "error 14 Path 'a.b' contains an element of non-array type 'string'"},
    {"{_id: 1, a: 1}", "{$pop: {'a.b': 1}}",
     "error 28 Cannot use the part (b) of (a.b) to traverse the element ({a: 1})"},
    {"{_id: 1}", "{$pop: {a: 2}}", "error 9 $pop expects 1 or -1, found: 2"},
    {"{_id: 1}", "{$pop: {a: 'x'}}", "error 9 Expected a number in: a: \"x\""},
    {"{_id: 1}", "{$pop: {a: 1.5}}", "error 9"},
};

const UpdateRow kPullRows[] = {
    {"{_id: 1, a: [1, 2, 1]}", "{$pull: {a: 1}}", "{_id: 1, a: [2]}"},
    {"{_id: 1, a: [1, 2]}", "{$pull: {a: 1.0}}", "{_id: 1, a: [2]}"},
    {"{_id: 1, a: [1, 2]}", "{$pull: {a: 3}}", "="},
    {"{_id: 1}", "{$pull: {a: 3}}", "="},
    {"{_id: 1, a: 1}", "{$pull: {'a.b': 3}}",
     "error 28 Cannot use the part (b) of (a.b) to traverse the element ({a: 1})"},
    {"{_id: 1, a: [1]}", "{$pullAll: {'a.b': [3]}}", "error 28 Cannot use the part (b) of (a.b)"},
    {"{_id: 1, a: [1]}", "{$pullAll: {'a.5': [3]}}", "="},
    {"{_id: 1, a: [1, 2, 3]}", "{$pull: {a: {$gt: 1}}}", "{_id: 1, a: [1]}"},
    {"{_id: 1, a: [1, 2, 3]}", "{$pull: {a: {$in: [1, 3, 9]}}}", "{_id: 1, a: [2]}"},
    {"{_id: 1, a: [1, 2, 3]}", "{$pull: {a: {$nin: [1, 3]}}}", "{_id: 1, a: [1, 3]}"},
    {"{_id: 1, a: [1, 2, 3]}", "{$pull: {a: {$ne: 2}}}", "{_id: 1, a: [2]}"},
    {"{_id: 1, a: [1, 5, 9]}", "{$pull: {a: {$gt: 1, $lt: 9}}}", "{_id: 1, a: [1, 9]}"},
    {"{_id: 1, a: [[1, 2], [3]]}", "{$pull: {a: [1, 2]}}", "{_id: 1, a: [[3]]}"},
    {"{_id: 1, a: [null, 1]}", "{$pull: {a: null}}", "{_id: 1, a: [1]}"},
    {"{_id: 1, a: ['foo', 'bar', 1]}",
     "{$pull: {a: {$regularExpression: {pattern: '^f', options: ''}}}}", "{_id: 1, a: ['bar', 1]}"},
    {"{_id: 1, a: ['foo', 'bar']}", "{$pull: {a: {$regex: 'A', $options: 'i'}}}",
     "{_id: 1, a: ['foo']}"},
    {"{_id: 1, a: [{x: 1, y: 1}, {x: 2}, {x: 1}]}", "{$pull: {a: {x: 1}}}",
     "{_id: 1, a: [{x: 2}]}"},
    {"{_id: 1, a: [{x: 1, y: 1}, {x: 1, y: 2}]}", "{$pull: {a: {x: 1, y: {$gt: 1}}}}",
     "{_id: 1, a: [{x: 1, y: 1}]}"},
    {"{_id: 1, a: [{x: 1}, 1, {}]}", "{$pull: {a: {}}}", "{_id: 1, a: [1]}"},
    {"{_id: 1, a: [{x: 1}, {x: 2}, {x: 3}]}", "{$pull: {a: {$or: [{x: 1}, {x: 3}]}}}",
     "{_id: 1, a: [{x: 2}]}"},
    {"{_id: 1, a: [{x: [1, 2]}, {x: [3]}]}", "{$pull: {a: {x: {$elemMatch: {$gt: 2}}}}}",
     "{_id: 1, a: [{x: [1, 2]}]}"},
    {"{_id: 1, a: [{x: [{q: 1, r: 2}]}, {x: [{q: 1}, {r: 2}]}]}",
     "{$pull: {a: {x: {$elemMatch: {q: 1, r: 2}}}}}", "{_id: 1, a: [{x: [{q: 1}, {r: 2}]}]}"},
    {"{_id: 1, a: [[1, 9], [2]]}", "{$pull: {a: {$elemMatch: {$gt: 5}}}}", "{_id: 1, a: [[2]]}"},
    {"{_id: 1, a: {b: [1, 2]}}", "{$pull: {'a.b': 1}}", "{_id: 1, a: {b: [2]}}"},
    {"{_id: 1, a: [{b: [1, 2]}]}", "{$pull: {'a.0.b': 1}}", "{_id: 1, a: [{b: [2]}]}"},
    {"{_id: 1, a: 'x'}", "{$pull: {a: 1}}", "error 2 Cannot apply $pull to a non-array value"},
    {"{_id: 1}", "{$pull: {a: {$foo: 1}}}", "error 2"},
    {"{_id: 1}", "{$pull: {a: {$expr: {$eq: [1, 1]}}}}", "error 2"},
    {"{_id: 1, a: [1, 2, 3, 1]}", "{$pullAll: {a: [1, 3]}}", "{_id: 1, a: [2]}"},
    {"{_id: 1, a: [1, 2]}", "{$pullAll: {a: [{$numberLong: '2'}]}}", "{_id: 1, a: [1]}"},
    {"{_id: 1, a: [{x: 1, y: 2}, {x: 1}]}", "{$pullAll: {a: [{x: 1}]}}",
     "{_id: 1, a: [{x: 1, y: 2}]}"},
    {"{_id: 1, a: [1]}", "{$pullAll: {a: []}}", "="},
    {"{_id: 1}", "{$pullAll: {a: [1]}}", "="},
    {"{_id: 1, a: 1}", "{$pullAll: {a: [1]}}", "error 2 Cannot apply $pull to a non-array value"},
    {"{_id: 1}", "{$pullAll: {a: 1}}",
     "error 2 $pullAll requires an array argument but was given a int"},
};

const UpdateRow kPositionalRows[] = {
    {"{_id: 1, a: [1, 2, 3]}", "{$set: {'a.$': 9}}", "{_id: 1, a: [1, 9, 3]}", "{a: 2}"},
    {"{_id: 1, a: [1, 2, 3]}", "{$inc: {'a.$': 1}}", "{_id: 1, a: [1, 2, 4]}", "{a: {$gt: 2}}"},
    {"{_id: 1, a: [{x: 1}, {x: 2}]}", "{$set: {'a.$.x': 5}}", "{_id: 1, a: [{x: 1}, {x: 5}]}",
     "{'a.x': 2}"},
    {"{_id: 1, a: [{x: 1}, {x: 2}]}", "{$set: {'a.$.y': 5}}", "{_id: 1, a: [{x: 1}, {x: 2, y: 5}]}",
     "{'a.x': 2}"},
    {"{_id: 1, a: [{x: 1, y: 1}, {x: 1, y: 2}]}", "{$set: {'a.$.x': 5}}",
     "{_id: 1, a: [{x: 1, y: 1}, {x: 5, y: 2}]}", "{a: {$elemMatch: {x: 1, y: 2}}}"},
    {"{_id: 1, a: [{x: 1}, {x: 2}]}", "{$unset: {'a.$': 1}}", "{_id: 1, a: [{x: 1}, null]}",
     "{'a.x': 2}"},
    {"{_id: 1, a: [1, 2]}", "{$set: {'a.$': 1, 'a.0': 2}}", "{_id: 1, a: [2, 1]}", "{a: 2}"},
    {"{_id: 1, a: [1, 2]}", "{$set: {'a.$': 1, 'a.1': 2}}",
     "error 40 Updating the path 'a.1' would create a conflict at 'a.1'", "{a: 2}"},
    {"{_id: 1, a: [{x: 1}]}", "{$set: {'a.$.x': 2, 'a.0.y': 3}}", "{_id: 1, a: [{x: 2, y: 3}]}",
     "{'a.x': 1}"},
    {"{_id: 1, a: [1, 2], b: [5, 6]}", "{$set: {'b.$': 0}}", "{_id: 1, a: [1, 2], b: [5, 0]}",
     "{a: 2}"},
    {"{_id: 1, a: [1]}", "{$set: {'a.$': 0}}",
     "error 2 The positional operator did not find the match needed from the query.", "{_id: 1}"},
    {"{_id: 1, a: [1]}", "{$set: {'b.$': 0}}",
     "error 2 The positional operator did not find the match"},
    {"{_id: 1}", "{$set: {$: 1}}",
     "error 2 Cannot have positional (i.e. '$') element in the first position in path '$'"},
    {"{_id: 1}", "{$set: {'$.a': 1}}", "error 2 Cannot have positional"},
    {"{_id: 1}", "{$set: {'a.$.b.$': 1}}",
     "error 2 Too many positional (i.e. '$') elements found in path 'a.$.b.$'"},
    {"{_id: 1}", "{$set: {'a.$': 1, 'a.$.b': 1}}",
     "error 40 Updating the path 'a.$.b' would create a conflict at 'a.$'"},
};

const UpdateRow kFilteredRows[] = {
    {"{_id: 1, a: [1, 2, 3]}", "{$inc: {'a.$[]': 10}}", "{_id: 1, a: [11, 12, 13]}"},
    {"{_id: 1, a: []}", "{$inc: {'a.$[]': 10}}", "="},
    {"{_id: 1, a: [{x: 1}, {x: 2}]}", "{$set: {'a.$[].x': 0}}", "{_id: 1, a: [{x: 0}, {x: 0}]}"},
    {"{_id: 1, a: [[1], [2, 3]]}", "{$inc: {'a.$[].$[]': 1}}", "{_id: 1, a: [[2], [3, 4]]}"},
    {"{_id: 1, a: [1, 2]}", "{$unset: {'a.$[]': 1}}", "{_id: 1, a: [null, null]}"},
    {"{_id: 1, a: [1, 5, 9]}", "{$set: {'a.$[e]': 0}}", "{_id: 1, a: [1, 0, 0]}", "",
     "[{e: {$gte: 5}}]"},
    {"{_id: 1, a: [1, 5]}", "{$set: {'a.$[e]': 0}}", "=", "", "[{e: 7}]"},
    {"{_id: 1, a: [{x: 1, y: 1}, {x: 2, y: 2}]}", "{$set: {'a.$[e].y': 0}}",
     "{_id: 1, a: [{x: 1, y: 1}, {x: 2, y: 0}]}", "", "[{'e.x': 2}]"},
    {"{_id: 1, a: [{x: 1, y: 1}, {x: 2, y: 2}]}", "{$set: {'a.$[e].y': 0}}",
     "{_id: 1, a: [{x: 1, y: 0}, {x: 2, y: 2}]}", "", "[{'e.x': 1, 'e.y': {$lt: 5}}]"},
    {"{_id: 1, a: [{x: 1}, {x: 2}, {x: 3}]}", "{$set: {'a.$[e].x': 0}}",
     "{_id: 1, a: [{x: 0}, {x: 2}, {x: 0}]}", "", "[{$or: [{'e.x': 1}, {'e.x': 3}]}]"},
    {"{_id: 1, a: [{b: [1, 2]}, {b: [2, 3]}]}", "{$set: {'a.$[].b.$[e]': 0}}",
     "{_id: 1, a: [{b: [1, 0]}, {b: [0, 3]}]}", "", "[{e: 2}]"},
    {"{_id: 1, a: [{k: 1, b: [1, 2]}, {k: 2, b: [1, 2]}]}", "{$set: {'a.$[o].b.$[i]': 0}}",
     "{_id: 1, a: [{k: 1, b: [1, 2]}, {k: 2, b: [0, 2]}]}", "", "[{'o.k': 2}, {i: 1}]"},
    {"{_id: 1, a: [{x: 1, y: 1}, {x: 2, y: 2}]}", "{$set: {'a.$[e].x': 9, 'a.$[f].y': 8}}",
     "{_id: 1, a: [{x: 9, y: 1}, {x: 9, y: 8}]}", "", "[{'e.x': {$gt: 0}}, {'f.y': 2}]"},
    {"{_id: 1, a: [1, 2]}", "{$set: {'a.$[e]': 9, 'a.$[f]': 8}}", "{_id: 1, a: [9, 8]}", "",
     "[{e: 1}, {f: 2}]"},
    {"{_id: 1, a: [1, 2]}", "{$set: {'a.$[e]': 9, 'a.$[f]': 8}}",
     "error 40 Updating the path 'a.1' would create a conflict at 'a.1'", "",
     "[{e: {$gt: 0}}, {f: 2}]"},
    {"{_id: 1, a: [1, 2]}", "{$set: {'a.$[]': 9, 'a.$[f]': 8}}", "error 40", "", "[{f: 2}]"},
    {"{_id: 1, a: [{x: 1}]}", "{$set: {'a.$[].x': 9}, $inc: {'a.$[].y': 1}}",
     "{_id: 1, a: [{x: 9, y: 1}]}"},
    {"{_id: 1, a: [{x: 1}]}", "{$push: {'a.$[].z': 1}}", "{_id: 1, a: [{x: 1, z: [1]}]}"},
    {"{_id: 1, a: [[1, 5], [2]]}", "{$pull: {'a.$[]': {$gt: 1}}}", "{_id: 1, a: [[1], []]}"},
    {"{_id: 1}", "{$set: {'a.$[]': 1}}",
     "error 2 The path 'a' must exist in the document in order to apply array updates."},
    {"{_id: 1, a: {}}", "{$set: {'a.b.$[].c': 1}}",
     "error 2 The path 'a.b' must exist in the document"},
    {"{_id: 1, a: 1}", "{$set: {'a.$[]': 1}}",
     "error 2 Cannot apply array updates to non-array element a: 1"},
    {"{_id: 1, a: [1]}", "{$set: {'a.$[].b': 1}}",
     "error 28 Cannot create field 'b' in element {0: 1}"},
    {"{_id: 1, a: [1]}", "{$set: {'a.$[e]': 1}}",
     "error 2 No array filter found for identifier 'e' in path 'a.$[e]'"},
    {"{_id: 1}", "{$set: {a: 1}}",
     "error 9 The array filter for identifier 'e' was not used in the update { $set: { a: 1 } }",
     "", "[{e: 1}]"},
    {"{_id: 1}", "{$set: {'a.$[e]': 1}}",
     "error 9 Found multiple array filters with the same top-level field name e", "",
     "[{e: 1}, {e: 2}]"},
    {"{_id: 1}", "{$set: {'a.$[e]': 1}}",
     "error 9 Expected a single top-level field name, found 'e' and 'f'", "", "[{e: 1, f: 2}]"},
    {"{_id: 1}", "{$set: {'a.$[e]': 1}}",
     "error 9 Cannot use an expression without a top-level field name in arrayFilters", "", "[{}]"},
    {"{_id: 1}", "{$set: {'a.$[E]': 1}}",
     "error 2 must be an alphanumeric string beginning with a lowercase letter, found 'E'", "",
     "[{E: 1}]"},
    {"{_id: 1}", "{$set: {'a.$[e]': 1}}", "error 2 Error parsing array filter :: caused by ::", "",
     "[{e: {$foo: 1}}]"},
    {"{_id: 1}", "{$set: {'$[]': 1}}",
     "error 2 Cannot have array filter identifier (i.e. '$[<id>]') element in the first"},
    {"{_id: 1}", "{$set: {'a.$[]': 1, 'a.0': 1}}", "error 40 would create a conflict at 'a'"},
    {"{_id: 1}", "{$set: {'a.0': 1, 'a.$[].b': 1}}",
     "error 40 Updating the path 'a.$[].b' would create a conflict at 'a'"},
    {"{_id: 1, a: 1}", "{a: 2}", "error 9 arrayFilters may not be specified", "", "[{e: 1}]"},
    {"{_id: 1, a: 1}", "[{$set: {a: 2}}]", "error 9 arrayFilters may not be specified", "",
     "[{e: 1}]"},
};

}  // namespace

TEST_CASE("$push appends, places, sorts and slices", "[update]") {
  for (const UpdateRow& row : kPushRows) CheckRow(row);
}
TEST_CASE("$addToSet adds what is not there", "[update]") {
  for (const UpdateRow& row : kAddToSetRows) CheckRow(row);
}
TEST_CASE("$pop takes an end off", "[update]") {
  for (const UpdateRow& row : kPopRows) CheckRow(row);
}
TEST_CASE("$pull and $pullAll remove what matches", "[update]") {
  for (const UpdateRow& row : kPullRows) CheckRow(row);
}
TEST_CASE("The positional operator writes the element that matched", "[update]") {
  for (const UpdateRow& row : kPositionalRows) CheckRow(row);
}
TEST_CASE("$[] and arrayFilters write elements that match", "[update]") {
  for (const UpdateRow& row : kFilteredRows) CheckRow(row);
}

TEST_CASE("Many operands are read and applied with looks at the time", "[update]") {
  constexpr int kMany = 100'000;
  auto numbers = [](BsonArrayBuilder array, int first) {
    for (int i = 0; i < kMany; ++i) array.Append(first + i);
  };
  const BsonDocument old = BuildBson([&](BsonBuilder& b) {
    b.Append("_id", 1);
    numbers(b.OpenArray("a"), kMany / 2);
  });
  struct Row {
    const char* op;
    bool each;
    int left;  ///< elements of the new array
  };
  for (const Row& row : {Row{"$addToSet", true, 3 * kMany / 2}, Row{"$push", true, 2 * kMany},
                         Row{"$pullAll", false, kMany / 2}}) {
    CAPTURE(row.op);
    const BsonDocument holder = BuildBson([&](BsonBuilder& b) {
      BsonBuilder u = b.OpenDocument("u");
      BsonBuilder of = u.OpenDocument(row.op);
      if (!row.each) return numbers(of.OpenArray("a"), 0);
      BsonBuilder each = of.OpenDocument("a");
      numbers(each.OpenArray("$each"), 0);
    });
    const BsonValue u = holder.view()["u"];
    const test::CountingClock clock;
    Operation op(clock);
    op.deadline_micros = int64_t{1} << 40;
    VariableScope scope;
    std::unique_ptr<Update> update;
    {
      const ParseWork work(&op);
      update = Update::Parse(u, {}, scope).value();
      CHECK(work.bytes() >= kMany * sizeof(BsonValue));
    }
    CHECK(clock.looks >= kMany / 256);
    clock.looks = 0;
    EvalContext ctx = TestContext(scope);
    ctx.op = &op;
    const auto outcome = update->Apply(old, -1, false, ctx);
    REQUIRE(outcome);
    CHECK(BsonView(outcome.value().bytes.data())["a"].Document().Count() == row.left);
    // One at each 64 KiB, of what is compared and of what is written.
    CHECK(clock.looks >= kMany / 4096);
    // Whoever ends the operation need not wait for the end of either.
    op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
    CHECK(update->Apply(old, -1, false, ctx).error().code == ErrorCode::kInterrupted);
    const ParseWork work(&op);
    CHECK(Update::Parse(u, {}, scope).error().code == ErrorCode::kInterrupted);
  }
}

}  // namespace mayfly
