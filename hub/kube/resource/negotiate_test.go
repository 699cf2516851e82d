package resource

import (
	"net/http/httptest"
	"testing"
)

func TestNegotiate(t *testing.T) {
	all := []string{MediaJSON, MediaYAML, MediaProto}
	kubectlGet := "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
	for _, c := range []struct {
		name, accept string
		media        []string
		want         Form
		bad          bool
	}{
		{name: "kubectl get asks for a table", accept: kubectlGet, media: all, want: Form{Media: MediaJSON, As: "Table", Include: "Metadata"}},
		{name: "the order of parameters does not matter", accept: "application/json;g=meta.k8s.io;v=v1;as=Table", media: all, want: Form{Media: MediaJSON, As: "Table", Include: "Metadata"}},
		{name: "a v1beta1 table", accept: "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", media: all, want: Form{Media: MediaJSON, As: "Table", Old: true, Include: "Metadata"}},
		{name: "v1beta1 metadata in protobuf", accept: "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1", media: all, want: Form{Media: MediaProto, As: "PartialObjectMetadata", Old: true}},
		{name: "a table of an unknown version is skipped", accept: "application/json;as=Table;v=v1alpha1;g=meta.k8s.io,application/json", media: all, want: Form{Media: MediaJSON}},
		{name: "no header means JSON", media: all, want: Form{Media: MediaJSON}},
		{name: "anything means JSON", accept: "*/*", media: all, want: Form{Media: MediaJSON}},
		{name: "protobuf first", accept: "application/vnd.kubernetes.protobuf,application/json", media: all, want: Form{Media: MediaProto}},
		{name: "protobuf is skipped for kinds without it", accept: "application/vnd.kubernetes.protobuf,application/json", media: []string{MediaJSON}, want: Form{Media: MediaJSON}},
		{name: "a table has no protobuf form", accept: "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json", media: all, want: Form{Media: MediaJSON}},
		{name: "metadata in protobuf", accept: "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json", media: all, want: Form{Media: MediaProto, As: "PartialObjectMetadata"}},
		{name: "the quality decides", accept: "application/json;q=0.1, application/yaml;q=0.9", media: all, want: Form{Media: MediaYAML}},
		{name: "an unreadable clause is skipped", accept: ";;,application/yaml", media: all, want: Form{Media: MediaYAML}},
		{name: "no supported type", accept: "text/html", media: all, bad: true},
		{name: "an unknown kind", accept: "application/json;as=Poem;v=v1;g=meta.k8s.io", media: all, bad: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/api/v1/nodes", nil)
			if c.accept != "" {
				r.Header.Set("Accept", c.accept)
			}
			got, err := Negotiate(r, c.media, "Table", "PartialObjectMetadata")
			if (err != nil) != c.bad || got != c.want {
				t.Errorf("negotiate(%q) = %+v, %v; want %+v", c.accept, got, err, c.want)
			}
		})
	}
}
