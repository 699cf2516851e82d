package admin

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"flotilla.dev/hub/admin/admintest"
)

// rendering returns a page that renders every request anew, because its clock advances with each.
func rendering(b *testing.B, m *admintest.Memory) (get func(path string, headers ...string) []byte) {
	var answers atomic.Int64
	c := configOf(m)
	c.Now = func() time.Time { return admintest.Now.Add(time.Duration(answers.Load()) * 2 * time.Second) }
	e := echo.New()
	New(c).Register(e)
	return func(path string, headers ...string) []byte {
		answers.Add(1)
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set(nameHeader, "admin")
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		if e.ServeHTTP(w, r); w.Code != http.StatusOK {
			b.Fatalf("%s: %d", path, w.Code)
		}
		return w.Body.Bytes()
	}
}

// BenchmarkNodesPage renders the list of 5,000 nodes: a page of it, and searches.
func BenchmarkNodesPage(b *testing.B) {
	m := admintest.Many(5000)
	for _, query := range []string{"", "?q=board:raspberry+499", "?q=label:nobody", "?status=attention"} {
		b.Run(query, func(b *testing.B) {
			get, size := rendering(b, m), 0
			for b.Loop() {
				size = len(get("/nodes" + query))
			}
			b.ReportMetric(float64(size), "bytes")
		})
	}
}

// BenchmarkOverview renders the overview of 5,000 nodes and 5,000 pods, when all is well and when
// all is dark.
func BenchmarkOverview(b *testing.B) {
	for _, dark := range []bool{false, true} {
		b.Run(fmt.Sprintf("dark=%v", dark), func(b *testing.B) {
			m := admintest.Many(5000)
			if dark {
				m = admintest.Silent(m, 5000)
			}
			for get := rendering(b, m); b.Loop(); {
				get("/")
			}
		})
	}
}

// BenchmarkOverviewOfANight renders and compresses the overview of 5,000 nodes, 3,000 of them dark,
// with their incidents. cpu-ms/op does not depend on other programs.
func BenchmarkOverviewOfANight(b *testing.B) {
	m := admintest.Silent(admintest.Many(5000), 3000)
	m.FindIncidents()
	get := rendering(b, m)
	cards := bytes.Count(get("/"), []byte(`<p class="touches">`))
	var sent []byte
	before := cpu()
	for b.Loop() {
		sent = get("/", "Accept-Encoding", "gzip")
	}
	b.ReportMetric(float64((cpu()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(len(sent)), "gzip-bytes")
	b.ReportMetric(float64(cards), "cards")
}
