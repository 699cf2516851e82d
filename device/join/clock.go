package join

import (
	"crypto/x509"
	"runtime/debug"
	"sync"
	"time"

	"flotilla.dev/shared/clock"
)

// buildTime is when this program was built. A correct clock is never before it.
var buildTime = sync.OnceValue(func() time.Time {
	floor := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC) // for a build without version control
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if t, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
				return later(floor, t)
			}
		}
	}
	return floor
})

// Clock returns the device's time, but never a time before the build of the program or before
// lastKnown.
func Clock(lastKnown time.Time) func() time.Time {
	floor := later(buildTime(), lastKnown)
	return func() time.Time { return later(systemClock(), floor) }
}

// systemClock is the device's clock, which may be set at any time.
var systemClock = time.Now

// clockAdjusted reports whether a time service adjusts the kernel's clock.
var clockAdjusted = func() bool {
	is, _ := clock.Kept()
	return is
}

// checkTime returns the time at which the hub's certificates are checked. It is the device's clock
// if a time service adjusts the clock. Without a battery, another clock starts in 1970 or at the
// last shutdown, and would cut the device off for good. So then the certificates are valid unless
// they had expired at lastKnown, when the device last reached the hub.
func checkTime(shown []*x509.Certificate, lastKnown time.Time) time.Time {
	floor := later(buildTime(), lastKnown)
	now := later(time.Now(), floor)
	begun := shown[0].NotBefore
	for _, c := range shown[1:] {
		begun = later(begun, c.NotBefore)
	}
	switch ends := shown[0].NotAfter; {
	case now.After(ends) && !clockAdjusted():
		return later(ends, floor)
	case now.Before(begun) && begun.Before(ends) && !clockAdjusted():
		return begun
	}
	return now
}

// check verifies that the hub's certificates belong to its roots and to the dialled host.
func check(shown []*x509.Certificate, roots *x509.CertPool, host string, lastKnown time.Time) error {
	between := x509.NewCertPool()
	for _, c := range shown[1:] {
		between.AddCert(c)
	}
	_, err := shown[0].Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: between,
		CurrentTime: checkTime(shown, lastKnown)})
	return err
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
