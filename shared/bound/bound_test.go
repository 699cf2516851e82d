package bound

import (
	"encoding/json"
	"maps"
	"math"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// bombs are quantities that take minutes to parse or to compare.
var bombs = []string{
	"1e999999999", "1e-999999999", "-1E+999999999", "0e999999999", ".1e-00999999999", "1e9999999999999999999",
	"1e4294967277", strings.Repeat("9", 65), "0." + strings.Repeat("0", 100) + "1",
	" 1e999999999", "1e-999999999 ", "1e999999999\u00a0", // the JSON decoder removes the blanks
}

func TestQuantityText(t *testing.T) {
	for _, s := range bombs {
		if QuantityText(s) == nil {
			t.Errorf("QuantityText accepts %.40s", s)
		}
	}
	for _, s := range []string{"0", "4", "100m", "1.5Gi", "1E", "7Ei", "1e3", "1e-9", "12e00006", "1E18", "", "e",
		"hello", "1e5x", "1e99x", "100%"} {
		if err := QuantityText(s); err != nil {
			t.Errorf("%s: %v, want it accepted", s, err)
		}
	}
}

func TestQuantity(t *testing.T) {
	for _, c := range []struct {
		s  string
		ok bool
	}{
		{"0", true}, {"1e18", true}, {"-1e18", true}, {"1n", true}, {"999999999999999999", true}, {"1000000000000000000", true}, {"888Pi", true},
		{"1e19", false}, {"1000000000000000001", false}, {"-2e18", false}, {"8Ei", false}, {"1e20", false}, {"0e30", true},
	} {
		q, err := resource.ParseQuantity(c.s)
		if err != nil {
			t.Fatal(err)
		}
		if err := Quantity(q); (err == nil) != c.ok {
			t.Errorf("%s: %v, want it accepted: %t", c.s, err, c.ok)
		}
	}
	var huge resource.Quantity
	huge.SetScaled(1, 1<<30)
	if Quantity(huge) == nil {
		t.Error("Quantity accepts a computed quantity with 1e9 digits")
	}
}

// A text is checked only where its type has a quantity.
func TestText(t *testing.T) {
	const bomb = "1e999999999"
	cases := []struct {
		name, json string
		into       any
		ok         bool
	}{
		{"a capacity of a node", `{"status":{"capacity":{"cpu":"` + bomb + `"}}}`, &corev1.Node{}, false},
		{"a capacity as a number", `{"status":{"capacity":{"cpu":` + bomb + `}}}`, &corev1.Node{}, false},
		{"a capacity with an escape", `{"status":{"capacity":{"cpu":"1\u0065999999999"}}}`, &corev1.Node{}, false},
		{"a capacity with a name in other letters", `{"ſtatuS":{"Capacity":{"cpu":"` + bomb + `"}}}`, &corev1.Node{}, false},
		{"a request of a container", `{"spec":{"containers":[{"resources":{"requests":{"cpu":"` + bomb + `"}}}]}}`, &corev1.Pod{}, false},
		{"a limit of an init container in a template", `{"spec":{"template":{"spec":{"initContainers":[{"resources":{"limits":{"cpu":"` + bomb + `"}}}]}}}}`, &appsv1.Deployment{}, false},
		{"resources of a pod", `{"spec":{"resources":{"limits":{"cpu":"` + bomb + `"}}}}`, &corev1.Pod{}, false},
		{"overhead of a pod", `{"spec":{"overhead":{"cpu":"` + bomb + `"}}}`, &corev1.Pod{}, false},
		{"the size of an emptyDir, which is inline", `{"spec":{"volumes":[{"emptyDir":{"sizeLimit":"` + bomb + `"}}]}}`, &corev1.Pod{}, false},
		{"a divisor of an environment variable", `{"spec":{"containers":[{"env":[{"valueFrom":{"resourceFieldRef":{"divisor":"1e-999999999"}}}]}]}}`, &corev1.Pod{}, false},
		{"a divisor of a volume", `{"spec":{"volumes":[{"downwardAPI":{"items":[{"resourceFieldRef":{"divisor":"1e-999999999"}}]}}]}}`, &corev1.Pod{}, false},
		{"allocated resources of a status", `{"status":{"containerStatuses":[{"allocatedResources":{"cpu":"` + bomb + `"}}]}}`, &corev1.Pod{}, false},
		{"a capacity before a blank", `{"status":{"capacity":{"cpu":"1e-999999999 "}}}`, &corev1.Node{}, false},
		{"a limit after a newline", `{"spec":{"overhead":{"cpu":"\n` + bomb + `"}}}`, &corev1.Pod{}, false},
		{"a limit after a word", `{"metadata":{"name":"cpu-1e99-a"},"spec":{"overhead":{"cpu":"` + bomb + `"}}}`, &corev1.Pod{}, false},
		{"an environment variable", `{"spec":{"containers":[{"env":[{"name":"X","value":"` + bomb + `"}]}]}}`, &corev1.Pod{}, true},
		{"an annotation", `{"metadata":{"annotations":{"x":"` + bomb + `"}}}`, &corev1.Pod{}, true},
		{"a word of a command", `{"spec":{"containers":[{"command":["` + bomb + `"]}]}}`, &corev1.Pod{}, true},
		{"data of a config map", `{"data":{"cpu":"` + bomb + `"}}`, &corev1.ConfigMap{}, true},
		{"an unknown field", `{"speck":{"cpu":"` + bomb + `"}}`, &corev1.Pod{}, true},
		{"a long number", `{"x":` + strings.Repeat("1", 100) + `}`, &corev1.Pod{}, false},
		{"nesting of 32", strings.Repeat(`{"a":`, 32) + "1" + strings.Repeat("}", 32), &corev1.Pod{}, true},
		{"nesting of 33", strings.Repeat(`{"a":`, 33) + "1" + strings.Repeat("}", 33), &corev1.Pod{}, false},
		{"nesting in a string", `{"a":"` + strings.Repeat("[", 100) + `"}`, &corev1.Pod{}, true},
	}
	for _, c := range cases {
		if err := JSON([]byte(c.json), c.into); (err == nil) != c.ok {
			t.Errorf("JSON: %s: %v, want it accepted: %t", c.name, err, c.ok)
		}
		if err := YAML([]byte(c.json), c.into); (err == nil) != c.ok {
			t.Errorf("YAML: %s: %v, want it accepted: %t", c.name, err, c.ok)
		}
	}
	for _, c := range []struct {
		name, yaml string
		ok         bool
	}{
		{"a limit in blocks", "spec:\n  containers:\n  - resources:\n      limits:\n        cpu: 1e999999999\n", false},
		{"a limit with an escape", "spec:\n  overhead: {cpu: \"1\\x65999999999\"}\n", false},
		{"a limit with a folded line", "spec:\n  overhead: {cpu: \"1e99\\\n    9999999\"}\n", false},
		{"a limit by an alias", "metadata:\n  annotations: {a: &b \"1e999999999\"}\nspec:\n  overhead: {cpu: *b}\n", false},
		{"an environment variable in blocks", "spec:\n  containers:\n  - env: [{name: X, value: 1e999999999}]\n", true},
		{"aliases of aliases", laughs(), false},
		{"an alias that contains itself", "a: &a [*a]\n", false},
		{"nesting in flow", "a: " + strings.Repeat("[", 100) + strings.Repeat("]", 100), false},
		{"a harmless alias", "a: &a {b: c}\nd: *a\n", true},
	} {
		if err := YAML([]byte(c.yaml), &corev1.Pod{}); (err == nil) != c.ok {
			t.Errorf("YAML: %s: %v, want it accepted: %t", c.name, err, c.ok)
		}
	}
	// Without a type only size and depth are checked.
	for name, yaml := range map[string]string{
		"nesting in flow":               "a: " + strings.Repeat("[", 100) + strings.Repeat("]", 100),
		"aliases of aliases":            laughs(),
		"an alias that contains itself": "a: &a [*a]\n",
	} {
		if YAML([]byte(yaml), nil) == nil {
			t.Errorf("Document accepts %s", name)
		}
	}
}

// laughs is YAML whose aliases expand to a billion times its size.
func laughs() string {
	s := "a0: &a0 [lol,lol,lol,lol,lol,lol,lol,lol,lol]\n"
	for i := range 8 {
		a, b := string(rune('0'+i)), string(rune('1'+i))
		s += "a" + b + ": &a" + b + " [" + strings.TrimSuffix(strings.Repeat("*a"+a+",", 9), ",") + "]\n"
	}
	return s
}

func TestProto(t *testing.T) {
	scheme := runtime.NewScheme()
	_ = corev1.AddToScheme(scheme)
	codec := protobuf.NewSerializer(scheme, scheme)
	encode := func(p *corev1.Pod) []byte {
		p.APIVersion, p.Kind = "v1", "Pod"
		b, err := runtime.Encode(codec, p)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	huge := resource.MustParse("1e123456789") // Quantity has its own protobuf decoder, which computes nothing
	env := encode(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p",
		Annotations: map[string]string{"a": "1e999999999", "1e999999999": ""}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Env: []corev1.EnvVar{{Name: "1e999999999"}}}}}})
	if err := Proto(env, &corev1.Pod{}); err != nil {
		t.Errorf("an environment variable: %v", err)
	}
	for name, spec := range map[string]corev1.PodSpec{
		"a limit":                                {Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": huge}}}}},
		"the size of a volume":                   {Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &huge}}}}},
		"the divisor of an environment variable": {Containers: []corev1.Container{{Env: []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Divisor: huge}}}}}}},
		"overhead":                               {Overhead: corev1.ResourceList{"cpu": huge}},
	} {
		if Proto(encode(&corev1.Pod{Spec: spec}), &corev1.Pod{}) == nil {
			t.Errorf("Proto accepts %s", name)
		}
	}
}

