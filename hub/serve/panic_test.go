package serve

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"flotilla.dev/hub/panics"
)

func TestAPanicInAHandlerIsAnswered(t *testing.T) {
	e := echo.New()
	e.GET("/before", func(echo.Context) error { panic("ouch") })
	e.GET("/amid", func(c echo.Context) error {
		_ = c.String(http.StatusOK, "half")
		c.Response().Flush()
		panic("ouch")
	})
	e.GET("/abort", func(echo.Context) error { panic(http.ErrAbortHandler) })
	srv := httptest.NewServer(recoverPanics(e, e))
	defer srv.Close()
	for _, tt := range []struct {
		path    string
		code    int // 0: no response
		whole   bool
		counted uint64
	}{{"/before", 500, true, 1}, {"/amid", 200, false, 1}, {"/abort", 0, false, 0}} {
		before := panics.Counts()["request"]
		code, text := 0, []byte(nil)
		res, err := http.Get(srv.URL + tt.path)
		if err == nil {
			code = res.StatusCode
			text, err = io.ReadAll(res.Body)
			_ = res.Body.Close()
		}
		if code != tt.code || (err == nil) != tt.whole || strings.Contains(string(text), "ouch") {
			t.Errorf("%s: %d %q %v; want %d, whole: %t", tt.path, code, text, err, tt.code, tt.whole)
		}
		if n := panics.Counts()["request"] - before; n != tt.counted {
			t.Errorf("%s: counted %d, want %d", tt.path, n, tt.counted)
		}
	}
}
