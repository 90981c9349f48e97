// Runs inside mongosh: the helpers people type.
let passed = 0, failed = 0;
function check(name, f) {
  try { const r = f(); if (r === false) throw new Error('false'); passed++; }
  catch (e) { failed++; print(`FAIL ${name}: ${e.message}`); }
}
const eq = (a, b) => { const x = EJSON.stringify(a), y = EJSON.stringify(b); if (x !== y) throw new Error(`${x} is not ${y}`); };
const fails = (code, f) => { try { f(); } catch (e) { if (e.code !== code) throw new Error(`want ${code}, got ${e.code}: ${e.message}`); return; } throw new Error(`want error ${code}`); };

check('dropDatabase', () => eq(db.dropDatabase().ok, 1));
check('insert and find', () => {
  eq(db.s.insertMany([{ _id: 1, a: 1 }, { _id: 2, a: 2 }]).acknowledged, true);
  eq(db.s.find({ a: 2 }).toArray(), [{ _id: 2, a: 2 }]);
  eq(db.s.findOne({ _id: 1 }).a, 1);
  eq(db.s.countDocuments(), 2);
});
check('show', () => { eq(db.getCollectionNames(), ['s']); db.getMongo().getDBNames().includes('mongosh_test') || fails(); });
check('update helpers', () => {
  eq(db.s.updateOne({ _id: 1 }, { $inc: { a: 5 } }).modifiedCount, 1);
  eq(db.s.findAndModify({ query: { _id: 1 }, update: { $set: { z: 1 } }, new: true }), { _id: 1, a: 6, z: 1 });
  eq(db.s.replaceOne({ _id: 3 }, { b: 1 }, { upsert: true }).upsertedCount, 1);
  eq(db.s.deleteMany({ b: 1 }).deletedCount, 1);
});
check('indexes', () => {
  eq(db.s.createIndex({ at: 1 }, { expireAfterSeconds: 60 }), 'at_1');
  eq(db.s.getIndexes().find((i) => i.name === 'at_1').expireAfterSeconds, 60);
  eq(db.runCommand({ collMod: 's', index: { name: 'at_1', expireAfterSeconds: 30 } }).expireAfterSeconds_new.toString(), '30');
  eq(db.s.dropIndex('at_1').ok, 1);
});
check('explain', () => eq(db.s.find({ _id: 1 }).explain().queryPlanner.namespace, 'mongosh_test.s'));
check('stats', () => { eq(db.s.stats().count, 2); eq(db.stats().collections.toString(), '1'); eq(db.s.stats().ns, 'mongosh_test.s'); });
check('aggregate', () => eq(db.s.aggregate([{ $group: { _id: null, n: { $sum: 1 } } }]).toArray(), [{ _id: null, n: 2 }]));
check('serverStatus', () => { const s = db.serverStatus(); eq(typeof s.version, 'string'); eq(typeof s.connections.current, 'number'); eq(s.metrics.ttl.passes.constructor.name, 'Long'); });
check('hello', () => eq(db.hello().isWritablePrimary, true));
check('currentOp', () => eq(Array.isArray(db.currentOp().inprog), true));
check('validate', () => eq(db.s.validate().valid, true));
check('getLog', () => eq(db.adminCommand({ getLog: 'global' }).ok, 1));
check('buildInfo', () => eq(db.version(), db.adminCommand({ buildInfo: 1 }).version));
check('profiling', () => { eq(db.setProfilingLevel(0).ok, 1); eq(db.getProfilingStatus().was, 0); });
check('capped', () => { db.createCollection('c', { capped: true, size: 4096 }); eq(db.c.isCapped(), true); });
check('rename', () => { eq(db.s.renameCollection('s2').ok, 1); eq(db.s2.countDocuments(), 2); });
check('bulk', () => { const b = db.b.initializeUnorderedBulkOp(); b.insert({ _id: 1 }); b.find({ _id: 1 }).update({ $set: { x: 1 } }); eq(b.execute().modifiedCount, 1); });
check('errors', () => { fails(59, () => db.runCommand({ nonsense: 1 }).ok || (() => { throw Object.assign(new Error(), db.runCommand({ nonsense: 1 })); })()); });
check('a command in another case', () => {
  try {
    db.runCommand({ttlstatus: 1});
  } catch (e) {
    eq([e.code, e.message], [59, 'no such command: \'ttlstatus\'; did you mean \'ttlStatus\'?']);
    return;
  }
  throw new Error('it exists');
});
check('distinct, count, map', () => { eq(db.s2.distinct('a').length, 2); eq(db.s2.find().map((d) => d._id).toArray(), [1, 2]); });
check('cursor with many batches', () => {
  db.m.insertMany(Array.from({ length: 500 }, (_, i) => ({ _id: i })));
  eq(db.m.find().batchSize(20).toArray().length, 500);
  eq(db.m.find().sort({ _id: -1 }).limit(1).next()._id, 499);
});
// What docs/expiry.md tells people to type, line by line as it stands there.
check('recipes', () => {
  const fs = require('fs'), file = `${process.env.HOME}/recipes.js`;
  const text = fs.readFileSync(require('path').join(__dirname, '../../../docs/expiry.md'), 'utf8');
  fs.writeFileSync(file, "var sid = 's1', key = 'k1', value = 42;\n" + text.split('## Recipes')[1].split('```js')[1].split('```')[0]);
  db.mails.createIndex({ received: 1 });
  load(file);
  eq(db.cache.findOne({ _id: 'k1' }).value, 42);
  const left = (c) => Number(db[c].find({}, { left: { $meta: 'ttlMillis' } }).next().left);
  if (!(left('cache') > 80_000 && left('cache') <= 90_000)) throw new Error(`cache: ${left('cache')} ms`);
  if (!(left('logins') > 3_500_000 && left('logins') <= 3_600_000)) throw new Error(`logins: ${left('logins')} ms`);
  eq(db.log.countDocuments(), 1);
  eq([db.jobs.countDocuments(), db.jobs_late.countDocuments(), db.locks.countDocuments()],
     [0, 0, 0]);
  eq([hits, db.hits.countDocuments()], [1, 1]);
  db.locks.insertOne({_id: 'report', owner: 'a', ttl: 30});
  fails(11000, () => db.locks.insertOne({_id: 'report', owner: 'b', ttl: 30}));
  const seconds = (c, name) => db[c].getIndexes().find((i) => i.name === name).expireAfterSeconds;
  eq([seconds('sessions', 'lastSeen_1'), seconds('mails', 'received_1'), seconds('tokens', 'issued_1')], [600, 86400, 3600]);
});
// Every other sample of the pages on expiry and of the README: it runs as it stands there, and a
// reply that is shown has the fields of the real one.
const page = (name) =>
    require('fs').readFileSync(require('path').join(__dirname, '../../..', name), 'utf8');
