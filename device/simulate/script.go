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

// A target is a device of a script.
type target = int

// targets returns the devices, counted from 1, that a word of a script means: 3, 4..6,
// sim-0003, site-02 or all.
func (o Options) targets(word string) ([]target, error) {
	first, last, many := strings.Cut(word, "..")
	from, err := strconv.Atoi(first)
	to := from
	if many && err == nil {
		to, err = strconv.Atoi(last)
	}
	var out []target
	for n := 1; n <= o.Count; n++ {
		if word == "all" || word == NodeName(o.Prefix, n) || word == SiteName(n, o.Sites) ||
			err == nil && from <= n && n <= to {
			out = append(out, n)
		}
	}
	if err == nil && (from < 1 || to > o.Count || from > to) || len(out) == 0 {
		return nil, fmt.Errorf("%s: there are %s to %s (1..%d) on %s to %s; see --count and --sites",
			word, NodeName(o.Prefix, 1), NodeName(o.Prefix, o.Count), o.Count, SiteName(1, o.Sites), SiteName(o.Sites, o.Sites))
	}
	return out, nil
}

// checkScript says what of the script these devices cannot do, and holds every end to what it ends
// and every beginning to what has begun already: by the devices that are meant, however they are
// written.
func (o Options) checkScript() (errs []error) {
	if o.Script == nil {
		return nil
	}
	type effectOn struct {
		verb, word string
		device     target
	}
	since := map[effectOn]*event{}
	for i := range o.Script.events {
		e := &o.Script.events[i]
		wrong := func(err error) { errs = append(errs, fmt.Errorf("%s:%d: %w", o.Script.name, e.line, err)) }
		v := verbs[e.verb]
		tells := e.verb != "undervoltage"
		var devices []target
		for _, name := range v.devices(*e) {
			of, err := o.targets(name)
			if err != nil {
				wrong(err)
				tells = true
			}
			for _, n := range of {
				tells = tells || boardOf(n, "").pi()
			}
			devices = append(devices, of...)
		}
		if !tells {
			wrong(fmt.Errorf("%s: only Raspberry Pis tell of their supply, and none of these is one", e))
		}
		if e.verb == "return" {
			for _, n := range devices {
				for _, verb := range returns {
					delete(since, effectOn{verb, "", n})
				}
			}
		}
		if !v.lasts {
			continue
		}
		words, ended, twice := e.what, false, error(nil)
		if v.of == "nodes" {
			words = []string{""}
		}
		for _, word := range words {
			for _, n := range devices {
				at := effectOn{e.verb, word, n}
				b := since[at]
				goes := b != nil && b.line != e.line && (b.length == 0 || b.at+b.length > e.at)
				if ended = ended || goes; goes && !e.end && twice == nil {
					twice = fmt.Errorf("%s: it goes on for %s since line %d", e, NodeName(o.Prefix, n), b.line)
				}
				if since[at] = e; e.end {
					delete(since, at)
				}
			}
		}
		switch {
		case e.end && !ended && len(devices) > 0:
			wrong(fmt.Errorf("%s: nothing is there to end: no line before it has begun that", e))
		case twice != nil:
			wrong(twice)
		}
	}
	return errs
}

// returns are the verbs whose effects return ends.
var returns = []string{"silence", "flap", "slow"}

// devices are the words that say on which devices an event happens.
func (v verb) devices(e event) []string {
	switch {
	case v.of == "nodes":
		return e.what
	case len(e.on) > 0:
		return e.on
	}
	return []string{"all"}
}

// Words is what a script can say, for people.
func Words() string {
	return `  30s    crash till exit=1 after=4s log="no prices"   the pods of workload till crash, now and after each start (oom=true; on=site-02)
  0s     missing example.org/menu:2                   the registry does not have that image (says="..." for another error)
  1m     silence site-02 for=7m                       the line of a site or a node is dead; return site-02 mends it
  2m     flap 3 down=60s up=30s for=6m                the line dies and comes back
  4m     slow 6 rate=2000 latency=900ms               bytes a second, and one way's time
  45s    undervoltage 1 for=5m                        of Raspberry Pis
  90s    heat 6 celsius=84                            from 80 on the processor is throttled
  150s   disk 7 free=4%                               memory 7 free=2% likewise
  6m     restart 1 down=20s                           a power cut and a boot
  7m     update 4 version=0.2.0                       of the agent; containers go on
  8m     end crash till                               what lasts ends so, or after its for=
  10m    loop                                         all of it begins anew

Nodes are 3, 4..6, sim-0003, site-02 or all. Lines stand in the order of their time, and # begins a comment.
--speed divides every time but latency; the hub's and the agent's own (grace, toleration, back-off) stay what they are.`
}
