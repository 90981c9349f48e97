// Libraries as their users use them: agenda's jobs, keyv's cache, rate-limiter-flexible's counters, TypeORM's entities.
import assert from 'node:assert/strict';
import 'reflect-metadata';
import { MongoClient } from 'mongodb';
import { Agenda } from 'agenda';
import { MongoBackend } from '@agendajs/mongo-backend';
import Keyv from 'keyv';
import KeyvMongo from '@keyv/mongo';
import { RateLimiterMongo } from 'rate-limiter-flexible';
import { DataSource, EntitySchema } from 'typeorm';
import { test, run, until } from './harness.mjs';

const uri = process.env.MONGODB_URI;
const client = await new MongoClient(uri).connect();
const onDatabase = (db) => uri.replace(/\/(\?|$)/, `/${db}$1`);
const fresh = async (name) => { await client.db(name).dropDatabase(); return client.db(name); };

test('agenda runs jobs now, later and again, once each', async () => {
  const db = await fresh('node_agenda');
  const agenda = new Agenda({ backend: new MongoBackend({ address: onDatabase('node_agenda'), collection: 'jobs' }), processEvery: 50 });
  const ran = [];
  agenda.define('note', async (job) => { ran.push(job.attrs.data.n); });
  agenda.define('fails', async () => { throw new Error('on purpose'); });
  await agenda.start();
  await agenda.now('note', { n: 1 });
  await agenda.schedule(new Date(Date.now() + 100), 'note', { n: 2 });
  await agenda.now('fails', {});
  for (let i = 0; i < 2; i++) {
    const later = agenda.create('note', { n: 3 });
    later.unique({ 'data.n': 3 });
    later.schedule(new Date(Date.now() + 1e7));
    await later.save();
  }
  await until('the jobs', () => ran.length === 2);
  await until('the reason', async () => (await db.collection('jobs').findOne({ name: 'fails' }))?.failReason === 'on purpose');
  assert.deepEqual(ran, [1, 2]);
  assert.equal(await db.collection('jobs').countDocuments({ 'data.n': 3 }), 1);
  await agenda.stop();
});

test('keyv keeps values for as long as it was told', async () => {
  await fresh('node_keyv');
  const cache = new Keyv(new KeyvMongo(uri, { db: 'node_keyv', collection: 'values' }), { namespace: 'n' });
  cache.on('error', (e) => { throw e; });
  await cache.set('a', { x: 1 });
  await cache.set('short', 1, 100);
  assert.deepEqual(await cache.get(['a', 'none']), [{ x: 1 }, undefined]);
  await until('the value to expire', async () => (await cache.get('short')) === undefined);
  assert.equal(await cache.delete('a'), true);
  assert.equal(await cache.has('a'), false);
  await cache.clear();
  await cache.disconnect();
});

test('rate-limiter-flexible counts', async () => {
  const db = await fresh('node_limits');
  const limiter = new RateLimiterMongo({ storeClient: client, dbName: 'node_limits', tableName: 'points', points: 3, duration: 60 });
  for (let i = 0; i < 3; i++) await limiter.consume('k');
  await assert.rejects(limiter.consume('k'), (e) => e.remainingPoints === 0);
  await limiter.reward('k', 2);
  assert.equal((await limiter.get('k')).consumedPoints, 2);
  await until('its TTL index', async () => (await db.collection('points').indexes()).some((i) => i.expireAfterSeconds === 0));
});

test('TypeORM makes indexes and keeps entities', async () => {
  const Item = new EntitySchema({ name: 'Item',
    columns: { _id: { type: 'string', objectId: true, primary: true }, name: { type: 'string' }, n: { type: 'int' } },
    indices: [{ name: 'n_1', columns: ['n'] }, { name: 'name_1', unique: true, columns: ['name'] }] });
  const source = await new DataSource({ type: 'mongodb', url: onDatabase('node_typeorm'), synchronize: true, dropSchema: true, entities: [Item] }).initialize();
  const items = source.getMongoRepository('Item');
  await items.save([{ name: 'a', n: 1 }, { name: 'b', n: 2 }]);
  const [page, all] = await items.findAndCount({ order: { n: 'DESC' }, take: 1 });
  assert.equal(all, 2);
  assert.equal(page[0].name, 'b');
  page[0].n = 5;
  await items.save(page[0]);
  assert.equal((await items.findOneBy({ name: 'b' })).n, 5);
  await assert.rejects(items.insertOne({ name: 'a' }), (e) => e.code === 11000);
  assert.deepEqual((await items.collectionIndexes()).map((i) => i.name).sort(), ['_id_', 'n_1', 'name_1']);
  await source.destroy();
});

await run(() => client.close());
