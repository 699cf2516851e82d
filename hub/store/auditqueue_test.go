package store

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// flood puts n records and returns the number of records that were not folded.
func flood(q *auditor, n int, make func(i int) Audit) (kept int) {
	for i := range n {
		if q.put(make(i)) != nil {
			kept++
		}
	}
	return kept
}

// taken empties the queue as a write does, and returns its records.
func taken(q *auditor, all bool) []*queued {
	rows := q.gather(time.Now(), all)
	q.written(rows, true, time.Now())
	return rows
}

// Floods are counted per source. A value that a client can make up is not part of the source.
func TestFloodsAreCountedPerSource(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(a *Audit, i int)
		kept int
	}{
		{"one user from one address", func(*Audit, int) {}, foldBurst},
		{"two authenticated users", func(a *Audit, i int) { a.Who = fmt.Sprint("anna-", i%2) }, 2 * foldBurst},
		{
			"names with invalid tokens", func(a *Audit, i int) { a.Who, a.Code = fmt.Sprint("anna-", i), 401 },
			foldBurst,
		},
		{"names with passwords", func(a *Audit, i int) { a.Who, a.Via = fmt.Sprint("anna-", i), "password" }, foldBurst},
		{"names with join tokens", func(a *Audit, i int) { a.Who, a.Via = fmt.Sprint("pi-", i), "join token" }, foldBurst},
		{
			"reads, which cost nothing", func(a *Audit, i int) { a.Verb, a.Resource, a.Code = "get", "secrets", 200 },
			foldBurst,
		},
		{"renewals", func(a *Audit, i int) { a.Verb, a.Code = "renew", 200 }, foldBurst},
		{"logins", func(a *Audit, i int) { a.Verb, a.Resource, a.Code = "create", "sessions", 200 }, foldBurst},
		{"changes, which have cost a write", func(a *Audit, i int) { a.Code = 200 }, 200},
		{"two addresses", func(a *Audit, i int) { a.Source = fmt.Sprint("10.0.0.", i%2) }, 2 * foldBurst},
		{"addresses of one network", func(a *Audit, i int) {
			a.Source, a.Origin = fmt.Sprint("2001:db8::", i), "2001:db8::/64"
		}, foldBurst},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &auditor{}
				if kept := flood(q, 200, func(i int) Audit { a := refused("x"); tt.edit(&a, i); return a }); kept != tt.kept {
					t.Errorf("%d records are not folded, want %d", kept, tt.kept)
				}
				sum := 0
				for _, r := range taken(q, true) {
					sum += r.Count
				}
				if sum != 200 {
					t.Errorf("all records count %d events", sum)
				}
			})
		})
	}
}

// The memory for sources is limited. A source with folded events is never removed in favour of
// another one.
func TestSourcesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, n := &auditor{}, 0
		put := func(source string, times int) {
			n += times
			flood(q, times, func(int) Audit { a := refused("x"); a.Source, a.Who, a.Via = source, "", "password"; return a })
			if len(q.waiting) > 1000 {
				t.Fatal("nothing was folded")
			}
		}
		put("the first", foldBurst+5)
		for i := range 2*foldKnown + 100 {
			put(fmt.Sprint("10.", i), 1)
		}
		if len(q.folds) > foldKnown {
			t.Errorf("%d sources are known", len(q.folds))
		}
		if folding := q.folding(); folding > foldSources+1 {
			t.Errorf("%d sources have folded events", folding)
		}
		sum := 0
		count := func() {
			for _, r := range taken(q, false) {
				sum += r.Count
			}
		}
		count()
		first := q.folds["the first"]
		time.Sleep(2 * foldLongest) // quiet sources without folded events are removed
		put("a new one", 1)
		if first == nil || first.n > 0 && q.folds["the first"] != first {
			t.Error("the folded events of the first source are lost")
		}
		if q.folds["a new one"] == nil || len(q.folds) > foldSources+2 {
			t.Errorf("%d sources are known after two hours", len(q.folds))
		}
		for range 10 {
			time.Sleep(foldLongest)
			count()
		}
		if sum != n {
			t.Errorf("all records count %d of %d events", sum, n)
		}
	})
}

