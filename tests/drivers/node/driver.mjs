import assert from 'node:assert/strict';
import { MongoClient, ObjectId, Long, Decimal128, Timestamp, Binary, MinKey, MaxKey, Int32, Double, UUID, BSONRegExp } from 'mongodb';
import { test, run, until } from './harness.mjs';

const client = new MongoClient(process.env.MONGODB_URI);
await client.connect();
const db = client.db('node_driver');
await db.dropDatabase();
const fresh = async (name) => { await db.collection(name).drop().catch(() => {}); return db.collection(name); };
const rejects = async (p, code) => {
  const e = await p.then(() => null, (x) => x);
  assert.ok(e, `should have failed with ${code}`);
  assert.equal(e.code, code, e.message);
  return e;
};

test('connect and ping', async () => assert.equal((await db.command({ ping: 1 })).ok, 1));

test('every BSON type comes back as it went in', async () => {
  const c = await fresh('types');
  const doc = { _id: new ObjectId(), i: new Int32(5), l: Long.fromString('9007199254740993'), d: new Double(1.5), s: 'é\u0000x', b: true, n: null,
    date: new Date(0), ts: new Timestamp({ t: 5, i: 6 }), dec: Decimal128.fromString('1.10'), bin: new Binary(Buffer.from([1, 2, 3])),
    uuid: new UUID(), re: new BSONRegExp('^a', 'i'), min: new MinKey(), max: new MaxKey(), arr: [1, [2], { x: 3 }], sub: { 'a b': { c: 1 } } };
  await c.insertOne(doc);
  const back = await c.findOne({ _id: doc._id }, { promoteValues: false, bsonRegExp: true });
  assert.equal(back.l.toString(), '9007199254740993');
  assert.equal(back.dec.toString(), '1.10');
  assert.equal(back.s.toString(), doc.s);
  assert.equal(back._id.toString(), doc._id.toString());
  assert.deepEqual(Object.keys(back), Object.keys(doc));
  assert.equal(back.re.pattern, '^a');
});

test('CRUD', async () => {
  const c = await fresh('crud');
  assert.equal((await c.insertMany([{ _id: 1, a: 1 }, { _id: 2, a: 2 }, { _id: 3, a: 3 }])).insertedCount, 3);
  assert.deepEqual(await c.find({ a: { $gte: 2 } }).sort({ a: -1 }).toArray(), [{ _id: 3, a: 3 }, { _id: 2, a: 2 }]);
  assert.equal((await c.updateOne({ _id: 1 }, { $inc: { a: 10 } })).modifiedCount, 1);
  assert.equal((await c.updateMany({}, { $set: { t: 1 } })).modifiedCount, 3);
  assert.equal((await c.updateOne({ _id: 9 }, { $set: { a: 9 } }, { upsert: true })).upsertedId, 9);
  assert.equal((await c.replaceOne({ _id: 9 }, { z: 1 })).modifiedCount, 1);
  assert.deepEqual(await c.findOneAndUpdate({ _id: 9 }, { $set: { z: 2 } }, { returnDocument: 'after' }), { _id: 9, z: 2 });
  assert.deepEqual(await c.findOneAndReplace({ _id: 9 }, { z: 3 }), { _id: 9, z: 2 });
  assert.deepEqual(await c.findOneAndDelete({ _id: 9 }), { _id: 9, z: 3 });
  assert.equal((await c.deleteOne({ _id: 1 })).deletedCount, 1);
  assert.equal(await c.countDocuments({}), 2);
  assert.equal(await c.estimatedDocumentCount(), 2);
  assert.deepEqual((await c.distinct('a')).sort(), [2, 3]);
  assert.equal((await c.deleteMany({})).deletedCount, 2);
});

test('bulk writes, ordered and not', async () => {
  const c = await fresh('bulk');
  const r = await c.bulkWrite([{ insertOne: { document: { _id: 1 } } }, { updateOne: { filter: { _id: 1 }, update: { $set: { a: 1 } } } },
    { replaceOne: { filter: { _id: 2 }, replacement: { b: 1 }, upsert: true } }, { deleteOne: { filter: { _id: 1 } } }]);
  assert.equal(r.insertedCount, 1); assert.equal(r.modifiedCount, 1); assert.equal(r.upsertedCount, 1); assert.equal(r.deletedCount, 1);
  const e = await rejects(c.insertMany([{ _id: 5 }, { _id: 5 }, { _id: 6 }], { ordered: false }), 11000);
  assert.equal(e.writeErrors.length, 1);
  assert.equal(await c.countDocuments({ _id: { $in: [5, 6] } }), 2);
  await rejects(c.insertMany([{ _id: 7 }, { _id: 7 }, { _id: 8 }]), 11000);
  assert.equal(await c.countDocuments({ _id: 8 }), 0);
});

