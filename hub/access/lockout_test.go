package access

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

func TestAFloodUnlocksNoKey(t *testing.T) {
	var l lockout
	now := time.Unix(1e9, 0)
	guilty := allowance{"login 192.0.2.7", maxAttempts}
	for range maxAttempts {
		if _, err := l.try(now, guilty); err != nil {
			t.Fatal(err)
		}
	}
	at := netip.MustParsePrefix("2001:db8::/32").Addr().As16()
	for i := range 60_000 { // each address from another /64 and another /48
		now = now.Add(5 * time.Millisecond)
		at[4], at[5], at[6], at[7] = byte(i>>8), byte(i), byte(i>>16), byte(i>>3)
		_, _ = l.try(now, tries("join", netip.AddrFrom16(at).String())...)
		if i%10 == 0 {
			_, _ = l.try(now, allowance{fmt.Sprint("login ", i), maxAttempts})
		}
	}
	if _, err := l.try(now, guilty); err == nil {
		t.Error("a locked key may try again after a flood")
	}
	if n := len(l.keys); n > maxLockoutKeys {
		t.Errorf("%d keys are stored", n)
	}
}

func TestASiteOfNetworksHasALimit(t *testing.T) {
	var l lockout
	now := time.Unix(1e9, 0)
	tried := 0
	for i := range 1000 {
		if _, err := l.try(now, tries("login", fmt.Sprintf("2001:db8:1:%x::1", i))...); err == nil {
			tried++
		}
	}
	if tried != maxSiteAttempts {
		t.Errorf("%d attempts from one /48, want %d", tried, maxSiteAttempts)
	}
	if _, err := l.try(now, tries("login", "2001:db8:2::1")...); err != nil {
		t.Error("another /48 is locked out:", err)
	}
	for _, source := range []string{"192.0.2.1", "::ffff:192.0.2.1", "not an address"} {
		if n := len(tries("login", source)); n != 1 {
			t.Errorf("%s has %d keys", source, n)
		}
	}
}
