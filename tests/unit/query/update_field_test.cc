// Operators on single fields, and how paths are followed and created.
#include "tests/unit/query/update_test_util.h"

namespace mayfly {
namespace {

const UpdateRow kSetRows[] = {
    {"{_id: 1}", "{$set: {a: 1}}", "{_id: 1, a: 1}"},
    {"{_id: 1, a: 1}", "{$set: {a: 1}}", "="},
    {"{_id: 1, a: 1}", "{$set: {a: 2}}", "{_id: 1, a: 2}"},
    {"{_id: 1, a: 1, b: 2}", "{$set: {a: 'x'}}", "{_id: 1, a: 'x', b: 2}"},
    {"{_id: 1, a: 1}", "{$set: {a: {$numberLong: '1'}}}", "{_id: 1, a: {$numberLong: '1'}}"},
    {"{_id: 1, a: 1}", "{$set: {a: 1.0}}", "{_id: 1, a: 1.0}"},
    {"{_id: 1}", "{$set: {'a.b': 1}}", "{_id: 1, a: {b: 1}}"},
    {"{_id: 1}", "{$set: {'a.b.c.d': 1}}", "{_id: 1, a: {b: {c: {d: 1}}}}"},
    {"{_id: 1, a: {}}", "{$set: {'a.b': 1}}", "{_id: 1, a: {b: 1}}"},
    {"{_id: 1, a: {x: 0, b: 5, y: 9}}", "{$set: {'a.b': 1}}", "{_id: 1, a: {x: 0, b: 1, y: 9}}"},
    {"{_id: 1, a: {x: 0}}", "{$set: {'a.b': 1, 'a.a': 2}}", "{_id: 1, a: {x: 0, a: 2, b: 1}}"},
    {"{_id: 1}", "{$set: {a: null}}", "{_id: 1, a: null}"},
    {"{_id: 1, a: null}", "{$set: {a: null}}", "="},
    {"{_id: 1}", "{$set: {c: 1, a: 2, b: 3}}", "{_id: 1, a: 2, b: 3, c: 1}"},
    {"{_id: 1}", "{$set: {'10': 1, '9': 2, '1': 3}}", "{_id: 1, '1': 3, '9': 2, '10': 1}"},
    {"{_id: 1}", "{$set: {b: 1, '2': 1, '10': 1, a: 1}}", "{_id: 1, '2': 1, '10': 1, a: 1, b: 1}"},
    {"{_id: 1, b: 0}", "{$set: {c: 1, a: 2, b: 3}}", "{_id: 1, b: 3, a: 2, c: 1}"},
    {"{_id: 1}", "{$set: {}}", "="},
    {"{_id: 1}", "{$set: {}, $inc: {a: 1}}", "{_id: 1, a: 1}"},
    {"{_id: 1}", "{$set: {'a.0': 1}}", "{_id: 1, a: {'0': 1}}"},
    {"{_id: 1, a: []}", "{$set: {'a.0': 1}}", "{_id: 1, a: [1]}"},
    {"{_id: 1, a: []}", "{$set: {'a.2': 1}}", "{_id: 1, a: [null, null, 1]}"},
    {"{_id: 1, a: [1]}", "{$set: {'a.3': 1, 'a.1': 2}}", "{_id: 1, a: [1, 2, null, 1]}"},
    {"{_id: 1, a: [1, 2]}", "{$set: {'a.1': 9}}", "{_id: 1, a: [1, 9]}"},
    {"{_id: 1, a: [1, 2]}", "{$set: {'a.1': 2}}", "="},
    {"{_id: 1, a: [{b: 1}]}", "{$set: {'a.0.b': 2}}", "{_id: 1, a: [{b: 2}]}"},
    {"{_id: 1, a: [{b: 1}]}", "{$set: {'a.0.c': 2}}", "{_id: 1, a: [{b: 1, c: 2}]}"},
    {"{_id: 1, a: [1]}", "{$set: {'a.2.b': 2}}", "{_id: 1, a: [1, null, {b: 2}]}"},
    {"{_id: 1, a: [0,1,2,3,4,5,6,7,8,9,10]}", "{$set: {'a.10': 'x', 'a.9': 'y'}}",
     "{_id: 1, a: [0,1,2,3,4,5,6,7,8,'y','x']}"},
    {"{_id: 1, a: [0]}", "{$set: {'a.10': 10, 'a.9': 9}}",
     "{_id: 1, a: [0, null, null, null, null, null, null, null, null, 9, 10]}"},
    {"{_id: 1, a: [1]}", "{$set: {'a.00': 2}}",
     "error 28 Cannot create field '00' in element {a: [ 1 ]}"},
    {"{_id: 1, a: [1]}", "{$set: {'a.b': 2}}",
     "error 28 Cannot create field 'b' in element {a: [ 1 ]}"},
    {"{_id: 1, a: [1]}", "{$set: {'a.-1': 2}}",
     "error 28 Cannot create field '-1' in element {a: [ 1 ]}"},
    {"{_id: 1, a: 1}", "{$set: {'a.b': 2}}", "error 28 Cannot create field 'b' in element {a: 1}"},
    {"{_id: 1, a: 'x'}", "{$set: {'a.b.c': 2}}",
     "error 28 Cannot create field 'b' in element {a: \"x\"}"},
    {"{_id: 1, a: null}", "{$set: {'a.b': 2}}",
     "error 28 Cannot create field 'b' in element {a: null}"},
    {"{_id: 1, a: {b: 1}}", "{$set: {'a.b.c': 2}}",
     "error 28 Cannot create field 'c' in element {b: 1}"},
    {"{_id: 1, a: [{b: 2}]}", "{$set: {'a.b': 2}}",
     "error 28 Cannot create field 'b' in element {a: [ { b: 2 } ]}"},
    {"{_id: 1, a: []}", "{$set: {'a.1500001': 1}}", "error 34"},
    {"{_id: 1, a: [1, 2]}", "{$set: {'a.1500003': 1}}", "error 34"},
    {"{_id: 1, a: []}", "{$set: {'a.99999999999999999999': 1}}", "error 28"},
    {"{_id: 1}", "{$set: {'a.$id': 1}}", "{_id: 1, a: {$id: 1}}"},
    {"{_id: 1}", "{$set: {a: {$b: 1}}}", "{_id: 1, a: {$b: 1}}"},
    {"{_id: 1}", "{$set: {a: {'b.c': 1}}}", "{_id: 1, a: {'b.c': 1}}"},
    {"{_id: 1, a: 1, a: 2}", "{$set: {a: 3}}", "{_id: 1, a: 3, a: 2}"},
    {"{_id: 1}", "{$set: {a: {$timestamp: {t: 0, i: 0}}}}",
     "{_id: 1, a: {$timestamp: {t: 0, i: 0}}}"},
    // many paths, so that children are searched by order
    {"{_id: 1, j: 0, k: 0}", "{$set: {a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1,j:1,k:1}}",
     "{_id: 1, j: 1, k: 1, a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1}"},
};

const UpdateRow kUnsetRows[] = {
    {"{_id: 1, a: 1}", "{$unset: {a: ''}}", "{_id: 1}"},
    {"{_id: 1, a: 1}", "{$unset: {b: 1}}", "="},
    {"{_id: 1, a: {b: 1, c: 2}}", "{$unset: {'a.b': 1}}", "{_id: 1, a: {c: 2}}"},
    {"{_id: 1, a: {b: 1}}", "{$unset: {'a.b': 1}}", "{_id: 1, a: {}}"},
    {"{_id: 1, a: [1, 2]}", "{$unset: {'a.0': 1}}", "{_id: 1, a: [null, 2]}"},
    {"{_id: 1, a: [null, 2]}", "{$unset: {'a.0': 1}}", "="},
    {"{_id: 1, a: [1, 2]}", "{$unset: {'a.5': 1}}", "="},
    {"{_id: 1, a: [1, 2]}", "{$unset: {'a.b': 1}}", "="},
    {"{_id: 1, a: [{b: 1, c: 1}]}", "{$unset: {'a.0.b': 1}}", "{_id: 1, a: [{c: 1}]}"},
    {"{_id: 1, a: 1}", "{$unset: {'a.b': 1}}", "="},
    {"{_id: 1}", "{$unset: {'a.b.c': 1}}", "="},
    {"{_id: 1}", "{$unset: {'a.b': 1}, $set: {'a.c': 1}}", "{_id: 1, a: {c: 1}}"},
    {"{_id: 1, a: 1}", "{$unset: {'a.b': 1}, $set: {'a.c': 1}}",
     "error 28 Cannot create field 'c'"},
};

const UpdateRow kArithmeticRows[] = {
    {"{_id: 1, a: 1}", "{$inc: {a: 2}}", "{_id: 1, a: 3}"},
    {"{_id: 1, a: 1}", "{$inc: {a: -2}}", "{_id: 1, a: -1}"},
    {"{_id: 1, a: 1}", "{$inc: {a: 0}}", "="},
    {"{_id: 1, a: 1}", "{$inc: {a: {$numberLong: '0'}}}", "{_id: 1, a: {$numberLong: '1'}}"},
    {"{_id: 1, a: 1}", "{$inc: {a: 0.0}}", "{_id: 1, a: 1.0}"},
    {"{_id: 1}", "{$inc: {a: 5}}", "{_id: 1, a: 5}"},
    {"{_id: 1}", "{$inc: {'a.b': 5}}", "{_id: 1, a: {b: 5}}"},
    {"{_id: 1, a: {b: 5}}", "{$inc: {'a.b': 5}}", "{_id: 1, a: {b: 10}}"},
    {"{_id: 1, a: [1, 2]}", "{$inc: {'a.1': 5}}", "{_id: 1, a: [1, 7]}"},
    {"{_id: 1, a: 1}", "{$inc: {a: 1.5}}", "{_id: 1, a: 2.5}"},
    {"{_id: 1, a: 1.5}", "{$inc: {a: 1}}", "{_id: 1, a: 2.5}"},
    {"{_id: 1, a: 1}", "{$inc: {a: {$numberLong: '2'}}}", "{_id: 1, a: {$numberLong: '3'}}"},
    {"{_id: 1, a: 2147483647}", "{$inc: {a: 1}}", "{_id: 1, a: {$numberLong: '2147483648'}}"},
    {"{_id: 1, a: -2147483648}", "{$inc: {a: -1}}", "{_id: 1, a: {$numberLong: '-2147483649'}}"},
    {"{_id: 1, a: {$numberLong: '9223372036854775807'}}", "{$inc: {a: 1}}",
     "error 2 Failed to apply $inc operations to current value ((NumberLong)9223372036854775807) "
     "for document {_id: 1}"},
    {"{_id: 1, a: {$numberLong: '-9223372036854775808'}}", "{$inc: {a: -1}}", "error 2"},
    {"{_id: 1, a: {$numberDecimal: '1.1'}}", "{$inc: {a: 1}}",
     "{_id: 1, a: {$numberDecimal: '2.1'}}"},
    {"{_id: 1, a: 1}", "{$inc: {a: {$numberDecimal: '0.1'}}}",
     "{_id: 1, a: {$numberDecimal: '1.1'}}"},
    {"{_id: 1, a: 0.1}", "{$inc: {a: {$numberDecimal: '0.2'}}}",
     "{_id: 1, a: {$numberDecimal: '0.300000000000000'}}"},
    {"{_id: 1, a: 'x'}", "{$inc: {a: 1}}",
     "error 14 Cannot apply $inc to a value of non-numeric type. {_id: 1} has the field 'a' of "
     "non-numeric type string"},
    {"{_id: 'k', a: {b: null}}", "{$inc: {'a.b': 1}}",
     "error 14 Cannot apply $inc to a value of non-numeric type. {_id: \"k\"} has the field 'b' of "
     "non-numeric type null"},
    {"{_id: 1}", "{$inc: {a: 'x'}}",
     "error 14 Cannot increment with non-numeric argument: {a: \"x\"}"},
    {"{_id: 1}", "{$inc: {a: null}}",
     "error 14 Cannot increment with non-numeric argument: {a: null}"},
    {"{_id: 1, a: 1}", "{$inc: {'a.b': 1}}", "error 28 Cannot create field 'b' in element {a: 1}"},
    {"{_id: 1, a: 3}", "{$mul: {a: 2}}", "{_id: 1, a: 6}"},
    {"{_id: 1, a: 3}", "{$mul: {a: 1}}", "="},
    {"{_id: 1}", "{$mul: {a: 2}}", "{_id: 1, a: 0}"},
    {"{_id: 1}", "{$mul: {a: {$numberLong: '2'}}}", "{_id: 1, a: {$numberLong: '0'}}"},
    {"{_id: 1}", "{$mul: {a: -2.5}}", "{_id: 1, a: 0.0}"},
    {"{_id: 1}", "{$mul: {a: {$numberDecimal: '2.5'}}}", "{_id: 1, a: {$numberDecimal: '0'}}"},
    {"{_id: 1, a: 65536}", "{$mul: {a: 65536}}", "{_id: 1, a: {$numberLong: '4294967296'}}"},
    {"{_id: 1, a: {$numberLong: '4611686018427387904'}}", "{$mul: {a: 2}}",
     "error 2 Failed to apply $mul operations to current value ((NumberLong)4611686018427387904)"},
    {"{_id: 1, a: 3}", "{$mul: {a: 0.5}}", "{_id: 1, a: 1.5}"},
    {"{_id: 1, a: true}", "{$mul: {a: 2}}",
     "error 14 Cannot apply $mul to a value of non-numeric type. {_id: 1} has the field 'a' of "
     "non-numeric type bool"},
    {"{_id: 1}", "{$mul: {a: []}}", "error 14 Cannot multiply with non-numeric argument: {a: []}"},
};

const UpdateRow kMinMaxRows[] = {
    {"{_id: 1, a: 5}", "{$min: {a: 3}}", "{_id: 1, a: 3}"},
    {"{_id: 1, a: 5}", "{$min: {a: 7}}", "="},
    {"{_id: 1, a: 5}", "{$min: {a: 5.0}}", "="},
    {"{_id: 1}", "{$min: {a: 3}}", "{_id: 1, a: 3}"},
    {"{_id: 1, a: 'x'}", "{$min: {a: 3}}", "{_id: 1, a: 3}"},
    {"{_id: 1, a: null}", "{$min: {a: 3}}", "="},
    {"{_id: 1, a: 5}", "{$max: {a: 7}}", "{_id: 1, a: 7}"},
    {"{_id: 1, a: 5}", "{$max: {a: 3}}", "="},
    {"{_id: 1, a: 5}", "{$max: {a: {$numberLong: '5'}}}", "="},
    {"{_id: 1}", "{$max: {'a.b': 3}}", "{_id: 1, a: {b: 3}}"},
    {"{_id: 1, a: 5}", "{$max: {a: 'x'}}", "{_id: 1, a: 'x'}"},
    {"{_id: 1, a: null}", "{$max: {a: 3}}", "{_id: 1, a: 3}"},
    {"{_id: 1, a: {$date: '2020-01-01T00:00:00Z'}}", "{$max: {a: {$date: '2021-01-01T00:00:00Z'}}}",
     "{_id: 1, a: {$date: '2021-01-01T00:00:00Z'}}"},
    {"{_id: 1, a: [1, 2]}", "{$max: {a: [1, 3]}}", "{_id: 1, a: [1, 3]}"},
};

const UpdateRow kBitRows[] = {
    {"{_id: 1, a: 13}", "{$bit: {a: {and: 10}}}", "{_id: 1, a: 8}"},
    {"{_id: 1, a: 3}", "{$bit: {a: {or: 5}}}", "{_id: 1, a: 7}"},
    {"{_id: 1, a: 1}", "{$bit: {a: {xor: 5}}}", "{_id: 1, a: 4}"},
    {"{_id: 1, a: 7}", "{$bit: {a: {or: 5}}}", "="},
    {"{_id: 1, a: 13}", "{$bit: {a: {and: 12, or: 3}}}", "{_id: 1, a: 15}"},
    {"{_id: 1, a: 1}", "{$bit: {a: {or: {$numberLong: '4'}}}}", "{_id: 1, a: {$numberLong: '5'}}"},
    {"{_id: 1, a: {$numberLong: '1'}}", "{$bit: {a: {or: 4}}}", "{_id: 1, a: {$numberLong: '5'}}"},
    {"{_id: 1}", "{$bit: {a: {or: 4}}}", "{_id: 1, a: 4}"},
    {"{_id: 1}", "{$bit: {a: {and: 4}}}", "{_id: 1, a: 0}"},
    {"{_id: 1, a: 1.0}", "{$bit: {a: {or: 4}}}",
     "error 2 Cannot apply $bit to a value of non-integral type.{_id: 1} has the field a of "
     "non-integer type double"},
    {"{_id: 1}", "{$bit: {a: {or: 1.5}}}",
     "error 2 The $bit modifier field must be an Integer(32/64 bit); a 'double' is not supported "
     "here: {or: 1.5}"},
    {"{_id: 1}", "{$bit: {a: {nand: 1}}}",
     "error 2 The $bit modifier only supports 'and', 'or', and 'xor', not 'nand' which is an "
     "unknown operator: {nand: 1}"},
    {"{_id: 1}", "{$bit: {a: {}}}", "error 2 You must pass in at least one bitwise operation."},
    {"{_id: 1}", "{$bit: {a: 'x'}}", "error 2 The $bit modifier is not compatible with a string."},
};

const UpdateRow kRenameRows[] = {
    {"{_id: 1, a: 1}", "{$rename: {a: 'b'}}", "{_id: 1, b: 1}"},
    {"{_id: 1, a: 1, c: 2}", "{$rename: {a: 'b'}}", "{_id: 1, c: 2, b: 1}"},
    {"{_id: 1, a: 1, b: 2, c: 3}", "{$rename: {a: 'b'}}", "{_id: 1, b: 1, c: 3}"},
    {"{_id: 1}", "{$rename: {a: 'b'}}", "="},
    {"{_id: 1, b: 1}", "{$rename: {a: 'b'}}", "="},
    {"{_id: 1, a: {b: 1, c: 2}}", "{$rename: {'a.b': 'd'}}", "{_id: 1, a: {c: 2}, d: 1}"},
    {"{_id: 1, a: {b: 1}}", "{$rename: {'a.b': 'x.y.z'}}", "{_id: 1, a: {}, x: {y: {z: 1}}}"},
    {"{_id: 1, a: 1, b: 2}", "{$rename: {a: 'x', b: 'y'}}", "{_id: 1, x: 1, y: 2}"},
    {"{_id: 1, a: {b: [1, 2]}}", "{$rename: {a: 'z'}}", "{_id: 1, z: {b: [1, 2]}}"},
    {"{_id: 1, a: [{b: 1}]}", "{$rename: {'a.0.b': 'c'}}",
     "error 2 The source field cannot be an array element, 'a.0.b' in doc with _id: 1 has an array "
     "field called 'a'"},
    {"{_id: 1, a: 1, c: [1]}", "{$rename: {a: 'c.0'}}",
     "error 2 The destination field cannot be an array element, 'c.0' in doc with _id: 1 has an "
     "array field called 'c'"},
    {"{_id: 1, c: [1]}", "{$rename: {a: 'c.0'}}", "="},
    {"{_id: 1, a: 'x'}", "{$rename: {'a.b': 'c'}}",
     "error 28 cannot use the part (a of a.b) to traverse the element ({a: \"x\"})"},
    {"{_id: 1, a: [1]}", "{$rename: {'a.5': 'c'}}", "="},
    {"{_id: 1, a: 1, c: 1}", "{$rename: {a: 'c.d'}}",
     "error 28 Cannot create field 'd' in element {c: 1}"},
    {"{_id: 1}", "{$rename: {a: 1}}", "error 2 The 'to' field for $rename must be a string: a: 1"},
    {"{_id: 1}", "{$rename: {a: 'a'}}",
     "error 2 The source and target field for $rename must differ: a: \"a\""},
    {"{_id: 1}", "{$rename: {a: 'a.b'}}",
     "error 2 The source and target field for $rename must not be on the same path"},
    {"{_id: 1}", "{$rename: {'a.b': 'a'}}", "error 2 must not be on the same path"},
    {"{_id: 1, a: 1}", "{$rename: {a: 'ab'}}", "{_id: 1, ab: 1}"},
    {"{_id: 1}", "{$rename: {'a.$': 'b'}}",
     "error 2 The source field for $rename may not be dynamic: a.$"},
    {"{_id: 1}", "{$rename: {a: 'b.$[]'}}",
     "error 2 The destination field for $rename may not be dynamic: b.$[]"},
    {"{_id: 1}", "{$rename: {a: ''}}", "error 56"},
    {"{_id: 1}", "{$rename: {a: 'b'}, $set: {a: 1}}", "error 40"},
    {"{_id: 1}", "{$rename: {a: 'b'}, $set: {b: 1}}", "error 40"},
    {"{_id: 1}", "{$rename: {a: 'b', c: 'b'}}", "error 40"},
    {"{_id: 1, a: 1}", "{$rename: {a: '$b'}}", "error 52"},
    {"{_id: 1, a: 1}", "{$rename: {a: 'c.$b'}}", "{_id: 1, c: {$b: 1}}"},
    {"{_id: 1, $a: 1}", "{$rename: {$a: 'b'}}", "{_id: 1, b: 1}"},
};

const UpdateRow kIdRows[] = {
    {"{_id: 1}", "{$set: {_id: 1}}", "="},
    {"{_id: 1}", "{$set: {_id: 1.0}}", "="},
    {"{_id: 1, a: 1}", "{$set: {_id: 1, a: 2}}", "{_id: 1, a: 2}"},
    {"{_id: 1}", "{$set: {_id: 2}}",
     "error 66 Performing an update on the path '_id' would modify the immutable field '_id'"},
    {"{_id: 1}", "{$unset: {_id: 1}}", "error 66 Performing an update on the path '_id'"},
    {"{_id: 1}", "{$inc: {_id: 1}}", "error 66"},
    {"{_id: 1}", "{$inc: {_id: 0}}", "="},
    {"{_id: 1}", "{$rename: {_id: 'a'}}", "error 66"},
    {"{_id: 1, a: 2}", "{$rename: {a: '_id'}}", "error 66"},
    {"{_id: {a: 1}}", "{$set: {'_id.b': 2}}", "error 66 Performing an update on the path '_id.b'"},
    {"{_id: {a: 1}}", "{$set: {'_id.a': 1}}", "="},
    {"{_id: {a: 1}}", "{$unset: {'_id.a': 1}}", "error 66"},
    {"{_id: 1, a: {_id: 1}}", "{$set: {'a._id': 2}}", "{_id: 1, a: {_id: 2}}"},
    {"{_id: 1}", "{$max: {_id: 0}}", "="},
};

const UpdateRow kDateRows[] = {
    {"{_id: 1}", "{$currentDate: {a: true}}", "{_id: 1, a: {$date: '2030-01-01T00:00:00Z'}}"},
    {"{_id: 1, a: {$date: '2030-01-01T00:00:00Z'}}", "{$currentDate: {a: true}}", "="},
    {"{_id: 1}", "{$currentDate: {'a.b': true}}",
     "{_id: 1, a: {b: {$date: '2030-01-01T00:00:00Z'}}}"},
    {"{_id: 1}", "{$currentDate: {a: 1}}", "error 2 int is not valid type for $currentDate."},
    {"{_id: 1}", "{$currentDate: {a: {}}}", "error 2 The '$type' string field is required"},
    {"{_id: 1}", "{$currentDate: {a: {foo: 'x'}}}",
     "error 2 Unrecognized $currentDate option: foo"},
    {"{_id: 1}", "{$currentDate: {a: {$type: 'date', $type: 'timestamp'}}}",
     "error 40413 BSON field '$currentDate.$type' is a duplicate field"},
    {"{_id: 1}", "{$setOnInsert: {a: 1}}", "="},
    {"{_id: 1, a: 1}", "{$setOnInsert: {'a.b': 1}}", "="},
};

}  // namespace

TEST_CASE("$set writes fields and creates paths", "[update]") {
  for (const UpdateRow& row : kSetRows) CheckRow(row);
}
TEST_CASE("$unset removes fields", "[update]") {
  for (const UpdateRow& row : kUnsetRows) CheckRow(row);
}
TEST_CASE("$inc and $mul compute in the wider type", "[update]") {
  for (const UpdateRow& row : kArithmeticRows) CheckRow(row);
}
TEST_CASE("$min and $max compare across types", "[update]") {
  for (const UpdateRow& row : kMinMaxRows) CheckRow(row);
}
TEST_CASE("$bit works on integers", "[update]") {
  for (const UpdateRow& row : kBitRows) CheckRow(row);
}
TEST_CASE("$rename moves a value", "[update]") {
  for (const UpdateRow& row : kRenameRows) CheckRow(row);
}
TEST_CASE("_id is immutable", "[update]") {
  for (const UpdateRow& row : kIdRows) CheckRow(row);
}
TEST_CASE("$currentDate and $setOnInsert", "[update]") {
  for (const UpdateRow& row : kDateRows) CheckRow(row);
}

TEST_CASE("An array is padded with at most 1,500,000 nulls", "[update]") {
  VariableScope scope;
  auto update = ParseUpdate("{$set: {'a.1500000': 1}}", "", scope);
  EvalContext ctx = TestContext(scope);
  BsonDocument old = Doc("{_id: 1, a: []}");
  auto outcome = update.value()->Apply(old, -1, false, ctx);
  REQUIRE(outcome);
  CHECK(BsonView(outcome.value().bytes.data())["a"].Document().Count() == 1'500'001);
}

TEST_CASE("$currentDate writes the type asked for", "[update]") {
  VariableScope scope;
  EvalContext ctx = TestContext(scope);
  BsonDocument old = Doc("{_id: 1, a: 5}");
  // {"$type": …} alone is not extended JSON, so these are built by hand.
  auto parse = [&](const char* type) {
    BsonDocument u = BuildBson([&](BsonBuilder& b) {
      BsonBuilder modifier = b.OpenDocument("$currentDate");
      modifier.OpenDocument("a").Append("$type", type);
    });
    return Update::Parse(u.view().AsValue(), {}, scope);
  };
  SECTION("date") {
    auto outcome = parse("date").value()->Apply(old, -1, false, ctx);
    REQUIRE(outcome);
    CHECK(BsonView(outcome.value().bytes.data())["a"].Date() == kTestNow);
  }
  SECTION("timestamps, each another one") {
    auto update = parse("timestamp");
    auto one = update.value()->Apply(old, -1, false, ctx);
    auto two = update.value()->Apply(old, -1, false, ctx);
    BsonValue a = BsonView(one.value().bytes.data())["a"];
    BsonValue b = BsonView(two.value().bytes.data())["a"];
    REQUIRE(a.Is(BsonType::kTimestamp));
    CHECK(a.Timestamp() >> 32 == static_cast<uint64_t>(kTestNow.millis / 1000));
    CHECK(a.Timestamp() < b.Timestamp());
  }
  SECTION("another type") {
    auto update = parse("x");
    REQUIRE(!update);
    CHECK(update.error().code == ErrorCode::kBadValue);
    CHECK_THAT(
        update.error().message,
        Catch::StartsWith("The '$type' string field is required to be 'date' or 'timestamp'"));
  }
}

TEST_CASE("Limits of the resulting document", "[update]") {
  VariableScope scope;
  EvalContext ctx = TestContext(scope);
  SECTION("16 MiB") {
    std::string big(9 << 20, 'x');
    BsonDocument old = BuildBson([&](BsonBuilder& b) { b.Append("_id", 1).Append("a", big); });
    BsonDocument u = BuildBson([&](BsonBuilder& b) { b.OpenDocument("$set").Append("b", big); });
    auto update = Update::Parse(u.view().AsValue(), {}, scope);
    auto outcome = update.value()->Apply(old, -1, false, ctx);
    REQUIRE(!outcome);
    CHECK(outcome.error().code == LocationCode(17419));
    CHECK(outcome.error().message == "Resulting document after update is larger than 16777216");
  }
  SECTION("nesting") {
    std::string path = "a";
    for (int i = 1; i < kMaxBsonDepth; ++i) path += ".a";
    auto with = [&](const std::string& p) {
      auto update = ParseUpdate("{$set: {'" + p + "': 1}}", "", scope);
      REQUIRE(update);
      BsonDocument old = Doc("{_id: 1}");
      return update.value()->Apply(old, -1, false, ctx);
    };
    CHECK(with(path));
    auto deeper = with(path + ".a");
    REQUIRE(!deeper);
    CHECK(deeper.error().code == ErrorCode::kOverflow);
    for (int i = 0; i < 200; ++i) path += ".a";
    auto update = ParseUpdate("{$unset: {'" + path + "': 1}}", "", scope);
    REQUIRE(!update);
    CHECK(update.error().code == ErrorCode::kOverflow);
  }
}

}  // namespace mayfly
