package latchgate

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// The most runs without a claim that are not entered yet. With more, OnOutage is as if it were empty.
	unclaimedMax  = 1000
	enterPauseMax = 30 * time.Second
)

// unclaimed are runs of this process that were made without a claim, because the gate did not answer.
type unclaimed struct {
	mu         sync.Mutex
	count      int      // with those whose work still runs
	ended      []fields // the first one is being entered
	isEntering bool
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
	return !c.answered && errors.As(err, &e) && (e.Status == 0 || e.Code == "store-unavailable")
}

// enterRun reports a run without a claim that has succeeded. The report is repeated until a node answers, for as long as the process lives.
func (c *Client) enterRun(pre fields, ranAt time.Time, result fields) {
	run := fields{"ran_at": ranAt.UTC().Format(time.RFC3339Nano)}
	for _, name := range []string{"operation", "contents", "checked", "attempt_id", "label", "durability", "retention_ms", "permanent", "result", "result_omitted"} {
		for _, from := range []fields{pre, result} {
			if value, is := from[name]; is {
				run[name] = value
			}
		}
	}
	u := &c.unclaimed
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = append(u.ended, run)
	if !u.isEntering {
		u.isEntering = true
		c.later(c.enterRuns)
	}
}

func (c *Client) enterRuns() {
	u, pause := &c.unclaimed, pauseMin
	for {
		u.mu.Lock()
		if u.isEntering = len(u.ended) > 0; !u.isEntering {
			u.mu.Unlock()
			return
		}
		run := u.ended[0]
		u.mu.Unlock()
		got, err := c.nodes.call(context.Background(), c.nodes.callTo("/v1/operations/enter", run))
		if errors.Is(err, ErrUnavailable) {
			time.Sleep(jitter(pause, 1, 1.5))
			pause = least(2*pause, enterPauseMax)
			u.mu.Lock()
			u.ended = append(u.ended[1:], run) // it keeps no other waiting
			u.mu.Unlock()
			continue
		}
		if pause = pauseMin; err != nil {
			warn("a run of operation %s without a claim is not entered: %v", run["operation"], err)
		} else if got.DoubleRun {
			warn("operation %s (%s) may have run twice", run["operation"], got.ID)
		}
		u.mu.Lock()
		u.ended, u.count = u.ended[1:], u.count-1
		u.mu.Unlock()
	}
}

// warn reports the runs that are lost if the process ends now.
func (u *unclaimed) warn() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, run := range u.ended {
		warn("a run of operation %s without a claim is not entered: no node has answered until Close", run["operation"])
	}
}
