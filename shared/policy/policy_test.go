package policy_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/shared/policy"
	"flotilla.dev/shared/policy/policytest"
)

func TestJudge(t *testing.T) {
	for _, c := range policytest.Table {
		t.Run(c.Name, func(t *testing.T) {
			spec := c.Spec()
			var got []string
			for _, r := range c.Policy().Judge(&spec, field.NewPath("spec")) {
				got = append(got, r.Field.String()+": "+r.Why)
			}
			want := c.Field("spec.containers[0]")
			if (want == "") != (len(got) == 0) || len(got) > 1 || len(got) == 1 && !strings.HasPrefix(got[0], want) {
				t.Errorf("the refusals are %q, want %q", got, want)
			}
		})
	}
}

// The same rules apply to every kind of container.
func TestJudgeChecksEveryContainer(t *testing.T) {
	for _, c := range policytest.Table {
		want := c.Field("")
		inEphemeral := c.InInit()
		inEphemeral.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(inEphemeral.InitContainers[0])}}
		inEphemeral.InitContainers = nil
		if c.OfImage() { // else the refusal of the other container's image would come first
			inEphemeral.Containers = nil
		}
		inInit := c.InInit()
		if c.OfImage() {
			inInit.Containers = nil
		}
		for at, spec := range map[string]corev1.PodSpec{"spec.initContainers[0]": inInit,
			"spec.ephemeralContainers[0]": inEphemeral} {
			got := c.Policy().Judge(&spec, field.NewPath("spec"))
			if (want == "") != (len(got) == 0) || len(got) > 0 &&
				!strings.HasPrefix(got[0].Field.String()+": "+got[0].Why, c.Field(at)) {
				t.Errorf("%s, as %s: the refusals are %v, want %q", c.Name, at, got, c.Field(at))
			}
		}
	}
}

// The table has only some of the fields with which a container makes the device connect to a host.
func TestJudgeChecksEveryHostOfProbesAndHooks(t *testing.T) {
	h := &corev1.HTTPGetAction{Host: "127.0.0.1"}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: h,
		TCPSocket: &corev1.TCPSocketAction{Host: "::1"}}}
	hook := &corev1.LifecycleHandler{HTTPGet: h, TCPSocket: probe.TCPSocket}
	spec := corev1.PodSpec{Containers: []corev1.Container{{LivenessProbe: probe, ReadinessProbe: probe,
		StartupProbe: probe, Lifecycle: &corev1.Lifecycle{PostStart: hook, PreStop: hook}}}}
	if got := policy.Default().Judge(&spec, nil); len(got) != 10 {
		t.Errorf("got the refusals %v, want 10", got)
	}
}

// The line in a refusal allows exactly the refused part.
func TestTheLineInARefusalAllowsThePod(t *testing.T) {
	for _, c := range policytest.Table {
		spec := c.Spec()
		for _, r := range c.Policy().Judge(&spec, field.NewPath("spec")) {
			if r.Allow == "" || strings.Contains(r.Allow, "…") || strings.Contains(c.Document, "hostPaths: [/]") {
				continue
			}
			d, err := policy.Parse([]byte(r.Allow))
			if err != nil {
				if !strings.Contains(c.Pod, "..") && !strings.Contains(c.Pod, "path: 'var") { // no line allows these
					t.Errorf("%s: %q is not a line of a document: %v", c.Name, r.Allow, err)
				}
				continue
			}
			if refusals := d.Judge(&spec, field.NewPath("spec")); len(refusals) > 0 {
				t.Errorf("%s: with %q the pod is still refused: %v", c.Name, r.Allow, refusals)
			}
		}
	}
}

func TestTheZeroDocumentAllowsNothingOutsideTheContainer(t *testing.T) {
	for _, c := range policytest.Table {
		spec := c.Spec()
		if strings.Contains(c.Refused, "image") || strings.Contains(c.Refused, "hostPort") || c.Refused == "" {
			continue
		}
		if len((policy.Document{}).Judge(&spec, nil)) == 0 {
			t.Errorf("%s: the zero document allows the pod", c.Name)
		}
	}
	if (policy.Document{}).AllowsPath(policy.VolumesRoot) {
		t.Error("the zero document allows a host path")
	}
	if n := policy.Default().PidsLimit(); n != policy.DefaultPidsLimit {
		t.Errorf("the default document allows %d processes", n)
	}
	if n := (policy.Document{}).PidsLimit(); n != policy.DefaultPidsLimit {
		t.Errorf("the zero document allows %d processes", n)
	}
}

