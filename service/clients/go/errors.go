package latchgate

import (
	"encoding/json"
	"errors"
	"time"
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
	ErrUnavailable         = errors.New("latchgate: no node has given an answer to rely on")
	// ErrNotDone is for the work of Once to return: surely nothing was done, and the next caller may proceed at once.
	ErrNotDone = errors.New("latchgate: surely nothing was done")
)

// Error is an answer that does not let the caller proceed, or the lack of an answer.
type Error struct {
	Kind   error          // one of the kinds above
	Code   string         // stable; docs/ERRORS.md explains it
	Detail string         // for people
	Status int            // of the answer; 0 if there was none
	Fields map[string]any // all fields of the answer's problem
	known  known
}

// Holder is a lease that keeps a caller out.
type Holder struct {
	Owner string `json:"owner"`
	Mode  string `json:"mode"`
	Group string `json:"group"`
	Token int64  `json:"token"`
}

func (e *Error) Error() string { return "latchgate: " + e.Code + ": " + e.Detail }

// Is makes errors.Is tell the kind.
func (e *Error) Is(kind error) bool {
	return kind == e.Kind || kind == ErrLockHeld && e.Kind == ErrWaitTimeout
}

// Holders are the first holders of a lock that was not granted.
func (e *Error) Holders() []Holder { return e.known.Holders }

// Current is the token that is higher than the stale one.
func (e *Error) Current() int64 { return e.known.Current }

// Why a lease was lost: expired, released, revoked, forced or unknown if a node has said so; unanswered if no renewal was answered in time.
func (e *Error) Why() string {
	why := e.known.Why
	for _, result := range (answer{known: e.known}).results() {
		why = or(why, result.Why)
	}
	return or(why, "unknown")
}

// known has the fields of answers, and of one of several results in an answer, that this package reads.
type known struct {
	Code             string            `json:"code"`
	Title            string            `json:"title"`
	Detail           string            `json:"detail"`
	Status           int               `json:"status"`
	RetryAfter       int64             `json:"retry_after_ms"`
	Ticket           string            `json:"ticket"`
	Holders          []Holder          `json:"holders"`
	Current          int64             `json:"current"`
	Why              string            `json:"why"`
	Results          []json.RawMessage `json:"results"`
	Key              string            `json:"key"`
	LeaseID          string            `json:"lease_id"`
	TTL              int64             `json:"ttl_ms"`
	Revoked          *Revocation       `json:"revocation"`
	Owner            string            `json:"owner"`
	Token            int64             `json:"token"`
	Slots            []int             `json:"slots"`
	Locks            []known           `json:"locks"`
	Leases           int               `json:"leases"`
	Deadline         string            `json:"deadline"`
	ID               string            `json:"id"`
	Stamp            string            `json:"stamp"`
	Attempt          int               `json:"attempt"`
	Guarded          bool              `json:"guarded"`
	Reentry          bool              `json:"reentry"`
	PossiblyRepeated bool              `json:"possibly_repeated"`
	Result           json.RawMessage   `json:"result"`
	ResultOmitted    bool              `json:"result_omitted"`
}

func (k known) retryAfter() time.Duration { return time.Duration(k.RetryAfter) * time.Millisecond }

var kinds = map[string]error{
	"stale-token": ErrStaleToken, "wait-timeout": ErrWaitTimeout, "lease-lost": ErrLeaseLost,
	"operation-in-progress": ErrOperationInProgress, "operation-unknown": ErrOperationUnknown,
	"operation-superseded": ErrAttemptLost, "operation-ended": ErrAttemptLost,
	"operation-not-found": ErrAttemptLost, "stamp-mismatch": ErrAttemptLost,
}

func (a answer) problem() *Error {
	e := &Error{Kind: kinds[a.Code], Code: or(a.Code, "no-answer"), Detail: or(a.Detail, a.Title), Status: a.status, known: a.known}
	_ = json.Unmarshal(a.raw, &e.Fields) // that it is JSON is known
	switch {
	case a.status >= 500 || isTransient(a.status):
		e.Kind = ErrUnavailable
	case e.Kind == nil && a.status == 423:
		e.Kind = ErrLockHeld
	case e.Kind == nil:
		e.Kind = ErrRefused
	}
	return e
}

func lost(kind error, code, detail, why string) *Error {
	return &Error{Kind: kind, Code: code, Detail: detail, Fields: fields{"why": why}, known: known{Why: why}}
}

func invalid(detail string) *Error {
	return &Error{Kind: ErrRefused, Code: "invalid-options", Detail: detail}
}

// isTransient says whether the same request may pass later. A node sends 503; a proxy in front of it may send the others.
func isTransient(status int) bool {
	return status == 429 || status == 502 || status == 503 || status == 504
}
