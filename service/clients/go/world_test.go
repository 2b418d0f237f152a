package latchgate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const patience = time.Minute

var (
	ctx          = context.Background()
	nodeA, nodeB *node
)

// TestMain starts two nodes on one Postgres. `scripts/test-clients.sh` names the binary in CLIENT_BINARY and the Postgres in CLIENT_POSTGRES.
func TestMain(m *testing.M) {
	if os.Getenv("CLIENT_BINARY") == "" {
		fmt.Println("scripts/test-clients.sh runs these tests against real nodes")
		os.Exit(1)
	}
	nodeA, nodeB = startNode(nil), startNode(nil)
	os.Setenv("LATCHGATE_URL", nodeA.url+","+nodeB.url)
	code := m.Run()
	nodeA.kill()
	nodeB.kill()
	os.Exit(code)
}

type node struct {
	url     string
	process *os.Process
}

func startNode(environment []string, arguments ...string) *node {
	if len(arguments) == 0 {
		arguments = []string{"--locks", os.Getenv("CLIENT_POSTGRES")}
	}
	// The node ends with this process, however that ends.
	command := append([]string{"--pdeathsig", "KILL", "--", os.Getenv("CLIENT_BINARY"), "serve", "--listen", "127.0.0.1:0"}, arguments...)
	run := exec.Command("setpriv", command...)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "LATCHGATE_") {
			run.Env = append(run.Env, variable)
		}
	}
	run.Env = append(run.Env, environment...)
	out, err := run.StdoutPipe()
	must(err)
	// A directory of its own: a node may write files.
	run.Dir, err = os.MkdirTemp("", "latchgate-")
	must(err)
	must(run.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(err)
	words := strings.Fields(line)
	return &node{words[len(words)-1], run.Process}
}

func (n *node) kill()   { _ = n.process.Kill(); _, _ = n.process.Wait() }
func (n *node) freeze() { must(n.process.Signal(syscall.SIGSTOP)) }

type lockState struct {
	Held    bool
	Waiters int
	Holders []Holder
	Waiting []Holder
}

func (n *node) lock(key string) (state lockState) {
	request(http.MethodGet, n.url+"/v1/locks/"+url.PathEscape(key), "", &state)
	return state
}

func (n *node) force(key string) {
	request(http.MethodDelete, n.url+"/v1/locks/"+url.PathEscape(key), "", &struct{}{})
}

func request(method, url, body string, answer any) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	must(err)
	got, err := http.DefaultClient.Do(r)
	must(err)
	defer got.Body.Close()
	must(json.NewDecoder(got.Body).Decode(answer))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// pair are two nodes that a test may harm.
func pair(t *testing.T) (a, b *node) {
	a, b = startNode(nil), startNode(nil)
	t.Cleanup(a.kill)
	t.Cleanup(b.kill)
	return a, b
}

// proxy passes requests on to a node. It loses answers, or refuses requests, as often as it is told to.
type proxy struct {
	url  string
	mu   sync.Mutex
	seen []seen
	// loses the next answers to requests of paths that end so
	loses map[string]int
	// answers with 503 and Retry-After: 1 so often; thenRefuse has the status and code for paths, after answers that were lost
	refuses    int
	thenRefuse map[string]seen
	hides      bool      // answers that are lost, behind a problem of a gateway
	late       int       // so many answers come only after a lease of a second has ended
	endsWaits  bool      // at once, as a node does that is about to stop
	hangs      string    // requests with this text get no answer until the proxy stops
	changes    [2]string // a key in paths into another one
}

type seen struct {
	path   string
	at     time.Time
	body   fields
	status int
}

func startProxy(t *testing.T, n *node) *proxy {
	p := &proxy{loses: map[string]int{}, thenRefuse: map[string]seen{}}
	stopped := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.pass(n, stopped, w, r) }))
	p.url = server.URL
	t.Cleanup(func() { close(stopped); server.CloseClientConnections(); server.Close() })
	return p
}

