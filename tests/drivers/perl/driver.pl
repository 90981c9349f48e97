#!/usr/bin/env perl
# The Perl driver: writes, cursors, bulk writes, indexes, GridFS, sessions, change streams, errors. MONGODB_URI: a standalone or a replica set.
use strict;
use warnings;
use MongoDB;
use BSON::Types ':all';
use boolean;
use Tie::IxHash;

my ($passed, $failed) = (0, 0);
sub check { my ($ok, $what) = @_; $ok ? $passed++ : $failed++; print "FAIL $what\n" unless $ok }
sub code { my ($f) = @_; return 0 if eval { $f->(); 1 }; my $e = $@; return ref $e && $e->can('code') ? $e->code : "$e" }

my $set = $ENV{MONGODB_URI} =~ /replicaSet/;
my $client = MongoDB->connect($ENV{MONGODB_URI}, { retry_writes => $set });
my $db = $client->db('perl_driver');
$db->drop;
my $c = $db->coll('things');

my $r = $c->insert_many([map { { _id => $_, v => $_ % 10 } } 1 .. 300]);
check(@{ $r->inserted } == 300, 'insert_many');
check($c->count_documents({ v => { '$lt' => 3 } }) == 90, 'count_documents');
check($c->estimated_document_count == 300, 'estimated_document_count');
my @ids = map { $_->{_id} } $c->find({ v => 3 }, { sort => { _id => -1 }, batchSize => 4 })->all;
check("@ids" eq join(' ', reverse grep { $_ % 10 == 3 } 1 .. 300), 'a sorted cursor of many batches');
my $u = $c->update_many({ v => 1 }, { '$inc' => { n => 1 } });
check($u->matched_count == 30 && $u->modified_count == 30, 'update_many');
check($c->replace_one({ _id => 'new' }, { v => 0 }, { upsert => 1 })->upserted_id eq 'new', 'an upsert');
check($c->find_one_and_update({ _id => 5 }, { '$set' => { x => 1 } }, { returnDocument => 'after' })->{x} == 1, 'find_one_and_update');
check($c->delete_many({ v => 9 })->deleted_count == 30, 'delete_many');
check("@{[sort { $a <=> $b } $c->distinct('v')->all]}" eq '0 1 2 3 4 5 6 7 8', 'distinct');
check(code(sub { $c->insert_one({ _id => 1 }) }) == 11000, 'a duplicate key');
check(code(sub { $db->run_command([nonesuch => 1]) }) == 59, 'an unknown command');
check(code(sub { $c->find({ a => { '$nonesuch' => 1 } })->all }) == 2, 'an unknown operator');

my $bulk = $c->unordered_bulk;
$bulk->insert_one({ _id => $_ }) for 'a', 'b', 1;
$bulk->find({ _id => 2 })->update_one({ '$set' => { y => 1 } });
$bulk->find({ _id => 3 })->delete_one;
my $done = eval { $bulk->execute } || $@->result;
check($done->inserted_count == 2 && $done->modified_count == 1 && $done->deleted_count == 1 && @{ $done->write_errors } == 1, 'an unordered bulk write');

# This driver asks for an answer also where it wants none: then the server has nothing to tell.
my $w0 = $db->run_command([insert => 'things', documents => [{ _id => 1 }], writeConcern => { w => 0 }]);
check(!exists $w0->{n} && !exists $w0->{writeErrors}, 'w: 0 is told nothing');

my @groups = $c->aggregate([{ '$match' => { v => { '$exists' => true } } }, { '$group' => { _id => '$v', n => { '$sum' => 1 } } }, { '$sort' => { _id => 1 } }],
    { batchSize => 2 })->all;
check(@groups == 9 && $groups[1]{n} == 30, 'an aggregation of many batches');

my $types = { _id => bson_oid(), d => bson_time(1.5), l => bson_int64(1 << 40), x => bson_decimal128('1.25'), b => bson_bytes("\0\1"), t => bson_timestamp(1, 2), n => undef };
$db->coll('types')->insert_one($types);
my $back = $db->coll('types')->find_one({ d => $types->{d}, x => $types->{x}, b => $types->{b}, t => $types->{t} });
check($back && $back->{x} eq $types->{x} && $back->{l} == 1 << 40 && $back->{d}->epoch == 1.5, 'types come back, and are found by');

check("@{[$c->indexes->create_many({ keys => [v => 1, n => -1] }, { keys => [seen => 1], options => { expireAfterSeconds => 3600 } })]}" eq 'v_1_n_-1 seen_1', 'indexes');
my ($ttl) = grep { $_->{name} eq 'seen_1' } $c->indexes->list->all;
check($ttl->{expireAfterSeconds} == 3600, 'a TTL index');

my $files = $db->gfs;
my $content = join '', map { chr($_ % 251) } 1 .. 600_000;
my $up = $files->open_upload_stream('file', { chunk_size_bytes => 100_000 });
$up->print($content);
$up->close;
my $down = $files->open_download_stream($up->id);
my $read = do { local $/; $down->readline };
check($read eq $content, 'GridFS');

if ($set) {  # the driver has sessions for sets only
    my $session = $client->start_session;
    $c->insert_one({ _id => 'session' }, { session => $session });
    check($c->find_one({ _id => 'session' }, {}, { session => $session }), 'a session reads what it has written');
    $session->end_session;
    my $stream = $c->watch([{ '$match' => { operationType => 'insert' } }], { fullDocument => 'updateLookup', maxAwaitTimeMS => 100 });
    $c->insert_one({ _id => 'seen' });
    my $event;
    for (1 .. 50) { last if $event = $stream->next }
    check($event && $event->{fullDocument}{_id} eq 'seen', 'a change stream');
    $c->insert_one({ _id => 'after' });
    my $again = $c->watch([], { resumeAfter => $event->{_id}, maxAwaitTimeMS => 100 });
    my $next;
    for (1 .. 50) { last if $next = $again->next }
    check($next && $next->{documentKey}{_id} eq 'after', 'a change stream that goes on');
} else {
    check(code(sub { $c->watch->next }) == 40573, 'no change streams on a standalone');
}

print "perl: $passed passed, $failed failed\n";
exit($failed ? 1 : 0);
