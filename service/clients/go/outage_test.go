package latchgate

import (
	"context"
	"errors"
	"log"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// away makes the gate answer nothing, or refuse because of its store.
func (p *proxy) away(isStore bool) {
	p.set(func() {
		for _, verb := range []string{"pre", "enter"} {
			if isStore {
				p.thenRefuse[verb] = seen{path: "store-unavailable", status: 503}
			} else {
				p.loses[verb] = 1_000_000 // but it is carried out
			}
		}
	})
}

func (p *proxy) back() { p.set(func() { p.loses, p.thenRefuse = map[string]int{}, map[string]seen{} }) }

func Test40WithProceedTheWorkRunsInAnOutageAndIsEnteredAfterwards(t *testing.T) {
	t.Parallel()
	for _, isStore := range []bool{true, false} {
		contents, p := freshKey(), startProxy(t, nodeA)
		c := client(Config{RetryFor: time.Second}, p.url)
		p.away(isStore)
		_, err := Once(ctx, c, "test", contents+"/closed", OnceOptions{}, mustNotRun[int])
		isKind(t, err, ErrUnavailable, "")
		options := OnceOptions{OnOutage: "proceed", Checked: 7, Label: "a label"}
		work := func(_ context.Context, attempt *Attempt) (int, error) {
			check(t, !attempt.Guarded && attempt.Err() == nil, attempt)
			return 7, nil
		}
		done, err := Once(ctx, c, "test", contents, options, work)
		check(t, err == nil && done.Result == 7 && !done.Duplicate, done, err)
		eventually(t, "it is being entered", func() bool { return len(p.requests("/enter")) > 0 })
		p.back()
		eventually(t, "it is entered", func() bool {
			done, err := Once(ctx, client(Config{}), "test", contents, OnceOptions{Checked: 7, OnExpiry: "retry"}, func(context.Context, *Attempt) (int, error) {
				return 0, ErrNotDone
			})
			return err == nil && done.Duplicate && done.Result == 7
		})
		c.Close()
		check(t, c.unclaimed.count == 0, "something is left")
	}
}

func Test40WithProceedASuccessThatNoNodeRecordsIsEnteredAfterwards(t *testing.T) {
	t.Parallel()
	contents, p := freshKey(), startProxy(t, nodeA)
	c := client(Config{RetryFor: 5 * time.Second}, p.url)
	done, err := Once(ctx, c, "test", contents, OnceOptions{OnOutage: "proceed", TTL: 5 * time.Second}, func(_ context.Context, attempt *Attempt) (int, error) {
		check(t, attempt.Guarded, "no claim")
		p.set(func() { p.thenRefuse["post"] = seen{path: "store-unavailable", status: 503} })
		return 7, nil
	})
	check(t, err == nil && done.Result == 7 && !done.Duplicate, done, err)
	c.Close()
	done, err = Once(ctx, client(Config{}), "test", contents, OnceOptions{}, mustNotRun[int])
	check(t, err == nil && done.Result == 7 && done.Duplicate, done, err)
}

func Test40ARunWithoutAClaimThatFailsIsReportedIfItMayHaveClaimed(t *testing.T) {
	t.Parallel()
	contents, p := freshKey(), startProxy(t, nodeA)
	c := client(Config{RetryFor: time.Second}, p.url)
	fails := func(context.Context, *Attempt) (int, error) { return 0, errors.New("no money") }
	proceed := OnceOptions{OnOutage: "proceed"}
	p.away(true)
	_, err := Once(ctx, c, "test", contents, proceed, fails)
	check(t, err.Error() == "no money", err)
	p.back()
	p.away(false)
	_, err = Once(ctx, c, "test", contents, proceed, fails) // and was not blocked by the first one
	check(t, err.Error() == "no money", err)
	p.back()
	eventually(t, "a person must decide", func() bool {
		_, err := Once(ctx, client(Config{}), "test", contents, OnceOptions{Wait: NoWait}, mustNotRun[int])
		return errors.Is(err, ErrOperationUnknown)
	})
	check(t, c.unclaimed.count == 0, "something is left")
}

func Test40NoWorkRunsWithoutAClaimBesideAnAttemptThatIsKnown(t *testing.T) {
	t.Parallel()
	contents, p := freshKey(), startProxy(t, nodeA)
	p.endsWaits = true
	_, err := Once(ctx, client(Config{}, nodeB.url), "test", contents, OnceOptions{}, func(context.Context, *Attempt) (int, error) {
		ended := make(chan error)
		go func() {
			_, err := Once(ctx, client(Config{RetryFor: 3 * time.Second}, p.url), "test", contents, OnceOptions{OnOutage: "proceed", Wait: 5 * time.Second}, mustNotRun[int])
			ended <- err
		}()
		eventually(t, "it waits", func() bool { return len(p.requests("/pre")) > 1 })
		p.away(true)
		return 7, <-ended
	})
	isKind(t, err, ErrUnavailable, "store-unavailable")
	_, err = Once(ctx, client(Config{}), "test", contents, OnceOptions{OnOutage: "open"}, mustNotRun[int])
	isKind(t, err, ErrRefused, "invalid-options")
}

func Test48ARunThatCouldNotBeEnteredIsReportedByClose(t *testing.T) {
	// Not in parallel: it reads the log.
	var said strings.Builder
	log.SetOutput(&said)
	defer log.SetOutput(os.Stderr)
	c := client(Config{RetryFor: 100 * time.Millisecond}, "http://127.0.0.1:1")
	_, err := Once(ctx, c, "test", freshKey(), OnceOptions{OnOutage: "proceed"}, func(context.Context, *Attempt) (int, error) { return 7, nil })
	c.Close()
	log.SetOutput(os.Stderr) // the run goes on to be entered
	check(t, err == nil && strings.Count(said.String(), "a run of operation test without a claim is not entered: ") == 1, said.String(), err)
}

func Test40RunsWithoutAClaimAreBounded(t *testing.T) {
	t.Parallel()
	c := client(Config{})
	for i := 0; i < unclaimedMax; i++ {
		check(t, c.unclaimed.begin(), i)
	}
	check(t, !c.unclaimed.begin(), "one more")
}

func Test38APersonWhoMustDecideReadsHowTheWorkEnded(t *testing.T) {
	t.Parallel()
	works := map[string]func(context.Context, *Attempt) (int, error){
		"*errors.errorString: no money\nThe last heartbeat that was answered was sent 0 s before this report.": func(context.Context, *Attempt) (int, error) { return 0, errors.New("no money") },
		"panic: it burns": func(context.Context, *Attempt) (int, error) { panic("it burns") },
		"?":               func(context.Context, *Attempt) (int, error) { return 0, errors.New(strings.Repeat("\xff", 5_000)) },
	}
	for detail, work := range works {
		contents := freshKey()
		func() {
			defer func() { _ = recover() }()
			_, _ = Once(ctx, client(Config{}), "test", contents, OnceOptions{}, work)
		}()
		_, err := Once(ctx, client(Config{}), "test", contents, OnceOptions{Wait: NoWait}, mustNotRun[int])
		var operation struct{ Detail string }
		request(http.MethodGet, nodeA.url+"/v1/operations/"+isKind(t, err, ErrOperationUnknown, "").Fields["id"].(string), "", &operation)
		check(t, strings.Contains(operation.Detail, detail), operation.Detail)
	}
}

func Test39WhatCanBeRefusedIsRefusedBeforeTheWork(t *testing.T) {
	t.Parallel()
	for _, options := range []OnceOptions{{Retention: 20 * 365 * 24 * time.Hour}, {Retention: time.Hour, Permanent: true}, {Label: strings.Repeat("l", 300)}} {
		_, err := Once(ctx, client(Config{}), "test", freshKey(), options, mustNotRun[int])
		isKind(t, err, ErrRefused, "")
	}
}