test('cursors in batches', async () => {
  const c = await fresh('cursors');
  await c.insertMany(Array.from({ length: 1000 }, (_, i) => ({ _id: i })));
  const seen = [];
  for await (const d of c.find({}, { batchSize: 7 })) seen.push(d._id);
  assert.deepEqual(seen, Array.from({ length: 1000 }, (_, i) => i));
  const cur = c.find({}, { batchSize: 2 });
  await cur.next(); await cur.close();
  await rejects(db.command({ getMore: Long.fromNumber(12345678), collection: 'cursors' }), 43);
});

test('tailable cursor on a capped collection', async () => {
  await db.dropCollection('capped').catch(() => {});
  const c = await db.createCollection('capped', { capped: true, size: 100000, max: 3 });
  for (let i = 0; i < 5; i++) await c.insertOne({ _id: i });
  assert.deepEqual((await c.find().toArray()).map((d) => d._id), [2, 3, 4]);
  const cur = c.find({}, { tailable: true, awaitData: true, maxAwaitTimeMS: 5000 });
  for (let i = 2; i < 5; i++) assert.equal((await cur.next())._id, i);
  const next = cur.next();
  await c.insertOne({ _id: 99 });
  assert.equal((await next)._id, 99);
  await cur.close();
});

test('indexes', async () => {
  const c = await fresh('indexes');
  await c.insertMany([{ a: 1, b: 'x' }, { a: 2, b: 'y' }]);
  assert.equal(await c.createIndex({ a: 1, b: -1 }), 'a_1_b_-1');
  await c.createIndex({ b: 1 }, { unique: true });
  await c.createIndex({ c: 1 }, { sparse: true, name: 'cc' });
  await c.createIndex({ d: 1 }, { partialFilterExpression: { a: { $gt: 1 } } });
  assert.deepEqual((await c.indexes()).map((i) => i.name).sort(), ['_id_', 'a_1_b_-1', 'b_1', 'cc', 'd_1']);
  const e = await rejects(c.insertOne({ a: 3, b: 'x' }), 11000);
  assert.deepEqual(e.keyPattern, { b: 1 }); assert.deepEqual(e.keyValue, { b: 'x' });
  const plan = await c.find({ a: 1 }).explain('executionStats');
  assert.equal(plan.executionStats.totalDocsExamined, 1);
  await c.dropIndex('cc');
  await rejects(c.dropIndex('cc'), 27);
});

test('aggregation', async () => {
  const c = await fresh('agg');
  await c.insertMany([{ k: 'a', v: 1 }, { k: 'a', v: 2 }, { k: 'b', v: 5 }]);
  assert.deepEqual(await c.aggregate([{ $match: { v: { $gt: 0 } } }, { $group: { _id: '$k', sum: { $sum: '$v' } } }, { $sort: { _id: 1 } }]).toArray(),
    [{ _id: 'a', sum: 3 }, { _id: 'b', sum: 5 }]);
  await c.aggregate([{ $project: { v: 1 } }, { $out: 'agg_out' }]).toArray();
  assert.equal(await db.collection('agg_out').countDocuments({}), 3);
  const joined = await c.aggregate([{ $lookup: { from: 'agg_out', localField: 'v', foreignField: 'v', as: 'm' } }, { $match: { 'm.0': { $exists: true } } }, { $count: 'n' }]).toArray();
  assert.deepEqual(joined, [{ n: 3 }]);
});

test('errors carry code and name', async () => {
  const e = await rejects(db.command({ nonsense: 1 }), 59);
  assert.equal(e.codeName, 'CommandNotFound');
  await rejects(db.collection('x').find({ a: { $foo: 1 } }).toArray(), 2);
  await rejects(db.collection('x').insertOne({ a: 1 }).then(() => db.collection('x').updateOne({}, { $set: { _id: 9 } })), 66);
});

test('compression', async () => {
  for (const compressors of [['snappy'], ['zlib']]) {
    const k = new MongoClient(process.env.MONGODB_URI, { compressors });
    const c = k.db('node_driver').collection('compressed');
    await c.deleteMany({});
    await c.insertMany(Array.from({ length: 200 }, (_, i) => ({ _id: i, text: 'mayfly '.repeat(50) })));
    assert.equal((await c.find().toArray()).length, 200);
    await k.close();
  }
});

