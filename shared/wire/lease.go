package wire

import (
	"bytes"
	"fmt"
	"time"
)

// maxStored is lower than the largest int64, because the hub continues from the generation that a
// device reports.
const maxStored = 1 << 62

// ParseLease parses a lease payload of at most MaxLease bytes. Thousands of leases arrive per
// second, so it parses the form of Go's encoder (fields in order, no white space) directly, and
// other forms with the common decoder. A fuzz test compares both.
func ParseLease(data []byte) (Lease, error) {
	if l, ok := scanLease(data); ok {
		return l, nil
	}
	return decodeLease(data)
}

func decodeLease(data []byte) (Lease, error) {
	var l Lease
	if err := decode(payload{"lease", data, MaxLease}, &l); err != nil {
		return Lease{}, err
	}
	err := ValidBoot(l.Boot)
	if l.Desired < 0 || l.Desired > maxStored {
		err = fmt.Errorf("desired is %d, but generations start at 0, and none is above %d", l.Desired, int64(maxStored))
	}
	return l, check("lease", err)
}

// scanLease parses the usual form of a lease; ok is false for another form.
func scanLease(data []byte) (l Lease, ok bool) {
	if len(data) > MaxLease {
		return l, false
	}
	r := reader{rest: data, ok: true}
	boot := r.text(`{"boot":"`)
	l.Seq = r.number(`,"seq":`)
	l.Status = r.number(`,"status":`)
	l.Pods = r.number(`,"pods":`)
	desired := r.number(`,"desired":`)
	if desired > maxStored {
		return Lease{}, false
	}
	l.Desired = int64(desired)
	stamp := r.text(`,"time":"`)
	r.literal(`}`)
	if !r.ok || len(r.rest) != 0 || len(boot) == 0 || len(boot) > MaxBoot {
		return Lease{}, false
	}
	for _, c := range boot {
		if !word[c] {
			return Lease{}, false
		}
	}
	if l.Time.UnmarshalText(stamp) != nil {
		return Lease{}, false
	}
	l.Boot = string(boot)
	return l, true
}

// word marks the characters of a boot id.
var word = func() (w [256]bool) {
	for c := range w {
		w[c] = plain(string([]byte{byte(c)}))
	}
	return w
}()

// A reader parses a payload of a known form; ok becomes false at the first difference.
type reader struct {
	rest []byte
	ok   bool
}

func (r *reader) literal(s string) {
	if !r.ok || len(r.rest) < len(s) || string(r.rest[:len(s)]) != s {
		r.ok = false
		return
	}
	r.rest = r.rest[len(s):]
}

// text reads the text between a literal and the next quote. The usual form has no escapes and no
// control characters.
func (r *reader) text(before string) []byte {
	r.literal(before)
	end := bytes.IndexByte(r.rest, '"')
	if !r.ok || end < 0 {
		r.ok = false
		return nil
	}
	s := r.rest[:end]
	for _, c := range s {
		if c == '\\' || c < ' ' || c > '~' {
			r.ok = false
			return nil
		}
	}
	r.rest = r.rest[end+1:]
	return s
}

// number reads up to 18 digits, which always fit an int64.
func (r *reader) number(before string) (n uint64) {
	r.literal(before)
	i := 0
	for ; r.ok && i < len(r.rest) && i < 18 && r.rest[i] >= '0' && r.rest[i] <= '9'; i++ {
		n = n*10 + uint64(r.rest[i]-'0')
	}
	if !r.ok || i == 0 || i > 1 && r.rest[0] == '0' {
		r.ok = false
		return 0
	}
	r.rest = r.rest[i:]
	return n
}

// AppendLease appends a lease in the form that ParseLease parses fastest.
func AppendLease(b []byte, l Lease) []byte {
	return fmt.Appendf(b, `{"boot":%q,"seq":%d,"status":%d,"pods":%d,"desired":%d,"time":%q}`,
		l.Boot, l.Seq, l.Status, l.Pods, l.Desired, l.Time.UTC().Format(time.RFC3339Nano))
}