func TestObject(t *testing.T) {
	huge := resource.MustParse("1e123456789")
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", Labels: map[string]string{"a": "b"}}}
		n.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("4")}
		change(n)
		return n
	}
	for _, c := range []struct {
		name string
		o    any
		want string // part of the error; empty: accepted
	}{
		{"a valid node", node(func(*corev1.Node) {}), ""},
		{"a capacity", node(func(n *corev1.Node) { n.Status.Capacity["cpu"] = huge }), "status.capacity[cpu]: quantity"},
		{"65 conditions", node(func(n *corev1.Node) { n.Status.Conditions = make([]corev1.NodeCondition, 65) }), "status.conditions: it has 65 entries"},
		{"257 images", node(func(n *corev1.Node) { n.Status.Images = make([]corev1.ContainerImage, 257) }), "status.images: it has 257"},
		{"33 addresses", node(func(n *corev1.Node) { n.Status.Addresses = make([]corev1.NodeAddress, 33) }), "status.addresses: it has 33"},
		{"65 taints", node(func(n *corev1.Node) { n.Spec.Taints = make([]corev1.Taint, 65) }), "spec.taints: it has 65"},
		{"65 labels", node(func(n *corev1.Node) {
			n.Labels = map[string]string{}
			for i := range 65 {
				n.Labels[strings.Repeat("x", i+1)] = ""
			}
		}), "metadata.labels: it has 65"},
		{"a NUL", &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Env: []corev1.EnvVar{{Value: "a\x00b"}}}}}}, "spec.containers[0].env[0].value: \"a\\x00b\" has a NUL"},
		{"bytes with a NUL", &corev1.Secret{Data: map[string][]byte{"k": {0}}}, ""},
		{"invalid UTF-8", &corev1.ConfigMap{Data: map[string]string{"k": "\xff"}}, "data[k]: \"\\xff\" is not valid UTF-8"},
		{"an invalid key", &corev1.ConfigMap{Data: map[string]string{"\xff": ""}}, "is not valid UTF-8"},
		{"NaN", struct{ Load float64 }{math.NaN()}, "Load: NaN is not a number"},
		{"an infinite number", struct{ Load float64 }{math.Inf(-1)}, "Load: -Inf is not a number"},
		{"a long string", &corev1.ConfigMap{Data: map[string]string{"k": strings.Repeat("x", MaxString+1)}}, "data[k]: it has 1048577 bytes"},
		{"a revision with a bomb in its data", &appsv1.ControllerRevision{Data: runtime.RawExtension{
			Raw: []byte(`{"spec":{"template":{"spec":{"overhead":{"cpu":"1e-999999999"}}}}}`)}}, "data: quantity"},
		{"deeply nested managed fields", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(
			strings.Repeat(`{"f:a":`, 100) + "{}" + strings.Repeat("}", 100))}}}}, "nested deeper"},
	} {
		err := Object(c.o)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestRepairReplacesInvalidQuantities(t *testing.T) {
	for in, want := range map[string]string{
		`{"status":{"capacity":{"cpu":"1e999999999","memory":"1Gi"}}}`: `{"status":{"capacity":{"cpu":"0","memory":"1Gi"}}}`,
		`{"status":{"capacity":{"cpu":1e-999999999}}}`:                 `{"status":{"capacity":{"cpu":"0"}}}`,
		`{"metadata":{"annotations":{"a":"1e999999999"}}}`:             `{"metadata":{"annotations":{"a":"1e999999999"}}}`,
	} {
		got, places := new(Repairer).Repair([]byte(in), &corev1.Node{})
		if string(got) != want || (in != want) != (len(places) == 1) {
			t.Errorf("Repair of %s returned %s, %v", in, got, places)
		}
	}
	in := `{"data":{"spec":{"template":{"spec":{"overhead":{"cpu":"1e-999999999"}}}}}}`
	if got, places := new(Repairer).Repair([]byte(in), &appsv1.ControllerRevision{}); JSON(got,
		&appsv1.ControllerRevision{}) != nil || len(places) != 1 {
		t.Errorf("Repair of %s returned %s, %v", in, got, places)
	}
	if JSON([]byte(in), &appsv1.ControllerRevision{}) == nil {
		t.Error("Object accepts a revision with a bomb in its data")
	}
}

func TestTextAndCleanShowHiddenCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"ok":                  "ok",
		"müßte 日本 \U0001f600": "müßte 日本 \U0001f600",
		"a\u202eb":            `a\u202eb`,
		"a\u200bb\ufeff":      `a\u200bb\ufeff`,
		"\x1b[31m":            `\u001b[31m`,
		"two\nlines\t":        "two\nlines\t",
		"\u2028":              `\u2028`,
	} {
		if got := Text(in, 100); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := Text(strings.Repeat("ä", 100), 21); got != strings.Repeat("ä", 9)+"…" {
		t.Errorf("the shortened text is %q", got)
	}
	one := resource.MustParse("1")
	n := corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Message: "a\u202eb"}},
		NodeInfo: corev1.NodeSystemInfo{OSImage: "\u200b"}, Capacity: corev1.ResourceList{"c\u202ep": one, "cpu": one}}
	Clean(&n, 100)
	if n.Conditions[0].Message != `a\u202eb` || n.NodeInfo.OSImage != `\u200b` || len(n.Capacity) != 2 ||
		n.Capacity[`c\u202ep`] != one || n.Capacity["cpu"] != one {
		t.Errorf("the cleaned value is %+v", n)
	}
	o := metav1.ObjectMeta{Annotations: map[string]string{"k": "a\u202eb",
		strings.Repeat("x", 200): strings.Repeat("y", 200), "ok": "ok"}}
	Clean(&o, 100)
	long := func(c string) string { return strings.Repeat(c, 97) + "…" }
	if want := map[string]string{"k": `a\u202eb`, long("x"): long("y"), "ok": "ok"}; !maps.Equal(o.Annotations, want) {
		t.Errorf("the cleaned text is %q", o.Annotations)
	}
}

