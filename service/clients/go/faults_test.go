package latchgate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func Test04ANodeIsKilledWhileALeaseIsHeld(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	survives(t, a, b, a.kill)
}

func Test06ANodeFreezesWhileALeaseIsHeld(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	survives(t, a, b, a.freeze)
}

func survives(t *testing.T, a, b *node, harm func()) {
	key := freshKey()
	lease := held(t, client(Config{}, a.url, b.url), key, Options{TTL: 9 * time.Second})
	harm()
	untilRenewed(t, lease)
	check(t, b.lock(key).Holders[0].Token == lease.Token(), "another token")
	freed(t, lease)
	isFree(t, key)
}

func Test05ThePositionInTheQueueSurvivesTheNode(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	key, p := freshKey(), startProxy(t, a)
	holder := held(t, client(Config{}, b.url), key, Options{})
	first := inBackground(client(Config{}, p.url, b.url), key, Options{Owner: "first"})
	eventually(t, "it has a ticket", func() bool {
		all := p.requests("/acquire")
		return len(all) > 1 && all[1].body["ticket"] != nil
	})
	second := inBackground(client(Config{}, b.url), key, Options{Owner: "second"})
	eventually(t, "both wait", func() bool { return b.lock(key).Waiters == 2 })
	a.kill()
	eventually(t, "both wait at B", func() bool { return len(b.lock(key).Waiting) == 2 })
	freed(t, holder)
	lease := first(t)
	// Between two of its requests, a waiter is not in the list.
	eventually(t, "second still waits", func() bool {
		waiting := b.lock(key).Waiting
		return len(waiting) == 1 && waiting[0].Owner == "second"
	})
	freed(t, lease)
	freed(t, second(t))
}

func Test07EveryNodeFreezesForLongerThanTheTTL(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	lease := held(t, client(Config{}, a.url, b.url), freshKey(), Options{TTL: 2 * time.Second})
	a.freeze()
	b.freeze()
	check(t, waitLost(t, lease).Why == "unanswered", lease.Err())
	check(t, now() >= lease.keeper.until, "too early")
	isKind(t, lease.Release(), ErrLeaseLost, "")
}

func Test08ALeaseIsEndedByForce(t *testing.T) {
	t.Parallel()
	key, c := freshKey(), client(Config{})
	lease := held(t, c, key, Options{TTL: 3 * time.Second})
	nodeB.force(key)
	e := waitLost(t, lease)
	check(t, e.Why == "forced" && e.Status == 410 && lease.Release() == e, e)
	lease = held(t, c, key, Options{})
	nodeB.force(key)
	check(t, isKind(t, lease.Release(), ErrLeaseLost, "").Why == "forced", "why")
}

func Test19ANodeIsKilledWhileTheWorkRuns(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	key := freshKey()
	done, err := Once(ctx, client(Config{}, a.url, b.url), "test", key, OnceOptions{}, func(context.Context, *Attempt) (string, error) {
		a.kill()
		return "done", nil
	})
	check(t, err == nil && done.Result == "done" && !done.Duplicate, done, err)
	done, err = Once(ctx, client(Config{}, b.url), "test", key, OnceOptions{}, mustNotRun[string])
	check(t, err == nil && done.Result == "done" && done.Duplicate, done, err)
}

func mustNotRun[T any](context.Context, *Attempt) (T, error) { panic("it runs") }

func Test20ARefusalHasItsCodeAndItsFields(t *testing.T) {
	t.Parallel()
	key, p := freshKey(), startProxy(t, nodeA)
	c := client(Config{}, p.url)
	_, err := c.Lock(ctx, "key\n", Options{})
	check(t, isKind(t, err, ErrRefused, "invalid-key").Status == 400, err)
	lease := held(t, c, key, Options{Mode: Mode{Limit: 2}})
	_, err = c.Lock(ctx, key, Options{Mode: Mode{Limit: 3}})
	check(t, isKind(t, err, ErrRefused, "limit-mismatch").Fields["limit"] == 2.0, err)
	check(t, len(p.requests("/acquire")) == 3, "repeated")
	freed(t, lease)
}

func Test20AnAPIKeyIsNeededWhereThereIsOne(t *testing.T) {
	t.Parallel()
	text, err := exec.Command(os.Getenv("CLIENT_BINARY"), "api-key", "generate").Output()
	must(err)
	apiKey := strings.TrimSpace(string(text))
	n := startNode([]string{"LATCHGATE_ADMIN_API_KEY=" + apiKey}, "--locks", "sqlite:locks.db")
	t.Cleanup(n.kill)
	_, err = client(Config{}, n.url).Lock(ctx, "key", Options{})
	check(t, isKind(t, err, ErrRefused, "unauthorized").Status == 401, err)
	freed(t, held(t, client(Config{APIKey: apiKey}, n.url), "key/ü %2F?#\U0001F600", Options{}))
}

func Test43TheAuthoritiesInLatchgateCAAreTrusted(t *testing.T) {
	files := os.Getenv("CLIENT_TLS")
	n := startNode(nil, "--tls-cert", files+"/cert.pem", "--tls-key", files+"/key.pem")
	t.Cleanup(n.kill)
	lease, err := client(Config{}, n.url).Lock(ctx, freshKey(), Options{})
	check(t, err == nil && lease.Release() == nil, err)
	_, err = client(Config{}, strings.Replace(n.url, "https:", "http:", 1)).Lock(ctx, freshKey(), Options{})
	check(t, errors.Is(err, ErrRefused) && strings.Contains(err.Error(), "serves HTTPS"), err)
	for _, file := range []string{"absent.pem", "key.pem"} {
		t.Setenv("LATCHGATE_CA", files+"/"+file)
		_, err = New(Config{})
		check(t, err != nil && strings.Contains(err.Error(), "LATCHGATE_CA"), err)
	}
	must(os.Unsetenv("LATCHGATE_CA")) // those of the system do not know it; Setenv above puts it back
	_, err = client(Config{RetryFor: time.Second / 2}, n.url).Lock(ctx, freshKey(), Options{})
	check(t, errors.Is(err, ErrUnavailable), err)
}

