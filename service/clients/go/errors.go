package latchgate

import (
	"encoding/json"
	"errors"
)

// The kinds of errors, one for each decision that a caller takes: errors.Is(err, latchgate.ErrLockHeld).
var (
	ErrRefused             = errors.New("latchgate: the request cannot be granted as it is")
	ErrLockHeld            = errors.New("latchgate: another caller has the lock or comes first")
	ErrWaitTimeout         = errors.New("latchgate: the wait has ended without the lock") // is an ErrLockHeld too
	ErrStaleToken          = errors.New("latchgate: a higher token has been granted or presented")
	ErrLeaseLost           = errors.New("latchgate: the lease has ended: stop the work that it protects")
	ErrOperationInProgress = errors.New("latchgate: another attempt runs")
	ErrOperationUnknown    = errors.New("latchgate: an earlier attempt may have done the operation")
	ErrAttemptLost         = errors.New("latchgate: another attempt may have the operation: stop")
	ErrNotRecorded         = errors.New("latchgate: the work was done, but the gate does not know it")
	// ErrUnavailable: no node has given an answer to rely on, in all the time for repeating the call, or the app has used up a quota
	// (quota-reached). Without an answer, the call may have been carried out.
	ErrUnavailable = errors.New("latchgate: no node has given an answer to rely on")
	// ErrNotDone is for the work of Once to return: surely nothing was done, and the next caller may proceed at once.
	ErrNotDone = errors.New("latchgate: surely nothing was done")
)

// Error is an answer that does not let the caller proceed, or the lack of an answer.
type Error struct {
	Kind   error  `json:"-"` // one of the kinds above
	Code   string // stable; docs/ERRORS.md explains it
	Detail string // for people
	Status int    // of the answer; 0 if there was none
	// Why a lease was lost: expired, released, revoked, forced or unknown if a node has said so; unanswered if no renewal was answered in
	// time. It is also revoked if the last renewal has shown that the lease would end by a revocation.
	Why     string
	Current int64          // the token that is higher than a stale one
	Holders []Holder       // the first holders of a lock that was not granted
	Fields  map[string]any `json:"-"` // all fields of the answer's problem
}

// Holder is a lease that keeps a caller out.
type Holder struct {
	Owner, Mode, Group string
	Token              int64
}

func (e *Error) Error() string { return "latchgate: " + e.Code + ": " + e.Detail }

// Is makes errors.Is tell the kind.
func (e *Error) Is(kind error) bool {
	return kind == e.Kind || kind == ErrLockHeld && e.Kind == ErrWaitTimeout
}

var kinds = map[string]error{
	"stale-token": ErrStaleToken, "wait-timeout": ErrWaitTimeout, "lease-lost": ErrLeaseLost,
	"operation-in-progress": ErrOperationInProgress, "operation-unknown": ErrOperationUnknown,
	"operation-superseded": ErrAttemptLost, "operation-ended": ErrAttemptLost,
	"operation-not-found": ErrAttemptLost, "stamp-mismatch": ErrAttemptLost,
}

func (a answer) problem() *Error {
	e := &Error{Kind: kinds[a.Code], Code: a.Code, Detail: a.Detail}
	_ = json.Unmarshal(a.raw, e) // that it is JSON is known
	_ = json.Unmarshal(a.raw, &e.Fields)
	e.Status = a.Status
	for _, result := range a.results() {
		e.Why = or(e.Why, result.Why)
	}
	switch {
	case a.Status >= 500 || isTransient(a.Status):
		e.Kind = ErrUnavailable
	case e.Kind == nil && a.Status == 423:
		e.Kind = ErrLockHeld
	case e.Kind == nil:
		e.Kind = ErrRefused
	}
	return e
}

func invalid(detail string) *Error {
	return &Error{Kind: ErrRefused, Code: "invalid-options", Detail: detail}
}

// isTransient says whether the same request may pass later: there was no answer, or a node has sent 503, or a proxy in front of it one of the
// others.
func isTransient(status int) bool {
	return status == 0 || status == 429 || status == 502 || status == 503 || status == 504
}
