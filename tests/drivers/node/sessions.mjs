// A small real app: Express, express-session, connect-mongo. Sessions must work, be touched, and expire.
import assert from 'node:assert/strict';
import express from 'express';
import session from 'express-session';
import MongoStore from 'connect-mongo';
import { MongoClient } from 'mongodb';
import { test, run, until } from './harness.mjs';

const client = await new MongoClient(process.env.MONGODB_URI).connect();
await client.db('shop').dropDatabase();
const Store = MongoStore.create ? MongoStore : MongoStore.default;
const store = Store.create({ clientPromise: Promise.resolve(client), dbName: 'shop', collectionName: 'sessions', ttl: 3600, autoRemove: 'native' });
const app = express();
app.use(session({ secret: 'x', store, resave: false, saveUninitialized: false }));
app.get('/count', (req, res) => { req.session.n = (req.session.n ?? 0) + 1; res.json({ n: req.session.n }); });
app.get('/logout', (req, res) => req.session.destroy(() => res.json({ ok: 1 })));
const server = app.listen(0);
const base = `http://127.0.0.1:${server.address().port}`;
const sessions = client.db('shop').collection('sessions');
let cookie;
const get = async (path) => {
  const r = await fetch(base + path, { headers: cookie ? { cookie } : {} });
  cookie = r.headers.get('set-cookie')?.split(';')[0] ?? cookie;
  return r.json();
};

test('the store made its TTL index', async () => {
  await get('/count');
  const idx = await until('the index', async () => (await sessions.indexes()).find((i) => i.key.expires));
  assert.equal(idx.expireAfterSeconds, 0);
});
test('a session counts up', async () => {
  assert.equal((await get('/count')).n, 2);
  assert.equal((await get('/count')).n, 3);
});
test('a session that is due is gone, and the app starts a new one', async () => {
  await sessions.updateMany({}, { $set: { expires: new Date(Date.now() - 1) } });
  await until('the session to expire', async () => (await sessions.countDocuments({})) === 0);
  assert.equal((await get('/count')).n, 1);
});
test('logout removes it at once', async () => {
  await get('/logout');
  assert.equal(await sessions.countDocuments({}), 0);
});
await run(async () => { server.close(); await store.close?.().catch(() => {}); await client.close().catch(() => {}); });
