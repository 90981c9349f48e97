// Apps that use transactions wherever they meet a set: mongoose, Payload's and better-auth's adapters.
import assert from 'node:assert/strict';
import { MongoClient } from 'mongodb';
import mongoose from 'mongoose';
import { betterAuth } from 'better-auth';
import { mongodbAdapter } from '@better-auth/mongo-adapter';
import { buildConfig, getPayload } from 'payload';
import { mongooseAdapter } from '@payloadcms/db-mongodb';
import { test, run } from './harness.mjs';

const uri = process.env.MONGODB_URI;
const set = uri.includes('replicaSet=');
const onDatabase = (db) => uri.replace(/\/(\?|$)/, `/${db}$1`);
const client = await new MongoClient(uri, { monitorCommands: true }).connect();
// Commands of transactions, by name.
const counted = (of) => {
  const seen = {};
  of.on('commandStarted', (e) => { if (e.command.autocommit === false) seen[e.commandName] = (seen[e.commandName] ?? 0) + 1; });
  return seen;
};
const fresh = async (name) => { await client.db(name).dropDatabase(); return client.db(name); };

if (set) test('mongoose: connection.transaction takes back what was saved', async () => {
  await fresh('mongoose_transactions');
  const c = await mongoose.createConnection(onDatabase('mongoose_transactions')).asPromise();
  const Account = c.model('Account', new mongoose.Schema({ name: { type: String, unique: true }, sum: Number }));
  await Account.init();
  const [a, b] = await Account.create([{ name: 'a', sum: 10 }, { name: 'b', sum: 0 }]);
  const move = (n, fails) => c.transaction(async (session) => {
    a.sum -= n; b.sum += n;
    await a.save({ session }); await b.save({ session });
    assert.equal((await Account.aggregate([{ $group: { _id: null, sum: { $sum: '$sum' } } }]).session(session))[0].sum, 10);
    if (fails) throw new Error('on purpose');
  });
  await move(3, false);
  await assert.rejects(move(4, true), /on purpose/);
  assert.ok(a.isModified('sum') && b.isModified('sum')); // to be saved again
  assert.deepEqual((await Account.find().sort({ name: 1 }).lean()).map((d) => d.sum), [7, 3]);
  await assert.rejects(c.transaction((session) => Account.create([{ name: 'c' }, { name: 'a' }], { session, ordered: true })), (e) => e.code === 11000);
  assert.equal(await Account.countDocuments(), 2);
  await Promise.all(Array.from({ length: 10 }, () => c.transaction((session) => Account.updateOne({ name: 'a' }, { $inc: { sum: 1 } }, { session }))));
  assert.equal((await Account.findOne({ name: 'a' })).sum, 17);
  await c.close();
});

test('better-auth: users, accounts and sessions belong together', async () => {
  const db = await fresh('better_auth');
  const own = await new MongoClient(uri, { monitorCommands: true }).connect();
  const seen = counted(own);
  const auth = betterAuth({ secret: 'k3Xp0VqLw9ZrT7uBn2Yc5Hd8Js1Gm4Fa6Qe', baseURL: 'http://localhost:3000', logger: { disabled: true }, telemetry: { enabled: false },
    rateLimit: { enabled: false }, emailAndPassword: { enabled: true }, database: mongodbAdapter(own.db('better_auth'), set ? { client: own } : { transaction: false }) });
  const signUp = (email) => auth.api.signUpEmail({ body: { name: 'Ann', email, password: 'password-1234' } });
  assert.equal((await signUp('ann@example.com')).user.email, 'ann@example.com');
  await assert.rejects(signUp('ann@example.com'), /exists/i);
  assert.ok((await auth.api.signInEmail({ body: { email: 'ann@example.com', password: 'password-1234' } })).token);
  await assert.rejects(auth.api.signInEmail({ body: { email: 'ann@example.com', password: 'wrong-1234' } }), /invalid/i);
  await Promise.all(Array.from({ length: 5 }, (_, i) => signUp(`b${i}@example.com`)));
  const counts = await Promise.all(['user', 'account', 'session'].map((c) => db.collection(c).countDocuments()));
  assert.deepEqual(counts, [6, 6, 7]);
  assert.equal((seen.commitTransaction ?? 0) > 0, set);
  await own.close();
});

test('Payload: what a hook refuses has never been', async () => {
  await fresh('payload');
  const collections = [
    { slug: 'users', auth: true, fields: [] },
    { slug: 'logs', fields: [{ name: 'of', type: 'text' }] },
    { slug: 'posts', versions: { drafts: true },
      fields: [{ name: 'title', type: 'text', required: true, unique: true }, { name: 'n', type: 'number' }, { name: 'author', type: 'relationship', relationTo: 'users' }],
      hooks: { afterChange: [async ({ req, doc, operation }) => {
        if (operation !== 'create') return;
        await req.payload.create({ collection: 'logs', req, data: { of: doc.title } });
        if (doc.title.startsWith('bad')) throw new Error('refused');
      }] } },
  ];
  const db = mongooseAdapter({ url: onDatabase('payload'), connectOptions: { monitorCommands: true }, ensureIndexes: true });
  const logger = { options: { level: 'silent' } };
  const payload = await getPayload({ config: await buildConfig({ secret: 'a secret of some length', db, logger, telemetry: false, typescript: { autoGenerate: false }, collections }) });
  const seen = counted(payload.db.connection.getClient());
  const total = async (collection, where) => (await payload.find({ collection, where })).totalDocs;
  const user = await payload.create({ collection: 'users', data: { email: 'ann@example.com', password: 'password-1' } });
  assert.ok((await payload.login({ collection: 'users', data: { email: 'ann@example.com', password: 'password-1' } })).token);
  const post = await payload.create({ collection: 'posts', data: { title: 'one', n: 1, author: user.id } });
  await assert.rejects(payload.create({ collection: 'posts', data: { title: 'bad' } }), /refused/);
  await assert.rejects(payload.create({ collection: 'posts', data: { title: 'one' } }));
  if (set) assert.deepEqual([await total('posts'), await total('logs')], [1, 1]);
  assert.equal((await payload.update({ collection: 'posts', id: post.id, data: { n: 5 } })).n, 5);
  const versions = await payload.findVersions({ collection: 'posts', where: { parent: { equals: post.id } } });
  assert.equal(versions.totalDocs, 2);
  assert.equal((await payload.restoreVersion({ collection: 'posts', id: versions.docs[1].id })).n, 1);
  await Promise.all(Array.from({ length: 8 }, (_, i) => payload.create({ collection: 'posts', data: { title: `p${i}`, n: i + 10 } })));
  assert.equal((await payload.update({ collection: 'posts', where: { n: { greater_than: 9 } }, data: { n: 100 } })).docs.length, 8);
  assert.equal((await payload.delete({ collection: 'posts', where: { n: { equals: 100 } } })).docs.length, 8);
  assert.equal((seen.commitTransaction ?? 0) > 10, set);
  await payload.destroy();
});

await run(() => client.close());
