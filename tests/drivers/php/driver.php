<?php
// The PHP driver: writes, cursors, commands, sessions, expiry, errors. MONGODB_URI: a standalone or a replica set.
use MongoDB\BSON\{Binary, Decimal128, Int64, ObjectId, Regex, Timestamp, UTCDateTime};
use MongoDB\Driver\{BulkWrite, Command, Cursor, Manager, Query, ReadConcern, ReadPreference, WriteConcern};
use MongoDB\Driver\Exception\{BulkWriteException, CommandException, RuntimeException};

require __DIR__ . '/check.php';

function code(callable $f): int
{
    try {
        $f();
        return 0;
    } catch (RuntimeException $e) {
        return $e->getCode();
    }
}

$uri = getenv('MONGODB_URI');
$set = str_contains($uri, 'replicaSet');
$m = new Manager($uri);
$server = $m->selectServer(new ReadPreference(ReadPreference::PRIMARY));
$run = fn (array $command, string $db = 'php_driver') => current($server->executeCommand($db, new Command($command))->toArray());
$rows = fn (array $filter, array $options = [], string $coll = 'things') => $server->executeQuery("php_driver.$coll", new Query($filter, $options))->toArray();
$run(['dropDatabase' => 1]);

// Writes and what they answer.
$b = new BulkWrite();
for ($i = 0; $i < 300; $i++) {
    $b->insert(['_id' => $i, 'v' => $i % 10, 's' => "text $i"]);
}
$b->update(['v' => 3], ['$inc' => ['n' => 1]], ['multi' => true]);
$b->update(['_id' => 1000], ['$set' => ['v' => 1]], ['upsert' => true]);
$b->delete(['v' => 9]);
$r = $server->executeBulkWrite('php_driver.things', $b);
check([$r->getInsertedCount(), $r->getMatchedCount(), $r->getModifiedCount(), $r->getUpsertedCount(), $r->getDeletedCount()] === [300, 30, 30, 1, 30],
    'counts of a bulk write');
check(current($r->getUpsertedIds()) === 1000, 'the id of an upsert');
$b = new BulkWrite(['ordered' => false]);
foreach ([1, 2, 2000] as $id) {
    $b->insert(['_id' => $id]);
}
try {
    $server->executeBulkWrite('php_driver.things', $b);
    check(false, 'duplicate keys are refused');
} catch (BulkWriteException $e) {
    $errors = $e->getWriteResult()->getWriteErrors();
    check(count($errors) === 2 && $errors[1]->getCode() === 11000 && $errors[1]->getIndex() === 1, 'errors of an unordered bulk write');
    check($e->getWriteResult()->getInsertedCount() === 1, 'what an unordered bulk write did besides');
}

// Types.
$types = ['_id' => new ObjectId(), 'd' => new UTCDateTime(1700000000123), 'l' => 1 << 40, 'f' => 0.5, 'x' => new Decimal128('1.25'),
    'b' => new Binary("\0\1\2", Binary::TYPE_GENERIC), 'r' => new Regex('^a', 'i'), 't' => new Timestamp(1, 2), 'n' => null, 'a' => [1, [2]]];
$b = new BulkWrite();
$b->insert($types);
$server->executeBulkWrite('php_driver.types', $b);
$back = $rows(['d' => $types['d'], 'x' => $types['x'], 'b' => $types['b'], 't' => $types['t']], [], 'types');
check(count($back) === 1 && $back[0] == MongoDB\BSON\toPHP(MongoDB\BSON\fromPHP($types)), 'every type comes back, and is found by');

