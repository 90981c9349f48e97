<?php
// Logins of the PHP driver, over TLS: what with_access.py gives in the environment.
use MongoDB\Driver\{BulkWrite, Command, Manager, Query, ReadPreference};
use MongoDB\Driver\Exception\Exception;

require __DIR__ . '/check.php';

/** What a client of this URI is told; 0: it is let in. A failed login has the code of libmongoc, and the server's words. */
function refusal(string $uri): string
{
    try {
        (new Manager($uri))->executeQuery('access_php.things', new Query([]))->toArray();
        return 'let in';
    } catch (Exception $e) {
        return $e->getCode() . ' ' . $e->getMessage();
    }
}

foreach (explode("\n", getenv('LOGINS')) as $line) {
    [$name, $uri] = explode(' ', $line);
    try {
        $m = new Manager($uri);
        $run = fn (array $command, string $db = 'access_php') => $m->selectServer(new ReadPreference('primary'))->executeCommand($db, new Command($command));
        $who = current($run(['connectionStatus' => 1], 'admin')->toArray());
        check(count($who->authInfo->authenticatedUsers) === 1, "$name: one user");
        $run(['dropDatabase' => 1]);
        $b = new BulkWrite();
        for ($i = 0; $i < 300; $i++) {
            $b->insert(['_id' => $i, 'v' => $i % 10]);
        }
        $m->executeBulkWrite('access_php.things', $b);
        $found = $m->executeQuery('access_php.things', new Query(['v' => ['$lt' => 5]], ['batchSize' => 7]))->toArray();
        check(count($found) === 150, "$name: a cursor of many batches");
        $groups = $run(['aggregate' => 'things', 'cursor' => ['batchSize' => 2], 'pipeline' => [['$group' => ['_id' => '$v', 'n' => ['$sum' => 1]]]]])->toArray();
        check(count($groups) === 10, "$name: an aggregation");
        $session = $m->startSession();
        $b = new BulkWrite();
        $b->update(['v' => 1], ['$inc' => ['n' => 1]], ['multi' => true]);
        check($m->executeBulkWrite('access_php.things', $b, ['session' => $session])->getModifiedCount() === 30, "$name: a session");
        $session->endSession();
    } catch (Exception $e) {
        check(false, "$name: {$e->getMessage()}");
    }
}
$wrong = refusal(getenv('WRONG_LOGIN'));
check(str_contains($wrong, 'Authentication failed'), "a wrong password: $wrong");
$nobody = refusal(getenv('NO_LOGIN'));
check(str_starts_with($nobody, '13 '), "no login: $nobody");
echo "php: $passed passed, $failed failed\n";
exit($failed ? 1 : 0);
