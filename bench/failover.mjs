// failover.mjs BINARY DATA ROUNDS: a set of three; the primary is killed (kill -9) while the Node driver, at its defaults, writes one document
// after the other. Prints how long after each kill the next write was acknowledged.
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import net from 'node:net';
import path from 'node:path';

const { MongoClient, MongoNetworkError } = createRequire(path.join(process.env.NODE_MODULES, 'x'))('mongodb');
const [binary, data, rounds] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const freePort = () => new Promise((done) => {
  const s = net.createServer().listen(0, '127.0.0.1', () => { const { port } = s.address(); s.close(() => done(port)); });
});
const ports = [await freePort(), await freePort(), await freePort()];
const members = ports.map((port) => ({ port }));
const start = (m) => {
  m.process = spawn(binary, ['--replSet', 'rs0', '--port', m.port, '--dbpath', `${data}/${m.port}`, '--nounixsocket', '--httpPort', '0'],
                    { stdio: 'ignore' });
};
const until = async (what, condition) => {
  for (const end = Date.now() + 60000; Date.now() < end;) {
    try { if (await condition()) return; } catch { /* not yet */ }
    await new Promise((next) => setTimeout(next, 10));
  }
  throw new Error(`not within a minute: ${what}`);
};
const direct = async (m, command) => {
  const c = new MongoClient(`mongodb://127.0.0.1:${m.port}/?directConnection=true&serverSelectionTimeoutMS=2000`);
  try { return await c.db('admin').command(command); } finally { await c.close(); }
};
const settled = async () => {
  const states = await Promise.all(members.map((m) => direct(m, { hello: 1 })));
  return states.filter((s) => s.isWritablePrimary).length === 1 && states.filter((s) => s.secondary).length === 2;
};
try {
  members.forEach(start);
  for (const m of members) await until('a member answers', () => direct(m, { ping: 1 }));
  await direct(members[0], { replSetInitiate: { _id: 'rs0', members: ports.map((p, i) => ({ _id: i, host: `127.0.0.1:${p}` })) } });
  await until('a primary and two secondaries', settled);
  const client = new MongoClient(`mongodb://${ports.map((p) => `127.0.0.1:${p}`).join(',')}/?replicaSet=rs0`);
  const coll = client.db('bench').collection('failover');
  const gaps = [];
  let n = 0;
  for (let round = 0; round < rounds; round++) {
    for (let i = 0; i < 200; i++) await coll.insertOne({ _id: n++ });
    let victim;
    for (const m of members) if ((await direct(m, { hello: 1 })).isWritablePrimary) victim = m;
    const killed = performance.now();
    const gone = new Promise((done) => victim.process.once('exit', done));
    victim.process.kill('SIGKILL');
    // The driver retries by itself, unless its monitor has seen the broken connection first: then (7.8, connectionIsStale) the error comes here.
    for (let acknowledged = false; !acknowledged;) {
      try {
        await coll.insertOne({ _id: n });
        acknowledged = true;
      } catch (e) {
        if (e.code === 11000) acknowledged = true;
        else if (!(e instanceof MongoNetworkError)) throw e;
      }
    }
    n++;
    gaps.push(performance.now() - killed);
    await gone;
    start(victim);
    await until('all members are back', settled);
  }
  if (await coll.countDocuments() !== n) throw new Error('a write is lost or there twice');
  await client.close();
  gaps.sort((a, b) => a - b);
  console.log(`Failover, ${rounds} times \`kill -9\` of the primary under a loop of insertOne (Node driver at its defaults): next acknowledged write after`);
  console.log(`median ${Math.round(gaps[Math.floor(gaps.length / 2)])} ms, least ${Math.round(gaps[0])} ms, most ${Math.round(gaps[gaps.length - 1])} ms.`);
} finally {
  for (const m of members) m.process?.kill('SIGKILL');
}
process.exit(0);
