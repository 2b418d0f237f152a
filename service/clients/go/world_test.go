package latchgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
)

const patience = time.Minute

var (
	ctx = context.Background()
	// Of the nodes that scripts/test-clients.sh starts.
	nodeURLs = os.Getenv("CLIENT_NODES")
)

func TestMain(m *testing.M) {
	if os.Args[len(os.Args)-1] == "agent" {
		runAgent()
		return
	}
	if nodeURLs == "" {
		fmt.Println("scripts/test-clients.sh runs these tests against real nodes")
		os.Exit(1)
	}
	os.Setenv("LATCHGATE_URL", nodeURLs)
	os.Exit(m.Run())
}

// request fills in the answer of a node.
func request(method, path string, answer any) {
	r, err := http.NewRequest(method, strings.Split(nodeURLs, ",")[0]+path, nil)
	must(err)
	got, err := http.DefaultClient.Do(r)
	must(err)
	defer got.Body.Close()
	must(json.NewDecoder(got.Body).Decode(answer))
}

func force(key string) { request(http.MethodDelete, "/v1/locks/"+url.PathEscape(key), &struct{}{}) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// client is one of these nodes; without any, of both. The machine may be busy, so calls have more time than by default.
func client(config Config, urls ...string) *Client {
	config.URLs, config.RetryFor = urls, or(config.RetryFor, 30*time.Second)
	c, err := New(config)
	must(err)
	return c
}

// held is a lease that must be granted.
func held(t *testing.T, c *Client, key string, o Options) *Lease {
	t.Helper()
	lease, err := c.Lock(ctx, key, o)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func isHeld(t *testing.T, ctx context.Context, c *Client, key string, o Options) {
	t.Helper()
	o.Wait = NoWait
	_, err := c.Lock(ctx, key, o)
	isKind(t, err, ErrLockHeld, "")
}

func freed(t *testing.T, lease *Lease) {
	t.Helper()
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
}

func isKind(t *testing.T, err, kind error, code string) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, kind) || code != "" && e.Code != code {
		t.Fatalf("%v is no %v %s", err, kind, code)
	}
	return e
}

func check(t *testing.T, holds bool, what ...any) {
	t.Helper()
	if !holds {
		t.Fatal(what...)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		check(t, time.Now().Before(until), "not in time: ", what)
	}
}

func isFree(t *testing.T, key string) {
	t.Helper()
	eventually(t, key+" is free", func() bool {
		var state struct {
			Held    bool
			Waiters int
		}
		request(http.MethodGet, "/v1/locks/"+url.PathEscape(key), &state)
		return !state.Held && state.Waiters == 0
	})
}

func freshKey() string { return "test/" + randomID() }