func Test21NoNodeAnswers(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	a.kill()
	b.freeze()
	_, err := client(Config{Timeout: 300 * time.Millisecond, RetryFor: time.Second}, a.url, b.url).Lock(ctx, freshKey(), Options{})
	isKind(t, err, ErrUnavailable, "no-answer")
}

func Test21AFailureSaysMoreThanTheSilenceAfterIt(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err == nil, err)
	defer listener.Close()
	go func() {
		// The first connection is closed. Later ones are accepted by the system, and nothing answers there.
		if first, err := listener.Accept(); err == nil {
			first.Close()
		}
	}()
	_, err = client(Config{RetryFor: time.Second}, "http://"+listener.Addr().String()).Lock(ctx, freshKey(), Options{})
	isKind(t, err, ErrUnavailable, "no-answer")
	check(t, !strings.Contains(err.Error(), "deadline exceeded"), err)
}

func Test22ANodeThatIsBusyIsCalledAgainAfterItsTime(t *testing.T) {
	t.Parallel()
	p := startProxy(t, nodeA)
	p.refuses = 2
	freed(t, held(t, client(Config{}, p.url), freshKey(), Options{}))
	all := p.requests("/acquire")
	check(t, len(all) == 3 && all[1].at.Sub(all[0].at) >= time.Second && all[2].at.Sub(all[1].at) >= time.Second, all)
}

func Test45AWaitGoesOnWhileAQuotaIsUsedUp(t *testing.T) {
	t.Parallel()
	key, p, retryFor := freshKey(), startProxy(t, nodeA), 300*time.Millisecond
	p.thenRefuse["acquire"] = seen{path: "quota-reached", status: 429}
	waiting := inBackground(client(Config{RetryFor: retryFor}, p.url), key, Options{Wait: patience})
	eventually(t, "calls for longer", func() bool {
		all := p.requests("/acquire")
		return len(all) > 0 && all[len(all)-1].at.Sub(all[0].at) > 3*retryFor
	})
	p.mu.Lock()
	delete(p.thenRefuse, "acquire")
	p.mu.Unlock()
	_ = waiting(t).Release() // 0.3 s may be too short for this machine
}

func Test23AClaimInDoubtIsGivenBack(t *testing.T) {
	t.Parallel()
	refusals := []seen{{}, {path: "hidden"}, {path: "rate-limited", status: 429}, {path: "internal-error", status: 500}, {path: "unauthorized", status: 401}}
	for _, refusal := range refusals {
		contents, p := freshKey(), startProxy(t, nodeA)
		p.loses["pre"], p.hides = 1_000_000, refusal.path == "hidden"
		if refusal.status != 0 {
			p.loses["pre"], p.thenRefuse["pre"] = 1, refusal
		}
		c := client(Config{RetryFor: time.Second}, p.url)
		_, err := Once(ctx, c, "test", contents, OnceOptions{Wait: NoWait}, mustNotRun[int])
		check(t, err != nil, "it is done")
		p.set(func() { p.loses["pre"], p.thenRefuse = 0, nil })
		eventually(t, "the operation is free: "+refusal.path, func() bool {
			work := func(context.Context, *Attempt) (int, error) { return 7, nil }
			done, err := Once(ctx, client(Config{}, nodeA.url), "test", contents, OnceOptions{Wait: NoWait}, work)
			return err == nil && done.Result == 7
		})
	}
}

// Not in parallel, because the clock steps for all.
func Test24TheMachineWasSuspendedForLongerThanTheLease(t *testing.T) {
	lease := held(t, client(Config{}), freshKey(), Options{TTL: 5 * time.Minute})
	stepped.Store(int64(601 * time.Second))
	defer stepped.Store(0)
	select {
	case <-lease.Context().Done():
	case <-time.After(time.Second):
		t.Fatal("the loss is not reported")
	}
}

func Test28EachCallEndsInTimeWhenNoNodeAnswers(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	c, err := New(Config{URLs: []string{a.url, b.url}})
	must(err)
	key, other := freshKey(), freshKey()
	lease, err := client(Config{}, a.url, b.url).Lock(ctx, key, Options{TTL: 50 * time.Second})
	must(err)
	mine := held(t, c, other, Options{TTL: 50 * time.Second})
	a.freeze()
	b.freeze()
	locks := func() error { _, err := c.Lock(ctx, key, Options{Wait: 10 * time.Minute}); return err }
	calls := []func() error{
		locks, locks, locks, // also those behind another one of this process
		func() error {
			_, err := Once(ctx, c, "test", key, OnceOptions{TTL: 5 * time.Second}, mustNotRun[int])
			return err
		},
		func() error { return c.Fence(ctx, key, lease.Token()) },
		mine.Release,
	}
	ended := make(chan error, len(calls))
	for _, one := range calls {
		go func(one func() error) {
			began := time.Now()
			err := one()
			if lasted := time.Since(began); lasted > 10*time.Second || !errors.Is(err, ErrUnavailable) {
				err = fmt.Errorf("after %v: %w", lasted, err)
			} else {
				err = nil
			}
			ended <- err
		}(one)
	}
	for range calls {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
