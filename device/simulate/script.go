package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Night is the name of the built-in script.
const Night = "night"

//go:embed night.txt
var night []byte

// Limits of a script.
const (
	maxScript = 256 << 10 // bytes
	maxEvents = 2000
	maxTime   = 7 * 24 * time.Hour
	maxLines  = 20 // lines of a container's log
)

// A Script lists events of simulated devices. A line has a time since the start, a verb, its
// targets, and options:
//
//	1m  silence site-02 for=7m
//
// Lines are sorted by time. An event ends after its for=, by a line such as "8m end silence
// site-02", with the script's loop, or never.
type Script struct {
	name   string
	events []event
	loop   time.Duration // time at which the script starts again; 0: never
}

// An event is a line of a script.
type event struct {
	line   int
	at     time.Duration
	end    bool // the line ends an earlier event
	verb   string
	what   []string // targets: nodes and sites, or pods, or images
	on     []string // nodes and sites of the pods in what; empty: all
	length time.Duration
	how    effect
}

func (e event) String() string {
	s := e.verb + " " + strings.Join(e.what, " ")
	if e.end {
		s = "end " + s
	}
	if len(e.on) > 0 {
		s += " on=" + strings.Join(e.on, ",")
	}
	return s
}

// An effect holds the options of an event.
type effect struct {
	exit           int
	oom            bool
	after          time.Duration
	log            []string
	down, up       time.Duration
	rate           int64 // bytes per second
	latency        time.Duration
	celsius        float64
	free           float64 // available share
	version        string
	says           string
	throttles, low bool
}

// A verb is a kind of event, with its targets and options.
type verb struct {
	of      string // kind of target: nodes, pods or images
	lasts   bool   // the event lasts until it is ended
	options string // option names, each between spaces
	begins  effect // default options
}

// verbs are all verbs. The tests of package control have silence and return too, with the same
// meaning.
var verbs = map[string]verb{
	"silence": {of: "nodes", lasts: true},
	"flap": {of: "nodes", lasts: true, options: " down up ",
		begins: effect{down: time.Minute, up: 30 * time.Second}},
	"slow": {of: "nodes", lasts: true, options: " rate latency ",
		begins: effect{rate: 2000, latency: 600 * time.Millisecond}},
	"return":       {of: "nodes"},
	"undervoltage": {of: "nodes", lasts: true, begins: effect{low: true}},
	"heat":         {of: "nodes", lasts: true, options: " celsius ", begins: effect{celsius: 84, throttles: true}},
	"disk":         {of: "nodes", lasts: true, options: " free ", begins: effect{free: .04}},
	"memory":       {of: "nodes", lasts: true, options: " free ", begins: effect{free: .02}},
	"restart":      {of: "nodes", options: " down ", begins: effect{down: 20 * time.Second}},
	"update":       {of: "nodes", options: " version ", begins: effect{}},
	"crash": {of: "pods", lasts: true, options: " exit oom after log on ",
		begins: effect{exit: 1, after: 2 * time.Second}},
	"missing": {of: "images", lasts: true, options: " says "},
}

// LoadScript reads the built-in script, by its name, or a file. The error lists every mistake with
// its line.
func LoadScript(name string) (*Script, error) {
	if name == Night {
		return ParseScript(name, night)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--script: %w (%s is built in)", err, Night)
	}
	return ParseScript(name, text)
}

// ParseScript parses a script; errors begin with name.
func ParseScript(name string, text []byte) (*Script, error) {
	s := &Script{name: name}
	if len(text) > maxScript || !utf8.Valid(text) {
		return nil, fmt.Errorf("%s: a script is text of at most %d KiB", name, maxScript>>10)
	}
	var errs []error
	number, last := 0, time.Duration(0)
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s:%d: %w", name, number, fmt.Errorf(format, args...)))
	}
	for line := range bytes.Lines(text) {
		number++
		words, err := split(strings.TrimSpace(string(line)))
		switch {
		case err != nil:
			wrong("%w", err)
			continue
		case len(words) == 0:
			continue
		case s.loop > 0:
			wrong("nothing comes after loop")
			continue
		}
		e := event{line: number}
		at, err := duration(words[0], 0, maxTime)
		switch {
		case err != nil:
			wrong("a line must begin with its time since the start, such as 1m30s: %w", err)
			continue
		case at < last:
			wrong("%s comes after %s: sort the lines by time", at, last)
		}
		e.at = at
		last = max(at, last)
		if len(words) == 2 && words[1] == "loop" {
			if s.loop = at; at < time.Second {
				wrong("loop at %s: a script lasts at least a second", at)
				s.loop = time.Second
			}
			continue
		}
		before := len(errs)
		e.read(words[1:], wrong)
		if len(errs) == before {
			s.events = append(s.events, e)
		}
	}
	if len(s.events) == 0 && len(errs) == 0 {
		wrong("the script has no events")
	}
	if len(s.events) > maxEvents {
		wrong("the script has %d events: at most %d", len(s.events), maxEvents)
	}
	return s, errors.Join(errs...)
}