// One entry a statement: its code, and what is shown below it or behind it.
function samplesOf(text) {
  const out = [],
        depth = (s) => (s.match(/[([{]/g) || []).length - (s.match(/[)\]}]/g) || []).length;
  let open = false;
  for (const line of text.split('\n')) {
    const statement = line.match(/^(?:> )?((?:db\.|sleep\().*)$/);
    if (statement) {
      const [code, ...comment] = statement[1].split(/\s+\/\/ /);
      out.push({code, shown: comment.join(' // ').startsWith('{') ? comment.join('') : ''});
      open = depth(code) > 0;
    } else if (open) {
      out.at(-1).code += '\n' + line.replace(/\s+\/\/ .*$/, '');
      open = depth(out.at(-1).code) > 0;
    } else if (line.trim() && out.length)
      out.at(-1).shown += line.replace(/^\/\/ /, '').replace(/\s+\/\/ .*$/, '') + '\n';
  }
  return out;
}
// `shown` is shorthand: … for what is left out, a name alone for a field.
function shapeOf(shown) {
  const text = shown.replace(/\(…\)/g, '()')
                   .replace(/,\s*…(?=\s*[\]}])/g, '')
                   .replace(/\[ … \]/g, '[]')
                   .replace(/: …/g, ': 0')
                   .replace(/\w+\([^)]*\)/g, '0');
  return new Function('return (' + text.replace(/([{,]\s*)(\w+)(?=\s*[,}])/g, '$1$2: 0') + ')')();
}
function sameShape(shown, real, where) {
  if (Array.isArray(shown)) {
    if (shown.length) sameShape(shown[0], real[0], where + '[0]');
    return;
  }
  if (shown === null || typeof shown !== 'object') {
    if (real === undefined) throw new Error(`${where} is shown, but is not there`);
    return;
  }
  for (const k of Object.keys(shown)) sameShape(shown[k], real[k], `${where}.${k}`);
}
function runSamples(name, text, database) {
  const file = `${process.env.HOME}/sample.js`;
  let n = 0;
  for (const {code, shown} of samplesOf(text)) {
    if (code.includes('$changeStream')) continue;  // on sets: tests/drivers/mongosh_set
    require('fs').writeFileSync(
        file,
        `db = db.getSiblingDB('${database}');\n` + code.replace(/^(.*; )?db\./s, '$1sample = db.') +
            '\nif (sample.toArray) sample = sample.toArray();\n');
    globalThis.sample = {};
    try {
      load(file);
      if (!shown) continue;
      if (typeof sample === 'string')
        eq(sample, shown.trim());
      else {
        const shape = shapeOf(shown);
        sameShape(shape, Array.isArray(sample) && !Array.isArray(shape) ? sample[0] : sample, name);
        if (!Array.isArray(sample) && !Array.isArray(shape) && !/[{,] …/.test(shown))
          eq(Object.keys(sample).filter((k) => k !== 'operationTime' && k !== '$clusterTime'),
             Object.keys(shape));
      }
      n++;
    } catch (e) {
      throw new Error(`${name}: ${code}: ${e.message}`);
    }
  }
  return n;
}
check('README', () => {
  eq(runSamples(
         'README', page('README.md').split('```').find((b) => b.includes('> db.')), 'test') >= 5,
     true);
});
check('samples', () => {
  const shop = db.getSiblingDB('shop'), now = Date.now();
  shop.createCollection('orders');
  shop.createCollection('events');
  // One that has expired for `$tombstones`, one that will for the others.
  shop.runCommand({insert: 'cache', documents: [{_id: 'k0'}], expireAt: new Date(now - 1000)});
  shop.runCommand({insert: 'cache', documents: [{_id: 'k1'}], expireAfterSeconds: 500});
  shop.mails.insertMany(
      [{received: new Date(now - 2 * 86_400_000)}, {received: new Date(now)}, {text: 'no date'}]);
  shop.mails.createIndex({received: 1}, {name: 'received_1', expireAfterSeconds: 3 * 86_400});
  const js = (name) => page(name)
                           .split('```js\n')
                           .slice(1)
                           .map((b) => b.split('```')[0])
                           .filter((b) => !b.includes('// Sessions: 30 minutes'));
  shop.runCommand({ttlHold: 'mails', filter: {text: 'no date'}});
  let n = 0;
  const control = js('docs/expiry-control.md');
  eq(control.length, 3);
  // The dry run is of an index that is not there yet.
  shop.mails.dropIndex('received_1');
  n += runSamples('expiry-control.md', control[0], 'shop');
  shop.mails.createIndex({received: 1}, {name: 'received_1', expireAfterSeconds: 3 * 86_400});
  for (const b of control.slice(1)) n += runSamples('expiry-control.md', b, 'shop');
  eq(n, 3);
  // Those that move the clock come last.
  const blocks = js('docs/expiry.md').sort((a, b) => a.includes('clock:') - b.includes('clock:'));
  n = 0;
  for (const b of blocks) {
    if (b.includes('reap: { maxDocsPerSecond: 500')) {
      // What a helper of mongosh would leave out is there after the first statement, and gone after the last.
      const reap = () => shop.events.getIndexes().find((i) => i.name === 'at_1').reap;
      const [first, change, end] = samplesOf(b).map((s) => s.code);
      runSamples('expiry.md', first, 'shop');
      eq(reap(), { maxDocsPerSecond: 500, window: '02:00-05:00', timezone: 'Europe/Berlin', catchUpSeconds: 7200 });
      runSamples('expiry.md', change, 'shop');
      eq(reap(), { maxDocsPerSecond: 2000 });
      runSamples('expiry.md', end, 'shop');
      eq(reap() === undefined, true);
    } else n += runSamples('expiry.md', b.replace("ISODate('2030-01-01')", 'ISODate(0)'), 'shop');
  }
  eq(n, 2);
  shop.dropDatabase();
});
print(`mongosh: ${passed} passed, ${failed} failed`);
