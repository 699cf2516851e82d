package serve

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// Whatever Nodes and Records hold is read as encoding/json reads it: what is as usual, at once.
func TestWhatThisHubHasWrittenIsReadAtOnce(t *testing.T) {
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), serializer.NewCodecFactory(runtime.NewScheme()))
	var k reader
	k.begin()
	usual := func(m map[string]string) (out map[string]string) { // with names as Kubernetes allows them
		for _, v := range m {
			if out == nil {
				out = map[string]string{}
			}
			out[fmt.Sprintf("example.com/a-%d", len(out))] = v
		}
		return out
	}
	reads := func(o state.Object, read func(text []byte, o state.Object) state.Object) {
		t.Helper()
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		got, want := reflect.New(reflect.TypeOf(o).Elem()).Interface().(state.Object), reflect.New(reflect.TypeOf(o).Elem()).Interface().(state.Object)
		if err := json.Unmarshal(text, want); err != nil {
			t.Fatal(err)
		}
		lent := []byte(string(text))
		got = read(lent, got)
		for i := range lent {
			lent[i] = 'x' // the text of the next row
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s is\n%#v, want\n%#v", text, got, want)
		}
	}
	for range 500 {
		node, record := &corev1.Node{}, &state.Record{}
		fill.Fill(node)
		fill.Fill(record)
		for _, o := range []state.Object{node, record} {
			reads(o, func(text []byte, _ state.Object) state.Object {
				got, _, err := k.object(store.Row{Kind: string(state.KindOf(o)), Namespace: o.GetNamespace(), Name: o.GetName(), Object: text})
				if err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				return got
			})
			o.SetLabels(usual(o.GetLabels()))
			o.SetAnnotations(usual(o.GetAnnotations()))
			record.Generation, record.LeaseSeconds = record.Generation&0xffff, record.LeaseSeconds&0xfff
			if record.Given != nil {
				record.Given.Labels = usual(record.Given.Labels)
			}
			reads(o, func(text []byte, got state.Object) state.Object {
				if !k.written(text, got) {
					t.Fatalf("it takes JSON's rules to read\n%s", text)
				}
				return got
			})
		}
	}
}

// Nodes that are read at once share their words, as others do: all but what is a node's own.
func TestNodesThatAreReadAtOnceShareTheirWords(t *testing.T) {
	var k reader
	read := func(name string) *corev1.Node {
		text := fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"kubernetes.io/hostname":%q,"kubernetes.io/os":"linux"}},"status":{"conditions":[{"type":"Ready","status":"True","message":"is posting"}],"nodeInfo":{"machineID":"m","osImage":"Debian"},"images":[{"names":["example.com/a:1"]}]}}`, name, name)
		o, _, err := k.object(store.Row{Kind: "nodes", Name: name, Object: []byte(text)})
		if err != nil || !k.written([]byte(text), &corev1.Node{}) {
			t.Fatal(err)
		}
		return o.(*corev1.Node)
	}
	a, b := read("node-1"), read("node-2")
	for _, words := range [][2]string{
		{a.Labels["kubernetes.io/os"], b.Labels["kubernetes.io/os"]},
		{a.Status.Conditions[0].Message, b.Status.Conditions[0].Message},
		{a.Status.NodeInfo.OSImage, b.Status.NodeInfo.OSImage},
		{a.Status.Images[0].Names[0], b.Status.Images[0].Names[0]},
		{b.Labels["kubernetes.io/hostname"], b.Name},
	} {
		if words[0] == "" || words[0] != words[1] || unsafe.StringData(words[0]) != unsafe.StringData(words[1]) {
			t.Errorf("%q and %q are not one", words[0], words[1])
		}
	}
	if again := read("node-1"); unsafe.StringData(again.Name) == unsafe.StringData(a.Name) {
		t.Error("a name is kept that is a node's own")
	}
}
