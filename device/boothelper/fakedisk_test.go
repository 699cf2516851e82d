package boothelper_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"path"
)

// An inode is a file with what of it would be there after a power cut.
type inode struct{ text, durable []byte }

// A cut is what a power cut leaves of what was not synced.
type cut struct {
	names bool // new names are there
	last  bool // only the newest of them is, for nothing orders those that are not synced
	text  int  // 0: nothing of new text; 1: its first half; 2: all of it
}

var cuts = []cut{{}, {names: true}, {names: true, text: 1}, {names: true, text: 2}, {text: 1}, {text: 2}, {last: true, text: 2}}

// fault is what the disk answers to the call that comes.
func (w *world) fault(dir string, frees bool) error {
	if w.fails == nil {
		return nil
	}
	err := w.fails(w.calls+1, dir, frees)
	if err != nil {
		w.calls++
	}
	return err
}

func (w *world) call() error {
	w.calls++
	if w.calls == w.stopAt {
		panic(w.stop)
	}
	return nil
}

func (w *world) Read(name string) ([]byte, error) {
	if i := w.names[name]; i != nil {
		return bytes.Clone(i.text), nil
	}
	return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
}

func (w *world) Write(name string, text []byte) error {
	i := w.names[name]
	if i == nil {
		i = &inode{}
		w.names[name] = i
	}
	if err := w.fault(path.Dir(name), false); err != nil {
		i.text = bytes.Clone(text[:len(text)/2])
		return err
	}
	i.text = bytes.Clone(text)
	return w.call()
}

func (w *world) Sync(name string) error {
	err := w.fault(path.Dir(name), false)
	if err == nil {
		err = w.call()
	}
	if err != nil {
		return err
	}
	w.names[name].durable = bytes.Clone(w.names[name].text)
	return nil
}

func (w *world) SyncDir(dir string) error {
	err := w.fault(dir, true) // it needs no room
	if err == nil {
		err = w.call()
	}
	if err != nil {
		return err
	}
	w.renamed = ""
	maps.DeleteFunc(w.saved, func(n string, _ *inode) bool { return path.Dir(n) == dir })
	for n, i := range w.names {
		if path.Dir(n) == dir {
			w.saved[n] = i
		}
	}
	return nil
}

func (w *world) Rename(from, to string) error {
	if err := w.fault(path.Dir(to), false); err != nil {
		return err
	}
	w.names[to] = w.names[from]
	delete(w.names, from)
	w.renamed = to
	return w.call()
}

func (w *world) Remove(name string) error {
	if err := w.fault(path.Dir(name), true); err != nil {
		return err
	}
	delete(w.names, name)
	return w.call()
}

func (w *world) put(name string, text []byte) {
	i := &inode{bytes.Clone(text), bytes.Clone(text)}
	w.names[name], w.saved[name] = i, i
}