// A flood that lasts a day is recorded at growing intervals. Each record has only the fields that
// all its events share.
func TestALongFloodIsRecordedAtGrowingIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &auditor{}
		flood(q, foldBurst, func(int) Audit { return refused("x") })
		taken(q, false)
		var folded []*queued
		for i := range 24 * 60 {
			for j := range 5 {
				a := refused(fmt.Sprint("pi-", i))
				a.Code = 460 + 10*j
				if q.put(a) != nil {
					taken(q, false)
				}
			}
			time.Sleep(time.Minute)
			for _, r := range taken(q, false) {
				if r.Count > 1 {
					folded = append(folded, r)
				}
			}
		}
		if len(folded) > 40 || len(folded) < 10 {
			t.Fatalf("%d records for a day's flood", len(folded))
		}
		if a := folded[len(folded)-1].Audit; a.Name != "" || a.Who != "anna" || a.Code != 500 ||
			a.Until.Sub(a.At) < foldLongest/2 {
			t.Errorf("the last one is %+v", a)
		}
	})
}

// Records of unauthenticated clients are short, so that the limit in bytes covers weeks of them.
func TestRecordsOfUnauthenticatedClientsAreShort(t *testing.T) {
	long := strings.Repeat("x", 4096)
	for _, a := range []Audit{
		{Who: long, Via: "password", Source: "2001:db8::1", Verb: "create", Resource: "sessions", Code: 401, Message: long},
		{
			Who: long, Via: "join token", Source: "2001:db8::1", Verb: "create", Resource: "enrolments", Name: long, Code: 403,
			Message: long,
		},
		{Via: "setup link", Source: "2001:db8::1", Verb: "create", Resource: "users", Name: long, Code: 429, Message: long},
		{
			Who: long, Via: "certificate", Source: "2001:db8::1", Verb: "list", Resource: long, Name: long, Code: 401,
			Message: long,
		},
	} {
		a = a.bounded()
		if days := maxAuditBytes / (a.bytes() * maxAuditRows / 90); days < 49 {
			t.Errorf("%d days of records of %d bytes: %+v", days, a.bytes(), a)
		}
	}
	known := Audit{Who: "anna", Via: "session", Source: "2001:db8::1", Verb: "update", Resource: "nodes", Name: long,
		Code: 403, Message: long}.bounded()
	if len(known.Message) != maxAuditMessage || len(known.Name) != maxAuditText {
		t.Errorf("%d bytes of an authenticated user are stored", known.bytes())
	}
}

// While the disk accepts nothing, the queue is limited and further records are counted.
func TestTheQueueIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &auditor{}
		flood(q, auditQueue+500, func(i int) Audit { return did(fmt.Sprint(i)) })
		if len(q.waiting) != auditQueue || q.lost.n != 500 {
			t.Errorf("%d records wait, %d count as lost", len(q.waiting), q.lost.n)
		}
	})
}

// A slow flood from ever new addresses does not push out users' records.
func TestAFloodFromEverywhereFitsIntoNinetyDays(t *testing.T) {
	for _, perMinute := range []int{1, 3, 10} {
		for _, often := range []int{1, 2, 2 * foldBurst} { // records of each address
			t.Run(fmt.Sprintf("%d a minute, %d of each address", perMinute, often), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					q, n, records := &auditor{}, 0, 0
					flood := func(hours int) (daily int) {
						before := records
						for range hours * 60 {
							for range perMinute {
								a := refused("x")
								a.Source, a.Who, a.Via = fmt.Sprint("10.", n/often), "", "password"
								q.put(a)
								n++
							}
							time.Sleep(time.Minute)
							records += len(taken(q, false))
						}
						return (records - before) * 24 / hours
					}
					flood(8) // use up the bursts first
					if daily := flood(8); daily > maxAuditRows/90 {
						t.Errorf("%d records a day are %d in ninety days, the limit is %d", daily, 90*daily, maxAuditRows)
					}
				})
			})
		}
	}
}
