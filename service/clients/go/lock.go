package latchgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
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
	body := fields{}
	put(body, "barge", o.Barge)
	if err := o.Mode.put(body); err != nil {
		return nil, err
	}
	return c.acquire(ctx, lockPath(key, "acquire"), body, []Key{{key, o.Mode}}, o)
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
	var locks []fields
	for _, key := range keys {
		one := fields{"key": key.Key}
		if err := key.put(one); err != nil {
			return nil, err
		}
		locks = append(locks, one)
	}
	return c.acquire(ctx, "/v1/multilocks/acquire", fields{"locks": locks}, keys, o)
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

// acquiring is one call of Lock, with what is known of it.
type acquiring struct {
	*Client
	keys    []Key
	ttl     time.Duration
	isNamed bool
	path    string
	body    fields
	call    call
}

func (c *Client) acquire(ctx context.Context, path string, body fields, keys []Key, o Options) (*Lease, error) {
	o.TTL, o.Wait = or(o.TTL, 30*time.Second), or(o.Wait, time.Minute)
	owner, isNested, err := c.renewals.ownerOf(ctx, keys, o)
	if err != nil {
		return nil, err
	}
	put(body, "owner", owner)
	put(body, "reentrant", isNested)
	put(body, "ttl_ms", o.TTL)
	put(body, "priority", o.Priority)
	put(body, "delay_ms", o.Delay)
	put(body, "min_hold_ms", o.MinHold)
	put(body, "max_hold_ms", o.MaxHold)
	if err := putJSON(body, "metadata", o.Metadata); err != nil {
		return nil, err
	}
	a := &acquiring{Client: c, keys: keys, ttl: o.TTL, isNamed: o.Owner != "", path: path, body: body}
	a.call = call{until: now() + c.nodes.retryFor, hasWait: true, waitUntil: now() + most(least(o.Wait, Forever), 0)}
	if o.Wait < 0 || isNested || o.Barge || a.isNamed {
		return a.take(ctx)
	}
	name, _ := json.Marshal([]any{keys, o.Priority})
	return a.takeInTurn(ctx, string(name))
}

// take asks the service.
func (a *acquiring) take(ctx context.Context) (*Lease, error) {
	for {
		k := &keeper{length: a.ttl, isNamed: a.isNamed}
		id := randomID() // a repeated acquire gets the same grant
		for _, key := range a.keys {
			k.leases = append(k.leases, leaseRef{key.Key, id})
			k.name = strings.TrimPrefix(k.name+", "+key.Key, ", ")
		}
		a.body["lease_id"] = id
		delete(a.body, "ticket")
		a.call.doubt = false
		got, err := a.nodes.call(ctx, a.path, a.body, &a.call)
		if err == nil {
			var lease *Lease
			if lease, err = a.granted(ctx, k, got); err == nil {
				return lease, nil
			}
			a.call.doubt = true
		}
		if a.call.doubt {
			a.later(func() { _ = a.nodes.release(k.leases, most(giveBack, a.nodes.retryFor)) })
		}
		if !errors.Is(err, ErrLeaseLost) || now() >= most(a.call.until, a.call.waitUntil) {
			return nil, err
		}
		// It was granted in an answer that was lost, and has ended since.
		a.call.until = now() + a.nodes.retryFor
	}
}

func (a *acquiring) granted(ctx context.Context, k *keeper, got answer) (*Lease, error) {
	first := got.renewed()
	if first.until()-now() < a.ttl*2/3 {
		// After a wait, the lease began long after the request was sent: a renewal tells until when it lasts.
		until := least(now()+least(a.ttl, a.nodes.retryFor), most(a.call.until, a.call.waitUntil+a.nodes.retryFor))
		renewal, err := a.nodes.call(ctx, "/v1/leases/renew", fields{"leases": k.leases}, &call{until: until})
		if err != nil {
			return nil, err
		}
		first = renewal.renewed()
	}
	return newLease(ctx, a.renewals, k, got, first), nil
}

// queue is one of callers in this process that want the same locks in the same way. Only one of them stands in the service's queue, until
// it is granted the lock with a lease of its own; then the next one does.
type queue struct {
	turn    chan struct{} // it has room for one value, of the caller whose turn it is; the others wait to send, in the order of their arrival
	callers int
}

func (c *Client) enter(name string) *queue {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[name]
	if q == nil {
		q = &queue{turn: make(chan struct{}, 1)}
		c.queues[name] = q
	}
	q.callers++
	return q
}

func (c *Client) leave(name string, q *queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.callers--; q.callers == 0 {
		delete(c.queues, name)
	}
}

// takeInTurn waits for the turn of this caller among those of this process. Before that it asks once without a wait: so it knows that a
// node answers, and what the service refuses is refused at once.
func (a *acquiring) takeInTurn(ctx context.Context, name string) (*Lease, error) {
	q := a.enter(name)
	defer a.leave(name, q)
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
		return a.take(ctx)
	default:
	}
	waitUntil := a.call.waitUntil
	a.call.waitUntil = 0
	lease, err := a.take(ctx)
	if !errors.Is(err, ErrLockHeld) {
		return lease, err
	}
	a.call.answered, a.call.waitUntil, a.call.until = true, waitUntil, waitUntil+a.nodes.retryFor
	timer := time.NewTimer(waitUntil - now())
	defer timer.Stop()
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
	}
	// When the wait is over, the service says who holds it.
	a.call.waitUntil = most(waitUntil, now()+50*time.Millisecond)
	return a.take(ctx)
}

// Mutex is a lock for code that knows sync.Mutex: one goroutine at a time, in all processes together.
type Mutex struct {
	client  *Client
	key     string
	options Options
	lease   atomic.Pointer[Lease]
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
	m.lease.Store(lease)
	return lease.Context(), nil
}

// Lease is what the holder has: nil if no goroutine holds the lock through this Mutex.
func (m *Mutex) Lease() *Lease { return m.lease.Load() }

// Unlock releases the lock. An ErrLeaseLost says that the lease had ended before.
func (m *Mutex) Unlock() error {
	lease := m.lease.Swap(nil)
	if lease == nil {
		return fmt.Errorf("latchgate: %s is not locked through this Mutex", m.key)
	}
	return lease.Release()
}
