package boothelper_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"path"
)

// An inode is a file and its durable text, the part that survives a power cut.
type inode struct{ text, durable []byte }

// A cut says which unsynced data survives a power cut.
type cut struct {
	names bool // new names survive
	last  bool // only the newest name survives: unsynced names have no order
	text  int  // how much new text survives: 0 none, 1 the first half, 2 all
}

var cuts = []cut{
	{},
	{names: true},
	{names: true, text: 1},
	{names: true, text: 2},
	{text: 1},
	{text: 2},
	{last: true, text: 2},
}

// fault counts a call and returns its injected error.
func (w *fakeBoard) fault(dir string, frees bool) error {
	if w.fails == nil {
		return nil
	}
	err := w.fails(w.calls+1, dir, frees)
	if err != nil {
		w.calls++
	}
	return err
}

func (w *fakeBoard) call() error {
	w.calls++
	if w.calls == w.stopAt {
		panic(w.stop)
	}
	return nil
}

func (w *fakeBoard) Read(name string) ([]byte, error) {
	if i := w.names[name]; i != nil {
		return bytes.Clone(i.text), nil
	}
	return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
}

func (w *fakeBoard) Write(name string, text []byte) error {
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

func (w *fakeBoard) Sync(name string) error {
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

func (w *fakeBoard) SyncDir(dir string) error {
	err := w.fault(dir, true) // a removal needs no space
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

func (w *fakeBoard) Rename(from, to string) error {
	if err := w.fault(path.Dir(to), false); err != nil {
		return err
	}
	w.names[to] = w.names[from]
	delete(w.names, from)
	w.renamed = to
	return w.call()
}

func (w *fakeBoard) Remove(name string) error {
	if err := w.fault(path.Dir(name), true); err != nil {
		return err
	}
	delete(w.names, name)
	return w.call()
}

func (w *fakeBoard) put(name string, text []byte) {
	i := &inode{bytes.Clone(text), bytes.Clone(text)}
	w.names[name], w.saved[name] = i, i
}