// An accepted quantity is cheap: it has few digits when it is written, added and compared.
func FuzzQuantity(f *testing.F) {
	for _, s := range append(bombs, "1", "100m", "1.5Gi", "-0.000000001e-9", "1e18", "8Ei", "0e0") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		q, err := ParseQuantity(s)
		if err != nil {
			return
		}
		sum := q.DeepCopy()
		sum.Add(resource.MustParse("1n"))
		sum.Sub(q)
		_ = q.Cmp(resource.MustParse("1n")) + q.Cmp(resource.MustParse("888Pi"))
		b, err := json.Marshal(q)
		if bits := sum.AsDec().UnscaledBig().BitLen(); err != nil || len(b) > MaxNumber+2 || bits > 512 {
			t.Errorf("%q: written as %s, its sum has %d bits, %v; want few digits", s, b, bits, err)
		}
		again, err := ParseQuantity(q.String())
		if err != nil || again.Cmp(q) != 0 {
			t.Errorf("%q is written as %q, which is parsed as %v, %v", s, q.String(), again, err)
		}
	})
}

// Uids and digests are not checked as numbers. Other texts that may be numbers are checked.
func TestSuspicious(t *testing.T) {
	for text, want := range map[string]bool{
		`"uid":"0f3e12b7-8c1d-8e44-9a2e-11e45d0c2e99"`: false, `"digest":"a12e34"`: false, `"x-1e99"`: false,
		`"1e99"`: true, `1e99`: true, `" 1e99"`: true, `"\n1e99"`: true, `"\\n1e99"`: true, `"-1E+99"`: true,
		`"a":1e99`: true, `"a1":"x","b":2e10`: true,
		`"12e45678-8c1d"`: false, `"12e34ab"`: false, `"1e+99Ki"`: false, `"1e99\n"`: true, `"1e99 "`: true,
		`{"a":1e99}`: true, `"1\u0065999"`: true, "ba1e99": false, "e99": false,
	} {
		if got := suspicious([]byte(text), inWord); got != want {
			t.Errorf("suspicious(%s) is %v, want %v", text, got, want)
		}
	}
	if !suspicious([]byte("a1e99"), nil) {
		t.Error("suspicious without part accepts a1e99: in a protobuf the letter may be a tag")
	}
}

