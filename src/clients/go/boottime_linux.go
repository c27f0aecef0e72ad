package swlimit

import (
	"syscall"
	"time"
	"unsafe"
)

// sinceBoot is time that also passes while the machine sleeps, which Go's own clock does not see.
func sinceBoot() time.Duration {
	const clockBoottime = 7
	var at syscall.Timespec
	_, _, failed := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&at)), 0)
	if failed != 0 {
		return now()
	}
	return time.Duration(at.Nano())
}
