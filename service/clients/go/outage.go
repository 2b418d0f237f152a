package latchgate

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

const (
	// The most runs without a claim, and other successes that no node has recorded. With more, OnOutage is as if it were empty.
	unclaimedMax  = 1000
	enterPauseMax = 30 * time.Second
	enterPath     = "/v1/operations/enter"
)

// unclaimed are runs of this process that were made without a claim, because the gate did not answer. With them are the successes of attempts that
// no node has recorded.
type unclaimed struct {
	mu          sync.Mutex
	count       int       // with those whose work still runs
	ended       []*report // the first one is being sent
	isReporting bool
}

// report is of a success. It is repeated until a node answers, for as long as the process lives.
type report struct {
	warning   string // if it is not recorded
	path      string
	body      fields
	run       fields // of an attempt: it is entered if the store has lost that
	isRefused bool
}

// changesToRun says whether the store has lost the attempt. Then the run is reported from now on.
func (r *report) changesToRun(err error) bool {
	var e *Error
	isLost := r.run != nil && errors.As(err, &e) && (e.Code == "operation-not-found" || e.Code == "stamp-mismatch")
	if isLost {
		r.path, r.body, r.run = enterPath, r.run, nil
	}
	return isLost
}

// begin says whether there is room for one more.
func (u *unclaimed) begin() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	isRoom := u.count < unclaimedMax
	if isRoom {
		u.count++
	}
	return isRoom
}

func (u *unclaimed) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.count--
}

// isOutage says whether the work may run without a claim, for a caller that has asked for that. If a node has said that another attempt runs,
// it may not.
func (c *call) isOutage(err error) bool {
	var e *Error
	return !c.answered && errors.As(err, &e) && (e.Code == noAnswer || e.Code == "store-unavailable")
}

// runOf is what enters a run that has succeeded.
func runOf(pre fields, ranAt time.Time, result fields) fields {
	run := fields{"ran_at": ranAt.UTC().Format(time.RFC3339Nano)}
	for _, name := range []string{"operation", "contents", "checked", "attempt_id", "label", "durability", "retention_ms", "permanent", "result", "result_omitted"} {
		for _, from := range []fields{pre, result} {
			if value, is := from[name]; is {
				run[name] = value
			}
		}
	}
	return run
}

func (c *Client) reportLater(success *report) {
	u := &c.unclaimed
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = append(u.ended, success)
	if !u.isReporting {
		u.isReporting = true
		c.later(c.report)
	}
}

func (c *Client) report() {
	u, pause := &c.unclaimed, pauseMin
	for {
		u.mu.Lock()
		if u.isReporting = len(u.ended) > 0; !u.isReporting {
			u.mu.Unlock()
			return
		}
		success := u.ended[0]
		u.mu.Unlock()
		got, err := c.nodes.call(context.Background(), c.nodes.report(success.path, success.body, c.nodes.retryFor))
		if success.changesToRun(err) {
			continue
		}
		var e *Error
		isRefused := errors.As(err, &e) && e.Kind != ErrUnavailable
		if err != nil && (!isRefused || e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden) {
			if isRefused && !success.isRefused {
				warn("%s yet: %v", success.warning, err)
			}
			success.isRefused = success.isRefused || isRefused
			time.Sleep(jitter(pause, 1, 1.5))
			pause = least(2*pause, enterPauseMax)
			u.mu.Lock()
			u.ended = append(u.ended[1:], success) // it keeps no other waiting
			u.mu.Unlock()
			continue
		}
		if pause = pauseMin; err != nil {
			warn("%s: %v", success.warning, err)
		} else if got.DoubleRun {
			warn("operation %s may have run twice", got.ID)
		}
		u.mu.Lock()
		u.ended, u.count = u.ended[1:], u.count-1
		u.mu.Unlock()
	}
}

// warn says which successes are lost if the process ends now.
func (u *unclaimed) warn() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, success := range u.ended {
		warn("%s: no node has answered until Close", success.warning)
	}
}
