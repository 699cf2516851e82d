// Package table makes the API's Tables, which `kubectl get` prints. Columns and cells are those of
// kube-apiserver, so that scripts keep working; nodes have three more (Site, Board, Last-Seen)
// behind `-o wide`, and our own kinds have columns of their own.
//
// It reads no clock (Options.Now) and no snapshot, serves nothing and sets no list metadata:
// hub/kube does.
package table

import (
	"cmp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/state"
)

// Options describe the requested table.
type Options struct {
	// Include is the content of rows[].object: metadata only ("" or Metadata), nothing (None) or
	// the whole object (Object).
	Include metav1.IncludeObjectPolicy
	// NoHeaders omits the column definitions, as in every event of a watch but the first.
	NoHeaders bool
	// Now is the time to which ages are counted.
	Now time.Time
	// LastSeen returns when the hub last received a sign of life of a node, the zero time for
	// never. nil: the column says <unknown>.
	LastSeen func(node string) time.Time
	// Object returns the content of a row with the whole object: in the requested version, with
	// kind and apiVersion. nil: the stored version.
	Object func(state.Object) runtime.Object
}

// A layout says how objects of one kind are shown.
type layout struct {
	columns []metav1.TableColumnDefinition
	cells   func(state.Object, *Options) []any // one for each column
}

// layouts is filled by the files with the cells.
var layouts = map[state.Kind]layout{}

// show registers the layout of a kind. A kind without cells has no objects.
func show(k state.Kind, columns []metav1.TableColumnDefinition, cells func(state.Object, *Options) []any) {
	layouts[k] = layout{columns, cells}
}

// plain is the layout of all other kinds.
var plain = layout{columns("Name", "Created At"), func(o state.Object, _ *Options) []any {
	return []any{o.GetName(), o.GetCreationTimestamp().UTC().Format(time.RFC3339)}
}}

// For makes a table of objects of one kind. Every row has all cells, because the client hides those
// of priority 1 itself. The objects stay unchanged.
func For(kind state.Kind, objs []state.Object, o Options) *metav1.Table {
	l, ok := layouts[kind]
	if !ok || l.cells == nil && len(objs) > 0 {
		l = plain
	}
	t := &metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: metav1.SchemeGroupVersion.String()},
		Rows:     make([]metav1.TableRow, 0, len(objs)),
	}
	if !o.NoHeaders {
		t.ColumnDefinitions = l.columns
	}
	for _, obj := range objs {
		t.Rows = append(t.Rows, metav1.TableRow{
			Cells:      l.cells(obj, &o),
			Conditions: rowConditions(obj),
			Object:     runtime.RawExtension{Object: rowObject(obj, &o)},
		})
	}
	return t
}

func rowObject(obj state.Object, o *Options) runtime.Object {
	switch {
	case o.Include == metav1.IncludeNone:
		return nil
	case o.Include == metav1.IncludeObject && o.Object != nil:
		return o.Object(obj)
	case o.Include == metav1.IncludeObject:
		whole := obj.DeepCopyObject()
		whole.GetObjectKind().SetGroupVersionKind(state.KindOf(obj).GroupVersionKind())
		return whole
	}
	m := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{
		Kind: "PartialObjectMetadata", APIVersion: metav1.SchemeGroupVersion.String(),
	}}
	if accessor, ok := obj.(metav1.ObjectMetaAccessor); ok {
		if meta, ok := accessor.GetObjectMeta().(*metav1.ObjectMeta); ok {
			m.ObjectMeta = *meta  // shared with the stored object, which is immutable
			m.ManagedFields = nil // long, and no table client reads them
		}
	}
	return m
}

// columns makes column definitions from words such as "Name", "(w)Node" and "Desired(i)": (w) is
// shown with -o wide only, (i) is an integer. One argument may hold several words without spaces in
// their names.
func columns(names ...string) (defs []metav1.TableColumnDefinition) {
	if len(names) == 1 {
		names = strings.Fields(names[0])
	}
	for _, name := range names {
		d := metav1.TableColumnDefinition{Type: "string"}
		name, wide := strings.CutPrefix(name, "(w)")
		if wide {
			d.Priority = 1
		}
		if d.Name = strings.TrimSuffix(name, "(i)"); d.Name != name {
			d.Type = "integer"
		}
		if bare := strings.TrimSuffix(d.Name, "(b)"); bare != d.Name {
			d.Name, d.Type = bare, "boolean"
		}
		if d.Name == "Name" {
			d.Format = "name"
		}
		d.Description = descriptions[d.Name]
		defs = append(defs, d)
	}
	return defs
}

// descriptions explain the columns that need it.
var descriptions = map[string]string{
	"Age":                 "Time since the object was created.",
	"Allowed Disruptions": "How many pods may be evicted now.",
	"Board":               "The device's kind of board.",
	"Held":                "Why nothing is evicted while nodes wait.",
	"Last-Seen":           "Time since the device's last sign of life.",
	"Name":                "Name of the object, unique in its namespace.",
	"Not-Ready":           "Counted nodes that are not ready.",
	"Power":               "What the firmware reports, such as UnderVoltage.",
	"Rate":                "Nodes per second that may be tainted NoExecute now.",
	"Reported":            "Age of the report.",
	"Restarts":            "How often containers were restarted, and when last.",
	"Roles":               "The roles of the node, from its labels.",
	"Site":                "The place (zone) of the node.",
	"Storage":             "The worst state of its disks.",
	"Temperature":         "Temperature of the warmest sensor.",
	"Waiting":             "Not-ready nodes that wait for their NoExecute taint.",
}

func age(t metav1.Time, o *Options) string { return since(t.Time, o) }

func since(t time.Time, o *Options) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(o.Now.Sub(t))
}

func orNone(s string) string    { return cmp.Or(s, "<none>") }
func orUnknown(s string) string { return cmp.Or(s, "<unknown>") }
