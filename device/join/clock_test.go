package join

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestCheckTime(t *testing.T) {
	now := time.Now()
	at := func(years float64) time.Time { return now.Add(time.Duration(years * 365 * 24 * float64(time.Hour))) }
	for _, c := range []struct {
		name                     string
		from, until, lastContact float64 // in years from the device's time
		between                  float64 // start of the intermediate's validity, in years
		adjusted                 bool
		valid                    bool
	}{
		{"valid", -1, 1, -1, -2, false, true},
		{"valid by an adjusted clock", -1, 1, -1, -2, true, true},
		{"expired by an adjusted clock", -2, -1, -2, -3, true, false},
		{"expired by an unadjusted clock", 0.01, 13, 0, -3, false, true}, // the build time is before all of these times
		{"expired before the last contact with the hub", -2, -1, -0.5, -3, false, false},
		{"expired after the last contact, by a clock that is ahead", -2, 0.1, 0.05, -3, false, true},
		{"not valid yet by the clock of the last shutdown", 1, 2, -1, -3, false, true},
		{"not valid yet by an adjusted clock", 1, 2, -1, -3, true, false},
		{"the intermediate is newer than the certificate", 1, 3, -1, 2, false, true},
	} {
		setClockAdjusted(t, c.adjusted)
		leaf := &x509.Certificate{NotBefore: at(c.from), NotAfter: at(c.until)}
		middle := &x509.Certificate{NotBefore: at(c.between), NotAfter: at(20)}
		m := checkTime([]*x509.Certificate{leaf, middle}, at(c.lastContact))
		valid := !m.Before(leaf.NotBefore) && !m.After(leaf.NotAfter) && !m.Before(middle.NotBefore)
		if valid != c.valid {
			t.Errorf("%s: checked at %s, valid: %v, want %v", c.name, m, valid, c.valid)
		}
	}
}

// If the clock is decades ahead, certificates are checked at the last contact with the hub.
func TestCheckTimeWithAClockDecadesAhead(t *testing.T) {
	setClockAdjusted(t, false)
	lastContact := buildTime().Add(24 * time.Hour)
	for until, valid := range map[time.Duration]bool{time.Hour: true, -time.Hour: false} {
		leaf := &x509.Certificate{NotBefore: lastContact.AddDate(-1, 0, 0), NotAfter: lastContact.Add(until)}
		if time.Now().Before(leaf.NotAfter) {
			t.Skip("the program's build time is in the future")
		}
		m := checkTime([]*x509.Certificate{leaf}, lastContact)
		if got := !m.After(leaf.NotAfter); got != valid {
			t.Errorf("a certificate that ends %s after the last contact is checked at %s", until, m)
		}
	}
}

// Even if the clock is past half of the life, or past the end, of every certificate, a new
// certificate is not renewed at once.
func TestAWrongClockDoesNotRepeatARenewal(t *testing.T) {
	now := time.Now()
	leaf := func(from, until time.Duration) *x509.Certificate {
		return &x509.Certificate{NotBefore: now.Add(from), NotAfter: now.Add(until)}
	}
	for _, c := range []struct {
		name              string
		leaf              *x509.Certificate
		adjusted, renewed bool
		least, most       time.Duration
		first, seventh    time.Duration // pauses after the first and the seventh failure
	}{
		{"valid", leaf(-time.Hour, 3*time.Hour), false, false, time.Hour, time.Hour, time.Hour, time.Hour},
		{"half of the life is over", leaf(-4*time.Hour, 2*time.Hour), false, false, -time.Hour, -time.Hour, time.Hour, time.Hour},
		{"renewed by a clock that is ahead", leaf(-4*time.Hour, 2*time.Hour), false, true, 3 * time.Hour, 3 * time.Hour, time.Hour, time.Hour},
		{"renewed by an adjusted clock, from a hub whose clock is behind", leaf(-4*time.Hour, 2*time.Hour), true, true, 3 * time.Hour, 3 * time.Hour, time.Hour, time.Hour},
		{"about to end", leaf(-350*time.Minute, 10*time.Minute), true, false, -170 * time.Minute, -170 * time.Minute, 10 * time.Minute, 10 * time.Minute},
		{"expired by an adjusted clock", leaf(-4*time.Hour, -2*time.Hour), true, false, -3 * time.Hour, -3 * time.Hour, 30 * time.Second, 30 * time.Second},
		{"expired at the renewal, by an adjusted clock", leaf(-4*time.Hour, -2*time.Hour), true, true, time.Hour, time.Hour, 30 * time.Second, 30 * time.Second},
		{"expired by an unknown clock", leaf(-4*time.Hour, -2*time.Hour), false, false, 0, 30 * time.Second, 30 * time.Second, 32 * time.Minute},
		{"renewed by an unknown clock", leaf(-4*time.Hour, -2*time.Hour), false, true, time.Hour, time.Hour, 30 * time.Second, 32 * time.Minute},
	} {
		setClockAdjusted(t, c.adjusted)
		if in := due(c.leaf, now, .5, c.renewed); in < c.least || in > c.most {
			t.Errorf("%s: the renewal is due in %s", c.name, in)
		}
		if a, b := pauseAfter(c.leaf, now, 0), pauseAfter(c.leaf, now, 6); a != c.first || b != c.seventh {
			t.Errorf("%s: the first pause is %s, the seventh %s", c.name, a, b)
		}
		if last := pauseAfter(c.leaf, now, 1<<40); last > time.Hour {
			t.Errorf("%s: the longest pause is %s, want at most an hour", c.name, last)
		}
	}
}

// A board that was off for months starts with the date of its shutdown. Its clock is set once it
// has a network, and then all earlier deadlines are wrong.
func TestARenewalFollowsAChangeOfTheClock(t *testing.T) {
	setClockAdjusted(t, true)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		old := systemClock
		var set atomic.Int64 // how far the clock has been set
		systemClock = func() time.Time { return time.Now().Add(time.Duration(set.Load())) }
		over := make(chan error, 1)

		key := newKey(t)
		from := buildTime()
		leaf := sign(t, &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pi-1"},
			NotBefore: from, NotAfter: from.AddDate(1, 0, 0)}, nil, &key.PublicKey, key)
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		id := Identity{Node: "pi-1", HubURL: "https://hub:8443", CA: string(encodeCert(leaf)),
			Certificate: string(encodeCert(leaf)),
			Key:         string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))}
		requests := make(chan time.Duration, 100)
		o := Options{Dial: func(context.Context, string, string) (net.Conn, error) {
			requests <- time.Since(start)
			return nil, errors.New("the hub is not reachable")
		}}
		ctx, cancel := context.WithCancel(t.Context())
		defer func() {
			cancel()
			<-over
			systemClock = old
		}()
		set.Store(int64(from.Add(24 * time.Hour).Sub(start)))
		go func() { over <- Run(ctx, id, o, func(Identity) {}) }()
		time.Sleep(10 * time.Minute)
		if len(requests) > 0 {
			t.Fatal("a certificate was renewed after one day")
		}
		set.Add(int64(10 * 30 * 24 * time.Hour))
		time.Sleep(2 * time.Minute)
		if len(requests) != 1 {
			t.Errorf("got %d renewals after the clock was set beyond half of the certificate's life, want 1",
				len(requests))
		}
	})
}
