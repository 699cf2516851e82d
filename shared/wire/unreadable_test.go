package wire

import (
	"runtime"
	"strings"
	"testing"
)

func TestAnUnreadablePodDoesNotAffectOthers(t *testing.T) {
	const meta = `"metadata":{"name":"bad","namespace":"default","uid":"u2"`
	for _, c := range []struct{ name, pod, unreadable string }{
		{"a NUL in an environment variable is left to the device", `{` + meta + `},"spec":{"containers":[{"name":"c","env":[{"name":"X","value":"a\u0000b"}]}]}}`, ""},
		{"a list in place of a text", `{` + meta + `},"spec":{"nodeName":[]}}`, "must be a string"},
		{"a repeated field", `{` + meta + `},"spec":{},"spec":{}}`, "duplicate field"},
		{"a quantity that takes minutes to compare", `{` + meta + `},"spec":{"containers":[{"resources":{"limits":{"cpu":"1e999999999"}}}]}}`, "1e999999999"},
		{"an invalid quantity", `{` + meta + `},"spec":{"containers":[{"resources":{"limits":{"cpu":"four"}}}]}}`, "quantities"},
		{"an invalid time", `{` + meta + `,"creationTimestamp":"yesterday"}}`, "yesterday"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := ParseDesired([]byte(`{"generation":7,"hub":"h","pods":[{"metadata":{"name":"good","uid":"u1"}},` + c.pod + `,
				{"metadata":{"name":"leaving","uid":"u3","deletionTimestamp":"2026-11-20T10:02:11Z"}}],"configMaps":[{"data":{"a":"\u0000"}}]}`))
			if err != nil || d.Generation != 7 || len(d.Pods) != 3 {
				t.Fatalf("%d pods of generation %d: %v", len(d.Pods), d.Generation, err)
			}
			if d.Pods[0].Name != "good" || d.Pods[1].Name != "bad" || d.Pods[1].Namespace != "default" ||
				d.Pods[1].UID != "u2" || d.Pods[2].DeletionTimestamp == nil {
				t.Errorf("the pods are %+v", d.Pods)
			}
			if why := d.Pods[1].Annotations[Unreadable]; (why == "") != (c.unreadable == "") ||
				!strings.Contains(why, c.unreadable) {
				t.Errorf("the reason is %q, want %q", why, c.unreadable)
			}
		})
	}
	t.Run("a pod without a readable name", func(t *testing.T) {
		d, err := ParseDesired([]byte(`{"generation":7,"hub":"h","pods":[5,null,"x",[]]}`))
		if err != nil || len(d.Pods) != 4 || d.Pods[3].Annotations[Unreadable] == "" {
			t.Errorf("the pods are %+v, %v; want four, the last marked", d.Pods, err)
		}
	})
	t.Run("an unreadable pod can be deleted", func(t *testing.T) {
		d, err := ParseDesired([]byte(`{"generation":7,"hub":"h","pods":[{"metadata":{"uid":"u","deletionTimestamp":"2026-11-20T10:02:11Z","deletionGracePeriodSeconds":5},"spec":1}]}`))
		if err != nil || d.Pods[0].DeletionTimestamp == nil || *d.Pods[0].DeletionGracePeriodSeconds != 5 {
			t.Errorf("the pods are %+v, %v; want the deletion to be read", d.Pods, err)
		}
	})
	t.Run("a NUL outside of objects is refused", func(t *testing.T) {
		if _, err := ParseDesired([]byte(`{"generation":7,"hub":"h\u0000"}`)); err == nil {
			t.Error("a NUL in the hub's id is accepted")
		}
	})
}

func TestAnUnreadableConfigMapOrSecretDoesNotAffectOthers(t *testing.T) {
	for _, c := range []struct{ name, object string }{
		{"a number in place of a text", `{"metadata":{"name":"bad","namespace":"default"},"data":{"a":1}}`},
		{"invalid base64", `{"metadata":{"name":"bad","namespace":"default"},"data":{"a":"%%%"},"binaryData":{"a":"%%%"}}`},
		{"a repeated field", `{"metadata":{"name":"bad","namespace":"default"},"data":{},"data":{}}`},
		{"a list in place of the data", `{"metadata":{"name":"bad","namespace":"default"},"data":[]}`},
		{"a list in place of the object", `[]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := ParseDesired([]byte(`{"generation":7,"hub":"h","pods":[{"metadata":{"name":"good","uid":"u1"}}],
				"configMaps":[{"metadata":{"name":"good"},"data":{"a":"b"}},` + c.object + `],"secrets":[` + c.object + `,{"metadata":{"name":"good"},"data":{"a":"Yg=="}}]}`))
			if err != nil || len(d.Pods) != 1 || len(d.ConfigMaps) != 2 || len(d.Secrets) != 2 {
				t.Fatalf("parsed %+v, %v; want one pod, two config maps and two secrets", d, err)
			}
			if d.ConfigMaps[0].Data["a"] != "b" || string(d.Secrets[1].Data["a"]) != "b" {
				t.Errorf("the valid objects are %+v and %+v", d.ConfigMaps[0], d.Secrets[1])
			}
			configMap, secret := d.ConfigMaps[1], d.Secrets[0]
			if configMap.Annotations[Unreadable] == "" || secret.Annotations[Unreadable] == "" ||
				len(configMap.Data)+len(secret.Data) > 0 {
				t.Errorf("the invalid objects are %+v and %+v", configMap, secret)
			}
			if c.object != "[]" && (configMap.Name != "bad" || secret.Namespace != "default") {
				t.Errorf("the names are %s and %s", configMap.Name, secret.Namespace)
			}
		})
	}
}

// Without a limit, four megabytes of braces would become two gigabytes of empty pods, containers or
// secrets.
func TestAPayloadOfBracesCostsLittle(t *testing.T) {
	braces := func(n int) string { return strings.Repeat("{},", n) + "{}" }
	for name, text := range map[string]string{
		"pods":                `{"generation":1,"hub":"h","pods":[` + braces(1_300_000) + `]}`,
		"containers":          `{"generation":1,"hub":"h","pods":[{"spec":{"containers":[` + braces(1_300_000) + `]}}]}`,
		"in many":             `{"generation":1,"hub":"h","pods":[` + strings.Repeat(`{"spec":{"containers":[`+braces(100)+`]}},`, 4000) + `{}]}`,
		"secrets":             `{"generation":1,"hub":"h","secrets":[` + braces(1_300_000) + `]}`,
		"lists":               `{"generation":1,"hub":"h","pods":[` + strings.Repeat("[],", 1_300_000) + `[]]}`,
		"the most containers": `{"generation":1,"hub":"h","pods":[{"spec":{"containers":[` + braces(131_000) + `]}}]}`,
		"the most pods":       `{"generation":1,"hub":"h","pods":[` + braces(131_000) + `]}`,
	} {
		data := []byte(text)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d, err := ParseDesired(data)
		runtime.ReadMemStats(&after)
		if (err == nil) != strings.HasPrefix(name, "the most") || len(d.Pods) > MaxPods+1 {
			t.Errorf("%s: %d pods, %v", name, len(d.Pods), err)
		}
		if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; mb > 400 {
			t.Errorf("%s: parsing takes %d MiB for %d KiB", name, mb, len(data)>>10)
		}
	}
}
