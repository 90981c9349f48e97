// Runs inside mongosh on a member that is not initiated yet: the rs helpers people type.
let passed = 0, failed = 0;
function check(name, f) {
  try { const r = f(); if (r === false) throw new Error('false'); passed++; }
  catch (e) { failed++; print(`FAIL ${name}: ${e.message}`); }
}
const eq = (a, b) => { const x = EJSON.stringify(a), y = EJSON.stringify(b); if (x !== y) throw new Error(`${x} is not ${y}`); };
const fails = (code, f) => { try { f(); } catch (e) { if (e.code !== code) throw new Error(`want ${code}, got ${e.code}: ${e.message}`); return; } throw new Error(`want error ${code}`); };

const until = (what, f) => { const end = Date.now() + 30000; for (;;) { try { if (f()) return; } catch (e) { } if (Date.now() > end) throw new Error(`not in time: ${what}`); sleep(20); } };  // sleeps: polls until a deadline

check('rs.conf before', () => fails(94, () => rs.conf()));
check('rs.hello before', () => eq([rs.hello().isWritablePrimary, rs.hello().isreplicaset], [false, true]));
check('rs.initiate for another set', () => fails(93, () => rs.initiate({ _id: 'other', members: [{ _id: 0, host: '127.0.0.1:1' }] })));
check('rs.status before', () => fails(94, () => rs.status()));
check('rs.initiate', () => eq(rs.initiate().ok, 1));
check('rs.initiate twice', () => fails(23, () => rs.initiate()));
check('rs.status', () => { const s = rs.status(); eq([s.set, s.myState, s.members.length, s.members[0].stateStr], ['rs0', 1, 1, 'PRIMARY']); });
check('rs.conf', () => eq([rs.conf()._id, rs.conf().members[0]._id], ['rs0', 0]));
check('rs.config', () => eq(rs.config().version, rs.conf().version));
check('rs.hello', () => eq([rs.hello().isWritablePrimary, rs.hello().setName], [true, 'rs0']));
check('rs.isMaster', () => eq(rs.isMaster().ismaster, true));
check('writes', () => eq(Object.keys(db.c.insertMany([{ _id: 1 }, { _id: 2 }]).insertedIds).length, 2));
check('rs.printReplicationInfo', () => { const v = rs.printReplicationInfo().value; eq(/^\d+ secs \(.* hrs\)$/.test(v['log length start to end']), true); eq(parseFloat(v['actual oplog size']) >= 990, true); eq(parseFloat(v['configured oplog size']) >= 990, true); });
check('db.printReplicationInfo', () => eq(Object.keys(db.printReplicationInfo().value), Object.keys(rs.printReplicationInfo().value)));
check('db.getReplicationInfo', () => { const i = db.getReplicationInfo(); if (!(i.logSizeMB >= 990) || !i.tFirst || !i.tLast) throw new Error(EJSON.stringify(i)); });
check('rs.printSecondaryReplicationInfo', () => eq(Object.keys(rs.printSecondaryReplicationInfo().value || {}), []));
check('db.printSecondaryReplicationInfo', () => eq(Object.keys(db.printSecondaryReplicationInfo().value || {}), []));
check('rs.reconfig', () => { const c = rs.conf(); c.members[0].tags = { dc: 'east' }; eq(rs.reconfig(c).ok, 1); eq(rs.conf().members[0].tags, { dc: 'east' }); });
check('rs.freeze on a primary', () => fails(95, () => rs.freeze(5)));
check('rs.syncFrom on a primary', () => fails(95, () => rs.syncFrom('127.0.0.1:1')));
check('rs.add of nobody', () => fails(74, () => rs.add('127.0.0.1:1')));
check('rs.remove of nobody', () => { let e; try { rs.remove('127.0.0.1:1'); } catch (x) { e = x; } return !!e; });
check('rs.addArb', () => fails(93, () => rs.addArb('127.0.0.1:1')));
check('rs.add of an arbiter', () => fails(93, () => rs.add('127.0.0.1:1', true)));
check('rs.reconfigForPSASet of a member that votes', () => { let e; try { rs.reconfigForPSASet(0, rs.conf()); } catch (x) { e = x; } return /votes: 0/.test(e.message); });
check('rs.reconfig with force', () => { const v = rs.conf().version; eq(rs.reconfig(rs.conf(), { force: true }).ok, 1); eq(rs.conf().version > v, true); until('it leads', () => rs.hello().isWritablePrimary); });
check('rs.stepDown', () => fails(262, () => rs.stepDown(5, 1)));
check('rs.stepDown without arguments', () => fails(262, () => rs.stepDown()));
check('rs.secondaryOk', () => { rs.secondaryOk(); eq(db.getMongo().getReadPrefMode(), 'primaryPreferred'); });
check('rs.help', () => eq(rs.help().attr.length > 10, true));
check('oplog', () => { const l = db.getSiblingDB('local').getCollection('oplog.rs').find({ op: 'i' }).sort({ $natural: -1 }).limit(1).toArray(); eq(l[0].o, { _id: 2 }); });
check('sessions', () => { const s = db.getMongo().startSession({ causalConsistency: true }); const c = s.getDatabase('set_test').c; c.insertOne({ _id: 3 }); eq(c.countDocuments(), 3); s.endSession(); });
check('dbHash', () => eq(Object.keys(db.runCommand({ dbHash: 1 }).collections), ['c']));
print(`mongosh_set: ${passed} passed, ${failed} failed`);
