"""Workloads for scripts/test-guard.sh. Prints one line of JSON.

    workload.py sets SECONDS [guard]   workers add elements to sets, each under a lock, and are paused beyond their leases
    workload.py posts COUNT            workers are killed between any two statements of a transaction with latchgate.post
    workload.py hold KEY SECONDS       holds a guard open, beyond its lease, while a client waits for the lock

LATCHGATE_URL names one node, or several with commas between them, and DATABASE_URL the database.
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
import urllib.error
import urllib.request

import psycopg

SETS = 3
WORKERS = 6
TTL_MS = 1_000
# How long a paused worker stays stopped, in seconds: mostly longer than its lease.
PAUSES = (0.5, 3.0)
URLS = os.environ.get("LATCHGATE_URL", "http://127.0.0.1:7070").split(",")
# What a transaction is refused with: the lease has ended; the engine in use is another one.
REFUSED = ("LG001", "LG002")


def call(path, **body):
    """The status and the body of the answer of any node."""
    request = urllib.request.Request(f"{random.choice(URLS)}/v1/{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        # A frozen node does not answer.
        with urllib.request.urlopen(request, timeout=body.get("wait_ms", 0) / 1_000 + 5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        # Or the worker was paused for longer than the node keeps an idle connection.
        return 0, {}


def connect():
    while True:
        try:
            return psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
        except psycopg.OperationalError:
            time.sleep(0.05)  # the server starts again


def add_elements(worker, is_guarded, stop, acknowledged, refused):
    """Reads a set, adds an element and writes the whole set back, as a program that trusts its lock."""
    connection = connect()
    count = 0
    while not stop.is_set():
        name = f"set-{random.randrange(SETS)}"
        status, lease = call(f"locks/{name}/acquire", ttl_ms=TTL_MS, wait_ms=2_000)
        if status != 200:
            time.sleep(0.02)
            continue
        lease_id = lease["lease_id"]
        try:
            add_element(connection, name, lease_id if is_guarded else None, f"{worker}-{count}")
            acknowledged.put(f"{worker}-{count}")
        except psycopg.Error as error:
            if error.sqlstate in REFUSED:
                refused.put(error.sqlstate)
            elif connection.closed:
                # The server has crashed, and the outcome is unknown. The row is not acknowledged.
                connection = connect()
            else:
                raise
        count += 1
        call(f"locks/{name}/release", lease_id=lease_id)


def add_element(connection, name, lease_id, element):
    (elements,) = connection.execute("select elements from sets where name = %s", [name]).fetchone()
    time.sleep(random.uniform(0, 0.05))  # the work
    with connection.transaction():
        connection.execute("update sets set elements = %s where name = %s", [elements + [element], name])
        if lease_id:
            connection.execute("select latchgate.guard(%s, %s)", [name, lease_id])


def drain(queue):
    taken = []
    while not queue.empty():
        taken.append(queue.get())
    return taken


def sets(seconds, is_guarded):
    connection = connect()
    connection.execute("drop table if exists sets")
    connection.execute("create table sets (name text primary key, elements text[] not null default '{}')")
    connection.execute("insert into sets select 'set-' || n from generate_series(0, %s) n", [SETS - 1])
    stop = multiprocessing.Event()
    acknowledged, refused = multiprocessing.SimpleQueue(), multiprocessing.SimpleQueue()
    workers = [
        multiprocessing.Process(target=add_elements, args=(number, is_guarded, stop, acknowledged, refused))
        for number in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    added, late, pauses = [], [], 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        worker = random.choice(workers)
        # SIGSTOP, not a sleep: the worker does not know that time passes.
        os.kill(worker.pid, signal.SIGSTOP)
        pauses += 1
        time.sleep(random.uniform(*PAUSES))
        os.kill(worker.pid, signal.SIGCONT)
        time.sleep(0.2)
        added += drain(acknowledged)
        late += drain(refused)
    stop.set()
    while any(worker.is_alive() for worker in workers):
        added += drain(acknowledged)
        late += drain(refused)
        time.sleep(0.01)
    added += drain(acknowledged)
    late += drain(refused)
    assert all(worker.exitcode == 0 for worker in workers), "a worker has failed"
    kept = {element for (elements,) in connect().execute("select elements from sets") for element in elements}
    lost = [element for element in added if element not in kept]
    refusals = {"refused": late.count("LG001"), "not_active": late.count("LG002")}
    return {"acknowledged": len(added), **refusals, "pauses": pauses, "lost": len(lost)}


def work_and_post(contents, go, statements_max):
    """One transaction; the worker is killed after `statements_max` statements."""
    connection = connect()
    statements = [
        ("begin", []),
        ("insert into charges values (%s)", [contents]),
        ("select latchgate.post(%s, %s, %s)", [go["id"], go["stamp"], '{"receipt":7}']),
        ("commit", []),
    ]
    for number, (statement, values) in enumerate(statements):
        if number == statements_max:
            os.kill(os.getpid(), signal.SIGKILL)
        connection.execute(statement, values)
    if statements_max == len(statements):
        os.kill(os.getpid(), signal.SIGKILL)


def posts(count):
    connection = connect()
    connection.execute("drop table if exists charges")
    connection.execute("create table charges (contents text not null)")
    runs, answers = 0, {}
    for number in range(count):
        contents, is_done, statements_max = f"order-{number}", False, number % 5
        while not is_done:
            status, answer = call("operations/pre", operation="charge", contents=contents, on_expiry="retry", ttl_ms=1_000)
            answers[answer.get("code", "go")] = answers.get(answer.get("code", "go"), 0) + 1
            if status == 201:
                worker = multiprocessing.Process(target=work_and_post, args=(contents, answer, statements_max))
                worker.start()
                worker.join()
                runs, statements_max = runs + 1, 9
            elif answer.get("code") in ("operation-in-progress", "overloaded"):
                time.sleep(0.05)
            else:
                is_done = True
    rows, distinct = connection.execute("select count(*), count(distinct contents) from charges").fetchone()
    unknown = answers.get("operation-unknown", 0)
    return {"operations": count, "runs": runs, "rows": rows, "double": rows - distinct, "missing": count - distinct, "unknown": unknown}


def wait_for(key, granted_at):
    status, lease = call(f"locks/{key}/acquire", ttl_ms=60_000, wait_ms=50_000)
    assert status == 200, lease
    granted_at.put(time.monotonic())


def hold(key, seconds):
    """The lease expires while the guard is open, and a client waits for the lock."""
    status, lease = call(f"locks/{key}/acquire", ttl_ms=5_000)
    assert status == 200, lease
    connection, granted_at = connect(), multiprocessing.SimpleQueue()
    waiter = multiprocessing.Process(target=wait_for, args=(key, granted_at))
    waiter.start()
    time.sleep(1)
    with connection.transaction():
        connection.execute("select latchgate.guard(%s, %s)", [key, lease["lease_id"]])
        print("held", flush=True)
        time.sleep(seconds)
        assert granted_at.empty(), "two holders"
    committed_at = time.monotonic()
    return {"held_s": seconds, "handed_over_ms": round((granted_at.get() - committed_at) * 1_000)}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sets", seconds, *more]:
            print(json.dumps(sets(float(seconds), more == ["guard"])))
        case ["posts", count]:
            print(json.dumps(posts(int(count))))
        case ["hold", key, seconds]:
            print(json.dumps(hold(key, float(seconds))))
        case _:
            sys.exit(__doc__)