test('a TTL index removes a document that is due', async () => {
  const c = await fresh('ttl');
  await c.createIndex({ at: 1 }, { expireAfterSeconds: 0 });
  await c.insertMany([{ _id: 'due', at: new Date(Date.now() - 1000) }, { _id: 'later', at: new Date(Date.now() + 3600e3) }, { _id: 'never', at: 'text' }]);
  await until('the due document to go', async () => !(await c.findOne({ _id: 'due' })));
  assert.equal(await c.countDocuments({}), 2);
});

test('sessions and many connections', async () => {
  await client.withSession(async (session) => {
    await db.collection('s').insertOne({ a: 1 }, { session });
    assert.ok(await db.collection('s').findOne({ a: 1 }, { session }));
  });
  await Promise.all(Array.from({ length: 100 }, (_, i) => db.collection('many').insertOne({ i })));
  assert.equal(await db.collection('many').countDocuments({}), 100);
  const names = (await client.db().admin().listDatabases()).databases.map((d) => d.name);
  assert.ok(names.includes('node_driver'));
  assert.ok((await db.listCollections().toArray()).some((x) => x.name === 'many'));
});

test('$expire through the helpers', async () => {
  const c = await fresh('expire');
  const left = async (_id) => (await c.findOne({ _id }, { projection: { left: { $meta: 'ttlMillis' } } }))?.left;
  await c.insertMany([{ _id: 1 }, { _id: 2 }, { _id: 3 }]);
  await c.updateOne({ _id: 1 }, { $set: { a: 1 }, $expire: { afterSeconds: 3600 } });
  const l = await left(1);
  assert.ok(l > 3590e3 && l <= 3600e3, `${l}`);
  await c.updateOne({ _id: 1 }, { $set: { a: 2 }, $expire: { preserve: true } });
  assert.ok((await left(1)) > 3590e3);
  await c.updateOne({ _id: 1 }, { $set: { a: 3 } });
  assert.equal(await left(1), undefined);
  const at = new Date(Date.now() + 86400e3);
  const r = await c.findOneAndUpdate({ _id: 2 }, { $expire: { at } }, { returnDocument: 'after', projection: { at: { $meta: 'expireAt' } } });
  assert.equal(r.at.getTime(), at.getTime());
  await c.bulkWrite([{ updateOne: { filter: { _id: 3 }, update: { $expire: { at: new Date(Date.now() - 1) } } } },
    { updateOne: { filter: { _id: 4 }, update: { $set: { new: true }, $expire: { afterSeconds: 60 } }, upsert: true } }]);
  assert.equal(await c.findOne({ _id: 3 }), null);
  assert.equal(await c.countDocuments({}), 3);
  assert.equal(await c.estimatedDocumentCount(), 3);
  await c.insertOne({ _id: 3, again: true });
  await assert.rejects(c.updateOne({ _id: 1 }, { $expire: { afterSeconds: -1 } }), (e) => e.code === 2);
  const [t] = await c.aggregate([{ $tombstones: {} }]).toArray();
  assert.equal(t.id, 3); assert.equal(t.reason, 'expired'); assert.equal(t.rule, 'document');
});

test('expiry.field through inserts and replacements', async () => {
  await db.dropCollection('field').catch(() => {});
  const c = await db.createCollection('field', { expiry: { field: 'ttl', maxTTL: 3600 } });
  await c.insertMany([{ _id: 1, ttl: 60 }, { _id: 2, ttl: new Date(Date.now() - 5) }, { _id: 3 }]);
  await c.replaceOne({ _id: 4 }, { ttl: 9e6 }, { upsert: true });
  const rows = await c.find({}, { projection: { left: { $meta: 'ttlMillis' } } }).toArray();
  assert.deepEqual(rows.map((d) => d._id), [1, 3, 4]);
  assert.ok(rows[0].left <= 60e3 && rows[1].left > 3590e3 && rows[2].left > 3590e3 && rows[2].left <= 3600e3);
  await assert.rejects(c.insertOne({ ttl: 'soon' }), (e) => e.code === 121);
  assert.deepEqual((await db.listCollections({ name: 'field' }).toArray())[0].options.expiry, { field: 'ttl', maxTTL: 3600 });
});

