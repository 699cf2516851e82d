package enginetest

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"flotilla.dev/device/engine"
)

// streamCases are the promises about logs, commands, usage and events.
var streamCases = []conformanceCase{
	{"a log keeps stdout and stderr apart", func(k *kit) {
		id := k.start(k.spec("print one then complain oops then print two words"))
		k.await(id, engine.Exited)
		out, problems := k.said(id, everything)
		k.equal(out, "one\ntwo words\n")
		k.equal(problems, "oops\n")
	}},
	{"the log of a terminal is one stream", func(k *kit) {
		s := k.spec("print one then complain oops")
		s.TTY = true
		id := k.start(s)
		k.await(id, engine.Exited)
		out, problems := k.said(id, everything)
		k.equal(strings.ReplaceAll(out, "\r\n", "\n"), "one\noops\n")
		k.equal(problems, "")
	}},
	{"a log can be cut to its last lines", func(k *kit) {
		id := k.start(k.spec("lines 10"))
		k.await(id, engine.Exited)
		out, _ := k.said(id, engine.LogOptions{Tail: 2})
		k.equal(out, "line 9\nline 10\n")
		out, _ = k.said(id, engine.LogOptions{Tail: 0})
		k.equal(out, "")
	}},
	{"lines can carry their time", func(k *kit) {
		id := k.start(k.spec("print hello you"))
		k.await(id, engine.Exited)
		out, _ := k.said(id, engine.LogOptions{Tail: -1, Timestamps: true})
		stamp, text, _ := strings.Cut(out, " ")
		k.equal(text, "hello you\n")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		k.must(err)
		if age := time.Since(at); age < -2*time.Second || age > 20*time.Second {
			k.Fatalf("it is from %s", at)
		}
	}},
	{"a log can begin at a moment", func(k *kit) {
		id := k.start(k.spec("print early then sleep 2500ms then print late"))
		c := k.await(id, engine.Exited)
		out, _ := k.said(id, engine.LogOptions{Tail: -1, Since: c.StartedAt.Add(1500 * time.Millisecond)})
		k.equal(out, "late\n")
	}},
	{"the log of a restarted container goes on", func(k *kit) {
		id := k.start(k.spec("print again"))
		k.await(id, engine.Exited)
		k.must(k.Start(k.ctx, id))
		k.await(id, engine.Exited)
		out, _ := k.said(id, everything)
		k.equal(out, "again\nagain\n")
	}},
	{"following a log lasts until the container ends", func(k *kit) {
		id := k.start(k.spec("lines 5 100ms then complain done"))
		out, problems := k.said(id, engine.LogOptions{Tail: -1, Follow: true})
		k.equal(out, "line 1\nline 2\nline 3\nline 4\nline 5\n")
		k.equal(problems, "done\n")
	}},
	{"following a log ends without an error when it is no longer wanted", func(k *kit) {
		id := k.start(k.spec("print hello then wait"))
		ctx, cancel := context.WithTimeout(k.ctx, 500*time.Millisecond)
		defer cancel()
		var out strings.Builder
		k.must(k.Logs(ctx, id, engine.LogOptions{Tail: -1, Follow: true}, &out, io.Discard))
		k.equal(out.String(), "hello\n")
	}},
	{"the log of what is not there is ErrNotFound", func(k *kit) {
		k.mustBe(k.Logs(k.ctx, "flotilla-test-nothing", everything, io.Discard, io.Discard), engine.ErrNotFound)
	}},
	{"a command in a container has its own output and exit code", func(k *kit) {
		s := k.spec("wait")
		s.Env = []string{"COLOUR=blue"}
		id := k.start(s)
		var out, problems strings.Builder
		code, err := k.Exec(k.ctx, id, strings.Fields("/tool env COLOUR then complain oops then exit 7"), &out, &problems)
		k.must(err)
		k.equal(code, 7)
		k.equal(out.String(), "blue\n")
		k.equal(problems.String(), "oops\n")
		logged, _ := k.said(id, everything)
		k.equal(logged, "")
	}},
	{"a command that is not there has exit code 126 or 127", func(k *kit) {
		id := k.start(k.spec("wait"))
		code, err := k.Exec(k.ctx, id, []string{"/nothing"}, io.Discard, io.Discard)
		k.must(err)
		if code != 126 && code != 127 {
			k.Fatalf("it has %d", code)
		}
	}},
	{"a command gives up with its context", func(k *kit) {
		id := k.start(k.spec("wait"))
		ctx, cancel := context.WithTimeout(k.ctx, 500*time.Millisecond)
		defer cancel()
		_, err := k.Exec(ctx, id, strings.Fields("/tool wait"), io.Discard, io.Discard)
		k.mustBe(err, context.DeadlineExceeded)
	}},
	{"a command in a container that does not run, or is not there, is an error", func(k *kit) {
		id := k.create(k.spec("wait"))
		if _, err := k.Exec(k.ctx, id, strings.Fields("/tool exit 0"), io.Discard, io.Discard); err == nil {
			k.Fatal("it ran")
		}
		_, err := k.Exec(k.ctx, "flotilla-test-nothing", strings.Fields("/tool exit 0"), io.Discard, io.Discard)
		k.mustBe(err, engine.ErrNotFound)
	}},
	{"a running container uses memory and processor time", func(k *kit) {
		id := k.start(k.spec("memory 32 then wait"))
		var used engine.Usage
		k.eventually(func() bool {
			var err error
			used, err = k.Usage(k.ctx, id)
			k.must(err)
			return used.MemoryBytes >= 32<<20
		}, func() string { return "it uses too little" })
		if used.MemoryBytes > 48<<20 {
			k.Fatalf("it uses %d MiB", used.MemoryBytes>>20)
		}
	}},
	{"what does not run uses nothing", func(k *kit) {
		used, err := k.Usage(k.ctx, k.create(k.spec("wait")))
		k.must(err)
		k.equal(used, engine.Usage{})
		_, err = k.Usage(k.ctx, "flotilla-test-nothing")
		k.mustBe(err, engine.ErrNotFound)
	}},
	{"events tell of starts, ends and removals, and only of containers with the label", func(k *kit) {
		ctx, cancel := context.WithCancel(k.ctx)
		var heard atomic.Int64
		end := make(chan error, 1)
		go func() { end <- k.Events(ctx, k.label, func() { heard.Add(1) }) }()
		hears := func(what string, do func()) {
			k.Helper()
			before := heard.Load()
			do()
			k.eventually(func() bool { return heard.Load() > before }, func() string { return "nothing was heard of: " + what })
			for before = -1; before != heard.Load(); { // until it is quiet again
				before = heard.Load()
				time.Sleep(200 * time.Millisecond)
			}
		}
		id, other := "", ""
		k.eventually(func() bool { return heard.Load() > 0 }, func() string { return "nothing was heard at the beginning" })
		hears("a creation", func() { id = k.create(k.spec("wait")) })
		hears("a start", func() { k.must(k.Start(k.ctx, id)) })
		quiet := heard.Load()
		_, err := k.Exec(k.ctx, id, strings.Fields("/tool exit 0"), io.Discard, io.Discard)
		k.must(err)
		s := k.spec("exit 0")
		s.Labels = map[string]string{"flotilla.test/case": "another"}
		other = k.start(s)
		k.must(k.Remove(k.ctx, other))
		time.Sleep(200 * time.Millisecond)
		k.equal(heard.Load(), quiet)
		hears("an end", func() { k.must(k.Stop(k.ctx, id, 10*time.Second)) })
		hears("a removal", func() { k.must(k.Remove(k.ctx, id)) })
		cancel()
		k.mustBe(<-end, context.Canceled)
	}},
}
