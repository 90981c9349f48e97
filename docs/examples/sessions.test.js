// Jest: an application's expiry logic, tested without waiting. Needs a server started with --testClock.
// Run: MONGODB_URI=mongodb://127.0.0.1 NODE_OPTIONS=--experimental-vm-modules npx jest
// (the flag is for version 7 of the driver, which imports modules as it runs)
const { MongoClient } = require('mongodb');

const client = new MongoClient(process.env.MONGODB_URI);
const sessions = client.db('jest_example').collection('sessions');
const clock = (change) => client.db('admin').command({ clock: change });

// Moves the server's clock. When it returns, everything due by then is gone.
let now = Date.parse('2030-01-01T12:00:00Z');
const advance = (seconds) => { now += seconds * 1000; return clock({ advanceSeconds: seconds }); };

// What is tested: sessions live half an hour from their last use.
const touch = (id) => sessions.updateOne({ _id: id }, { $set: { lastSeen: new Date(now) } }, { upsert: true });

beforeAll(async () => {
  await client.connect();
  await sessions.drop().catch(() => {});
  await clock({ freeze: true, set: new Date(now) });
  await sessions.createIndex({ lastSeen: 1 }, { expireAfterSeconds: 1800 });
});
afterAll(async () => {
  await clock('real');
  await client.close();
});

test('a session that is not used is gone after half an hour, not before', async () => {
  await touch('ann');
  await advance(1799);
  expect(await sessions.countDocuments({ _id: 'ann' })).toBe(1);
  await advance(1);
  expect(await sessions.countDocuments({ _id: 'ann' })).toBe(0);
});

test('using a session keeps it', async () => {
  await touch('bob');
  await advance(1000);
  await touch('bob');
  await advance(1000);
  expect(await sessions.countDocuments({ _id: 'bob' })).toBe(1);
  await advance(800);
  expect(await sessions.countDocuments({ _id: 'bob' })).toBe(0);
});

test('what will expire can be asked beforehand', async () => {
  await touch('cid');
  const f = await client.db('jest_example').command({ ttlForecast: 'sessions', horizonSeconds: 3600, buckets: 2 });
  expect(f.intervals.map((i) => Number(i.count))).toEqual([1, 0]);
  expect(f.exact).toBe(true);
});