// Cursors.
$cursor = $server->executeQuery('php_driver.things', new Query(['v' => ['$lt' => 5]], ['sort' => ['_id' => -1], 'batchSize' => 7, 'projection' => ['v' => 1]]));
$ids = array_map(fn ($d) => $d->_id, $cursor->toArray());
$sorted = $ids;
rsort($sorted);
check(count($ids) === 151 && $ids === $sorted, 'a sorted cursor of many batches');
$cursor = $server->executeCommand('php_driver', new Command(['aggregate' => 'things', 'cursor' => ['batchSize' => 2],
    'pipeline' => [['$group' => ['_id' => '$v', 'n' => ['$sum' => 1]]], ['$sort' => ['_id' => 1]]]]));
check(count($cursor->toArray()) === 10, 'an aggregation of many batches');

// A tailable cursor waits, and hears that its collection has gone.
$run(['create' => 'log', 'capped' => true, 'size' => 65536]);
$b = new BulkWrite();
$b->insert(['_id' => 1]);
$b->insert(['_id' => 2]);
$server->executeBulkWrite('php_driver.log', $b);
$tail = $server->executeQuery('php_driver.log', new Query([], ['tailable' => true, 'awaitData' => true, 'maxAwaitTimeMS' => 10]));
$it = new IteratorIterator($tail);
$it->rewind();
$seen = [];
for ($n = 0; $n < 3; $n++) {
    if ($it->valid()) {
        $seen[] = $it->current()->_id;
    }
    $it->next();
}
check($seen === [1, 2] && !$tail->isDead(), 'a tailable cursor stays open behind its last document');
$run(['drop' => 'log']);
try {
    $it->next();
    check(false, 'a tailable cursor ends with its collection');
} catch (RuntimeException $e) {
    check($e->getCode() === 175 && str_contains($e->getMessage(), 'collection dropped'), 'a tailable cursor hears why it ends');
}

// Concerns, sessions, errors.
check($run(['findAndModify' => 'things', 'query' => ['_id' => 1], 'update' => ['$set' => ['x' => 1]], 'new' => true, 'readConcern' => ['level' => 'local']])
    ->value->x === 1, 'findAndModify, as executeReadWriteCommand sends it');
$session = $m->startSession(['causalConsistency' => true]);
$m->executeBulkWrite('php_driver.things', (function () {
    $b = new BulkWrite();
    $b->insert(['_id' => 'session']);
    return $b;
})(), ['session' => $session, 'writeConcern' => new WriteConcern(WriteConcern::MAJORITY)]);
check(count($m->executeQuery('php_driver.things', new Query(['_id' => 'session'], ['readConcern' => new ReadConcern(ReadConcern::MAJORITY)]),
    ['session' => $session])->toArray()) === 1, 'a session reads what it has written');
check(($session->getOperationTime() !== null) === $set, 'a set tells the time of an operation');
$session->endSession();
check(code(fn () => $run(['nonesuch' => 1])) === 59, 'an unknown command');
check(code(fn () => $rows(['a' => ['$nonesuch' => 1]])) === 2, 'an unknown operator');
check(code(fn () => $run(['create' => 'things', 'capped' => true, 'size' => 4096])) === 48, 'a collection that is there with other options');

// Expiry.
$run(['createIndexes' => 'sessions', 'indexes' => [['key' => ['seen' => 1], 'name' => 'seen_1', 'expireAfterSeconds' => 3600]]]);
$found = array_filter($server->executeCommand('php_driver', new Command(['listIndexes' => 'sessions']))->toArray(), fn ($i) => $i->name === 'seen_1');
check(current($found)->expireAfterSeconds === 3600, 'a TTL index');
$run(['create' => 'cache', 'expiry' => (object) []]);
$run(['insert' => 'cache', 'documents' => [['_id' => 1]], 'expireAt' => new UTCDateTime(1000)]);
$run(['insert' => 'cache', 'documents' => [['_id' => 2]], 'expireAfterSeconds' => 60]);
check(array_map(fn ($d) => $d->_id, $rows([], [], 'cache')) === [2], 'a document past its own deadline is not seen');

echo "php: $passed passed, $failed failed\n";
exit($failed ? 1 : 0);
