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
	// A request without an answer is repeated in so many parts.
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

	mu         sync.Mutex
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
	k.mu.Lock()
	left := k.last.until() - now()
	isOver := k.isOver
	k.mu.Unlock()
	if !isOver && left <= 0 {
		k.end(lost(ErrLeaseLost, "lease-lost", "no renewal of "+k.name+" was answered in time", "unanswered"))
	}
	if isOver {
		return 0
	}
	return most(left, 0)
}

// end ends the renewals, with a loss or because the lease is released (nil). What comes first counts, and is returned.
func (k *keeper) end(loss *Error) *Error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.isOver {
		k.isOver, k.loss = true, loss
		k.ended()
	}
	return k.loss
}

func (k *keeper) renewed(r renewed) {
	// The lower bound is for leases that a revocation or `max_hold` is ending: each renewal leaves them shorter.
	pause := jitter(most(r.left/3, k.length/10), 0.9, 1)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last, k.due, k.early, k.failures, k.together = r, r.sent+pause, r.sent+pause/2, 0, leasesPerCallMax
}

// failed: a renewal was not answered, or refused for another reason than a loss. When the lease has ended, `remaining` reports the loss.
func (k *keeper) failed(nodes int, retryAfter time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failures++
	var pause time.Duration
	if k.failures%nodes == 0 {
		rounds := least(time.Duration(k.failures/nodes-1), 10)
		pause = jitter(most(least(pauseMin<<rounds, pauseMax), retryAfter), 1, 1.5)
	}
	at := now()
	k.due = at + most(least(pause, (k.last.until()-at)/4), 0)
	k.early = k.due
}

// renewals is the background task of one client. It ends when there is nothing to keep.
type renewals struct {
	nodes     *nodes
	mu        sync.Mutex
	keepers   []*keeper
	isRunning bool
	changed   chan struct{}
}

func (r *renewals) keep(k *keeper) {
	r.mu.Lock()
	defer r.mu.Unlock()
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
	for {
		ready, wakes := r.look()
		if wakes == 0 {
			return
		}
		for _, batch := range batches(ready, now()) {
			for _, k := range batch {
				k.mu.Lock()
				k.isSent = true
				k.mu.Unlock()
			}
			go r.renew(batch)
		}
		timer := time.NewTimer(wakes)
		select {
		case <-timer.C:
		case <-r.changed:
		}
		timer.Stop()
	}
}

// due is what batches need to know of a keeper, read at one time.
type due struct {
	*keeper
	until, due, early time.Duration
	together          int
}

// look drops what has ended, and returns what may be sent, and how long to sleep at most: 0 if there is nothing to keep.
func (r *renewals) look() (ready []due, wakes time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.keepers[:0]
	wakes = slice
	for _, k := range r.keepers {
		if k.remaining() == 0 {
			continue
		}
		kept = append(kept, k)
		k.mu.Lock()
		wakes = least(wakes, k.last.until()-now())
		if !k.isSent {
			ready = append(ready, due{k, k.last.until(), k.due, k.early, k.together})
			if k.due > now() {
				wakes = least(wakes, k.due-now())
			}
		}
		k.mu.Unlock()
	}
	for i := len(kept); i < len(r.keepers); i++ {
		r.keepers[i] = nil
	}
	if r.keepers = kept; len(kept) == 0 {
		r.isRunning = false
		return nil, 0
	}
	return ready, most(wakes, time.Millisecond)
}

// batches are what to send now: each lease that is due, with others that soon are.
func batches(keepers []due, at time.Duration) (all [][]*keeper) {
	sort.Slice(keepers, func(i, j int) bool { return keepers[i].until < keepers[j].until })
	var batch []*keeper
	var first, last due
	size, isDue := 0, false
	flush := func() {
		if isDue {
			all = append(all, batch)
		}
		batch, size, isDue = nil, 0, false
	}
	for _, k := range keepers {
		if k.beat != "" {
			if k.due <= at {
				all = append(all, []*keeper{k.keeper})
			}
			continue
		}
		if k.early > at {
			continue
		}
		isFull := size+len(k.leases) > leasesPerCallMax || len(batch) >= k.together || len(batch) >= last.together
		if len(batch) > 0 && (isFull || k.until-at > spread*(first.until-at)) {
			flush()
		}
		if len(batch) == 0 {
			first = k
		}
		last = k
		batch, size, isDue = append(batch, k.keeper), size+len(k.leases), isDue || k.due <= at
	}
	flush()
	return all
}

