package latchgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The names of these tests begin with the numbers in ../SCENARIOS.md.

func Test01ALeaseIsRenewedForLongerThanItsTTL(t *testing.T) {
	t.Parallel()
	key, other := freshKey(), client(Config{}, nodeB.url)
	lease := held(t, client(Config{}, nodeA.url), key, Options{TTL: 6 * time.Second})
	for until := time.Now().Add(12500 * time.Millisecond); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		isHeld(t, ctx, other, key, Options{})
		check(t, lease.Err() == nil, lease.Err())
	}
	check(t, nodeB.lock(key).Holders[0].Token == lease.Token(), "another token")
	freed(t, lease)
	isFree(t, key)
}

func Test02AWaiterGetsTheLockWhenItIsReleased(t *testing.T) {
	t.Parallel()
	key := freshKey()
	first := held(t, client(Config{}, nodeA.url), key, Options{})
	second := inBackground(client(Config{}, nodeB.url), key, Options{})
	eventually(t, "it waits", func() bool { return nodeB.lock(key).Waiters == 1 })
	freed(t, first)
	lease := second(t)
	check(t, lease.Token() > first.Token() && lease.Remaining() > 15*time.Second, "token or time")
	freed(t, lease)
}

func Test03ALongWaitGoesOnWithTickets(t *testing.T) {
	t.Parallel()
	key, p := freshKey(), startProxy(t, nodeA)
	first := held(t, client(Config{}, nodeB.url), key, Options{})
	second := inBackground(client(Config{}, p.url), key, Options{TTL: 1500 * time.Millisecond})
	eventually(t, "two tickets", func() bool {
		tickets, ids := 0, map[any]bool{}
		for _, one := range p.requests("/acquire") {
			ids[one.body["lease_id"]] = true
			if one.body["ticket"] != nil {
				tickets++
			}
		}
		check(t, len(ids) <= 1, "two ids")
		return tickets >= 2
	})
	freed(t, first)
	freed(t, second(t))
}

