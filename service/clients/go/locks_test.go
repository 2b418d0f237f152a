package latchgate

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// What only this client has: ../python/tests runs the scenarios that all have. The names of tests begin with the numbers in ../SCENARIOS.md.

func Test24TheMachineWasSuspendedForLongerThanTheLease(t *testing.T) {
	lease := held(t, client(Config{}), freshKey(), Options{TTL: 5 * time.Minute})
	stepped.Store(int64(601 * time.Second))
	defer stepped.Store(0)
	select {
	case <-lease.Context().Done():
	case <-time.After(patience):
		t.Fatal("the loss is not reported")
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
	force(key)
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
	c.nodes.http.Transport.(direct).RoundTripper.(*http.Transport).TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	check(t, c.Fence(ctx, "key", 1) == nil, "refused")
}

func TestALeaseThatHasCrossedAProcessIsNone(t *testing.T) {
	t.Parallel()
	for _, lease := range []*Lease{{}, {Key: "key", ID: "id", Tokens: map[string]int64{"key": 7}}} {
		isKind(t, lease.Err(), ErrLeaseLost, "lease-lost")
		isKind(t, lease.Release(), ErrLeaseLost, "lease-lost")
		check(t, lease.Remaining() == 0 && lease.Context().Err() == context.Canceled && lease.Revocation() == nil, lease)
	}
	isKind(t, (&Attempt{ID: "id", Guarded: true}).Err(), ErrAttemptLost, "lease-lost")
}

func TestALockAndALeaseSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	key, c := freshKey(), client(Config{})
	m := c.Mutex(key, Options{})
	check(t, fmt.Sprint(m) == "lock "+key, m)
	_, err := m.Lock(ctx)
	must(err)
	lease := m.Lease()
	says := fmt.Sprint(m)
	check(t, strings.HasPrefix(says, fmt.Sprintf("lock %s, held: lease of %s, token %d, ", key, key, lease.Token())), says)
	for _, says := range []string{fmt.Sprint(lease), fmt.Sprintf("%+v", lease), fmt.Sprintf("%#v", lease)} {
		check(t, !strings.Contains(says, lease.ID), says)
	}
	must(m.Unlock())
	check(t, strings.HasSuffix(fmt.Sprint(lease), ", released"), lease)
}
