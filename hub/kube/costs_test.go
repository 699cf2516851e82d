package kube

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	kresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/kube/resource"
)

// Each of these requests used to keep a processor, or the control loop, busy for minutes. They are
// refused with every verb and encoding.
func TestCostlyRequestsOfAnOperator(t *testing.T) {
	pod := func(spec string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"spec":{"containers":[{"name":"c","image":"i"` +
			spec + `}`
	}
	const bomb = `"1e-999999999"`
	limits := pod(`,"resources":{"limits":{"cpu":`+bomb+`}}`) + `]}}`
	var list, operations, tests strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&list, `{"name":"x%d"},`, i)
	}
	entries := strings.TrimSuffix(list.String(), ",")
	fmt.Fprintf(&operations, `[{"op":"add","path":"/metadata/finalizers","value":[%s0]}`, strings.Repeat("0,", 700_000))
	fmt.Fprintf(&tests, `[{"op":"add","path":"/metadata/annotations","value":{"x":"%s"}}`, strings.Repeat("x", 1<<20))
	for range 9_000 {
		operations.WriteString(`,{"op":"add","path":"/metadata/finalizers/0","value":0}`)
		tests.WriteString(`,{"op":"test","path":"/metadata/annotations/x","value":"y"}`)
	}
	object := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       corev1.PodSpec{Overhead: corev1.ResourceList{"cpu": kresource.MustParse("1e123456789")}}}
	proto, err := runtime.Encode(resource.ProtoCodec, object)
	if err != nil {
		t.Fatal(err)
	}
	laughs := "a0: &a0 [lol,lol,lol,lol,lol,lol,lol,lol,lol]\n"
	for i := range 8 {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 9), ","))
	}
	deep := strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)
	for _, c := range []struct{ name, method, path, media, body string }{
		{"a limit", "POST", ns + "/pods", "", limits},
		{"a limit in YAML", "POST", ns + "/pods", "application/yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {containers: [{name: c, image: i, resources: {limits: {cpu: \"1e-999999999\"}}}]}"},
		{"overhead in protobuf", "POST", ns + "/pods", resource.MediaProto, string(proto)},
		{"the size of an emptyDir", "POST", ns + "/pods", "", pods(pod(`}],"volumes":[{"name":"v","emptyDir":{"sizeLimit":` + bomb + `}`))},
		{"a divisor", "POST", ns + "/pods", "", pod(`,"env":[{"name":"E","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu","divisor":`+bomb+`}}}]`) + `]}}`},
		{"a capacity", "PATCH", "/api/v1/nodes/pi-1/status", mp, `{"status":{"capacity":{"cpu":` + bomb + `}}}`},
		{"a capacity in a strategic merge patch", "PATCH", "/api/v1/nodes/pi-1/status", smp, `{"status":{"capacity":{"cpu":` + bomb + `}}}`},
		{"a capacity in a JSON patch", "PATCH", "/api/v1/nodes/pi-1/status", jp, `[{"op":"replace","path":"/status/capacity/cpu","value":` + bomb + `}]`},
		{"a limit in an apply", "PATCH", ns + "/pods/b?fieldManager=t", ssa, limits},
		{"the data of a revision", "POST", apps + "/controllerrevisions", "", `{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{"name":"b"},"revision":1,"data":{"spec":{"template":{"spec":{"overhead":{"cpu":` + bomb + `}}}}}}`},
		{"an eviction nested deep", "POST", ns + "/pods/web-1/eviction", "", `{"apiVersion":"policy/v1","kind":"Eviction","x":` + deep + `}`},
		{"nesting", "POST", ns + "/pods", "", deep},
		{"a patch nested deep", "PATCH", "/api/v1/nodes/pi-1", mp, deep},
		{"aliases", "PATCH", "/api/v1/nodes/pi-1?fieldManager=t", ssa, laughs},
		{"aliases in a merge patch", "PATCH", "/api/v1/nodes/pi-1", mp, laughs},
		{"aliases in an object", "POST", ns + "/configmaps", "application/yaml", laughs},
		{"a hundred thousand entries to be merged", "PATCH", "/api/v1/nodes/pi-1", smp, `{"status":{"conditions":[` + strings.ReplaceAll(entries, "name", "type") + `]}}`},
		{"a hundred thousand variables to be applied", "PATCH", ns + "/pods/b?fieldManager=t", ssa, pod(`,"env":[`+entries+`]`) + `]}}`},
		{"a hundred thousand variables", "POST", ns + "/pods", "", pod(`,"env":[`+entries+`]`) + `]}}`},
		{"operations on a long list", "PATCH", "/api/v1/nodes/pi-1", jp, operations.String() + "]"},
		{"operations that look at a long text", "PATCH", "/api/v1/nodes/pi-1", jp, tests.String() + "]"},
		{"a NUL in a variable", "POST", ns + "/pods", "", pod(`,"env":[{"name":"E","value":"a\u0000b"}]`) + `]}}`},
		{"a NUL in a config map", "POST", ns + "/configmaps", "", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"\u0000"}}`},
		{"a control character in a path", "POST", ns + "/pods", "", pod(`,"workingDir":"/a\u0007"`) + `]}}`},
		{"a bidi control character in an image", "POST", ns + "/pods", "", pod(`,"workingDir":"/a\u202e"`) + `]}}`},
		{"a bidi control character in a site's description", "POST", "/apis/flotilla.dev/v1alpha1/sites", "", `{"apiVersion":"flotilla.dev/v1alpha1","kind":"Site","metadata":{"name":"s"},"spec":{"description":"a\u202eb"}}`},
		{"a profile's reserve", "POST", "/apis/flotilla.dev/v1alpha1/boardprofiles", "", `{"apiVersion":"flotilla.dev/v1alpha1","kind":"BoardProfile","metadata":{"name":"s"},"spec":{"match":{"compatible":["a"]},"resources":{"systemReserved":{"cpu":` + bomb + `}}}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := seeded()
			rev := f.Snapshot().Revision
			w := request{method: c.method, path: c.path, contentType: c.media, body: c.body}.do(newServer(f))
			if w.Code < 400 || w.Code > 422 || f.Snapshot().Revision != rev {
				t.Errorf("%d %.300s; want a refusal that changes nothing", w.Code, w.Body)
			}
			if w.Code == http.StatusNotFound || w.Code == http.StatusUnsupportedMediaType {
				t.Errorf("the test does not reach its check: %d %.300s", w.Code, w.Body)
			}
			t.Logf("%d %.200s", w.Code, w.Body)
		})
	}
}

// pods closes the brackets that pod has opened, for cases that continue after the container.
func pods(s string) string { return strings.TrimSuffix(s, "}") + "}]}}" }

// A huge number is refused only in fields that are quantities.
func TestHugeNumbersAreRefusedInQuantitiesOnly(t *testing.T) {
	s := newServer(seeded())
	send(t, s, "POST", ns+"/configmaps", "",
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"n","annotations":{"a":"1e999999999"}},"data":{"a":"1e-999999999"}}`, 201, nil)
	send(t, s, "POST", ns+"/pods", "", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"n"},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"E","value":"1e999999999"}],"args":["1e999999999","\u001b[31m"]}]}}`, 201, nil)
	send(t, s, "PATCH", "/api/v1/nodes/pi-1?fieldManager=t", ssa,
		"apiVersion: v1\nkind: Node\nmetadata: {name: pi-1, annotations: &a {x: \"1e999999999\"}}\n", 200, nil)
}
