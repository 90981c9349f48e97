// Change streams: watch() on a collection, a database and all; resuming after a broken connection; what expires. On a standalone they are refused.
import assert from 'node:assert/strict';
import { MongoClient } from 'mongodb';
import { test, run, until } from './harness.mjs';

const client = await new MongoClient(process.env.MONGODB_URI).connect();
const admin = client.db('admin');
const db = client.db('node_streams');
await db.dropDatabase();
const onSet = (await admin.command({ hello: 1 })).setName !== undefined;

// A stream that has begun. Its getMores wait shortly, because the first one, which finds nothing, does so too.
const open = async (of, stages = [], options = {}) => {
  const stream = of.watch(stages, { maxAwaitTimeMS: 20, ...options });
  assert.equal(await stream.tryNext(), null);
  return stream;
};
// The next n events of a stream.
const take = async (stream, n) => {
  const out = [];
  while (out.length < n) out.push(await stream.next());
  return out;
};

if (!onSet) {
  test('a standalone refuses change streams', async () => {
    await assert.rejects(db.collection('c').watch().next(), (e) => e.code === 40573);
  });
} else {
  test('a collection', async () => {
    const c = await db.createCollection('c');
    const stream = await open(c, [], { fullDocument: 'updateLookup' });
    await c.insertOne({ _id: 1, a: 1 });
    await c.updateOne({ _id: 1 }, { $set: { a: 2 } });
    await c.replaceOne({ _id: 1 }, { b: 1 });
    await c.deleteOne({ _id: 1 });
    const events = await take(stream, 4);
    assert.deepEqual(events.map((e) => e.operationType), ['insert', 'update', 'replace', 'delete']);
    assert.deepEqual(events[1].updateDescription.updatedFields, { a: 2 });
    assert.deepEqual(events.map((e) => e.documentKey._id), [1, 1, 1, 1]);
    const again = c.watch([], { resumeAfter: events[1]._id });
    assert.deepEqual((await take(again, 2)).map((e) => e._id), events.slice(2).map((e) => e._id));
    await again.close();
    await stream.close();
  });
  test('a database, and all', async () => {
    const streams = [await open(db, [{ $match: { operationType: 'insert' } }]), await open(client, [{ $match: { 'ns.db': 'node_streams', operationType: 'insert' } }])];
    await db.collection('x').insertOne({ _id: 1 });
    await db.collection('y').insertOne({ _id: 2 });
    for (const s of streams) {
      assert.deepEqual((await take(s, 2)).map((e) => e.ns.coll), ['x', 'y']);
      await s.close();
    }
  });
  test('a dropped collection ends its stream', async () => {
    const c = await db.createCollection('gone');
    const stream = await open(c);
    await c.drop();
    assert.deepEqual((await take(stream, 2)).map((e) => e.operationType), ['drop', 'invalidate']);
    await stream.close();
  });
  test('a waiting stream hears of a write when it is there', async () => {
    const c = db.collection('waiting');
    await c.insertOne({ _id: 0 });
    // Not tryNext: the driver asks once for more when the stream begins, and that would wait as long. A wait of a day
    // does not end by itself.
    const stream = c.watch([], { maxAwaitTimeMS: 86400000 });
    const next = stream.next();
    await until('the getMore to wait', async () =>
      (await admin.command({ currentOp: 1, op: 'getmore', ns: 'node_streams.waiting' })).inprog.length > 0);
    await c.insertOne({ _id: 1 });
    assert.equal((await next).documentKey._id, 1);
    await stream.close();
  });
  test('killing the cursor ends a getMore that waits, at once', async () => {
    const session = client.startSession();
    const r = await db.command({ aggregate: 'waiting', pipeline: [{ $changeStream: {} }], cursor: {} }, { session, promoteLongs: false });
    const more = db.command({ getMore: r.cursor.id, collection: 'waiting', maxTimeMS: 86400000 }, { session }).then(() => null, (e) => e);
    await until('the getMore to wait', async () =>
      (await admin.command({ currentOp: 1, op: 'getmore', ns: 'node_streams.waiting' })).inprog.length > 0);
    await db.command({ killCursors: 'waiting', cursors: [r.cursor.id] });
    assert.equal((await more)?.code, 237);
    await session.endSession();
  });
  test('a document of 16 MB fits into an event', async () => {
    const c = db.collection('large');
    await c.insertOne({ _id: 0 });
    const stream = await open(c);
    await c.insertOne({ _id: 1, bytes: Buffer.alloc(16 * 1024 * 1024 - 100) });
    assert.equal((await stream.next()).fullDocument.bytes.length(), 16 * 1024 * 1024 - 100);
    await stream.close();
    await c.drop();
  });
  test('a broken connection is resumed by the driver', async () => {
    const c = db.collection('broken');
    await c.insertOne({ _id: 0 });
    const stream = await open(c);
    await admin.command({ configureFailPoint: 'failCommand', mode: { times: 1 }, data: { failCommands: ['getMore'], closeConnection: true } });
    await c.insertMany([{ _id: 1 }, { _id: 2 }]);
    assert.deepEqual((await take(stream, 2)).map((e) => e.documentKey._id), [1, 2]);
    await stream.close();
  });
  test('what expires says why', async () => {
    const c = await db.createCollection('sessions');
    await c.createIndex({ at: 1 }, { expireAfterSeconds: 0, name: 'at_1' });
    const stream = db.aggregate([{ $changeStream: { showExpiryEvents: true } }, { $match: { operationType: 'expire' } }], { maxAwaitTimeMS: 20 });
    assert.equal(await stream.tryNext(), null);
    await c.insertOne({ _id: 7, at: new Date(Date.now() - 1000) });
    const event = await until('the event', () => stream.tryNext());
    assert.equal(event.documentKey._id, 7);
    assert.equal(event.rule, 'at_1');
    assert.equal(event.reason, 'ttlIndex');
    assert.ok(event.expiredAt >= event.expireAt);
    await stream.close();
  });
}

await run(() => client.close());
