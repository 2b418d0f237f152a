package latchgate

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func Test36AResultThatCannotBeStoredIsOmitted(t *testing.T) {
	t.Parallel()
	for i, result := range []any{make(chan int), order{42, 7}, map[string]any{"x": math.NaN()}} {
		contents := freshKey()
		done, err := Once(ctx, client(Config{}), "test", contents, OnceOptions{}, func(context.Context, *Attempt) (any, error) { return result, nil })
		check(t, err == nil && done.ResultOmitted && fmt.Sprint(done.Result) == fmt.Sprint(result), i, err)
		done, err = Once(ctx, client(Config{}), "test", contents, OnceOptions{}, mustNotRun[any])
		check(t, err == nil && done.Duplicate && done.ResultOmitted && done.Result == nil, i, done, err)
	}
}

func Test38APersonWhoMustDecideReadsHowTheWorkEnded(t *testing.T) {
	t.Parallel()
	works := map[string]func(context.Context, *Attempt) (int, error){
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
		request(http.MethodGet, "/v1/operations/"+isKind(t, err, ErrOperationUnknown, "").Fields["id"].(string), &operation)
		check(t, strings.Contains(operation.Detail, detail), operation.Detail)
	}
}

func Test40RunsWithoutAClaimAreBounded(t *testing.T) {
	t.Parallel()
	c := client(Config{})
	for i := 0; i < unclaimedMax; i++ {
		check(t, c.unclaimed.begin(), i)
	}
	check(t, !c.unclaimed.begin(), "one more")
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

func mustNotRun[T any](context.Context, *Attempt) (T, error) { panic("it runs") }
