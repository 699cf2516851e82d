package openapi

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"flotilla.dev/hub/admission"
)

// kubectl explain says how admission handles a field. After a change run go generate
// ./hub/kube/openapi.
func TestTheDocumentsSayHowAFieldIsHandled(t *testing.T) {
	var doc struct {
		Definitions map[string]struct {
			Properties map[string]struct{ Description string }
		}
	}
	if err := json.Unmarshal(body(t, get(t, "/openapi/v2", "Accept", "application/json")), &doc); err != nil {
		t.Fatal(err)
	}
	of, seen := regexp.MustCompile(`^io\.k8s\.api\.(core|coordination)\.v1\.(\w+)$`), 0
	for name, schema := range doc.Definitions {
		m := of.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		for field, p := range schema.Properties {
			seen++
			support, why := admission.SupportOf(m[2], field)
			refused, ignored := strings.HasPrefix(p.Description, "Not supported here: "), strings.HasPrefix(p.Description,
				"Has no effect here: ")
			right := !refused && !ignored
			switch support {
			case admission.Refused:
				right = p.Description == "Not supported here: "+why+"."
			case admission.Ignored:
				right = strings.HasPrefix(p.Description, "Has no effect here: "+why+". ")
			}
			if !right {
				t.Errorf("%s of %s: the documents have %.80q; run go generate ./hub/kube/openapi", field, m[2], p.Description)
			}
		}
	}
	if seen < 300 {
		t.Errorf("only %d fields were compared", seen)
	}
}
