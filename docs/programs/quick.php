<?php
function call(string $path, array $body): array
{
    $request = ['method' => 'POST', 'content' => json_encode($body, JSON_THROW_ON_ERROR), 'header' => 'Content-Type: application/json'];
    $context = stream_context_create(['http' => $request + ['ignore_errors' => true, 'follow_location' => 0, 'timeout' => 60]]);
    $answer = @file_get_contents((getenv('LATCHGATE_URL') ?: 'http://127.0.0.1:7070') . $path, false, $context);
    return [preg_match('/^\S+ 2/', $http_response_header[0] ?? '') === 1, json_decode($answer ?: '', true) ?? []];
}

// `exit` with a text would be a success for the shell.
function stop(string $why): never
{
    file_put_contents('php://stderr', "$why\n");
    exit(1);
}

if (getenv('LATCHGATE_URL') === '') {
    stop('LATCHGATE_URL is set and empty');
}

$lock = '/v1/locks/' . rawurlencode('orders/42');
$lease = ['lease_id' => bin2hex(random_bytes(16))];
$holder = getmypid();
register_shutdown_function(function () use ($lock, $lease, $holder) {
    if (getmypid() === $holder) {
        call("$lock/release", $lease);
    }
});
[$mine, $grant] = call("$lock/acquire", $lease + ['ttl_ms' => 30000, 'wait_ms' => 20000]);
if (!$mine) {
    stop('could not get the lock: ' . ($grant['code'] ?? 'no answer'));
}
echo "working with token {$grant['token']}\n";

[$mine, $go] = call('/v1/operations/pre', ['operation' => 'charge', 'contents' => ['order' => 42, 'from' => 'php']]);
if ($mine) {
    [$noted, $end] = call("/v1/operations/{$go['id']}/post", ['stamp' => $go['stamp'], 'outcome' => 'success', 'result' => ['receipt' => 7]]);
    $noted || stop('done, but not recorded: ' . ($end['code'] ?? 'no answer'));
    echo "done now\n";
} elseif (($go['code'] ?? '') === 'operation-duplicate') {
    echo json_encode($go['result']), " done earlier\n";
} else {
    stop('not now: ' . ($go['code'] ?? 'no answer'));
}
