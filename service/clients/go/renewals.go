package latchgate

import (
	"context"
	"encoding/json"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Longest sleep at a time: while the machine is suspended, timers stand still, and the clock of leases does not.
	slice = 250 * time.Millisecond
	// The most that a node accepts.
	leasesPerCallMax = 500
	// A lease that has more than so many times the time left of another one goes in another request: the shortest decides how long an
	// answer may take.
	spread = 8
	// A request without an answer for its leases is repeated in so many parts.
	parts = 16
)

// stepped moves the clock of leases. Only tests do that.
var stepped atomic.Int64

// now is the time by which leases are counted: it cannot be set, and goes on while the machine is suspended.
func now() time.Duration { return clock() + time.Duration(stepped.Load()) }

type leaseRef struct {
	Key     string `json:"key"`
	LeaseID string `json:"lease_id"`
}

// renewed is what a renewal has shown: when it was sent, and what the lease had left then.
type renewed struct {
	sent, left time.Duration
	revocation *Revocation
}

func (r renewed) until() time.Duration { return r.sent + r.left }

// keeper is a lease (of one key or of several) or an attempt with its heartbeat: what is known of it, and when to renew it. It knows
// nothing of the object that the caller has: when that is forgotten without a release, the renewals stop.
type keeper struct {
	name   string
	leases []leaseRef
	beat   string // the path of an attempt's heartbeat
	stamp  string
	length time.Duration
	ended  context.CancelFunc
	// For leases nested in this one, which is nested in `outer` itself.
	owner   string
	isNamed bool
	outer   *keeper

	// The mutex of these guards the rest.
	renewals   *renewals
	isOver     bool
	loss       *Error
	last       renewed
	due, early time.Duration // from `early` on it goes with leases that are due, so that leases of one length soon go together
	failures   int
	isSent     bool // a request with it has no answer yet
	together   int  // how many may go in one request: less after a request without an answer, which may be the fault of one of them
}

// remaining is until the lease may have ended; 0 if it is lost or stopped.
func (k *keeper) remaining() time.Duration {
	k.renewals.mu.Lock()
	defer k.renewals.mu.Unlock()
	return k.remains(now())
}

// stop ends the renewals without a loss. What came first counts, and is returned.
func (k *keeper) stop() *Error {
	k.renewals.mu.Lock()
	defer k.renewals.mu.Unlock()
	k.end(nil)
	return k.loss
}

// The methods below are called with the mutex.

func (k *keeper) remains(at time.Duration) time.Duration {
	left := k.last.until() - at
	if left <= 0 {
		k.end(lost(ErrLeaseLost, "lease-lost", "no renewal of "+k.name+" was answered in time", "unanswered"))
	}
	if k.isOver {
		return 0
	}
	return left
}

func (k *keeper) end(loss *Error) {
	if !k.isOver {
		k.isOver, k.loss = true, loss
		k.ended()
	}
}

func (k *keeper) renewed(r renewed) {
	// The lower bound is for leases that a revocation or `max_hold` is ending: each renewal leaves them shorter.
	pause := jitter(most(r.left/3, k.length/10), 0.9, 1)
	k.last, k.due, k.early, k.failures, k.together = r, r.sent+pause, r.sent+pause/2, 0, leasesPerCallMax
	if k.beat != "" {
		k.together = 1
	}
}

// failed: a renewal was not answered, or refused for another reason than a loss. When the lease has ended, `remains` reports the loss.
func (k *keeper) failed(retryAfter time.Duration) {
	k.failures++
	var pause time.Duration
	if nodes := len(k.renewals.nodes.urls); k.failures%nodes == 0 {
		rounds := least(time.Duration(k.failures/nodes-1), 10)
		pause = jitter(most(least(pauseMin<<rounds, pauseMax), retryAfter), 1, 1.5)
	}
	at := now()
	k.due = at + most(least(pause, (k.last.until()-at)/4), 0)
	k.early = k.due
}

// settle has one result for each of its leases, or the answer to its heartbeat.
func (k *keeper) settle(results []answer) {
	next := renewed{sent: results[0].sent, left: Forever}
	var worst *answer
	for i := range results {
		one := &results[i]
		if one.status/100 == 2 && one.TTL > 0 {
			next.left = least(next.left, ms(one.TTL))
			next.revocation = or(next.revocation, one.Revoked)
		} else if worst == nil || one.status == 410 {
			worst = one // a loss is more serious than what is not known of another key
		}
	}
	if worst == nil {
		k.renewed(next)
	} else if err := worst.problem(); err.Kind == ErrLeaseLost || err.Kind == ErrAttemptLost {
		k.end(err)
	} else {
		k.failed(worst.retryAfter())
	}
}

