package latchgate

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7

// clock is the time since the machine started. Unlike Go's monotonic clock, it goes on while the machine is suspended.
func clock() time.Duration {
	var at syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&at)), 0); errno != 0 {
		panic("latchgate: this system has no CLOCK_BOOTTIME: " + errno.Error())
	}
	return time.Duration(at.Nano())
}
