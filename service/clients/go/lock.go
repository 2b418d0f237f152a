package latchgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// NoWait is a Wait of no time: a lock that is held is an ErrLockHeld at once.
	NoWait time.Duration = -1
	// Forever is a Wait without a limit.
	Forever time.Duration = 1 << 60
)

// Mode is which share of a lock a caller wants: all of it (the zero value); or shared; or permits out of a limit.
type Mode struct {
	Shared         bool
	Permits, Limit int
	// Group: free permits go to the waiting group that has fewest, for example a tenant. With GroupLimit, the lock is not granted if the
	// group would have more permits than that.
	Group      string
	GroupLimit int
}

// Key is a key of a multilock, with its mode.
type Key struct {
	Key string
	Mode
}

// Options are those of Lock. The zero value has the defaults.
type Options struct {
	Mode
	TTL  time.Duration // the length of the lease, which renews itself: 30 s
	Wait time.Duration // how long to wait in the queue: 60 s
	// Owner is shown to callers that are refused. If absent, each lease has one of its own: host:pid program/…
	Owner string
	// Reentrant: within the Context of a lease of the same key, a nested lease with the same token is granted at once. With a named
	// Owner, so it is for every caller that names it.
	Reentrant bool
	Priority  int  // 1 to 10, higher first
	Barge     bool // ahead of the queue, if the lock is free
	// Delay: if the lease expires, no caller gets the lock for this long. MinHold: the lock stays taken until so long after the grant,
	// also after an earlier release. MaxHold: it is not renewed for longer.
	Delay, MinHold, MaxHold time.Duration
	Metadata                any // a JSON object, shown to other callers
}

// Lock takes the lock, and returns a lease that renews itself until it is released. It waits in the queue for Options.Wait; then the
// error is an ErrWaitTimeout. The lease's Context is derived from ctx.
func (c *Client) Lock(ctx context.Context, key string, options *Options) (*Lease, error) {
	o := orZero(options)
	return c.acquire(ctx, []Key{{key, o.Mode}}, false, o)
}

// TryLock takes the lock if it is free, and returns nil if it is not.
func (c *Client) TryLock(ctx context.Context, key string, options *Options) (*Lease, error) {
	o := orZero(options)
	o.Wait = NoWait
	lease, err := c.Lock(ctx, key, &o)
	if errors.Is(err, ErrLockHeld) {
		return nil, nil
	}
	return lease, err
}

// Multilock takes all locks or none, up to 64. Each Key says its mode. Otherwise it is like Lock.
func (c *Client) Multilock(ctx context.Context, keys []Key, options *Options) (*Lease, error) {
	o := orZero(options)
	if len(keys) == 0 || o.Mode != (Mode{}) || o.Barge {
		return nil, invalid("a multilock needs a key; each Key says its mode; it cannot barge")
	}
	return c.acquire(ctx, keys, true, o)
}

func (m Mode) put(body fields) error {
	isPermits := m != Mode{Shared: m.Shared}
	if isPermits && m.Shared {
		return invalid("a lock is either shared or has permits")
	}
	if isPermits {
		body["mode"] = "permits"
	} else if m.Shared {
		body["mode"] = "shared"
	}
	put(body, "permits", m.Permits)
	put(body, "limit", m.Limit)
	put(body, "group", m.Group)
	put(body, "group_limit", m.GroupLimit)
	return nil
}

func (o Options) body(keys []Key, many bool) (fields, error) {
	body := fields{"ttl_ms": o.TTL.Milliseconds()}
	locks := make([]fields, len(keys))
	for i, key := range keys {
		locks[i] = fields{"key": key.Key}
		if err := key.put(locks[i]); err != nil {
			return nil, err
		}
	}
	if many {
		body["locks"] = locks
	} else {
		_ = keys[0].put(body)
	}
	put(body, "priority", o.Priority)
	put(body, "barge", o.Barge)
	put(body, "delay_ms", o.Delay)
	put(body, "min_hold_ms", o.MinHold)
	put(body, "max_hold_ms", o.MaxHold)
	if o.Metadata != nil {
		text, err := json.Marshal(o.Metadata)
		if err != nil {
			return nil, invalid("the metadata are no JSON: " + err.Error())
		}
		body["metadata"] = json.RawMessage(text)
	}
	return body, nil
}

// acquiring is one call of Lock, with what is known of it.
type acquiring struct {
	client   *Client
	keys     []string
	many     bool
	ttl      time.Duration
	body     fields
	target   target
	call     call
	isNested bool
	isNamed  bool
}

func (c *Client) acquire(ctx context.Context, keys []Key, many bool, o Options) (*Lease, error) {
	o.TTL, o.Wait = or(o.TTL, 30*time.Second), or(o.Wait, time.Minute)
	body, err := o.body(keys, many)
	if err != nil {
		return nil, err
	}
	a := &acquiring{client: c, many: many, ttl: o.TTL, body: body, isNamed: o.Owner != ""}
	a.call = call{until: now() + c.nodes.retryFor, hasWait: true, waitUntil: now() + most(least(o.Wait, Forever), 0)}
	for _, key := range keys {
		a.keys = append(a.keys, key.Key)
	}
	if body["owner"], a.isNested, err = ownerOf(ctx, c, a.keys, o); err != nil {
		return nil, err
	}
	put(body, "reentrant", a.isNested)
	a.renew()
	if o.Wait > 0 && !a.isNested && !o.Barge && !a.isNamed {
		name, _ := json.Marshal([]any{keys, many, o.Priority})
		mine := c.turns.enter(string(name))
		defer c.turns.leave(string(name), mine)
		if lease, err := a.await(ctx, mine); lease != nil || err != nil {
			return lease, err
		}
	}
	return a.take(ctx)
}

