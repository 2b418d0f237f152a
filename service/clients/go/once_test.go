package latchgate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"
)

type receipt struct {
	Receipt int `json:"receipt"`
}

func Test14ParallelCallersRunTheWorkOnce(t *testing.T) {
	t.Parallel()
	contents := map[string]string{"order": freshKey()}
	var runs, firsts atomic.Int32
	failures := make(chan error, 20)
	for i := 0; i < 20; i++ {
		c := client(Config{}, []string{nodeA.url, nodeB.url}[i%2])
		go func() {
			done, err := Once(ctx, c, "charge", contents, OnceOptions{}, func(context.Context, *Attempt) (receipt, error) {
				runs.Add(1)
				return receipt{7}, nil
			})
			if !done.Duplicate {
				firsts.Add(1)
			}
			if err == nil && done.Result.Receipt != 7 {
				err = errors.New("another result")
			}
			failures <- err
		}()
	}
	for i := 0; i < 20; i++ {
		if err := <-failures; err != nil {
			t.Error(err)
		}
	}
	check(t, runs.Load() == 1 && firsts.Load() == 1, runs.Load(), firsts.Load())
}

func Test36AResultThatCannotBeStoredIsOmitted(t *testing.T) {
	t.Parallel()
	for i, result := range []any{make(chan int), string(make([]byte, 200_000)), string(make([]rune, 20_000)), order{42, 7}, map[string]any{"x": math.NaN()}} {
		contents := freshKey()
		done, err := Once(ctx, client(Config{}), "test", contents, OnceOptions{}, func(context.Context, *Attempt) (any, error) { return result, nil })
		check(t, err == nil && done.ResultOmitted && fmt.Sprint(done.Result) == fmt.Sprint(result), i, err)
		done, err = Once(ctx, client(Config{}), "test", contents, OnceOptions{}, mustNotRun[any])
		check(t, err == nil && done.Duplicate && done.ResultOmitted && done.Result == nil, i, done, err)
	}
}

func Test16WorkThatFailsMayRunAgainUnlessItsOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	contents, c, failure := freshKey(), client(Config{}), errors.New("the work fails")
	fails := func(context.Context, *Attempt) (int, error) { return 0, failure }
	nothing := func(context.Context, *Attempt) (int, error) { return 0, ErrNotDone }
	works := func(context.Context, *Attempt) (int, error) { return 1, nil }
	retry := OnceOptions{OnExpiry: "retry"}
	_, err := Once(ctx, c, "retry", contents, retry, fails)
	check(t, err == failure, err)
	done, err := Once(ctx, c, "retry", contents, retry, works)
	check(t, err == nil && done.Result == 1, err)
	_, err = Once(ctx, c, "block", contents, OnceOptions{}, nothing)
	check(t, err == ErrNotDone, err)
	func() {
		defer func() { check(t, recover() == "it panics", "no panic") }()
		_, _ = Once(ctx, c, "block", contents, OnceOptions{}, func(context.Context, *Attempt) (int, error) { panic("it panics") })
	}()
	_, err = Once(ctx, c, "block", contents, OnceOptions{}, works)
	check(t, isKind(t, err, ErrOperationUnknown, "operation-unknown").Why == "reported", err)
}

func Test17HeartbeatsKeepTheAttempt(t *testing.T) {
	t.Parallel()
	contents := freshKey()
	_, err := Once(ctx, client(Config{}, nodeA.url), "test", contents, OnceOptions{TTL: 6 * time.Second}, func(_ context.Context, attempt *Attempt) (int, error) {
		for beats := 0; beats < 4; beats++ {
			from := now()
			eventually(t, "a heartbeat", func() bool { return sentAt(attempt.keeper) >= from })
			_, err := Once(ctx, client(Config{}, nodeB.url), "test", contents, OnceOptions{Wait: NoWait}, mustNotRun[int])
			isKind(t, err, ErrOperationInProgress, "")
			check(t, attempt.Err() == nil, attempt.Err())
		}
		return 4, nil
	})
	check(t, err == nil, err)
}

func Test18TheAnswersToAPreAndAPostAreLost(t *testing.T) {
	t.Parallel()
	contents, p, runs := freshKey(), startProxy(t, nodeA), 0
	p.loses["pre"], p.loses["post"] = 1, 1
	done, err := Once(ctx, client(Config{}, p.url), "test", contents, OnceOptions{}, func(context.Context, *Attempt) (int, error) { runs++; return runs, nil })
	pres := p.requests("/pre")
	check(t, err == nil && runs == 1 && !done.Duplicate && len(pres) == 2 && len(p.requests("/post")) == 2, err, runs)
	check(t, pres[0].body["attempt_id"] == pres[1].body["attempt_id"], "another attempt")
	done, err = Once(ctx, client(Config{}), "test", contents, OnceOptions{}, mustNotRun[int])
	check(t, err == nil && done.Duplicate && done.Result == 1, done, err)
}
