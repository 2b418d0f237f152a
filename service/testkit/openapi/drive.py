"""Drives a node with the client that openapi-python-client generates: python3 drive.py URL [API_KEY]."""

import sys
import threading
import uuid

from latchgate_client import AuthenticatedClient, Client
from latchgate_client.api.locks import acquire_lock, get_lock, release_lock, renew_lock
from latchgate_client.api.multilocks import acquire_multilock, release_multilock
from latchgate_client.api.operations import finish_operation, start_operation
from latchgate_client import models as m

url, api_key = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
client = AuthenticatedClient(base_url=url, token=api_key) if api_key else Client(base_url=url)
# Keys are plain text: the client encodes them.
key = f"python/{uuid.uuid4()} ü%"


def ok(name, condition, seen):
    print(f"{'ok' if condition else 'not ok'} python: {name}{'' if condition else f': {seen}'}", flush=True)


def acquire(**fields):
    return acquire_lock.sync(key, client=client, body=m.AcquireRequest(**fields))


granted = acquire_lock.sync(key, client=client)
ok("acquire without a body", isinstance(granted, m.AcquireAnswer) and granted.key == key, granted)
ok("a time is a date", granted.expires_at.tzinfo is not None, granted.expires_at)
ok("a mode is one of an enum", granted.mode == m.ModeName.EXCLUSIVE, granted.mode)

held = acquire(owner="other")
ok("423 lock-held", isinstance(held, m.LockHeldProblem) and held.holders[0].owner == granted.owner, held)

timed_out = acquire(owner="other", wait_ms=50)
ok("a wait ends", isinstance(timed_out, m.WaitTimeoutProblem) and timed_out.position == 1, timed_out)

renewed = renew_lock.sync(key, client=client, body=m.RenewRequest(lease_id=granted.lease_id, ttl_ms=60_000))
ok("renew", isinstance(renewed, m.RenewAnswer) and renewed.revocation is None, renewed)

waited = []
waiter = threading.Thread(target=lambda: waited.append(acquire(ticket=timed_out.ticket, wait_ms=20_000)))
waiter.start()
while get_lock.sync(key, client=client).waiters == 0:
    pass
released = release_lock.sync(key, client=client, body=m.ReleaseRequest(lease_id=granted.lease_id))
ok("release", isinstance(released, m.ReleaseAnswer) and released.released, released)
waiter.join()
ok("a waiter gets the lock", isinstance(waited[0], m.AcquireAnswer) and waited[0].token > granted.token, waited)

lost = renew_lock.sync(key, client=client, body=m.RenewRequest(lease_id=granted.lease_id))
ok("410 lease-lost", isinstance(lost, m.LeaseLostProblem) and lost.why == m.LostWhy.RELEASED, lost)

keys = [f"{key}/1", f"{key}/2"]
both = acquire_multilock.sync(client=client, body=m.MultilockRequest(locks=[m.LockedKeyRequest(key=k) for k in keys]))
ok("acquire a multilock", isinstance(both, m.MultilockAnswer) and [one.key for one in both.locks] == keys, both)
body = m.MultilockReleaseRequest(lease_id=both.lease_id, keys=keys)
ok("release a multilock", release_multilock.sync(client=client, body=body).released, both)

work = m.PreRequest(operation="charge", contents={"order": key, "amount": "19.90"})
go = start_operation.sync(client=client, body=work)
ok("pre", isinstance(go, m.PreAnswer) and go.guarded, go)
running = start_operation.sync(client=client, body=work)
ok("409 operation-in-progress", isinstance(running, m.OperationInProgressProblem) and running.id == go.id, running)
post = m.PostRequest(stamp=go.stamp, outcome=m.OutcomeName.SUCCESS, result={"receipt": 7})
posted = finish_operation.sync(go.id, client=client, body=post)
ok("post", isinstance(posted, m.PostAnswer) and posted.outcome == m.OutcomeName.SUCCESS, posted)
done = start_operation.sync(client=client, body=work)
ok("409 operation-duplicate", isinstance(done, m.OperationDuplicateProblem) and done.result == {"receipt": 7}, done)

typo = renew_lock.sync(key, client=client, body=m.RenewRequest(lease_id="no lease id"))
ok("400 invalid-request", isinstance(typo, m.InvalidRequestProblem) and typo.field == "lease_id", typo)
