// What set.js and three.js begin with.
let passed = 0, failed = 0;
function check(name, f) {
  try { const r = f(); if (r === false) throw new Error('false'); passed++; }
  catch (e) { failed++; print(`FAIL ${name}: ${e.message}`); }
}
const eq = (a, b) => { const x = EJSON.stringify(a), y = EJSON.stringify(b); if (x !== y) throw new Error(`${x} is not ${y}`); };
const fails = (code, f) => { try { f(); } catch (e) { if (e.code !== code) throw new Error(`want ${code}, got ${e.code}: ${e.message}`); return; } throw new Error(`want error ${code}`); };

// How long a test waits for what may hang, in milliseconds: longer on a slow machine (golden/waits.py).
const patience = Math.ceil(60000 * Number(process.env.MAYFLY_SLOWNESS || 1));
// Asks again after each change of the topology that the member answers `hello` about, and four times a second.
const until = (what, f) => {
  const end = Date.now() + patience;
  for (let seen; ;) {
    try { if (f()) return; } catch (e) { }
    if (Date.now() > end) throw new Error(`waited in vain for ${what}`); // clock: a deadline that only a hang misses
    const wait = seen ? { topologyVersion: seen, maxAwaitTimeMS: 250 } : {};
    try { seen = db.adminCommand({ hello: 1, ...wait }).topologyVersion; } catch (e) { seen = undefined; }
  }
};
