//go:build !linux

package latchgate

import "time"

var began = time.Now()

// clock is the time since the program began. On some systems it stands still while the machine is suspended: fence what you write.
func clock() time.Duration { return time.Since(began) }
