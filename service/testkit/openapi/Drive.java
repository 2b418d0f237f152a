import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import latchgate.ApiClient;
import latchgate.ApiException;
import latchgate.api.LocksApi;
import latchgate.api.OperationsApi;
import latchgate.model.*;

/** Drives a node with the client that openapi-generator makes: java Drive URL [API_KEY]. */
public class Drive {
    static final ApiClient client = new ApiClient();

    static void ok(String name, boolean condition, Object seen) {
        System.out.println(condition ? "ok java: " + name : "not ok java: " + name + ": " + seen);
    }

    /** The problem of a call that must be refused. */
    static Problem refused(int status, Callable<?> call) throws Exception {
        try {
            throw new AssertionError("not refused: " + call.call());
        } catch (ApiException refusal) {
            if (refusal.getCode() != status) throw refusal;
            return client.getObjectMapper().readValue(refusal.getResponseBody(), Problem.class);
        }
    }

    public static void main(String[] args) throws Exception {
        client.updateBaseUri(args[0]);
        if (args.length > 1) {
            client.setRequestInterceptor(request -> request.header("Authorization", "Bearer " + args[1]));
        }
        LocksApi locks = new LocksApi(client);
        OperationsApi operations = new OperationsApi(client);
        // Keys are plain text: the client encodes them.
        String key = "java/" + UUID.randomUUID() + " ü%";

        AcquireAnswer granted = locks.acquireLock(key, new AcquireRequest().ttlMs(30_000L));
        ok("acquire", granted.getKey().equals(key) && granted.getExpiresAt() != null, granted);
        ok("a mode is one of an enum", granted.getMode() == ModeName.EXCLUSIVE, granted.getMode());

        Problem held = refused(423,
            () -> locks.acquireLock(key, new AcquireRequest().owner("other")));
        ok("423 lock-held", held.getCode() == ProblemCode.LOCK_HELD && held.getHolders().get(0).getOwner().equals(granted.getOwner()), held);

        RenewAnswer renewed = locks.renewLock(key, new RenewRequest().leaseId(granted.getLeaseId()).ttlMs(60_000L));
        ok("renew", renewed.getRevocation() == null, renewed);

        ReleaseAnswer released = locks.releaseLock(key, new ReleaseRequest().leaseId(granted.getLeaseId()));
        ok("release", released.getStillHeld() == 0, released);

        Problem lost = refused(410,
            () -> locks.renewLock(key, new RenewRequest().leaseId(granted.getLeaseId())));
        ok("410 lease-lost", lost.getWhy() == Why.RELEASED, lost);

        PreRequest work = new PreRequest().operation("charge").contents(Map.of("order", key, "amount", "19.90"));
        PreAnswer go = operations.startOperation(work, null);
        ok("pre", go.getStamp() != null, go);
        PostAnswer posted = operations.finishOperation(go.getId(),
            new PostRequest().stamp(go.getStamp()).outcome(OutcomeName.SUCCESS).result(Map.of("receipt", 7)));
        ok("post", posted.getOutcome() == OutcomeName.SUCCESS, posted);
        Problem done = refused(409,
            () -> operations.startOperation(work, null));
        ok("409 operation-duplicate", done.getResult().equals(Map.of("receipt", 7)), done);
    }
}