test('client.bulkWrite on two collections', async () => {
  const c = await fresh('cb'), d = await fresh('cb2');
  const ns = (x) => `${db.databaseName}.${x.collectionName}`;
  const r = await client.bulkWrite([
    { name: 'insertOne', namespace: ns(c), document: { _id: 1, x: 1 } }, { name: 'insertOne', namespace: ns(d), document: { _id: 1 } },
    { name: 'updateOne', namespace: ns(c), filter: { _id: 1 }, update: { $inc: { x: 1 } } },
    { name: 'replaceOne', namespace: ns(c), filter: { _id: 2 }, replacement: { y: 1 }, upsert: true },
    { name: 'deleteOne', namespace: ns(d), filter: { _id: 1 } }], { verboseResults: true });
  assert.deepEqual([r.insertedCount, r.matchedCount, r.modifiedCount, r.upsertedCount, r.deletedCount], [2, 1, 1, 1, 1]);
  assert.equal(r.updateResults.get(3).upsertedId, 2);
  assert.deepEqual(await c.find().sort({ _id: 1 }).toArray(), [{ _id: 1, x: 2 }, { _id: 2, y: 1 }]);
  const e = await client.bulkWrite([{ name: 'insertOne', namespace: ns(c), document: { _id: 1 } },
    { name: 'insertOne', namespace: ns(c), document: { _id: 9 } }], { ordered: false }).then(() => null, (x) => x);
  assert.equal(e.writeErrors.get(0).code, 11000);
  assert.equal(e.partialResult.insertedCount, 1);
});

// On a set: the first try of each write fails in one of several ways, and the write is there once.
if ((await db.command({ hello: 1 })).setName) test('writes that are retried happen once', async () => {
  const c = await fresh('retries');
  const point = (name, data) => client.db('admin').command({ configureFailPoint: name, mode: { times: 1 }, data });
  await c.insertOne({ _id: 'sum', n: 0 });
  for (let i = 0; i < 18; i++) {
    if (i % 3 === 0) await point('onPrimaryTransactionalWrite', { closeConnection: true });
    else if (i % 3 === 1) await point('failCommand', { failCommands: ['insert', 'findAndModify'], closeConnection: true });
    else await point('failCommand', { failCommands: ['insert', 'findAndModify'], errorCode: 11600, errorLabels: ['RetryableWriteError'] });
    if (i % 2 === 0) await c.insertOne({ v: i });
    else assert.equal((await c.findOneAndUpdate({ _id: 'sum' }, { $inc: { n: 1 } }, { returnDocument: 'after' })).n, (i + 1) / 2);
  }
  assert.equal(await c.countDocuments({ v: { $exists: true } }), 9);
});

// What a fail point blocks comes before the getMore, whose maxTimeMS is how long it waits for data.
if ((await db.command({ hello: 1 })).setName) test('an awaitData getMore that was blocked answers an empty batch', async () => {
  await db.collection('blocked').drop().catch(() => {});
  await db.createCollection('blocked', { capped: true, size: 4096 });
  await db.collection('blocked').insertOne({ _id: 1 });
  const found = await db.command({ find: 'blocked', tailable: true, awaitData: true });
  const data = { failCommands: ['getMore'], blockConnection: true, blockTimeMS: 60 };
  await client.db('admin').command({ configureFailPoint: 'failCommand', mode: { times: 1 }, data });
  const more = await db.command({ getMore: Long.fromValue(found.cursor.id), collection: 'blocked', maxTimeMS: 20 });
  assert.deepEqual(more.cursor.nextBatch, []);
  assert.notEqual(Number(more.cursor.id), 0);
  await db.command({ killCursors: 'blocked', cursors: [Long.fromValue(found.cursor.id)] });
});

test('a time series', async () => {
  await db.collection('weather').drop().catch(() => {});
  const series = await db.createCollection('weather', { timeseries: { timeField: 'at', metaField: 'sensor' }, expireAfterSeconds: 86400 });
  const begin = Date.UTC(2030, 0, 1);
  await series.insertMany(Array.from({ length: 300 }, (_, i) => ({ at: new Date(begin + i * 60e3), sensor: { id: i % 3 }, v: i })));
  const [shown] = await db.listCollections({ name: 'weather' }).toArray();
  assert.equal(shown.type, 'timeseries');
  assert.equal(await series.countDocuments({ 'sensor.id': 1 }), 100);
  const last = await series.aggregate([{ $sort: { sensor: 1, at: -1 } }, { $group: { _id: '$sensor', v: { $first: '$v' } } }, { $sort: { v: 1 } }]).toArray();
  assert.deepEqual(last.map((d) => d.v), [297, 298, 299]);
  let n = 0;
  for await (const d of series.find({ at: { $gte: new Date(begin + 100 * 60e3) } }).batchSize(7)) n += d.v >= 100; // clock: of the documents
  assert.equal(n, 200);
  assert.equal((await series.deleteMany({ v: { $gte: 290 } })).deletedCount, 10);
  await rejects(series.updateOne({ 'sensor.id': 1 }, { $set: { v: 0 } }), 72);
  assert.equal((await series.updateMany({ sensor: { id: 0 } }, { $set: { 'sensor.room': 'roof' } })).modifiedCount, 97);
});

await run(() => client.close());
