package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// There is one file per day of UTC, a sequence of blocks. A block begins with magic, then the
// length and the CRC-32C of the rest. For each node follow the length of its UID (1 byte), the UID,
// the first slot of the day and the number of slots (2 bytes each), and that many words. Numbers
// are little-endian. A later block overrides an earlier one. A torn or damaged file is cut off at
// the damage.
const (
	magic    = "FLh1"
	header   = len(magic) + 8
	maxBlock = 256 << 20 // bytes
	suffix   = ".samples"
)

var table = crc32.MakeTable(crc32.Castagnoli)

// Open reads the stored files. It logs errors and leaves the unreadable data out, because samples
// must never keep a hub from starting.
func Open(c Config) *History {
	h := &History{Config: c, nodes: map[types.UID]*ring{}}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		c.Log.Warn("samples cannot be stored", "err", err)
	}
	now := c.Now()
	h.saved = slotOf(now) - 1
	there := map[types.UID]bool{}
	for n := range c.Fleet().All(state.Nodes, "") {
		there[n.GetUID()] = true
	}
	first, _ := split(slotOf(now.Add(-c.Life)))
	last, _ := split(slotOf(now))
	for number := first; number <= last; number++ {
		body, err := os.ReadFile(h.file(number))
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				c.Log.Warn("a file of samples cannot be read", "err", err)
			}
			continue
		}
		good := h.read(body, number, slotOf(now), there)
		if good == len(body) {
			continue
		}
		c.Log.Warn("the end of a file of samples is damaged, as after a power cut: it is ignored",
			"file", h.file(number), "bytes",
			len(body)-good)
		if err := os.Truncate(h.file(number), int64(good)); err != nil {
			c.Log.Warn("samples of today are lost at the next restart: remove the file", "err", err)
		}
	}
	return h
}

func (h *History) file(number int64) string {
	return filepath.Join(h.Dir, time.Unix(number*24*60*60, 0).UTC().Format(time.DateOnly)+suffix)
}

// read reads the blocks of a day, and returns how many bytes are valid. It ignores samples of
// unknown nodes and of the future.
func (h *History) read(body []byte, number, now int64, there map[types.UID]bool) (good int) {
	for rest := body; len(rest) > 0; rest = body[good:] {
		if len(rest) < header || string(rest[:len(magic)]) != magic {
			return good
		}
		size, sum := binary.LittleEndian.Uint32(rest[len(magic):]), binary.LittleEndian.Uint32(rest[len(magic)+4:])
		if size > maxBlock || int(size) > len(rest)-header {
			return good
		}
		block := rest[header : header+int(size)]
		if crc32.Checksum(block, table) != sum {
			return good
		}
		for len(block) > 0 {
			n := int(block[0]) + 1
			if len(block) < n+4 {
				return good
			}
			uid := types.UID(block[1:n])
			at, count := int64(binary.LittleEndian.Uint16(block[n:])), int(binary.LittleEndian.Uint16(block[n+2:]))
			if block = block[n+4:]; len(block) < 8*count || at+int64(count) > int64(perDay) {
				return good
			}
			for i := range count {
				slot := number*int64(perDay) + at + int64(i)
				if w := Word(binary.LittleEndian.Uint64(block[8*i:])); w != 0 && there[uid] && slot <= now {
					h.ring(uid).put(slot, w)
				}
			}
			block = block[8*count:]
		}
		good += header + int(size)
	}
	return good
}

// save appends the new samples, and removes files of expired days. It also writes the running slot,
// and writes it again the next time.
func (h *History) save() error {
	now := h.Now()
	last := slotOf(now)
	for first := h.saved; first <= last; {
		number, _ := split(first)
		end := min(last, (number+1)*int64(perDay)-1)
		if block := h.block(first, end); len(block) > header {
			if err := appendTo(h.file(number), block); err != nil {
				return fmt.Errorf("store samples: %w", err)
			}
		}
		first = end + 1
		h.saved = min(first, last)
	}
	oldest, _ := split(slotOf(now.Add(-h.Life)))
	entries, err := os.ReadDir(h.Dir)
	for _, e := range entries {
		name, ours := strings.CutSuffix(e.Name(), suffix)
		if day, wrong := time.Parse(time.DateOnly, name); ours && wrong == nil && day.Unix()/(24*60*60) < oldest {
			err = errors.Join(err, os.Remove(filepath.Join(h.Dir, e.Name())))
		}
	}
	return err
}

// block returns the samples of all nodes from slot first to slot last of a day.
func (h *History) block(first, last int64) []byte {
	_, in := split(first)
	h.mu.RLock()
	defer h.mu.RUnlock()
	b := make([]byte, header, header+len(h.nodes)*(64+8*int(last-first+1)))
	for _, uid := range slices.Sorted(maps.Keys(h.nodes)) {
		r, from, to := h.nodes[uid], first, last
		for from <= to && r.at(from) == 0 {
			from++
		}
		for from <= to && r.at(to) == 0 {
			to--
		}
		if from > to || len(uid) > 255 {
			continue
		}
		b = append(append(b, byte(len(uid))), uid...)
		b = binary.LittleEndian.AppendUint16(b, uint16(in+int(from-first)))
		b = binary.LittleEndian.AppendUint16(b, uint16(to-from+1))
		for ; from <= to; from++ {
			b = binary.LittleEndian.AppendUint64(b, uint64(r.at(from)))
		}
	}
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[len(magic):], uint32(len(b)-header))
	binary.LittleEndian.PutUint32(b[len(magic)+4:], crc32.Checksum(b[header:], table))
	return b
}

// appendTo appends a block to a file. After an incomplete write it truncates the file to its former
// size.
func appendTo(name string, block []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	before, err := f.Stat()
	if err == nil {
		if _, err = f.Write(block); err == nil {
			err = f.Sync()
		}
		if err != nil {
			err = errors.Join(err, f.Truncate(before.Size()))
		}
	}
	return errors.Join(err, f.Close())
}
