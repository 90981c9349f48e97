import assert from 'node:assert/strict';
import mongoose from 'mongoose';
import { test, run, until } from './harness.mjs';

await mongoose.connect(process.env.MONGODB_URI, { dbName: 'mongoose_app' });
await mongoose.connection.dropDatabase();
const { Schema } = mongoose;

const User = mongoose.model('User', new Schema({ email: { type: String, unique: true, required: true }, name: { first: String, last: String },
  tags: [String], visits: { type: Number, default: 0 }, friends: [{ type: Schema.Types.ObjectId, ref: 'User' }] }, { timestamps: true }));
const Token = mongoose.model('Token', new Schema({ value: String, expiresAt: { type: Date, expires: 0 } }));

test('models build their indexes', async () => {
  await User.init(); await Token.init();
  const idx = await Token.collection.indexes();
  assert.equal(idx.find((i) => i.name === 'expiresAt_1').expireAfterSeconds, 0);
});
test('save, query, populate', async () => {
  const bob = await User.create({ email: 'bob@example.com', name: { first: 'Bob', last: 'B' }, tags: ['x', 'y'] });
  const ann = await User.create({ email: 'ann@example.com', name: { first: 'Ann', last: 'A' }, friends: [bob._id] });
  const found = await User.findOne({ 'name.first': 'Ann' }).populate('friends');
  assert.equal(found.friends[0].email, 'bob@example.com');
  bob.tags.push('z'); bob.visits += 1; await bob.save();
  assert.deepEqual((await User.findById(bob._id).lean()).tags, ['x', 'y', 'z']);
  bob.tags.pull('x'); bob.set('name.last', 'Builder'); await bob.save();
  assert.equal(await User.countDocuments({ tags: 'z', 'name.last': 'Builder' }), 1);
  assert.equal((await User.findOneAndUpdate({ _id: ann._id }, { $inc: { visits: 5 } }, { new: true })).visits, 5);
});
test('a unique field refuses a second', async () => {
  await assert.rejects(User.create({ email: 'bob@example.com' }), (e) => e.code === 11000);
});
test('bulk save, cursor, aggregate', async () => {
  await User.insertMany(Array.from({ length: 50 }, (_, i) => ({ email: `u${i}@example.com`, visits: i })));
  let n = 0;
  for await (const u of User.find({ visits: { $gte: 10 } }).cursor({ batchSize: 9 })) n += u.visits >= 10;
  assert.equal(n, 40);
  const [row] = await User.aggregate([{ $match: { email: /^u/ } }, { $group: { _id: null, total: { $sum: '$visits' }, avg: { $avg: '$visits' } } }]);
  assert.equal(row.total, 1225); assert.equal(row.avg, 24.5);
});
test('a token expires', async () => {
  await Token.create({ value: 'old', expiresAt: new Date(Date.now() - 10) });
  await Token.create({ value: 'new', expiresAt: new Date(Date.now() + 1e7) });
  await until('the old token to go', async () => (await Token.countDocuments({})) === 1);
});
test('$expire and expiry.field', async () => {
  const Session = mongoose.model('Session', new Schema({ _id: String, data: Object, ttl: Number }, { autoCreate: false }));
  await Session.createCollection({ expiry: { field: 'ttl', onUpdate: 'preserve' } });
  await Session.create({ _id: 'a', data: { user: 1 }, ttl: 1800 });
  await Session.create({ _id: 'b', data: { user: 2 }, ttl: 1800 });
  const left = async (_id) => (await Session.collection.findOne({ _id }, { projection: { left: { $meta: 'ttlMillis' } } }))?.left;
  assert.ok((await left('a')) > 1790e3);
  const a = await Session.findById('a');
  a.set('data.user', 3); a.markModified('data'); await a.save();
  assert.ok((await left('a')) > 1790e3);
  // Models let only MongoDB's own operators through; their collection lets all.
  await Session.collection.updateOne({ _id: 'a' }, { $expire: { afterSeconds: 10 } });
  assert.ok((await left('a')) <= 10e3);
  await Session.updateOne({ _id: 'a' }, { $set: { ttl: 900 } });
  assert.ok((await left('a')) > 890e3);
  await Session.collection.findOneAndUpdate({ _id: 'b' }, { $set: { data: {} }, $expire: { at: new Date(0) } });
  assert.equal(await Session.findById('b'), null);
  assert.equal(await Session.countDocuments({}), 1);
  await Session.create({ _id: 'b', ttl: -1 });
  assert.equal(await left('b'), undefined);
});
test('a time-series schema', async () => {
  const Point = mongoose.model('Point', new Schema({ at: Date, sensor: { id: Number }, celsius: Number }, {
    timeseries: { timeField: 'at', metaField: 'sensor', granularity: 'minutes' }, expireAfterSeconds: 86400 }));
  await Point.createCollection();
  await Point.init();
  const begin = Date.UTC(2030, 0, 1);
  await Point.insertMany(Array.from({ length: 50 }, (_, i) => ({ at: new Date(begin + i * 60e3), sensor: { id: i % 2 }, celsius: i })));
  await Point.create({ at: new Date(begin), sensor: { id: 9 }, celsius: 99 });
  const [shown] = await mongoose.connection.db.listCollections({ name: 'points' }).toArray();
  assert.equal(shown.type, 'timeseries');
  assert.equal(shown.options.timeseries.granularity, 'minutes');
  assert.equal(shown.options.expireAfterSeconds, 86400);
  assert.equal(await Point.countDocuments({ 'sensor.id': 1 }), 25);
  assert.equal((await Point.findOne({ 'sensor.id': 1 }).sort({ at: -1 })).celsius, 49);
  const [{ avg }] = await Point.aggregate([{ $match: { 'sensor.id': 0 } }, { $group: { _id: '$sensor.id', avg: { $avg: '$celsius' } } }]);
  assert.equal(avg, 24);
  assert.equal((await Point.deleteMany({ 'sensor.id': 9 })).deletedCount, 1);
});
await run(() => mongoose.disconnect());
