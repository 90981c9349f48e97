// Runs inside mongosh on the first of three members that are not initiated yet (their hosts in HOSTS): the rs helpers on a set.
// checks.js was read before.
const hosts = process.env.HOSTS.split(',');
const at = host => new Mongo(`mongodb://${host}/?directConnection=true`).getDB('admin');
const states = () => rs.status().members.map(m => m.stateStr);
const leader = () => hosts.find(h => at(h).hello().isWritablePrimary);

check('rs.initiate', () => eq(rs.initiate({ _id: 'rs0', members: [{ _id: 0, host: hosts[0] }] }).ok, 1));
check('rs.add', () => { eq(rs.add(hosts[1]).ok, 1); eq(rs.add({ host: hosts[2], priority: 0, votes: 0 }).ok, 1); });
check('all follow', () => until('two secondaries', () => states().filter(s => s === 'SECONDARY').length === 2));
check('rs.status', () => { const s = rs.status(); eq(s.members.map(m => [m._id, m.name, m.health]), hosts.map((h, i) => [i, h, 1])); eq(s.members.filter(m => m.self).length, 1); });
check('votes 0', () => until('two voters', () => rs.status().votingMembersCount === 2 && rs.status().majorityVoteCount === 2));
check('rs.reconfig of votes and priority', () => { const c = rs.conf(); c.members[2].votes = 1; c.members[2].priority = 0.5; eq(rs.reconfig(c).ok, 1); until('three voters', () => rs.status().votingMembersCount === 3); });
check('an arbiter', () => fails(93, () => { const c = rs.conf(); c.members[2].arbiterOnly = true; rs.reconfig(c); }));
check('rs.addArb', () => fails(93, () => rs.addArb('127.0.0.1:1')));
check('rs.reconfigForPSASet', () => {
  let c = rs.conf();
  Object.assign(c.members[2], { votes: 0, priority: 0 });
  eq(rs.reconfig(c).ok, 1);
  until('two voters', () => rs.status().votingMembersCount === 2);
  c = rs.conf();
  Object.assign(c.members[2], { votes: 1, priority: 0.5 });
  eq(rs.reconfigForPSASet(2, c).ok, 1);
  eq([rs.conf().members[2].votes, rs.conf().members[2].priority], [1, 0.5]);
  until('three voters', () => rs.status().votingMembersCount === 3);
});
check('settings', () => { const c = rs.conf(); c.settings.electionTimeoutMillis = 2000; c.settings.heartbeatIntervalMillis = 500; eq(rs.reconfig(c).ok, 1); eq(rs.status().heartbeatIntervalMillis, Long.fromNumber(500)); });
check('hidden and delayed', () => { const c = rs.conf(); Object.assign(c.members[2], { priority: 0, hidden: true, secondaryDelaySecs: 5 }); eq(rs.reconfig(c).ok, 1); until('hidden', () => at(hosts[2]).hello().hidden === true); eq(db.hello().hosts.includes(hosts[2]), false); eq(Number(at(hosts[2]).hello().secondaryDelaySecs), 5); });
check('rs.printSecondaryReplicationInfo', () => { const v = rs.printSecondaryReplicationInfo().value; eq(Object.keys(v).sort(), [hosts[1], hosts[2]].sort().map(h => `source: ${h}`)); for (const s of Object.values(v)) eq(typeof s.syncedTo, 'string'); });
check('getLastErrorModes', () => {
  let c = rs.conf();
  c.members.forEach((m, i) => { m.tags = { dc: i ? 'west' : 'east' }; });
  c.settings.getLastErrorModes = { both: { dc: 2 } };
  eq(rs.reconfig(c).ok, 1);
  const admin = db.getSiblingDB('admin');
  eq(admin.runCommand({ setDefaultRWConcern: 1, defaultWriteConcern: { w: 'both' } }).ok, 1);
  // A mode that is the default stays; set back to another one, it may go.
  c = rs.conf();
  c.settings.getLastErrorModes = {};
  fails(103, () => rs.reconfig(c));
  eq(admin.runCommand({ setDefaultRWConcern: 1, defaultWriteConcern: { w: 'majority' } }).writeConcernError, undefined);
  eq(rs.reconfig(c).ok, 1);
});
check('replSetResizeOplog', () => {
  eq(db.adminCommand({ replSetResizeOplog: 1, size: Double(1500), minRetentionHours: 1.5 }).ok, 1);
  eq(Math.round(db.getReplicationInfo().logSizeMB), 1500);
  eq(db.serverStatus().oplogTruncation.oplogMinRetentionHours, 1.5);
});
check('not delayed any more', () => { const c = rs.conf(); Object.assign(c.members[2], { priority: 1, hidden: false, secondaryDelaySecs: 0 }); eq(rs.reconfig(c).ok, 1); });
check('writes', () => eq(db.getSiblingDB('shell').c.insertOne({ _id: 1 }, { writeConcern: { w: 3, wtimeout: patience } }).acknowledged, true));
check('rs.freeze and rs.stepDown', () => {
  at(hosts[2]).runCommand({ replSetFreeze: 60 });
  eq(rs.stepDown(30).ok, 1);
  until('the other one leads', () => leader() === hosts[1]);
  eq(rs.hello().secondary, true);
});
check('helpers on a secondary', () => {
  const c = rs.hello();
  eq([c.secondary, rs.isMaster().ismaster, rs.isMaster().secondary], [true, false, true]);
  eq(rs.status().members.length, 3);
  eq(rs.conf()._id, 'rs0');
  eq(db.getReplicationInfo().errmsg, undefined);
  eq(typeof rs.printReplicationInfo().value['oplog last event time'], 'string');
  rs.printSecondaryReplicationInfo();
  fails(10107, () => rs.reconfig(rs.conf()));
});
check('rs.stepDown on a secondary', () => fails(10107, () => rs.stepDown(5, 1)));
check('rs.freeze(0)', () => { eq(rs.freeze(0).info, 'unfreezing'); eq(rs.freeze(5).ok, 1); rs.freeze(0); });
check('rs.syncFrom', () => { eq(rs.syncFrom(leader()).ok, 1); fails(20, () => rs.syncFrom(hosts[2])); });
check('replSetStepUp', () => { eq(db.adminCommand({ replSetStepUp: 1 }).ok, 1); eq(db.hello().isWritablePrimary, true); });
check('replSetMaintenance', () => { const a = at(hosts[1]); eq(a.runCommand({ replSetMaintenance: true }).ok, 1); eq(a.hello().secondary, false); until('RECOVERING', () => states()[1] === 'RECOVERING'); eq(a.runCommand({ replSetMaintenance: false }).ok, 1); until('SECONDARY', () => states()[1] === 'SECONDARY'); });
check('reads on a secondary', () => { const m = new Mongo(`mongodb://${hosts.join(',')}/?replicaSet=rs0`); m.setReadPref('secondary'); eq(m.getDB('shell').c.findOne(), { _id: 1 }); });
check('rs.remove of nobody', () => { let e; try { rs.remove('127.0.0.1:1'); } catch (x) { e = x; } return /Couldn't find/.test(e.message); });
check('rs.remove', () => { eq(rs.remove(hosts[2]).ok, 1); eq(rs.conf().members.length, 2); until('it is not in the list', () => rs.status().members.length === 2); });
check('a removed member', () => { until('it knows', () => { try { at(hosts[2]).runCommand({ replSetGetStatus: 1 }); } catch (e) { return e.code === 93; } return false; }); const h = at(hosts[2]).hello(); eq([h.isWritablePrimary, h.secondary, h.isreplicaset, h.setName], [false, false, true, undefined]); });
check('rs.add again', () => { eq(rs.add(hosts[2]).ok, 1); until('SECONDARY', () => states()[2] === 'SECONDARY'); });
check('rs.printReplicationInfo', () => { rs.printReplicationInfo(); });
print(`mongosh_set: ${passed} passed, ${failed} failed`);