func TestAnInvalidDocumentIsRefused(t *testing.T) {
	for name, bad := range map[string]string{
		"an invalid host port":                  "hostPorts: [0]",
		"host ports from high to low":           "hostPorts: [90-80]",
		"host ports without an end":             "hostPorts: [80-]",
		"a misspelt key":                        "privileges: true",
		"a key in other letters":                "hostnetwork: true",
		"a repeated key":                        "privileged: false\nprivileged: true",
		"a relative path":                       "hostPaths: [relative]",
		"a path that is not clean":              "hostPaths: [/a/../b]",
		"a word instead of a boolean":           "privileged: perhaps",
		"a list":                                "[]",
		"a second document":                     "privileged: false\n---\nprivileged: true",
		"an invalid capability":                 "capabilities: ['*']",
		"an empty sysctl, which means all":      "unsafeSysctls: ['']",
		"a sysctl with a space":                 "unsafeSysctls: ['a b']",
		"a registry with a scheme":              "registries: ['https://registry.example.org']",
		"a registry that is a short name":       "registries: [nginx]",
		"a registry in capitals":                "registries: [Registry.example.org]",
		"a registry under another name":         "registries: [index.docker.io]",
		"a repository with a tag":               "registries: ['registry.example.org/team:1']",
		"a registry with a trailing slash":      "registries: [registry.example.org/]",
		"no processes":                          "podPidsLimit: -2",
		"too few processes to start":            "podPidsLimit: 1",
		"more processes than a kernel has":      "podPidsLimit: 99999999999",
		"a rule of signatures without keys":     "signatures: [{images: [registry.example.org]}]",
		"an unsigned rule with keys":            "signatures: [{unsigned: true, keys: [" + quoted(policytest.Ed25519) + "]}]",
		"an invalid key":                        "signatures: [{keys: [abc]}]",
		"a key with text after it":              "signatures: [{keys: [" + quoted(policytest.Ed25519+"abc") + "]}]",
		"a damaged key before another":          "signatures: [{keys: [" + quoted(strings.Replace(policytest.ECDSA, "M", "*", 1)+policytest.Ed25519) + "]}]",
		"an incomplete key before another":      "signatures: [{keys: [" + quoted(policytest.ECDSA[:60]+"\n"+policytest.Ed25519) + "]}]",
		"a private key":                         "signatures: [{keys: [" + quoted(strings.ReplaceAll(policytest.Ed25519, "PUBLIC", "PRIVATE")) + "]}]",
		"a rule for an invalid place":           "signatures: [{images: ['*'], unsigned: true}]",
		"a key of another curve":                "signatures: [{keys: [" + quoted(p384Key) + "]}]",
		"a list that contains itself":           "hostPaths: &a [&b [*b]]",
		"a hundred nested lists":                "hostPaths: " + strings.Repeat("[", 100) + strings.Repeat("]", 100),
		"an RSA key":                            "signatures: [{keys: [" + quoted(rsaKey) + "]}]",
		"an empty list of keys":                 "signatures: [{keys: []}]",
		"a tab":                                 "\tprivileged: true",
		"a document that is a number":           "1",
		"a signature that is a key without PEM": "signatures: [cosign.pub]",
	} {
		if d, err := policy.Parse([]byte(bad)); err == nil {
			t.Errorf("%s: %q is accepted as %+v", name, bad, d)
		}
	}
	for name, good := range map[string]string{
		"nothing":                   "",
		"comments only":             "# nothing yet\n",
		"no limit of processes":     "podPidsLimit: -1",
		"both kinds of keys":        "signatures: [{keys: [" + quoted(policytest.ECDSA) + ", " + quoted(policytest.Ed25519) + "]}]",
		"a word before a key":       "signatures: [{keys: [" + quoted("# of the build server\n"+policytest.Ed25519) + "]}]",
		"two keys in one text":      "signatures: [{keys: [" + quoted(policytest.ECDSA+policytest.Ed25519) + "]}]",
		"registries of every form":  "registries: [docker.io, docker.io/library, 'registry.example.org:5000', 'localhost:5000/a/b', localhost]",
		"a document with its start": "---\nhostPID: true\n",
	} {
		if _, err := policy.Parse([]byte(good)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func quoted(s string) string { return `"` + strings.ReplaceAll(s, "\n", `\n`) + `"` }

const rsaKey = "-----BEGIN PUBLIC KEY-----\nMFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBALKZD0nEffqM1ACuak0bijtqE2QrI/KL\nADv7l3kK3ppMyCuLKoF0fd7Ai2KW5ToIwzFofvJcS/STa6HA5gQenRUCAwEAAQ==\n-----END PUBLIC KEY-----\n"

const p384Key = "-----BEGIN PUBLIC KEY-----\nMHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEQnKHi+ojmZ+DvGii36d/rvjyRGACBOYt\n2dOEzpN7U7ueoakg/Rdbryf16jZgDPJcNNQJ1jBbY3X45EZmNv7EjeBINV3BKWDn\n97f8eRkphi1RN+SwOA2OFxec0hhrUzwB\n-----END PUBLIC KEY-----\n"

func FuzzParse(f *testing.F) {
	for _, c := range policytest.Table {
		f.Add([]byte(c.Document))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := policy.Parse(body)
		if err != nil {
			return
		}
		for _, c := range policytest.Table { // Judge terminates, and a valid document stays valid
			spec := c.Spec()
			d.Judge(&spec, nil)
		}
		if err := d.Validate(); err != nil {
			t.Errorf("%q is accepted, but its document is not valid: %v", body, err)
		}
	})
}
