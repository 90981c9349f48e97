<?php
// What both programs count: what was looked at, and what of it was wrong.
$passed = $failed = 0;
function check(bool $ok, string $what): void
{
    global $passed, $failed;
    $ok ? $passed++ : $failed++;
    if (!$ok) {
        echo "FAIL $what\n";
    }
}
