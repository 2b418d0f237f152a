package latchgate

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

type order struct {
	ID     int
	amount int
}

type inner struct{ Order int }

type other struct{ Order int }

type byPointer struct{ id int }

func (b *byPointer) MarshalJSON() ([]byte, error) { return []byte(fmt.Sprint(b.id)), nil }

type notUTF8 string

func (n notUTF8) MarshalText() ([]byte, error) { return []byte(n), nil }

type rawBytes struct{}

func (rawBytes) MarshalJSON() ([]byte, error) { return []byte("\"a\xff\""), nil }

type self struct{ Next *self }

func Test37WhatJSONCannotSayIsRefusedWithItsPath(t *testing.T) {
	t.Parallel()
	circle := &self{}
	circle.Next = circle
	for path, value := range map[string]any{
		"contents.name is not UTF-8":      map[string]any{"name": "a\xff"},
		"a key of contents is not UTF-8":  map[string]int{"\xfe": 1},
		"contents.x is not UTF-8":         map[string]any{"x": notUTF8("\xff")},
		"contents is not UTF-8":           rawBytes{},
		"contents.amount is not exported": order{42, 7},
		"contents.id is not exported":     byPointer{7}, // without an address, encoding/json does not find its method
		"contents.why is an error":        map[string]any{"why": errors.New("no card")},
		"contents.amount is NaN":          map[string]float64{"amount": math.NaN()},
		"contents[0] is -Inf":             []float32{float32(math.Inf(-1))},
		"contents.work is a func()":       map[string]any{"work": func() {}},
		"contents is encoded as its Time alone": struct {
			time.Time
			Order int
		}{time.Unix(1, 0), 42},
		"contents.Order is there twice": struct {
			inner
			other
		}{inner{1}, other{2}},
		"is nested too deeply":                       circle,
		"contents says nothing":                      nil,
		"contents says nothing: it is":               "",
		"contents says nothing: it is nil":           map[string]any{},
		"contents says nothing: it is nil or":        []any{nil, []string{""}},
		"contents says nothing: it is nil or empty,": map[string]any{"order": (*int)(nil)},
	} {
		_, err := encodeIdentity("contents", value)
		check(t, err != nil && strings.Contains(err.Error(), path), path, err)
	}
	for text, value := range map[string]any{
		`{"Order":42,"ID":7,"at":"1970-01-01T00:00:01Z"}`: struct {
			inner
			ID int
			At time.Time `json:"at"`
			mu int       `json:"-"`
		}{inner{42}, 7, time.Unix(1, 0).UTC(), 0},
		`[7,null,"AP8="]`: []any{&byPointer{7}, nil, []byte{0, 255}},
		`false`:           false,
		`{"1":[0]}`:       map[int][]int{1: {0}},
	} {
		got, err := encodeIdentity("contents", value)
		check(t, err == nil && string(got) == text, string(got), err)
	}
}

func Test37NoCallChangesATextWithoutAWord(t *testing.T) {
	t.Parallel()
	c := client(Config{}, "http://127.0.0.1:1") // nothing is sent
	once := func(operation string, contents any, o OnceOptions) error {
		_, err := Once(ctx, c, operation, contents, o, mustNotRun[int])
		return err
	}
	_, byOwner := c.Lock(ctx, "key", Options{Owner: "a\xff"})
	_, byKey := c.Multilock(ctx, []Key{{Key: "a\xff"}, {Key: "b"}}, Options{})
	_, byReason := c.Revoke(ctx, "key", RevokeOptions{Reason: "\xff"})
	for i, err := range []error{byOwner, byKey, byReason, once("a\xff", 1, OnceOptions{}), once("test", order{}, OnceOptions{}),
		once("test", 1, OnceOptions{Checked: math.NaN()}), once("test", 1, OnceOptions{Label: "\xff"})} {
		check(t, err != nil && isKind(t, err, ErrRefused, "invalid-options").Status == 0, i, err)
	}
}

func Test42ADurationIsNeverRoundedToNone(t *testing.T) {
	t.Parallel()
	for duration, ms := range map[time.Duration]int64{30: 1, time.Millisecond: 1, time.Second / 3: 334, -1: -1, time.Hour: 3_600_000} {
		body := fields{}
		put(body, "min_hold_ms", duration)
		check(t, body["min_hold_ms"] == ms, duration, body)
	}
}

func Test42ANegativeDurationIsRefusedByItsName(t *testing.T) {
	t.Parallel()
	c, p := client(Config{}, "http://127.0.0.1:1"), -time.Second
	for name, o := range map[string]Options{"TTL": {TTL: p}, "Wait": {Wait: p}, "Delay": {Delay: p}, "MinHold": {MinHold: p}, "MaxHold": {MaxHold: p}} {
		_, err := c.Lock(ctx, freshKey(), o)
		check(t, strings.HasPrefix(isKind(t, err, ErrRefused, "invalid-options").Detail, name+" is -1s"), err)
	}
	for name, o := range map[string]OnceOptions{"TTL": {TTL: p}, "Wait": {Wait: p}, "Retention": {Retention: p}} {
		_, err := Once(ctx, c, "test", freshKey(), o, mustNotRun[int])
		check(t, strings.HasPrefix(isKind(t, err, ErrRefused, "invalid-options").Detail, name+" is -1s"), err)
	}
	for name, config := range map[string]Config{"RetryFor": {RetryFor: p}, "Timeout": {Timeout: p}} {
		_, err := New(config)
		check(t, strings.HasPrefix(isKind(t, err, ErrRefused, "invalid-options").Detail, name+" is -1s"), err)
	}
	_, err := c.Revoke(ctx, freshKey(), RevokeOptions{Grace: p})
	check(t, strings.HasPrefix(isKind(t, err, ErrRefused, "invalid-options").Detail, "Grace is -1s"), err)
}

func Test42TheWorkIsThereBeforeThePre(t *testing.T) {
	t.Parallel()
	_, err := Once[int](ctx, client(Config{}, "http://127.0.0.1:1"), "test", freshKey(), OnceOptions{}, nil)
	isKind(t, err, ErrRefused, "invalid-options")
}