func (p *proxy) pass(n *node, stopped chan struct{}, w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	var body fields
	must(json.Unmarshal(text, &body))
	path := r.URL.EscapedPath()
	verb := path[strings.LastIndex(path, "/")+1:]
	p.mu.Lock()
	p.seen = append(p.seen, seen{path, time.Now(), body, 0})
	refusal, isRefused := p.thenRefuse[verb]
	if isRefused = isRefused && p.loses[verb] == 0; !isRefused && p.refuses > 0 {
		p.refuses--
		refusal, isRefused = seen{path: "overloaded", status: 503}, true
	}
	if p.endsWaits && body["wait_ms"] != nil {
		body["wait_ms"] = 1
		text, _ = json.Marshal(body)
	}
	hangs := p.hangs != "" && bytes.Contains(text, []byte(p.hangs))
	p.mu.Unlock()
	if isRefused {
		w.WriteHeader(refusal.status)
		fmt.Fprintf(w, `{"code":%q,"detail":"This proxy refuses.","retry_after_ms":%d}`, refusal.path, 1000*(refusal.status/503))
		return
	}
	if hangs {
		<-stopped
	}
	if p.changes[0] != "" {
		path = strings.Replace(path, url.PathEscape(p.changes[0]), url.PathEscape(p.changes[1]), 1)
	}
	forward, _ := http.NewRequestWithContext(r.Context(), r.Method, n.url+path, bytes.NewReader(text))
	got, err := http.DefaultClient.Do(forward)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer got.Body.Close()
	answer, err := io.ReadAll(got.Body)
	p.mu.Lock()
	isLost := p.loses[verb] > 0
	if isLost {
		p.loses[verb]--
	}
	isLate := p.late > 0
	p.late--
	p.mu.Unlock()
	if isLost && p.hides {
		w.WriteHeader(http.StatusGatewayTimeout)
		_, _ = w.Write([]byte(`{"code":"timeout","detail":"This gateway has waited long enough."}`))
		return
	}
	if isLost || err != nil {
		panic(http.ErrAbortHandler)
	}
	if isLate {
		time.Sleep(1500 * time.Millisecond)
	}
	w.WriteHeader(got.StatusCode)
	_, _ = w.Write(answer)
}

func (p *proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *proxy) requests(verb string) (bodies []seen) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.seen {
		if strings.HasSuffix(one.path, verb) {
			bodies = append(bodies, one)
		}
	}
	return bodies
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
	eventually(t, key+" is free", func() bool { state := nodeB.lock(key); return !state.Held && state.Waiters == 0 })
}

// waitLost waits until the lease's context ends.
func waitLost(t *testing.T, lease *Lease) *Error {
	t.Helper()
	select {
	case <-lease.Context().Done():
	case <-time.After(patience):
		t.Fatal("the lease is not lost")
	}
	check(t, lease.Remaining() == 0, "something is left")
	return isKind(t, lease.Err(), ErrLeaseLost, "")
}

func sentAt(k *keeper) time.Duration {
	k.renewals.mu.Lock()
	defer k.renewals.mu.Unlock()
	return k.sent
}

// untilRenewed waits for a renewal of each lease that was sent from now on.
func untilRenewed(t *testing.T, leases ...*Lease) {
	t.Helper()
	from := now()
	eventually(t, "a renewal", func() bool {
		for _, lease := range leases {
			if err := lease.Err(); err != nil {
				t.Fatal(err)
			}
			if sentAt(lease.keeper) < from {
				return false
			}
		}
		return true
	})
}

// inBackground is a Lock in a goroutine of its own.
func inBackground(c *Client, key string, o Options) func(t *testing.T) *Lease {
	leases, failures := make(chan *Lease, 1), make(chan error, 1)
	go func() {
		lease, err := c.Lock(ctx, key, o)
		leases <- lease
		failures <- err
	}()
	return func(t *testing.T) *Lease {
		t.Helper()
		if err := <-failures; err != nil {
			t.Fatal(err)
		}
		return <-leases
	}
}

func freshKey() string { return "test/" + randomID() }
