package workload

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// indexes are completion indexes.
type indexes map[int32]bool

// parseIndexes reads indexes as a Job's status has them: "1,3-5". What is no number
// is left out, as is what does not come in order.
func parseIndexes(text string) indexes {
	all := indexes{}
	last := int64(-1)
	for part := range strings.SplitSeq(text, ",") {
		from, to, span := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.ParseInt(from, 10, 32)
		b := a
		if span && err == nil {
			b, err = strconv.ParseInt(to, 10, 32)
		}
		if err != nil || a <= last || b < a || b >= mostIndexes {
			continue
		}
		last = b
		for i := a; i <= b; i++ {
			all[int32(i)] = true
		}
	}
	return all
}

// mostIndexes is Kubernetes' bound of an Indexed Job's completions.
const mostIndexes = 100_000

func (x indexes) add(i int32)      { x[i] = true }
func (x indexes) has(i int32) bool { return x[i] }
func (x indexes) len() int32       { return int32(len(x)) }

// below forgets the indexes from end on.
func (x indexes) below(end int32) {
	maps.DeleteFunc(x, func(i int32, _ bool) bool { return i >= end })
}

func (x indexes) within(y indexes) indexes {
	both := indexes{}
	for i := range x {
		if y[i] {
			both[i] = true
		}
	}
	return both
}

func (x indexes) String() string {
	var b strings.Builder
	list := slices.Sorted(maps.Keys(x))
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(list[i])))
		switch {
		case j == i+1:
			b.WriteString("," + strconv.Itoa(int(list[j])))
		case j > i+1:
			b.WriteString("-" + strconv.Itoa(int(list[j])))
		}
		i = j + 1
	}
	return b.String()
}
