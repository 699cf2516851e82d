package join

import (
	"crypto/x509"
	"runtime/debug"
	"sync"
	"time"

	"flotilla.dev/shared/clock"
)

// built is when this program was made: no clock that is right says less.
var built = sync.OnceValue(func() time.Time {
	floor := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC) // of a build without version control
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if t, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
				return later(floor, t)
			}
		}
	}
	return floor
})

// Clock is the device's own time, but never before the program was built, nor before
// lastKnown.
func Clock(lastKnown time.Time) func() time.Time {
	floor := later(built(), lastKnown)
	return func() time.Time { return later(wall(), floor) }
}

// wall is the device's clock as it stands, which may be set at any time.
var wall = time.Now

// kept tells whether a time service keeps the clock right, as the kernel knows it.
var kept = func() bool {
	is, _ := clock.Kept()
	return is
}

// moment is by what time the certificates that a hub shows are judged: the device's own. Where
// nobody keeps that, it is worth nothing against them: a board without a battery begins in 1970 or
// with the day on which it was switched off, one whose battery is bad anywhere, and would be cut
// off from its hub for good. They are good then unless they had ended when the hub was heard last.
func moment(shown []*x509.Certificate, lastKnown time.Time) time.Time {
	floor := later(built(), lastKnown)
	now := later(time.Now(), floor)
	begun := shown[0].NotBefore
	for _, c := range shown[1:] {
		begun = later(begun, c.NotBefore)
	}
	switch ends := shown[0].NotAfter; {
	case now.After(ends) && !kept():
		return later(ends, floor)
	case now.Before(begun) && begun.Before(ends) && !kept():
		return begun
	}
	return now
}

// check checks that a hub shows certificates of its roots, and for the host that was dialled.
func check(shown []*x509.Certificate, roots *x509.CertPool, host string, lastKnown time.Time) error {
	between := x509.NewCertPool()
	for _, c := range shown[1:] {
		between.AddCert(c)
	}
	_, err := shown[0].Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: between,
		CurrentTime: moment(shown, lastKnown)})
	return err
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
