// Runs inside mongosh, logged in as a user who administers: users as people manage them.
let passed = 0, failed = 0;
function check(name, f) {
  try { const r = f(); if (r === false) throw new Error('false'); passed++; }
  catch (e) { failed++; print(`FAIL ${name}: ${e.message}`); }
}
const eq = (a, b) => { const x = EJSON.stringify(a), y = EJSON.stringify(b); if (x !== y) throw new Error(`${x} is not ${y}`); };
const fails = (code, words, f) => {
  try { f(); } catch (e) {
    if (e.code !== code || !e.message.includes(words)) throw new Error(`want ${code} ${words}, got ${e.code}: ${e.message}`);
    return;
  }
  throw new Error(`want error ${code}`);
};
const who = (of) => of.runCommand({ connectionStatus: 1 }).authInfo.authenticatedUsers;
const databases = (of) => of.adminCommand({ listDatabases: 1, nameOnly: true, authorizedDatabases: true }).databases.map((d) => d.name);
const host = db.getMongo().getURI().replace(/^mongodb:\/\/[^@]*@/, 'mongodb://');
const as = (user, password, source) => connect(host
  .replace('mongodb://', `mongodb://${user}:${password}@`).replace(/authSource=[^&]*/, `authSource=${source}`));

check('connectionStatus', () => eq(who(db), [{ user: 'root', db: 'admin' }]));
check('the databases to look at', () => {
  for (const name of ['shop', 'other']) db.getSiblingDB(name).things.insertMany([{ _id: 1 }, { _id: 2 }]);
});
const shop = db.getSiblingDB('shop');
check('createUser', () => {
  eq(shop.createUser({ user: 'clerk', pwd: 'first', roles: ['read'], customData: { desk: 3 } }).ok, 1);
  fails(51003, 'already exists', () => shop.createUser({ user: 'clerk', pwd: 'x', roles: [] }));
});
check('getUsers and getUser', () => {
  const users = shop.getUsers().users;
  eq(users.map((u) => [u._id, u.roles, u.mechanisms]), [['shop.clerk', [{ role: 'read', db: 'shop' }], ['SCRAM-SHA-1', 'SCRAM-SHA-256']]]);
  const one = shop.getUser('clerk', { showCredentials: true, showPrivileges: true });
  eq(one.customData, { desk: 3 });
  eq(Object.keys(one.credentials), ['SCRAM-SHA-1', 'SCRAM-SHA-256']);
  eq(one.inheritedPrivileges.length > 0, true);
  eq(shop.getUser('nobody'), null);
});
check('roles', () => {
  eq(shop.createRole({ role: 'counter', privileges: [{ resource: { db: 'shop', collection: 'things' }, actions: ['find'] }], roles: [] }).ok, 1);
  eq(shop.getRole('counter').isBuiltin, false);
  eq(shop.grantRolesToUser('clerk', ['counter']).ok, 1);
  eq(shop.getUser('clerk').roles.length, 2);
  eq(shop.revokeRolesFromUser('clerk', ['counter']).ok, 1);
  eq(shop.dropRole('counter').ok, 1);
});
check('changeUserPassword', () => {
  eq(who(as('clerk', 'first', 'shop')), [{ user: 'clerk', db: 'shop' }]);
  eq(shop.changeUserPassword('clerk', 'second').ok, 1);
  fails(18, 'Authentication failed', () => as('clerk', 'first', 'shop'));
});
check('what a restricted user may do', () => {
  const own = as('clerk', 'second', 'shop');
  eq(own.getSiblingDB('shop').things.countDocuments(), 2);
  fails(13, 'not authorized on shop to execute command { insert: "things"', () => own.getSiblingDB('shop').things.insertOne({ _id: 3 }));
  fails(13, 'not authorized on other to execute command { find: "things"', () => own.getSiblingDB('other').things.findOne());
  eq(databases(own), ['shop']);
  eq(own.getMongo().getDBNames(), ['shop']);
  eq(databases(db).includes('other'), true);
});
check('auth and logout', () => {
  const own = as('clerk', 'second', 'shop').getSiblingDB('shop');
  fails(18, 'Authentication failed', () => own.auth('clerk', 'wrong'));
  eq(own.auth('clerk', 'second').ok, 1);
  eq(own.logout().ok, 1);
  fails(13, 'requires authentication', () => own.things.findOne());
});
check('updateUser', () => {
  eq(shop.updateUser('clerk', { roles: ['readWrite'] }).ok, 1);
  eq(as('clerk', 'second', 'shop').getSiblingDB('shop').things.insertOne({ _id: 4 }).acknowledged, true);
});
check('dropUser', () => {
  eq(shop.dropUser('clerk'), { ok: 1 });
  fails(18, 'Authentication failed', () => as('clerk', 'second', 'shop'));
  eq(shop.dropAllUsers().n.toString(), '0');
});
print(`mongosh: ${passed} passed, ${failed} failed`);