// read parses the part of a line after its time.
func (e *event) read(words []string, wrong func(format string, args ...any)) {
	if len(words) > 0 && words[0] == "end" {
		e.end, words = true, words[1:]
	}
	if len(words) == 0 {
		wrong("a verb is missing after the time")
		return
	}
	e.verb = words[0]
	v, known := verbs[e.verb]
	switch {
	case !known:
		wrong("unknown verb %q: use %s, end or loop", e.verb, strings.Join(sortedVerbs(), ", "))
		return
	case e.end && !v.lasts:
		wrong("%s cannot be ended", e.verb)
		return
	}
	e.how = v.begins
	given := map[string]bool{}
	for _, w := range words[1:] {
		key, value, option := strings.Cut(w, "=")
		switch {
		case !option:
			if slices.Contains(e.what, w) {
				wrong("%s is given twice", w)
			}
			e.what = append(e.what, w)
		case given[key] && key != "log":
			wrong("%s= is given twice", key)
		case e.end && key != "on" || key == "for" && !v.lasts || key != "for" && !strings.Contains(v.options, " "+key+" "):
			wrong("%s= is not an option of %s", key, e)
		default:
			given[key] = true
			if err := e.set(key, value); err != nil {
				wrong("%s=%s: %w", key, value, err)
			}
		}
	}
	if len(e.what) == 0 {
		wrong("%s which %s?", e.verb, v.of)
	}
	if e.verb == "update" && e.how.version == "" {
		wrong("update needs version=, such as version=0.2.0")
	}
}

// set parses an option.
func (e *event) set(key, value string) (err error) {
	h := &e.how
	switch key {
	case "for":
		e.length, err = duration(value, time.Millisecond, maxTime)
	case "down":
		h.down, err = duration(value, time.Millisecond, maxTime)
	case "up":
		h.up, err = duration(value, time.Millisecond, maxTime)
	case "after":
		h.after, err = duration(value, 0, time.Hour)
	case "latency":
		h.latency, err = duration(value, 0, time.Minute)
	case "exit":
		h.exit, err = strconv.Atoi(value)
		if err != nil || h.exit < 0 || h.exit > 255 {
			err = errors.New("an exit code is 0 to 255")
		}
	case "oom":
		h.oom, err = strconv.ParseBool(value)
		if h.oom {
			h.exit = 137
		}
	case "log":
		if h.log = append(h.log, value); len(h.log) > maxLines {
			err = fmt.Errorf("at most %d lines", maxLines)
		}
	case "on":
		e.on = strings.Split(value, ",")
	case "rate":
		h.rate, err = strconv.ParseInt(strings.TrimSuffix(value, "B"), 10, 64)
		if err != nil || h.rate < 100 {
			err = errors.New("must be bytes per second, at least 100")
		}
	case "celsius":
		h.celsius, err = strconv.ParseFloat(value, 64)
		if err != nil || !(h.celsius > -60 && h.celsius < 150) {
			err = errors.New("must be degrees Celsius, such as 84")
		}
		h.throttles = h.celsius >= 80
	case "free":
		number, percent := strings.CutSuffix(value, "%")
		h.free, err = strconv.ParseFloat(number, 64)
		if h.free /= 100; err != nil || !percent || !(h.free >= 0 && h.free <= 1) {
			err = errors.New("must be a percentage, such as 4%")
		}
	case "version":
		if h.version = value; value == "" || len(value) > 40 {
			err = errors.New("must have 1 to 40 characters")
		}
	case "says":
		h.says = value
	}
	return err
}

// split splits a line into words. Quotes keep words together, and # begins a comment.
func split(line string) (words []string, err error) {
	var word []rune
	quoted, has := false, false
	for i, r := range line {
		switch {
		case r == '"':
			quoted, has = !quoted, true
		case quoted:
			word = append(word, r)
		case r == '#' && !has:
			return words, nil
		case r == ' ' || r == '\t':
			if has {
				words = append(words, string(word))
			}
			word, has = nil, false
		case r < ' ':
			return nil, fmt.Errorf("character %d is a control character", i+1)
		default:
			word, has = append(word, r), true
		}
	}
	if quoted {
		return nil, errors.New(`a " is not closed`)
	}
	if has {
		words = append(words, string(word))
	}
	return words, nil
}

func duration(text string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration", text)
	}
	if d < least || d > most {
		return 0, fmt.Errorf("%s is not between %s and %s", text, least, most)
	}
	return d, nil
}

func sortedVerbs() (names []string) {
	for name := range verbs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
