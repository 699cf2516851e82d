package frame

import (
	"testing"
)

func TestWhereWhatCannotBeSeenIsMarked(t *testing.T) {
	for text, want := range map[string]string{
		"plain\r\n": "plain \n",
		"<p>a\u202eb</p><input name=\"x\" value=\"\u202e\u00e9\"> \u200d": "<p>a\ufffdb</p><input name=\"x\" value=\"&#8238;\u00e9\"> \ufffd",
		"<textarea id=\"t\">\n\u200d\r</textarea>\u200d":                  "<textarea id=\"t\">\n&#8205; </textarea>\ufffd",
		"\u200d<option value=\"\u200d\">\u200d<textarea>\u200d":           "\ufffd<option value=\"&#8205;\">\ufffd<textarea>&#8205;",
		"title=\"\u202e\" value=\"\u202e":                                 "title=\"\ufffd\" value=\"&#8238;",
		"\u202e\xff":                                                      "\ufffd\ufffd",
	} {
		if got := string(visibly([]byte(text))); got != want {
			t.Errorf("%+q is %+q, want %+q", text, got, want)
		}
	}
}