// await waits for the turn of this caller among those of this process. Before that it asks once without a wait: so it knows that a node
// answers, and what the service refuses is refused at once.
func (a *acquiring) await(ctx context.Context, mine *turn) (*Lease, error) {
	select {
	case <-mine.come:
		return nil, nil
	default:
	}
	waitUntil := a.call.waitUntil
	a.call.waitUntil = 0
	lease, err := a.take(ctx)
	if err == nil || !errors.Is(err, ErrLockHeld) {
		return lease, err
	}
	a.call.answered, a.call.waitUntil, a.call.until = true, waitUntil, waitUntil+a.client.nodes.retryFor
	for {
		// In slices, because timers stand still while the machine is suspended.
		timer := time.NewTimer(most(least(waitUntil-now(), slice), time.Millisecond))
		select {
		case <-mine.come:
		case <-ctx.Done():
			err = ctx.Err()
		case <-timer.C:
			if now() < waitUntil {
				continue
			}
			// The service says who holds it.
			a.call.waitUntil = now() + 50*time.Millisecond
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, nil
	}
}

// renew makes a fresh id: a repeated acquire gets the same grant.
func (a *acquiring) renew() {
	a.target = target{a.client.nodes, a.keys, randomID(), a.many}
	a.body["lease_id"] = a.target.id
	delete(a.body, "ticket")
	a.call.doubt = false
}

// take asks the service.
func (a *acquiring) take(ctx context.Context) (*Lease, error) {
	nodes := a.client.nodes
	for {
		got, err := nodes.call(ctx, a.target.path("acquire"), a.body, &a.call)
		if err == nil {
			var lease *Lease
			if lease, err = a.granted(ctx, got); err == nil {
				return lease, nil
			}
			a.call.doubt = true
		}
		if errors.Is(err, ErrLeaseLost) && now() < most(a.call.until, a.call.waitUntil) {
			// It was granted in an answer that was lost, and has ended since.
			a.renew()
			a.call.until = now() + nodes.retryFor
			continue
		}
		if a.call.doubt {
			target := a.target
			a.client.later(func() {
				until := now() + most(giveBack, nodes.retryFor)
				_, _ = nodes.call(context.Background(), target.path("release"), target.body(), &call{until: until})
			})
		}
		return nil, err
	}
}

func (a *acquiring) granted(ctx context.Context, got answer) (*Lease, error) {
	first := renewed{got.sent, ms(got.TTL), nil}
	if first.until()-now() < a.ttl*2/3 {
		// After a wait, the lease began long after the request was sent: a renewal tells until when it lasts.
		retryFor := a.client.nodes.retryFor
		until := least(now()+least(a.ttl, retryFor), most(a.call.until, a.call.waitUntil+retryFor))
		var err error
		if first, err = a.target.renew(ctx, until); err != nil {
			return nil, err
		}
	}
	return newLease(ctx, a, got, first), nil
}

// turns are queues of the callers in this process that want the same locks in the same way. Only the first of each stands in the service's
// queue, until it is granted the lock with a lease of its own; then the next one does.
type turns struct {
	mu     sync.Mutex
	queues map[string][]*turn
}

type turn struct{ come chan struct{} }

func (t *turns) enter(name string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := &turn{make(chan struct{})}
	if t.queues[name] = append(t.queues[name], mine); len(t.queues[name]) == 1 {
		close(mine.come)
	}
	return mine
}

func (t *turns) leave(name string, mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	queue := t.queues[name]
	for i, one := range queue {
		if one == mine {
			queue = append(queue[:i], queue[i+1:]...)
			if i == 0 && len(queue) > 0 {
				close(queue[0].come)
			}
			break
		}
	}
	if t.queues[name] = queue; len(queue) == 0 {
		delete(t.queues, name)
	}
}

// Mutex is a lock for code that knows sync.Mutex: one goroutine at a time, in all processes together.
type Mutex struct {
	client  *Client
	key     string
	options Options
	mu      sync.Mutex
	lease   *Lease
}

// Mutex names a lock. Its mode is exclusive.
func (c *Client) Mutex(key string, options *Options) *Mutex {
	m := &Mutex{client: c, key: key, options: orZero(options)}
	m.options.Mode = Mode{}
	return m
}

// Lock takes the lock. The context that it returns ends when the lease is lost or released.
func (m *Mutex) Lock(ctx context.Context) (context.Context, error) {
	lease, err := m.client.Lock(ctx, m.key, &m.options)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lease = lease
	return lease.Context(), nil
}

// Lease is what the holder has: nil if no goroutine holds the lock through this Mutex.
func (m *Mutex) Lease() *Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lease
}

// Unlock releases the lock. An ErrLeaseLost says that the lease had ended before.
func (m *Mutex) Unlock() error {
	m.mu.Lock()
	lease := m.lease
	m.lease = nil
	m.mu.Unlock()
	if lease == nil {
		return fmt.Errorf("latchgate: %s is not locked through this Mutex", m.key)
	}
	return lease.Release()
}