func (r *renewals) renew(batch []*keeper) {
	left := most(batch[0].remaining(), timeoutMin)
	var body any = fields{"stamp": batch[0].stamp}
	path := batch[0].beat
	if path == "" {
		var leases []leaseRef
		for _, k := range batch {
			left = least(left, most(k.remaining(), timeoutMin))
			leases = append(leases, k.leases...)
		}
		path, body = "/v1/leases/renew", fields{"leases": leases}
	}
	// Other nodes can be tried before the first of them ends.
	got, failed := r.nodes.send(context.Background(), path, body, least(r.nodes.timeout, most(left/3, timeoutMin)))
	r.settle(batch, got, failed)
	for _, k := range batch {
		k.mu.Lock()
		k.isSent = false
		k.mu.Unlock()
	}
	r.notify()
}

// settle gives each of the batch its own result.
func (r *renewals) settle(batch []*keeper, got answer, failed *noAnswer) {
	results, retryAfter := got.Results, time.Duration(got.RetryAfter)*time.Millisecond
	switch {
	case failed != nil:
		retryAfter = failed.retryAfter
		for _, k := range batch {
			k.mu.Lock()
			k.together = most(len(batch)/parts, 1)
			k.mu.Unlock()
		}
	case batch[0].beat != "":
		r.settleOne(batch[0], got.sent, []result{{Status: got.status, TTL: got.TTL}}, got.raw)
		return
	case areOf(batch, results):
		for _, k := range batch {
			r.settleOne(k, got.sent, results[:len(k.leases)], nil)
			results = results[len(k.leases):]
		}
		return
	case setApart(batch, got.Index):
		return
	}
	for _, k := range batch {
		k.failed(len(r.nodes.urls), retryAfter)
	}
}

// settleOne has `raw`, the problem, if the results do not say enough.
func (r *renewals) settleOne(k *keeper, sent time.Duration, results []result, raw []byte) {
	next := renewed{sent: sent, left: k.length + time.Hour*24*365}
	var worst *result
	for i := range results {
		one := &results[i]
		if one.Status/100 != 2 || one.TTL == nil {
			// A loss is more serious than what is not known of another key.
			if worst == nil || one.Status == 410 && worst.Status != 410 {
				worst = one
			}
			continue
		}
		next.left = least(next.left, time.Duration(*one.TTL)*time.Millisecond)
		if one.Revoked != nil {
			next.revocation = one.Revoked
		}
	}
	if worst == nil {
		k.renewed(next)
		return
	}
	if raw == nil {
		raw, _ = json.Marshal(fields{"code": worst.Code, "detail": worst.Detail, "why": worst.Why, "results": results})
	}
	if err := problem(worst.Status, raw); err.Kind == ErrLeaseLost || err.Kind == ErrAttemptLost {
		k.end(err)
	} else {
		k.failed(len(r.nodes.urls), time.Duration(worst.RetryAfter)*time.Millisecond)
	}
}

// areOf says whether there is one result for each lease that was sent.
func areOf(batch []*keeper, results []result) bool {
	i := 0
	for _, k := range batch {
		for _, lease := range k.leases {
			if i >= len(results) || results[i].Key != lease.Key || results[i].LeaseID != lease.LeaseID || results[i].Status == 0 {
				return false
			}
			i++
		}
	}
	return i == len(results)
}

// setApart: a request is refused as a whole if the API key may not use one of its keys. The others are sent again without that one.
func setApart(batch []*keeper, index *int) bool {
	if index == nil || len(batch) == 1 {
		return false
	}
	left := *index
	for _, k := range batch {
		if left -= len(k.leases); left < 0 {
			k.mu.Lock()
			k.together = 1
			k.mu.Unlock()
			return true
		}
	}
	return false
}