func Test03AWaitThatEndsNamesTheHolders(t *testing.T) {
	t.Parallel()
	key, p := freshKey(), startProxy(t, nodeA)
	lease := held(t, client(Config{}, nodeB.url), key, Options{Owner: "first"})
	c := client(Config{})
	var all sync.WaitGroup
	for i := 0; i < 3; i++ { // also those that wait for their turn in this process
		all.Add(1)
		go func() {
			defer all.Done()
			_, err := c.Lock(ctx, key, Options{TTL: 1500 * time.Millisecond, Wait: 1200 * time.Millisecond})
			if !errors.Is(err, ErrWaitTimeout) || !errors.Is(err, ErrLockHeld) || err.(*Error).Holders[0].Owner != "first" || err.(*Error).Status != 423 {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	p.refuses = 1 // also if an outage takes all of the wait
	_, err := client(Config{}, p.url).Lock(ctx, key, Options{Wait: 500 * time.Millisecond})
	isKind(t, err, ErrWaitTimeout, "wait-timeout")
	freed(t, lease)
	isFree(t, key)
}

func Test03ANodeThatEndsWaitsAtOnceIsLeftForAnotherOne(t *testing.T) {
	t.Parallel()
	key, p := freshKey(), startProxy(t, nodeA)
	p.endsWaits = true
	first := held(t, client(Config{}, nodeB.url), key, Options{})
	second := inBackground(client(Config{}, p.url, nodeB.url), key, Options{})
	eventually(t, "it waits at the other", func() bool { return len(nodeB.lock(key).Waiting) == 1 })
	freed(t, first)
	freed(t, second(t))
	check(t, len(p.requests("/acquire")) > 0, "the proxy was not asked")
}

func Test09TheAnswerToAnAcquireIsLost(t *testing.T) {
	t.Parallel()
	key, p := freshKey(), startProxy(t, nodeA)
	p.loses["acquire"] = 1
	lease := held(t, client(Config{}, p.url, nodeB.url), key, Options{})
	holders := nodeB.lock(key).Holders
	check(t, len(holders) == 1 && holders[0].Token == lease.Token() && p.requests("/acquire")[0].body["lease_id"] == lease.ID, holders)
	freed(t, lease)
	isFree(t, key)
}

func Test10TheAnswersToARenewalAndAReleaseAreLost(t *testing.T) {
	t.Parallel()
	key, p := freshKey(), startProxy(t, nodeA)
	lease := held(t, client(Config{}, p.url), key, Options{TTL: 6 * time.Second})
	p.set(func() { p.loses["renew"] = 1 })
	eventually(t, "the renewal is repeated", func() bool { return len(p.requests("/renew")) == 2 })
	check(t, lease.Err() == nil, lease.Err())
	p.set(func() { p.loses["release"] = 1 })
	freed(t, lease)
	check(t, len(p.requests("/release")) == 2, "not repeated")
	isFree(t, key)
}

func Test11NothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	key, c := freshKey(), client(Config{})
	func() {
		defer func() { check(t, recover() == "the work fails", "no panic") }()
		defer held(t, c, key, Options{}).Release()
		panic("the work fails")
	}()
	isFree(t, key)
	lease := held(t, client(Config{}, nodeB.url), key, Options{})
	short, cancel := context.WithTimeout(ctx, 700*time.Millisecond)
	defer cancel()
	_, err := c.Lock(short, key, Options{})
	check(t, errors.Is(err, context.DeadlineExceeded), err)
	eventually(t, "no waiter", func() bool { return nodeB.lock(key).Waiters == 0 })
	freed(t, lease)
	held(t, c, key, Options{TTL: 500 * time.Millisecond}) // nobody releases this one
	eventually(t, "it expires", func() bool { runtime.GC(); return !nodeB.lock(key).Held })
}

func Test11AnAcquireThatMayHaveBeenGrantedIsGivenBack(t *testing.T) {
	t.Parallel()
	for _, hides := range []bool{false, true} {
		key, p := freshKey(), startProxy(t, nodeA)
		p.loses["acquire"], p.hides = 1000, hides
		c := client(Config{RetryFor: time.Second}, p.url)
		_, err := c.Lock(ctx, key, Options{})
		isKind(t, err, ErrUnavailable, "")
		c.Close()
		check(t, len(p.requests("/release")) > 0, "not released")
		isFree(t, key)
	}
}

func Test11ALeaseThatHasEndedBeforeItsAnswerIsTakenAgain(t *testing.T) {
	t.Parallel()
	key, p := freshKey(), startProxy(t, nodeA)
	p.late = 1
	lease := held(t, client(Config{}, p.url), key, Options{TTL: time.Second})
	check(t, lease.Err() == nil && len(p.requests("/acquire")) == 2, lease.Err())
	_ = lease.Release() // on a busy machine it may have ended
	isFree(t, key)
}

func Test12SharedLeasesAndPermits(t *testing.T) {
	t.Parallel()
	key, c := freshKey(), client(Config{})
	shared := Options{Mode: Mode{Shared: true}}
	one, two := held(t, c, key, shared), held(t, c, key, shared)
	isHeld(t, ctx, c, key, Options{})
	freed(t, one)
	freed(t, two)
	key = freshKey()
	limit := Options{Mode: Mode{Limit: 3}}
	one, two = held(t, c, key, Options{Mode: Mode{Permits: 2, Limit: 3}}), held(t, c, key, limit)
	check(t, fmt.Sprint(one.Slots, two.Slots) == "[0 1] [2]", one.Slots, two.Slots)
	isHeld(t, ctx, c, key, limit)
	freed(t, one)
	freed(t, two)
	isFree(t, key)
	_, err := c.Lock(ctx, key, Options{Mode: Mode{Shared: true, Limit: 3}})
	isKind(t, err, ErrRefused, "invalid-request")
}

func Test12AGroupHasNoMorePermitsThanItsLimit(t *testing.T) {
	t.Parallel()
	key, c := freshKey(), client(Config{})
	of := func(group string) Options { return Options{Mode: Mode{Limit: 3, Group: group, GroupLimit: 1}} }
	lease, err := c.Lock(ctx, key, Options{Mode: of("a").Mode})
	if err != nil && strings.Contains(err.Error(), "unknown field `group`") {
		t.Skip("this node knows no groups")
	}
	isHeld(t, ctx, c, key, of("a"))
	freed(t, held(t, c, key, of("b")))
	freed(t, lease)
	isFree(t, key)
}

func Test12AMultilockIsRenewedAndReleasedAsOne(t *testing.T) {
	t.Parallel()
	key, other, c := freshKey(), freshKey(), client(Config{})
	both := []Key{{Key: key}, {Key: other, Mode: Mode{Shared: true}}}
	lease, err := c.Multilock(ctx, both, Options{TTL: 6 * time.Second})
	check(t, err == nil, err)
	untilRenewed(t, lease)
	check(t, len(lease.Tokens) == 2 && lease.Tokens[other] > 0, lease.Tokens)
	isHeld(t, ctx, c, key, Options{})
	freed(t, held(t, c, other, Options{Mode: Mode{Shared: true}}))
	freed(t, lease)
	isFree(t, key)
	lease, err = c.Multilock(ctx, both, Options{TTL: 6 * time.Second})
	check(t, err == nil, err)
	nodeA.force(other)
	check(t, waitLost(t, lease).Why == "forced", lease.Err())
	isKind(t, lease.Release(), ErrLeaseLost, "")
	isFree(t, key)
}

func Test13TheHolderSeesARevocation(t *testing.T) {
	t.Parallel()
	key, c := freshKey(), client(Config{})
	none, err := c.Revoke(ctx, key, RevokeOptions{})
	check(t, err == nil && none.Leases == 0, none, err)
	lease := held(t, c, key, Options{TTL: 3 * time.Second})
	check(t, lease.Revocation() == nil, "revoked")
	revoking, err := c.Revoke(ctx, key, RevokeOptions{Reason: "hotfix", By: "ann", Grace: 30 * time.Second, Token: lease.Token()})
	check(t, err == nil && revoking.Leases == 1, revoking, err)
	eventually(t, "the revocation", func() bool { return lease.Revocation() != nil })
	check(t, *lease.Revocation() == Revocation{revoking.Deadline, "hotfix", "ann"}, *lease.Revocation())
	freed(t, lease)
}

func Test46AHolderThatIgnoresARevocationLearnsWhyItsLeaseHasEnded(t *testing.T) {
	t.Parallel()
	key, c, o := freshKey(), client(Config{}), Options{TTL: 3 * time.Second}
	for _, keys := range [][]Key{{{Key: key}}, {{Key: key}, {Key: key + "/2"}}} {
		lease, err := c.Multilock(ctx, keys, o)
		check(t, err == nil, err)
		_, err = c.Revoke(ctx, key, RevokeOptions{Reason: "hotfix", By: "ann", Grace: 2 * time.Second, Token: lease.Token()})
		check(t, err == nil, err)
		loss := waitLost(t, lease)
		check(t, loss.Why == "revoked" && (loss.Status != 0 || strings.HasPrefix(loss.Detail, "ann has revoked the lease of")), loss)
		isKind(t, lease.Release(), ErrLeaseLost, "")
	}
}

func Test25ALockInsideOfItselfIsNestedOnRequest(t *testing.T) {
	t.Parallel()
	key, other, c := freshKey(), freshKey(), client(Config{})
	outer := held(t, c, key, Options{})
	inside, nested := outer.Context(), Options{Reentrant: true}
	inner, err := c.Lock(inside, key, nested)
	check(t, err == nil && inner.Token() == outer.Token() && inner.Owner == outer.Owner, err)
	freed(t, inner)
	both, err := c.Multilock(inside, []Key{{Key: key}, {Key: other}}, nested)
	check(t, err == nil && both.Tokens[key] == outer.Token(), err)
	freed(t, both)
	isHeld(t, ctx, c, key, nested)       // not inside of it
	isHeld(t, inside, c, key, Options{}) // without the request
	isHeld(t, inside, client(Config{}), key, nested)
	freed(t, outer)
	named := held(t, c, key, Options{Owner: "worker"})
	isHeld(t, named.Context(), c, key, nested) // the owner may be that of another process, too
	freed(t, named)
	isFree(t, key)
}

func Test26TheLeasesOfAClientAreRenewedTogether(t *testing.T) {
	t.Parallel()
	key, p := freshKey(), startProxy(t, nodeA)
	c := client(Config{}, p.url)
	var leases []*Lease
	for i := 0; i < 20; i++ {
		leases = append(leases, held(t, c, fmt.Sprint(key, i), Options{TTL: 6 * time.Second}))
	}
	untilRenewed(t, leases...)
	untilRenewed(t, leases...)
	renewals := p.requests("/renew")
	check(t, len(renewals) < 12, len(renewals))
	nodeB.force(leases[7].Key)
	check(t, waitLost(t, leases[7]).Why == "forced", leases[7].Err())
	leases = append(leases[:7], leases[8:]...)
	untilRenewed(t, leases...)
	for _, lease := range leases {
		freed(t, lease)
	}
}

func Test26NoRequestHasMoreLeasesThanANodeAccepts(t *testing.T) {
	var leases []*keeper
	for i := 0; i < 20; i++ {
		leases = append(leases, &keeper{leases: make([]leaseRef, 60), until: 9, together: leasesPerCallMax})
	}
	all := batches(leases)
	check(t, len(all) == 3 && len(all[0]) == 8, len(all))
	leases = nil
	for _, bytes := range []int{300_000, 100_000, 100_000, 1} {
		leases = append(leases, &keeper{leases: make([]leaseRef, 1), bytes: bytes, together: leasesPerCallMax})
	}
	all = batches(leases)
	check(t, len(all) == 2 && len(all[0]) == 3, "a request of more bytes than a proxy takes", len(all))
}

func Test27ALeaseWhoseRenewalHangsTakesNoOtherWithIt(t *testing.T) {
	t.Parallel()
	key, p := freshKey(), startProxy(t, nodeA)
	c := client(Config{}, p.url)
	var leases []*Lease
	for i := 0; i < 4; i++ {
		leases = append(leases, held(t, c, fmt.Sprint(key, i), Options{TTL: 9 * time.Second}))
	}
	p.set(func() { p.hangs = leases[0].ID })
	check(t, waitLost(t, leases[0]).Why == "unanswered", leases[0].Err())
	untilRenewed(t, leases[1:]...)
	for _, lease := range leases[1:] {
		freed(t, lease)
	}
}

func Test29ALockStaysTakenForItsShortestHold(t *testing.T) {
	t.Parallel()
	key, c := freshKey(), client(Config{})
	freed(t, held(t, c, key, Options{MinHold: 10 * time.Minute}))
	_, err := c.Lock(ctx, key, Options{Wait: NoWait})
	isKind(t, err, ErrLockHeld, "lock-delayed")
	nodeB.force(key)
}

func Test31ATokenThatIsTooLowDoesNotPass(t *testing.T) {
	t.Parallel()
	key, c := freshKey(), client(Config{})
	first := held(t, c, key, Options{})
	check(t, c.Fence(ctx, key, first.Token()) == nil, "it is refused")
	freed(t, first)
	second := held(t, c, key, Options{})
	e := isKind(t, c.Fence(ctx, key, first.Token()), ErrStaleToken, "stale-token")
	check(t, e.Status == 412 && e.Current == second.Token(), e.Current)
	freed(t, second)
}

func Test32OneGoroutineOfAProcessStandsInTheQueue(t *testing.T) {
	t.Parallel()
	key, c := freshKey(), client(Config{})
	holder := held(t, client(Config{}, nodeB.url), key, Options{})
	var order sync.Mutex
	tokens := make(chan int64, 8)
	for i := 0; i < 8; i++ {
		go func() {
			lease, err := c.Lock(ctx, key, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			if !order.TryLock() {
				t.Error("two holders")
			}
			token := lease.Token()
			order.Unlock()
			if err := lease.Release(); err != nil {
				t.Error(err)
			}
			tokens <- token
		}()
	}
	eventually(t, "all wait here", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, queue := range c.queues {
			return queue.callers == 8
		}
		return false
	})
	eventually(t, "one waits there", func() bool { return nodeB.lock(key).Waiters == 1 })
	remote := inBackground(client(Config{}, nodeB.url), key, Options{})
	eventually(t, "another process waits", func() bool { return nodeB.lock(key).Waiters == 2 })
	freed(t, holder)
	lease := remote(t) // behind one goroutine of this process, not behind eight
	freed(t, lease)
	earlier := 0
	for i := 0; i < 8; i++ {
		if <-tokens < lease.Token() {
			earlier++
		}
	}
	check(t, earlier == 1, earlier, " goroutines of one process came before another process")
	isFree(t, key)
}

func Test32AGoroutineHasATicketSoonAfterItsTurn(t *testing.T) {
	t.Parallel()
	key, p := freshKey(), startProxy(t, nodeA)
	holder := held(t, client(Config{}, nodeB.url), key, Options{})
	c := client(Config{}, p.url)
	short, cancel := context.WithCancel(ctx)
	go func() { _, _ = c.Lock(short, key, Options{}) }()
	eventually(t, "the first waits there", func() bool { return nodeB.lock(key).Waiters == 1 })
	second := inBackground(c, key, Options{})
	eventually(t, "the second waits here", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, queue := range c.queues {
			return queue.callers == 2
		}
		return false
	})
	cancel()
	var waits []any
	eventually(t, "the second has a ticket", func() bool {
		waits = nil
		all := p.requests("/acquire")
		for _, one := range all {
			if one.body["lease_id"] == all[len(all)-1].body["lease_id"] && one.body["wait_ms"] != nil {
				waits = append(waits, one.body["wait_ms"])
			}
		}
		return all[len(all)-1].body["ticket"] != nil && all[0].body["lease_id"] != all[len(all)-1].body["lease_id"]
	})
	check(t, waits[0].(float64) <= 500, waits)
	freed(t, holder)
	freed(t, second(t))
}

func TestAMutexIsHeldByOneGoroutine(t *testing.T) {
	t.Parallel()
	m := client(Config{}).Mutex(freshKey(), Options{})
	count := 0
	var all sync.WaitGroup
	for i := 0; i < 5; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if _, err := m.Lock(ctx); err != nil {
				t.Error(err)
				return
			}
			count++
			if err := m.Unlock(); err != nil {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	check(t, count == 5 && m.Unlock() != nil, count)
}

func TestAMutexKeepsTheProcessOutUntilItsHolderKnowsThatTheLeaseIsLost(t *testing.T) {
	t.Parallel()
	key := freshKey()
	m := client(Config{}).Mutex(key, Options{TTL: 2 * time.Second})
	working, err := m.Lock(ctx)
	check(t, err == nil, err)
	nodeB.force(key)
	<-working.Done()
	_, err = m.Lock(ctx)
	isKind(t, err, ErrLockHeld, "lock-held")
	isKind(t, m.Unlock(), ErrLeaseLost, "") // and not the lease of the other goroutine
	_, err = m.Lock(ctx)
	check(t, err == nil && m.Unlock() == nil, err)
	isFree(t, key)
}

func TestNothingRunsOrIsKeptWhenAllIsReleased(t *testing.T) {
	t.Parallel()
	key, c := freshKey(), client(Config{})
	for i := 0; i < 3; i++ {
		freed(t, held(t, c, key, Options{}))
	}
	eventually(t, "nothing is kept, and no timer is set", func() bool {
		c.renewals.mu.Lock()
		defer c.renewals.mu.Unlock()
		return len(c.renewals.keepers) == 0 && !c.renewals.timer.Stop()
	})
	check(t, len(c.queues) == 0, c.queues)
}

func TestARequestWithoutAnAnswerIsAloneOnItsConnection(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			t.Error(r.Proto)
		}
		_, _ = w.Write([]byte(`{"key":"key"}`))
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	c := client(Config{}, server.URL)
	c.nodes.http.Transport.(*http.Transport).TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	check(t, c.Fence(ctx, "key", 1) == nil, "refused")
}

func TestAnAnswerToAnotherCallGrantsNothing(t *testing.T) {
	t.Parallel()
	var isMixed atomic.Bool
	isMixed.Store(true)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			ID string `json:"lease_id"`
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		if isMixed.Load() {
			body.ID = "another"
		}
		fmt.Fprintf(w, `{"key":"key","lease_id":%q,"token":7,"ttl_ms":1500}`, body.ID)
	}))
	defer server.Close()
	c := client(Config{}, server.URL)
	_, err := c.Lock(ctx, "key", Options{TTL: 1500 * time.Millisecond})
	isKind(t, err, ErrUnavailable, "no-answer")
	isMixed.Store(false)
	lease := held(t, c, "key", Options{TTL: 1500 * time.Millisecond})
	check(t, waitLost(t, lease).Why == "unanswered", lease.Err()) // a renewal has one result for each lease
}
