// Logins of the Node driver, over TLS: what with_access.py gives in the environment.
import assert from 'node:assert/strict';
import { MongoClient } from 'mongodb';
import { patience, test, run } from './harness.mjs';

const using = async (uri, fn) => {
  const client = new MongoClient(uri, { serverSelectionTimeoutMS: patience });
  try { return await fn(client); } finally { await client.close(); }
};
const refused = (uri, code) => using(uri, (client) =>
  assert.rejects(client.db('access_node').collection('things').findOne(), { code }));

for (const line of process.env.LOGINS.split('\n')) {
  const [name, uri] = line.split(' ');
  const onSet = uri.includes('replicaSet');
  test(name, () => using(uri, async (client) => {
    const who = await client.db('admin').command({ connectionStatus: 1 });
    assert.equal(who.authInfo.authenticatedUsers.length, 1);
    const c = client.db('access_node').collection(name);
    await c.drop().catch(() => {});
    await c.insertMany([...Array(300).keys()].map((i) => ({ _id: i, v: i % 10 })));
    assert.equal((await c.find({ v: { $lt: 5 } }, { batchSize: 7 }).sort({ _id: -1 }).toArray()).length, 150);
    const groups = await c.aggregate([{ $group: { _id: '$v', n: { $sum: 1 } } }], { batchSize: 3 }).toArray();
    assert.deepEqual(groups.map((g) => g.n), Array(10).fill(30));
    await client.withSession(async (session) => {
      await c.updateMany({ v: 1 }, { $inc: { n: 1 } }, { session });
      assert.equal(await c.countDocuments({ n: 1 }, { session }), 30);
    });
    await assert.rejects(client.db('admin').command({ createUser: 'more', pwd: 'x', roles: [] }), { code: 13 });
    if (!onSet) return;
    const stream = c.watch();
    const next = stream.next();
    await c.insertOne({ _id: 'seen' });
    assert.equal((await next).documentKey._id, 'seen');
    await stream.close();
  }));
}
test('a wrong password', () => refused(process.env.WRONG_LOGIN, 18));
test('no login', () => refused(process.env.NO_LOGIN, 13));
run();