// renewals is the background task of one client. It ends when there is nothing to keep.
type renewals struct {
	nodes     *nodes
	mu        sync.Mutex
	keepers   []*keeper
	isRunning bool
	changed   chan struct{}
}

// keep begins the renewals. `first` is what the grant has shown.
func (r *renewals) keep(k *keeper, first renewed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k.renewals = r
	k.renewed(first)
	r.keepers = append(r.keepers, k)
	if !r.isRunning {
		r.isRunning = true
		go r.run()
	}
	r.notify()
}

func (r *renewals) notify() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *renewals) run() {
	for wakes := r.look(); wakes > 0; wakes = r.look() {
		timer := time.NewTimer(wakes)
		select {
		case <-timer.C:
		case <-r.changed:
		}
		timer.Stop()
	}
}

// look drops what has ended, sends what is due, and returns how long to sleep at most: 0 if there is nothing to keep.
func (r *renewals) look() (wakes time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := now()
	var kept, ready []*keeper
	wakes = slice
	for _, k := range r.keepers {
		left := k.remains(at)
		if left == 0 {
			continue
		}
		kept = append(kept, k)
		wakes = least(wakes, left)
		if !k.isSent {
			ready = append(ready, k)
			wakes = least(wakes, most(k.due-at, time.Millisecond))
		}
	}
	if r.keepers = kept; len(kept) == 0 {
		r.isRunning = false
		return 0
	}
	for _, batch := range batches(ready, at) {
		for _, k := range batch {
			k.isSent = true
		}
		go r.renew(batch, batch[0].last.until()-at)
	}
	return wakes
}

// batches are what to send now: each lease that is due, with others that soon are; first what ends first. A heartbeat goes alone.
func batches(keepers []*keeper, at time.Duration) (all [][]*keeper) {
	sort.Slice(keepers, func(i, j int) bool { return keepers[i].last.until() < keepers[j].last.until() })
	var batch []*keeper
	size, isDue := 0, false
	flush := func() {
		if isDue {
			all = append(all, batch)
		}
		batch, size, isDue = nil, 0, false
	}
	for _, k := range keepers {
		if k.early > at {
			continue
		}
		if len(batch) > 0 {
			isFull := size+len(k.leases) > leasesPerCallMax || len(batch) >= least(k.together, batch[len(batch)-1].together)
			if isFull || k.last.until()-at > spread*(batch[0].last.until()-at) {
				flush()
			}
		}
		batch, size, isDue = append(batch, k), size+len(k.leases), isDue || k.due <= at
	}
	flush()
	return all
}

// renew sends one request. `left` is what the first of the batch has left.
func (r *renewals) renew(batch []*keeper, left time.Duration) {
	var leases []leaseRef
	for _, k := range batch {
		leases = append(leases, k.leases...)
	}
	path, body := "/v1/leases/renew", any(fields{"leases": leases})
	if batch[0].beat != "" {
		path, body = batch[0].beat, fields{"stamp": batch[0].stamp}
	}
	text, _ := json.Marshal(body) // of strings
	// Other nodes can be tried before the first of them ends.
	got, failed := r.nodes.send(context.Background(), path, text, least(r.nodes.timeout, most(left/3, timeoutMin)))
	results, retryAfter := got.results(), got.retryAfter()
	if failed != nil {
		retryAfter = failed.retryAfter
	} else if batch[0].beat != "" {
		results = []answer{got}
	}
	isAnswered := failed == nil && (batch[0].beat != "" || areOf(leases, results))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range batch {
		k.isSent = false
		if isAnswered {
			count := most(len(k.leases), 1)
			k.settle(results[:count])
			results = results[count:]
		} else {
			// Nor if it is refused as a whole, because of one of its keys.
			k.together = most(len(batch)/parts, 1)
			k.failed(retryAfter)
		}
	}
	r.notify()
}

// areOf says whether there is one result for each lease that was sent.
func areOf(leases []leaseRef, results []answer) bool {
	if len(leases) != len(results) {
		return false
	}
	for i, one := range results {
		if leases[i] != (leaseRef{one.Key, one.LeaseID}) || one.status == 0 {
			return false
		}
	}
	return true
}
