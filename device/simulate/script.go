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

// Night is the script that is built in, under this name.
const Night = "night"

//go:embed night.txt
var night []byte

// What a script may have at most.
const (
	maxScript = 256 << 10 // bytes
	maxEvents = 2000
	maxTime   = 7 * 24 * time.Hour
	maxLines  = 20 // of one container's log
)

// A Script says what happens to simulated devices, and when. A line of it is a moment
// since the start, a verb, what it is done to, and how:
//
//	1m  silence site-02 for=7m
//
// The lines stand in the order of their time. What begins ends after its for=, or by a line
// such as "8m end silence site-02", or with the script's loop; else never.
type Script struct {
	name   string
	events []event
	loop   time.Duration // it begins anew then; 0: never
}

// An event is a line of a script.
type event struct {
	line   int
	at     time.Duration
	end    bool // of what an earlier line began
	verb   string
	what   []string // nodes and sites, or pods, or images
	on     []string // nodes and sites on which pods are meant; none: all
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

// An effect is how an event is.
type effect struct {
	exit           int
	oom            bool
	after          time.Duration
	log            []string
	down, up       time.Duration
	rate           int64 // bytes a second
	latency        time.Duration
	celsius        float64
	free           float64 // share
	version        string
	says           string
	throttles, low bool
}

// A verb is what can happen: to what, with which options.
type verb struct {
	of      string // nodes, pods or images
	lasts   bool   // it has an end
	options string // each between spaces
	begins  effect // where no option says otherwise
}

// verbs are all that there are. Silence and return are those of the hub's stories.
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

// LoadScript reads the script that is built in, by its name, or a file. The error has every
// mistake with its line.
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

// ParseScript reads a script; name stands before its mistakes.
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
			wrong("a line begins with its time since the start, such as 1m30s: %w", err)
			continue
		case at < last:
			wrong("%s comes after %s: lines stand in the order of their time", at, last)
		}
		e.at = at
		last = max(at, last)
		if len(words) == 2 && words[1] == "loop" {
			if s.loop = at; at < time.Second {
				wrong("loop at %s: a script takes a second at least", at)
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
		wrong("nothing happens in it")
	}
	if len(s.events) > maxEvents {
		wrong("it has %d events: at most %d", len(s.events), maxEvents)
	}
	return s, errors.Join(errs...)
}

// read reads what stands after the time.
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
		wrong("%q is no verb: there are %s, end and loop", e.verb, strings.Join(sortedVerbs(), ", "))
		return
	case e.end && !v.lasts:
		wrong("%s has no end", e.verb)
		return
	}
	e.how = v.begins
	given := map[string]bool{}
	for _, w := range words[1:] {
		key, value, option := strings.Cut(w, "=")
		switch {
		case !option:
			if slices.Contains(e.what, w) {
				wrong("%s stands here twice", w)
			}
			e.what = append(e.what, w)
		case given[key] && key != "log":
			wrong("%s= stands here twice", key)
		case e.end && key != "on" || key == "for" && !v.lasts || key != "for" && !strings.Contains(v.options, " "+key+" "):
			wrong("%s= says nothing about %s", key, e)
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

// set reads an option.
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
			err = errors.New("it is bytes a second, 100 at least")
		}
	case "celsius":
		h.celsius, err = strconv.ParseFloat(value, 64)
		if err != nil || !(h.celsius > -60 && h.celsius < 150) {
			err = errors.New("it is degrees Celsius, such as 84")
		}
		h.throttles = h.celsius >= 80
	case "free":
		number, percent := strings.CutSuffix(value, "%")
		h.free, err = strconv.ParseFloat(number, 64)
		if h.free /= 100; err != nil || !percent || !(h.free >= 0 && h.free <= 1) {
			err = errors.New("it is a share, such as 4%")
		}
	case "version":
		if h.version = value; value == "" || len(value) > 40 {
			err = errors.New("it has 1 to 40 characters")
		}
	case "says":
		h.says = value
	}
	return err
}

// split takes a line apart. Quotes keep words together, and a # begins a comment.
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
		return nil, errors.New(`a " has no end`)
	}
	if has {
		words = append(words, string(word))
	}
	return words, nil
}

func duration(text string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is no time", text)
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
