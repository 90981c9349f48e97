#!/usr/bin/env perl
# Logins of the Perl driver, over TLS: what with_access.py gives in the environment.
use strict;
use warnings;
use MongoDB;

my ($passed, $failed) = (0, 0);
sub check { my ($ok, $what) = @_; $ok ? $passed++ : $failed++; print "FAIL $what\n" unless $ok }

# This driver takes files for TLS as options only, and a name of a certificate's user.
sub connected {
    my ($uri) = @_;
    my %ssl = (SSL_ca_file => $ENV{TLS_CA_FILE});
    @ssl{qw(SSL_cert_file SSL_key_file)} = ($ENV{TLS_CLIENT_FILE}) x 2 if $uri =~ /tlsCertificateKeyFile/;
    $uri =~ s/tls(CA|CertificateKey)File=[^&]*&?//g;
    $uri =~ s/tls=true/ssl=true/;
    $uri =~ s/&$//;
    return MongoDB->connect($uri, { ssl => \%ssl });
}

sub refusal {
    my ($uri) = @_;
    return 'let in' if eval { connected($uri)->db('access_perl')->run_command([find => 'things']); 1 };
    my $e = $@;
    return (ref $e && $e->can('code') ? $e->code : '') . " $e";
}

for my $line (split /\n/, $ENV{LOGINS}) {
    my ($name, $uri) = split / /, $line;
    eval {
        my $client = connected($uri);
        my $who = $client->db('admin')->run_command([connectionStatus => 1]);
        check(@{ $who->{authInfo}{authenticatedUsers} } == 1, "$name: one user");
        my $c = $client->db('access_perl')->coll($name);
        $c->drop;
        $c->insert_many([map { { _id => $_, v => $_ % 10 } } 1 .. 300]);
        my @ids = map { $_->{_id} } $c->find({ v => 3 }, { sort => { _id => -1 }, batchSize => 4 })->all;
        check("@ids" eq join(' ', reverse grep { $_ % 10 == 3 } 1 .. 300), "$name: a cursor of many batches");
        my @groups = $c->aggregate([{ '$group' => { _id => '$v', n => { '$sum' => 1 } } }], { batchSize => 2 })->all;
        check(@groups == 10, "$name: an aggregation");
        # This driver has no sessions on a standalone.
        $c->update_many({ v => 1 }, { '$inc' => { n => 1 } });
        check($c->count_documents({ n => 1 }) == 30, "$name: an update");
        1;
    } or check(0, "$name: $@");
}
my $wrong = refusal($ENV{WRONG_LOGIN});
check($wrong =~ /Authentication failed/, "a wrong password: $wrong");
my $nobody = refusal($ENV{NO_LOGIN});
check($nobody =~ /^13 /, "no login: $nobody");
print "perl: $passed passed, $failed failed\n";
exit($failed ? 1 : 0);