// A quantity with a letter before its number or after its exponent is refused at once, however
// large it is.
func FuzzAWordIsNotAQuantity(f *testing.F) {
	for _, s := range []string{"a", "k", "e", "E", "Ki", "n-", "x."} {
		f.Add(s, "1e999999999", "")
		f.Add("", "1e999999999", s)
	}
	f.Add("", "1e999999999", "-")
	f.Fuzz(func(t *testing.T, before, s, after string) {
		text := before + s + after
		if len(text) > 200 || suspicious([]byte(text), inWord) || !suspicious([]byte(text), nil) {
			return
		}
		if q, err := resource.ParseQuantity(strings.TrimSpace(text)); err == nil {
			t.Errorf("%q is parsed as the quantity %s", text, q.String())
		}
	})
}

// Accepted text can be decoded. An accepted object can be encoded, decoded, compared and accepted
// again.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"spec":{"overhead":{"cpu":"1e9"},"containers":[{"env":[{"name":"a","value":"1e999999999"}],"resources":{"limits":{"cpu":"1\u0065-9"}}}]}}`))
	for _, s := range bombs {
		f.Add([]byte(`{"spec":{"overhead":{"cpu":"` + s + `"}}}`))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var p corev1.Pod
		if JSON(data, &p) != nil || json.Unmarshal(data, &p) != nil || Object(&p) != nil {
			return
		}
		b, err := json.Marshal(&p)
		if err != nil || len(b) > 4*len(data)+64<<10 {
			t.Fatalf("%q is encoded as %d bytes: %v", data, len(b), err)
		}
		if err := JSON(b, &p); err != nil {
			t.Errorf("%s was accepted, but its encoding is refused: %v", b, err)
		}
	})
}

