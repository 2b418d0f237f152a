"""Drives a node with the client that openapi-python-client generates: python3 drive.py URL [API_KEY]."""

import sys
import uuid

from latchgate_client import AuthenticatedClient, Client
from latchgate_client.api.leases import release_leases
from latchgate_client.api.locks import acquire_lock, get_lock, release_lock, renew_lock
from latchgate_client.api.multilocks import acquire_multilock
from latchgate_client.api.operations import finish_operation, start_operation
from latchgate_client import models as m

url, api_key = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
client = AuthenticatedClient(base_url=url, token=api_key) if api_key else Client(base_url=url)
# Keys are plain text: the client encodes them.
key = f"python/{uuid.uuid4()} ü%"


def ok(name, condition, seen):
    print(f"{'ok' if condition else 'not ok'} python: {name}{'' if condition else f': {seen}'}", flush=True)


def is_problem(answer, code):
    return isinstance(answer, m.Problem) and answer.code == code


granted = acquire_lock.sync(key, client=client)
ok("acquire without a body", isinstance(granted, m.AcquireAnswer) and granted.key == key, granted)
ok("a time is a date", granted.expires_at.tzinfo is not None, granted.expires_at)
ok("a mode is one of an enum", granted.mode == m.ModeName.EXCLUSIVE, granted.mode)

held = acquire_lock.sync(key, client=client, body=m.AcquireRequest(owner="other"))
ok("423 lock-held", is_problem(held, m.ProblemCode.LOCK_HELD) and held.holders[0].owner == granted.owner, held)

renewed = renew_lock.sync(key, client=client, body=m.RenewRequest(lease_id=granted.lease_id, ttl_ms=60_000))
ok("renew", isinstance(renewed, m.RenewAnswer) and renewed.revocation is None, renewed)
shown = get_lock.sync(key, client=client)
ok("get", shown.held and shown.waiters == 0, shown)

released = release_lock.sync(key, client=client, body=m.ReleaseRequest(lease_id=granted.lease_id))
ok("release", isinstance(released, m.ReleaseAnswer) and released.still_held == 0, released)

lost = renew_lock.sync(key, client=client, body=m.RenewRequest(lease_id=granted.lease_id))
ok("410 lease-lost", is_problem(lost, m.ProblemCode.LEASE_LOST) and lost.why == m.Why.RELEASED, lost)

keys = [f"{key}/1", f"{key}/2"]
both = acquire_multilock.sync(client=client, body=m.MultilockRequest(locks=[m.LockedKeyRequest(key=k) for k in keys]))
ok("acquire a multilock", isinstance(both, m.MultilockAnswer) and [one.key for one in both.locks] == keys, both)
body = m.ReleaseLeasesRequest(leases=[m.LeaseToRelease(key=k, lease_id=both.lease_id) for k in keys])
freed = release_leases.sync(client=client, body=body)
ok("release a multilock", [one.status for one in freed.results] == [200, 200], freed)

work = m.PreRequest(operation="charge", contents={"order": key, "amount": "19.90"})
go = start_operation.sync(client=client, body=work)
ok("pre", isinstance(go, m.PreAnswer) and go.attempt == 1, go)
post = m.PostRequest(stamp=go.stamp, outcome=m.OutcomeName.SUCCESS, result={"receipt": 7})
posted = finish_operation.sync(go.id, client=client, body=post)
ok("post", isinstance(posted, m.PostAnswer) and posted.outcome == m.OutcomeName.SUCCESS, posted)
done = start_operation.sync(client=client, body=work)
ok("409 operation-duplicate", is_problem(done, m.ProblemCode.OPERATION_DUPLICATE) and done.result == {"receipt": 7}, done)

typo = renew_lock.sync(key, client=client, body=m.RenewRequest(lease_id="no lease id"))
ok("400 invalid-request", is_problem(typo, m.ProblemCode.INVALID_REQUEST) and typo.field == "lease_id", typo)