// Accepted text is small with its aliases expanded.
func FuzzYAML(f *testing.F) {
	f.Add([]byte(laughs()))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("spec: {overhead: {cpu: 1e-99}}"))
	f.Fuzz(func(t *testing.T, data []byte) { _ = YAML(data, &corev1.Pod{}) })
}

// Accepted text can be decoded.
func FuzzProto(f *testing.F) {
	scheme := runtime.NewScheme()
	_ = corev1.AddToScheme(scheme)
	codec := protobuf.NewSerializer(scheme, scheme)
	for _, s := range []string{"1e123456789", "4"} {
		p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			Spec: corev1.PodSpec{Overhead: corev1.ResourceList{"cpu": resource.MustParse(s)}}}
		b, err := runtime.Encode(codec, p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if Proto(data, &corev1.Pod{}) != nil {
			return
		}
		o, _, err := codec.Decode(data, nil, nil)
		if p, ok := o.(*corev1.Pod); err == nil && ok && Object(p) == nil {
			_, _ = json.Marshal(p)
		}
	})
}

// A damaged text is read to its end. Otherwise the test hangs.
func TestDamagedTextIsReadToItsEnd(t *testing.T) {
	text := `{"spec":{"overhead":{"cpu":"1e9"},"containers":[{"name":"a","env":[{"name":"a","value":"1\u0065-9"}],"ports":[{"containerPort":8e01}]}]}}`
	for i := range text {
		for _, with := range []string{"", ",", ":", "[", "]", "{", "}", `"`, "0", "e00", `"A"0e00`, "\x85", "\x00"} {
			for _, text := range []string{text[:i] + with, text[:i] + with + text[i:], text[:i] + with + text[i+1:]} {
				for _, into := range []any{&corev1.Pod{}, &corev1.Node{}, &map[string]any{}, &[]string{}} {
					if json.Unmarshal([]byte(text), into) == nil {
						continue
					}
					_ = JSON([]byte(text), into) // an error is the decoder's, not this package's
				}
			}
		}
	}
	for _, text := range []string{`["A"0e00`, `{"a"0e00`, `{"a":0e00"b"`, `[[[0e00 0e00`, `{0e00:1}`, `[0e00`,
		`0e00]`} {
		_ = JSON([]byte(text), &corev1.Pod{})
	}
}
